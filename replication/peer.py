"""What a peer is at any moment, and how it becomes something else.

Theory: a peer's whole state is below: its log, its epoch and vote, its role, and either a candidacy
or a mastery. ``voting.py`` and ``following.py`` are the rules that change it, ``core.py`` is the
way in and out.

Rules
- The role changes only by the table in ``states.py``.
- A vote, an epoch and the right to vote are changed here in memory only; ``Ready.hard`` comes
  before every message, so none leaves before they are on disk.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Sequence

from ..wheel.epochs import Epochs
from .election import Candidacy, may_found
from .logview import LogView
from .mastery import Master
from .messages import HardState, Message, StoreIds
from .progress import NEVER
from .ready import Ready, Value
from .states import TRANSITIONS, Role, Why
from .timing import Timing


class Peer:
    """One peer's state. All times are seconds of the same monotonic clock."""

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

    @property
    def epoch(self) -> int:
        return self._hard.epoch

    @property
    def _may_found(self) -> bool:
        return may_found(self.log, self._hard)

    @property
    def _knows_no_group(self) -> bool:
        return self._may_found and not self._hard.voter

    @property
    def _promised(self) -> bool:
        """Whether a master, maybe this one, may rely on this peer not to vote."""
        return self._leading is not None or self._now < self._promised_until

    def _await_election(self, *, soon: bool = False) -> None:
        least = 2 * self.timing.heartbeat_s if soon else self.timing.promise_s
        spread = self._random.uniform(0, self.timing.election_spread_s)
        self._election_due = self._now + least + spread

    def _observe(self, epoch: int, *, hears_group: bool) -> None:
        """There is a newer epoch. ``hears_group``: by a master, or by a vote about to be given."""
        if not hears_group and self._knows_no_group:
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
            elif log.admits(self.me, self.store):
                voter = True
        if voter != self._hard.voter:
            self._hard = HardState(self._hard.epoch, self._hard.vote, voter)
            self._event("may-vote" if voter else "may-not-vote")
        if voter and self.role is Role.LEARNER:
            self._become(Why.MAY_VOTE)
        elif not voter and self.role is Role.STANDBY:
            self._become(Why.MAY_NOT_VOTE)

    def _send(self, message: Message) -> None:
        self._out.send.append(message)

    def _event(self, name: str, **fields: Value) -> None:
        self._out.events.append((name, {"epoch": self.epoch, **fields}))

    def _fault(self, message: Message, what: str) -> None:
        self._event("fault", peer=message.sender, kind=type(message).__name__, what=what)
