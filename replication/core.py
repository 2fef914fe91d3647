"""The rules of replication, without a clock, a socket, a thread or a file.

Theory: Raft (docs/replication.md). Events go in, with the time; what is to be done comes out as a
``Ready``. The same events give the same answers, so a whole group of peers can be run in one
thread, with every fault there is, many thousands of times.

Rules
- After every input the driver takes ``ready()`` and does it completely before the next.
- Our own mistakes are assertions. What a peer says wrongly is an event ``fault``, and is ignored.
"""

from __future__ import annotations

from .following import Following
from .messages import (
    Ack,
    Append,
    AskVote,
    HardState,
    Heartbeat,
    Message,
    Meta,
    SnapshotOffer,
    StoreIds,
    TakeOver,
    Vote,
)
from .progress import NEVER, Progress
from .ready import Ready
from .states import Why


class Core(Following):
    """One peer of a group. Not thread-safe."""

    # State to look at

    @property
    def hard(self) -> HardState:
        return self._hard

    @property
    def commit(self) -> int:
        return self.log.commit

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def lease_until(self) -> float:
        """The lease of this master ends then; minus infinity if there is none."""
        leading = self._leading
        return NEVER if leading is None or leading.handing_to else leading.lease_until

    def leased(self, now: float) -> bool:
        """Whether this peer is master and no other can be."""
        return now < self.lease_until

    @property
    def may_propose(self) -> bool:
        """Whether entries may be appended here."""
        return self._leading is not None and self._leading.may_propose

    @property
    def progress(self) -> dict[str, Progress]:
        """What a master knows of the others; empty on a standby. To read, not to keep."""
        return {} if self._leading is None else self._leading.progress

    @property
    def admitted(self) -> StoreIds:
        """Node id and store of the peers that count, by the last committed configuration."""
        return self.log.committed

    # Inputs

    def tick(self, now: float) -> None:
        """Time has passed. To be called about every 10 ms."""
        self._now = now
        if self._leading is not None:
            why = self._leading.tick(now)
            if why is not None:
                self._depose(why)
        elif now >= self._election_due:
            self._stand()

    def step(self, message: Message, now: float) -> None:
        """A message has come in."""
        self._now = now
        assert self._out.receive is None, "ready() was not taken after the last Append"
        if message.to != self.me or message.sender not in self._others:
            self._fault(message, "not for this peer, or not from one")
        elif isinstance(message, Ack):
            self._on_ack(message)
        elif isinstance(message, (Append, Heartbeat, SnapshotOffer)):
            if self._hear_master(message):
                self._obey(message)
        elif isinstance(message, AskVote):
            self._on_ask(message)
        elif isinstance(message, Vote):
            self._on_vote(message)
        elif isinstance(message, TakeOver):
            self._on_take_over(message)
        else:
            self._fault(message, "unknown kind")

    def appended(self, index: int, meta: Meta, now: float) -> None:
        """Master: an own entry was written to the journal. One of an epoch that is over is ignored;
        ``truncate_after`` has cut it off."""
        self._now = now
        if self._leading is None or meta.epoch != self.epoch:
            return
        self.log.append(index, meta)
        self._leading.appended(index, configuration=meta.stores is not None)
        self._settle()

    def persisted(self, index: int, now: float) -> None:
        """The journal is on disk up to ``index``, as it stands *now*: a position from before a
        ``truncate_after`` that was done meanwhile must not be passed."""
        self._now = now
        log = self.log
        log.durable = max(log.durable, min(index, log.last_index))
        if self._leading is not None:
            self._leading.count()
            self._settle()
        elif self.master is not None:
            self._follow_commit()
            if log.acknowledged > self._acknowledged:
                self._acknowledge(self.master, self._echo)

    def write_failed(self, last_index: int, now: float) -> None:
        """The journal could not be written and ends at ``last_index``; all behind is gone."""
        self._now = now
        if last_index >= self.log.last_index:
            return
        self._event("log-cut", last_index=last_index)
        self.log.cut(last_index)
        self._out.truncate_after = last_index
        if self._leading is not None:
            self._depose(Why.LOG_CUT)
        elif self._candidacy is not None:
            self._become(Why.LOG_CUT)
        self._settle()

    def log_begins(self, first_index: int) -> None:
        """Entries below ``first_index``, which is at most ``commit + 1``, are no longer in the
        journal."""
        self.log.drop_below(first_index)

    def wants_snapshot(self, index: int, epoch: int) -> bool:
        """Whether a snapshot that ends with this entry would bring news. To be asked again just
        before the log is replaced: a log that has come to hold the entry may also hold later
        ones that were acknowledged, and must not be lost."""
        log = self.log
        return self._leading is None and index > log.commit and log.epochs.epoch_at(index) != epoch

    def snapshot_installed(self, index: int, epoch: int, stores: StoreIds, now: float) -> None:
        """A snapshot took the log's place: it ends at the entry ``index`` of ``epoch``, and
        ``stores`` were admitted there. Only for one that was wanted."""
        self._now = now
        assert self.wants_snapshot(index, epoch)
        self.log.replace(index, epoch, stores)
        self._out.commit = index
        if self._candidacy is not None:
            self._become(Why.LOG_CUT)
        self._settle()
        if self.master is not None:
            self._acknowledge(self.master, -1.0)

    def unsent(self, peer: str, from_index: int, now: float) -> None:
        """What was to be shipped to ``peer`` from ``from_index`` on did not leave."""
        self._now = now
        if self._leading is not None:
            self._leading.unsent(peer, from_index, now)

    def hand_over(self, now: float, to: str | None = None) -> None:
        """Master: have another elected, if one is near; ``may_propose`` and the lease end here."""
        self._now = now
        if self._leading is not None:
            self._leading.begin_hand_over(to, now)

    # Output

    def ready(self) -> Ready | None:
        """What is to be done now; ``None`` for nothing."""
        if self._leading is not None:
            self._leading.ship(self._now)
        out = self._out
        if self._hard is not self._persisted_hard and self._hard != self._persisted_hard:
            out.hard = self._persisted_hard = self._hard
        if not out:
            return None
        self._out = Ready()
        return out
