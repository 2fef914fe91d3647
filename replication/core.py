"""The rules of replication, without a clock, a socket, a thread or a file.

Theory: Raft (docs/replication.md). Events go in, with the time; what is to be done comes out as a
``Ready``. The same events give the same answers, so a whole group of peers can be run in one
thread, with every fault there is, many thousands of times.

Rules
- After every input the driver takes ``ready()`` and does it completely before the next.
- Our own mistakes are assertions. What a peer says wrongly is an event ``fault``, and is ignored.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Sequence

from ..wheel.epochs import Epochs
from .election import Candidacy, may_found, why_not
from .logview import LogView
from .mastery import Master
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
from .ready import Mastery, Ready, Value
from .states import TRANSITIONS, Role, Why
from .timing import Timing


class Core:
    """One peer. Not thread-safe. All times are seconds of the same monotonic clock."""

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
        ``hard``: as last persisted. ``epochs``: of the log, all of it durable; the core keeps it.
        ``stores``: the configuration entries that name admitted stores, with their indexes: the
        last committed one and all after it. ``commit``: known to be committed.
        """
        assert me in peers
        assert len(set(peers)) == len(peers)
        self.me = me
        self.peers = tuple(peers)
        self.timing = timing
        self.store = store
        self.role = Role.STANDBY if hard.voter else Role.LEARNER
        self.master: str | None = None
        self.log = LogView(epochs, stores, commit)
        self._hard = self._persisted_hard = hard
        self._random = random
        self._others = tuple(peer for peer in self.peers if peer != me)
        self._out = Ready()
        self._now = now
        self._candidacy: Candidacy | None = None
        self._leading: Master | None = None
        # A voter may have promised a master something just before it was started anew.
        self._promised_until = now + timing.promise_s if hard.voter else NEVER
        # The highest epoch a store that knows of no group has heard of: it counts from there when
        # it stands, but remembers an epoch on disk only with a vote or with a master.
        self._heard_epoch = hard.epoch
        self._master_commit = 0
        self._acknowledged = -1
        self._echo = -1.0
        self._election_due = 0.0
        self._await_election(soon=self._may_found)
        self._settle()

    # State to look at

    @property
    def epoch(self) -> int:
        return self._hard.epoch

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
        self._leading.appended(index)
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

    def snapshot_installed(self, index: int, epoch: int, stores: StoreIds, now: float) -> None:
        """A snapshot took the log's place: it ends at the entry ``index`` of ``epoch``, and
        ``stores`` were admitted there. Only one that is ahead of ``commit`` may be installed."""
        self._now = now
        assert self._leading is None
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
        if self._hard != self._persisted_hard:
            out.hard = self._persisted_hard = self._hard
        if not out:
            return None
        self._out = Ready()
        return out

    # Elections

    @property
    def _may_found(self) -> bool:
        return may_found(self.log, self._hard)

    @property
    def _promised(self) -> bool:
        """Whether a master, maybe this one, may rely on this peer not to vote."""
        return self._leading is not None or self._now < self._promised_until

    def _await_election(self, *, soon: bool = False) -> None:
        least = 2 * self.timing.heartbeat_s if soon else self.timing.promise_s
        spread = self._random.uniform(0, self.timing.election_spread_s)
        self._election_due = self._now + least + spread

    def _stand(self) -> None:
        """Ask whether a candidacy would be worth while."""
        founding = self._may_found
        if not founding and not (self._hard.voter and self.log.configurations):
            self._await_election()
            return
        self._become(Why.FOUNDING_TIMER if founding else Why.TIMER)
        self.master = None
        self._campaign(max(self.epoch, self._heard_epoch) + 1, pre=True, founding=founding)

    def _campaign(
        self, epoch: int, *, pre: bool = False, founding: bool = False, transfer: bool = False
    ) -> None:
        if not pre:
            self._enter(epoch)
            self._hard = HardState(epoch, self.me, self._hard.voter or founding)
        self._await_election(soon=True)
        log = self.log
        self._candidacy = Candidacy(
            epoch=epoch,
            pre=pre,
            founding=founding,
            transfer=transfer,
            electorate=log.latest,
            peers=len(self.peers),
            me=self.me,
            store=self.store,
        )
        for peer in self._others:
            head = self.me, peer, self.store, epoch
            self._send(AskVote(*head, log.last_index, log.last_epoch, pre, founding, transfer))
        self._event("asks", pre=pre, founding=founding, asked_epoch=epoch)
        self._see_if_won()

    def _see_if_won(self) -> None:
        candidacy = self._candidacy
        if candidacy is None or not candidacy.won:
            return
        if candidacy.pre:
            self._become(Why.WOULD_WIN)
            self._campaign(candidacy.epoch, founding=candidacy.founding)
            return
        self._candidacy = None
        self._become(Why.WON)
        stores = candidacy.grants if candidacy.founding else self.log.latest
        self.master = self.me
        self._leading = Master(
            me=self.me,
            store=self.store,
            peers=self._others,
            epoch=self.epoch,
            stores=stores,
            log=self.log,
            timing=self.timing,
            out=lambda: self._out,
            now=self._now,
        )
        self._out.became_master = Mastery(self.epoch, stores)
        self._event("master", entries=self.log.last_index)
        self._leading.tick(self._now)

    def _on_ask(self, ask: AskVote) -> None:
        reason = why_not(ask, self.log, self._hard, promised=self._promised)
        if ask.pre:
            self._answer_ask(ask, ask.epoch if not reason else self.epoch, reason)
            return
        if reason in {"", "log behind"} and ask.epoch > self.epoch:
            # Otherwise a peer that is cut off, or not admitted, could unseat a master.
            self._observe(ask.epoch, hears_group=not reason)
        if not reason and ask.epoch < self.epoch:
            reason = "old epoch"
        elif not reason and (self._hard.vote not in {"", ask.sender} or self.master is not None):
            reason = "vote is spent"
        if not reason:
            self._hard = HardState(ask.epoch, ask.sender, self._hard.voter or ask.founding)
            self._await_election()
            self._settle()
        self._answer_ask(ask, self.epoch, reason)

    def _answer_ask(self, ask: AskVote, epoch: int, reason: str) -> None:
        head = self.me, ask.sender, self.store, epoch
        self._send(Vote(*head, not reason, ask.pre, ask.founding, reason))

    def _on_vote(self, vote: Vote) -> None:
        if vote.epoch > self.epoch and not (vote.pre and vote.granted):
            self._observe(vote.epoch, hears_group=False)
        elif self._candidacy is not None:
            self._candidacy.count(vote)
            self._see_if_won()

    def _on_take_over(self, message: TakeOver) -> None:
        mine = message.epoch == self.epoch and message.sender == self.master
        if mine and self.role is Role.STANDBY and self.log.configurations:
            self._become(Why.TAKE_OVER)
            self._campaign(self.epoch + 1, transfer=True)

    # Epochs and roles

    def _observe(self, epoch: int, *, hears_group: bool) -> None:
        """There is a newer epoch. ``hears_group``: by a master, or by a vote about to be given."""
        if not hears_group and self._may_found and not self._hard.voter:
            self._heard_epoch = max(self._heard_epoch, epoch)
            return
        self._adopt(epoch)

    def _adopt(self, epoch: int) -> None:
        """Go into a newer epoch, as a standby."""
        assert epoch > self.epoch
        if self._leading is not None:
            self._depose(Why.NEWER_EPOCH)
        elif self._candidacy is not None:
            self._become(Why.NEWER_EPOCH)
        self._enter(epoch)

    def _enter(self, epoch: int) -> None:
        """Nothing is known in this epoch yet: no vote given, no master heard."""
        self._hard = HardState(epoch, "", self._hard.voter)
        self._heard_epoch = max(self._heard_epoch, epoch)
        self.master = None
        self.log.verified = self.log.commit
        self._master_commit = 0
        self._acknowledged = -1
        self._echo = -1.0

    def _depose(self, why: Why) -> None:
        """No longer master, for good in this epoch."""
        self._leading = None
        self.master = None
        self._become(why)
        self._out.deposed = True
        self._out.became_master = None
        self._out.admit = None
        self._out.truncate_after = self.log.last_index
        self.log.verified = self.log.commit
        self._await_election()
        self._event("deposed", why=why.value)
        self._settle()

    def _become(self, why: Why) -> None:
        self.role = TRANSITIONS[self.role, why]
        if self.role is Role.STANDBY:
            self._candidacy = None
            if not self._hard.voter:
                self.role = Role.LEARNER

    def _settle(self) -> None:
        """The log has changed, or what is committed of it: may this store vote?"""
        log, voter = self.log, self._hard.voter
        if log.configurations:
            if log.latest.get(self.me) != self.store:
                voter = False
            elif log.settled:
                voter = True
        if voter != self._hard.voter:
            self._hard = HardState(self._hard.epoch, self._hard.vote, voter)
            self._event("may-vote" if voter else "may-not-vote")
        if voter and self.role is Role.LEARNER:
            self._become(Why.MAY_VOTE)
        elif not voter and self.role is Role.STANDBY:
            self._become(Why.MAY_NOT_VOTE)

    # Following

    def _hear_master(self, message: Append | Heartbeat | SnapshotOffer) -> bool:
        """Whether this is the master of the epoch; if so, it may rely on this peer from now on."""
        if message.epoch < self.epoch:
            self._send(Ack(self.me, message.sender, self.store, self.epoch, 0, 0))
            return False
        if message.epoch > self.epoch:
            self._observe(message.epoch, hears_group=True)
        elif self.master not in {None, message.sender}:
            self._fault(message, f"two masters in an epoch, {self.master} is the other")
            return False
        if self._candidacy is not None:
            self._become(Why.MASTER_HEARD)
        if self.master is None:
            self.master = message.sender
            self._event("follows", master=message.sender)
        self._promised_until = self._now + self.timing.promise_s
        self._await_election()
        return True

    def _obey(self, message: Append | Heartbeat | SnapshotOffer) -> None:
        if isinstance(message, Append):
            self._on_append(message)
            return
        if isinstance(message, Heartbeat):
            self._master_commit = max(self._master_commit, message.commit)
            self._follow_commit()
        elif message.sender == self.master:
            self._out.fetch_from = message.sender
        self._acknowledge(message.sender, message.sent_at)

    def _on_append(self, append: Append) -> None:
        log, before = self.log, append.prev_index
        if before > log.commit and log.epochs.epoch_at(before) != append.prev_epoch:
            hint = min(before - 1, log.epochs.last_of_at_most(append.prev_epoch))
            self._acknowledge(append.sender, append.sent_at, max(hint, log.commit))
            return
        if not self._take(append):
            return
        log.verified = max(log.verified, append.last_index)
        self._master_commit = max(self._master_commit, min(append.commit, append.last_index))
        self._follow_commit()
        if log.durable >= append.last_index:
            self._acknowledge(append.sender, append.sent_at)
        else:
            self._echo = max(self._echo, append.sent_at)

    def _take(self, append: Append) -> bool:
        """Bring the log in line with the entries; false if no master can have sent them."""
        log, before = self.log, append.prev_index
        if log.epochs.epoch_at(before) not in {None, append.prev_epoch}:
            self._fault(append, f"differs at {before}, which was committed")
            return False
        epochs = [append.prev_epoch, *(meta.epoch for meta in append.entries), append.epoch]
        if epochs != sorted(epochs):
            self._fault(append, "epochs fall")
            return False
        known = min(append.last_index, log.last_index)
        new = max(known, before) + 1
        for index in range(max(before, log.epochs.base_index) + 1, known + 1):
            if log.epochs.epoch_at(index) != append.entries[index - before - 1].epoch:
                if index <= max(log.commit, log.verified):
                    self._fault(append, f"differs at {index}, which was committed or verified")
                    return False
                self._event("truncated", from_index=index, to_index=log.last_index)
                log.cut(index - 1)
                self._out.truncate_after = index - 1
                new = index
                break
        if new > append.last_index:
            return True
        for index in range(new, append.last_index + 1):
            log.append(index, append.entries[index - before - 1])
        self._out.receive = (new, append.last_index)
        self._settle()
        return True

    def _follow_commit(self) -> None:
        log = self.log
        if log.advance(min(self._master_commit, log.acknowledged)):
            self._out.commit = log.commit
            self._settle()

    def _acknowledge(self, to: str, sent_at: float, hint: int | None = None) -> None:
        log = self.log
        self._acknowledged = log.acknowledged
        self._echo = -1.0
        head = self.me, to, self.store, self.epoch
        rejected = hint is not None
        self._send(Ack(*head, log.acknowledged, log.verified, sent_at, rejected, hint or 0))

    def _on_ack(self, ack: Ack) -> None:
        if ack.epoch > self.epoch:
            self._observe(ack.epoch, hears_group=True)
        elif ack.epoch == self.epoch and self._leading is not None:
            if ack.sent_at > self._now:
                self._fault(ack, "echoes what was not sent yet")
                return
            self._leading.answered(ack, self._now)
            self._settle()

    # Telling

    def _send(self, message: Message) -> None:
        self._out.send.append(message)

    def _event(self, name: str, **fields: Value) -> None:
        self._out.events.append((name, {"epoch": self.epoch, **fields}))

    def _fault(self, message: Message, what: str) -> None:
        self._event("fault", peer=message.sender, kind=type(message).__name__, what=what)
