"""The rules of replication, without a clock, a socket, a thread or a file.

Theory: Raft (docs/replication.md). Events go in, with the time; a ``Ready`` with what is to be done
comes out. The same events give the same results, so a whole group of peers can be run in one
thread, with every fault there is, many thousands of times.

A core has a ``Standing`` (role, epoch, vote) and a log; it takes part in elections (``Voting``),
obeys a master (``Following``), and has a ``MasterState`` while it is one itself. These do not use
each other: what an event in one means for the others is decided here.

Rules
- After every input the driver takes ``ready()`` and does it completely before the next.
- Our own mistakes are assertions. A message that breaks the rules is ignored and logged as
  ``fault``.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Mapping, Sequence

from ...wheel.journal.epochs import Epochs
from ...wheel.state import StoreIds
from .election import EPOCHS_AHEAD_MAX, LOG_BEHIND
from .following import Following
from .logview import LogView
from .master import MasterState
from .messages import (
    Ack,
    Append,
    EntryMeta,
    HardState,
    Heartbeat,
    PeerMessage,
    RequestVote,
    SnapshotOffer,
    TakeOver,
    Vote,
)
from .progress import Progress
from .ready import Elected, Ready
from .standing import Standing
from .states import Role, Why
from .timing import NEVER, Timing
from .voting import Voting


class Core:
    """One peer of a group. Not thread-safe. All times are seconds of the same monotonic clock."""

    def __init__(
        self,
        me: str,
        peers: Sequence[str],
        timing: Timing,
        *,
        store: bytes,
        hard: HardState,
        epochs: Epochs,
        stores: Sequence[tuple[int, StoreIds]],
        commit: int,
        now: float,
        random: random_module.Random,
    ) -> None:
        """``peers``: all that are configured, this one too. ``store``: this data directory's id.
        ``hard``: as last persisted. ``epochs``: of the log, all durable; the core keeps the object.
        ``stores``: the configuration entries that name admitted stores, with their indexes: the
        last committed one and all later ones. ``commit``: the index known to be committed."""
        assert me in peers
        assert len(set(peers)) == len(peers)
        self.log = LogView(epochs, stores, commit)
        self._timing = timing
        self._others = tuple(peer for peer in peers if peer != me)
        self._now = now
        self._standing = Standing(me, store, hard)
        self._voting = Voting(self._standing, self.log, peers, timing, random, now)
        self._following = Following(self._standing, self.log)
        self._leading: MasterState | None = None
        self._standing.settle(self.log)

    # State to look at

    @property
    def me(self) -> str:
        return self._standing.me

    @property
    def role(self) -> Role:
        return self._standing.role

    @property
    def epoch(self) -> int:
        return self._standing.epoch

    @property
    def master(self) -> str | None:
        """The master of this epoch, which may be this peer; None: not known."""
        return self._standing.master

    @property
    def waits_for(self) -> Mapping[str, str]:
        """The peers whose votes were missing when this one last asked, and why; empty if there is a
        master, or this peer has not asked yet."""
        return self._voting.waits_for

    @property
    def forms_group(self) -> bool:
        """True if it asks for the first epoch of a new group, for which all peers are needed."""
        return self._voting.forms_group

    @property
    def hard(self) -> HardState:
        return self._standing.hard

    @property
    def commit(self) -> int:
        return self.log.commit

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def lease_until(self) -> float:
        """The end of this master's lease, s; minus infinity if there is none."""
        return NEVER if self._leading is None else self._leading.lease_until

    def leased(self, now: float) -> bool:
        """True if this peer is master and no other can be."""
        return now < self.lease_until

    @property
    def may_propose(self) -> bool:
        """True if entries may be appended here."""
        return self._leading is not None and self._leading.may_propose

    @property
    def progress(self) -> dict[str, Progress]:
        """The progress of each other peer; empty on a standby. Valid until the next input."""
        return {} if self._leading is None else self._leading.progress

    @property
    def admitted(self) -> StoreIds:
        """Node id and store of the peers that count, by the last committed configuration."""
        return self.log.committed

    # Inputs

    def tick(self, now: float) -> None:
        """Do what is due by ``now``. Call it several times in a heartbeat."""
        self._now = now
        if self._leading is not None:
            why = self._leading.tick(now)
            if why is not None:
                self._depose(why)
        elif now >= self._voting.due:
            self._lead(self._voting.stand(now))

    def step(self, message: PeerMessage, now: float) -> None:
        """Handle a message that a peer has sent."""
        self._now = now
        standing = self._standing
        assert standing.out.receive is None, "ready() was not taken after the last Append"
        if message.to != self.me or message.sender not in self._others:
            standing.fault(message, "not for this peer, or not from one")
        elif message.epoch > self.epoch + EPOCHS_AHEAD_MAX:
            standing.fault(message, f"epoch {message.epoch} is far beyond {self.epoch}")
        elif isinstance(message, Ack):
            self._enter_newer(message.epoch, of_group=False)
            if message.epoch == self.epoch and self._leading is not None:
                self._leading.answered(message, now)
                standing.settle(self.log)
        elif isinstance(message, (Append, Heartbeat, SnapshotOffer)):
            self._follow_master(message)
        elif isinstance(message, RequestVote):
            reason = self._voting.why_not(message, now)
            # For any other reason, a peer that is cut off or not admitted could depose a master.
            if not message.pre and reason in {"", LOG_BEHIND}:
                self._enter_newer(message.epoch, of_group=not reason)
            self._voting.answer(message, reason, now)
        elif isinstance(message, Vote):
            if not (message.pre and message.granted):
                self._enter_newer(message.epoch, of_group=False)
            self._lead(self._voting.count(message, now))
        elif isinstance(message, TakeOver):
            if message.epoch == self.epoch and message.sender == self.master:
                self._lead(self._voting.take_over(now))
        else:
            standing.fault(message, "unknown kind")

    def appended(self, index: int, meta: EntryMeta, now: float) -> None:
        """Master: an own entry was written to the journal. An entry of an earlier epoch is ignored,
        as ``truncate_after`` has cut it off."""
        self._now = now
        if self._leading is None or meta.epoch != self.epoch:
            return
        self.log.append(index, meta)
        self._leading.appended(index, configuration=meta.stores is not None)
        self._standing.settle(self.log)

    def persisted(self, index: int, now: float) -> None:
        """The journal is on disk up to ``index``, as it stands *now*: a position from before a
        ``truncate_after`` that was done meanwhile must not be passed."""
        self._now = now
        self.log.persisted(index)
        if self._leading is not None:
            self._leading.count()
            self._standing.settle(self.log)
        elif self.master is not None:
            self._following.persisted()

    def write_failed(self, last_index: int, now: float) -> None:
        """The journal could not be written and ends at ``last_index``; all behind is gone."""
        self._now = now
        if last_index >= self.log.last_index:
            return
        self._standing.event("log-cut", last_index=last_index)
        self.log.cut(last_index)
        self._standing.out.truncate_after = last_index
        self._give_up(Why.LOG_CUT)
        self._standing.settle(self.log)

    def log_begins(self, first_index: int) -> None:
        """The journal begins at ``first_index`` now, which is at most ``commit + 1``."""
        self.log.drop_below(first_index)

    def wants_snapshot(self, index: int, epoch: int) -> bool:
        """True if a snapshot that ends with this entry is needed. Check it again just before the
        log is replaced: a log that has meanwhile got the entry may also hold later ones that were
        acknowledged, and must not be lost. A snapshot of a later epoch than this peer has heard of
        is refused: a master that has one has announced that epoch before."""
        log = self.log
        if self._leading is not None or epoch > self.epoch:
            return False
        return index > log.commit and log.epochs.epoch_at(index) != epoch

    def snapshot_installed(self, index: int, epoch: int, stores: StoreIds, now: float) -> None:
        """A snapshot replaced the log: it ends at the entry ``index`` of ``epoch``, and ``stores``
        were admitted there. Only if ``wants_snapshot``."""
        self._now = now
        assert self.wants_snapshot(index, epoch)
        self.log.replace(index, epoch, stores)
        self._standing.out.commit = index
        self._give_up(Why.LOG_CUT)
        self._standing.settle(self.log)
        if self.master is not None:
            self._following.acknowledge(-1.0)

    def unsent(self, peer: str, from_index: int, now: float) -> None:
        """Entries from ``from_index`` on could not be sent to ``peer``."""
        self._now = now
        if self._leading is not None:
            self._leading.unsent(peer, from_index, now)

    def hand_over(self, now: float, to: str | None = None) -> None:
        """Master: end lease and ``may_propose``, and hand over to ``to``, or who has most."""
        self._now = now
        if self._leading is not None:
            self._leading.hand_over(to, now)

    # Output

    def ready(self) -> Ready | None:
        """The decisions that are to be carried out now; ``None``: there are none."""
        if self._leading is not None:
            self._leading.ship(self._now)
        return self._standing.pop_ready()

    # Changes of epoch and role

    def _enter_newer(self, epoch: int, *, of_group: bool) -> None:
        """Enter a newer epoch. ``of_group``: it has a master, or this peer will vote in it."""
        if epoch <= self.epoch:
            return
        if not of_group and self._voting.has_no_group:
            self._voting.note(epoch)
            return
        self._give_up(Why.NEWER_EPOCH)
        self._standing.enter(epoch)

    def _follow_master(self, message: Append | Heartbeat | SnapshotOffer) -> None:
        """Follow the sender, if it is the master of the epoch.

        A store without a group follows only a master that has committed an entry: another one may
        be of a founding that failed, and a store that followed it could not take part in the next
        founding.
        """
        standing, has_no_group = self._standing, self._voting.has_no_group
        if has_no_group and not isinstance(message, SnapshotOffer) and not message.commit:
            self._voting.note(message.epoch)
            return
        self._enter_newer(message.epoch, of_group=True)
        if message.epoch < self.epoch:
            standing.send(Ack(**standing.head(message.sender), durable=0, verified=0))
            return
        if standing.master not in {None, message.sender}:
            standing.fault(message, f"two masters in an epoch, {standing.master} is the other")
            return
        self._voting.give_up(Why.MASTER_HEARD)
        standing.follow(message.sender)
        self._voting.promise(self._now)
        self._following.obey(message)

    def _lead(self, won: Elected | None) -> None:
        if won is None:
            return
        standing = self._standing
        self._leading = MasterState(standing, self.log, self._others, self._timing, self._now)
        standing.out.elected = won
        standing.event("master", entries=self.last_index)
        self._leading.tick(self._now)

    def _depose(self, why: Why) -> None:
        standing = self._standing
        self._leading = None
        standing.become(why)
        standing.out.deposed = True
        standing.out.elected = None
        standing.out.admit = None
        standing.out.truncate_after = self.last_index
        self._voting.wait(self._now)
        standing.event("deposed", why=why.value)
        standing.settle(self.log)

    def _give_up(self, why: Why) -> None:
        if self._leading is not None:
            self._depose(why)
        else:
            self._voting.give_up(why)
