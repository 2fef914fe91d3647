"""A peer's role in its group, its promises, and what it wants done.

Theory: an epoch, a vote and the right to vote outlive the process (``HardState``); the role, and
the known master, do not. All parts of the core share one ``Standing``: they change it by its
methods, and put what is to be done into ``out``.

Rules
- The role changes only by the table in ``states.py``.
- A vote, an epoch and the right to vote change here in memory only. They stand before every message
  in the next ``Ready``, so none is sent before they are on disk.
"""

from __future__ import annotations

from dataclasses import replace

from .logview import LogView
from .messages import HardState, MessageHead, PeerMessage
from .ready import Ready, Value
from .states import TRANSITIONS, Role, Why


class Standing:
    """One peer's standing. ``store``: this data directory's id. ``hard``: as it is on disk."""

    def __init__(self, me: str, store: bytes, hard: HardState) -> None:
        self.me = me
        self.store = store
        self.hard = hard
        self.role = Role.STANDBY if hard.voter else Role.LEARNER
        self.master: str | None = None
        """The master of this epoch, which may be this peer; None: not known."""
        self.out = Ready()
        """The next ``Ready`` so far."""
        self._on_disk = hard

    @property
    def epoch(self) -> int:
        return self.hard.epoch

    def enter(self, epoch: int) -> None:
        """Enter a newer epoch, with no vote given and no master known."""
        assert epoch > self.epoch
        self.hard = HardState(epoch, "", self.hard.voter)
        self.master = None

    def vote(self, candidate: str, *, founding: bool) -> None:
        """Give this epoch's vote; a founding vote makes the store a voter."""
        assert self.hard.vote in {"", candidate}
        self.hard = HardState(self.epoch, candidate, self.hard.voter or founding)

    def become(self, why: Why) -> None:
        """Change the role. A candidate, and a deposed master, knows no master."""
        was, self.role = self.role, TRANSITIONS[self.role, why]
        if self.role is Role.STANDBY and not self.hard.voter:
            self.role = Role.LEARNER
        if self.role is Role.MASTER:
            self.master = self.me
        elif was is Role.MASTER or self.role in {Role.PRE_CANDIDATE, Role.CANDIDATE}:
            self.master = None

    def follow(self, master: str) -> None:
        """Note the epoch's master, when it is heard for the first time."""
        if self.master is None:
            self.master = master
            self.event("follows", master=master)

    def settle(self, log: LogView) -> None:
        """The log, or its commit, has changed: decide whether this store may vote."""
        voter = self.hard.voter
        if log.configurations:
            if log.latest.get(self.me) != self.store:
                voter = False
            elif log.admits(self.me, self.store):
                voter = True
        if voter != self.hard.voter:
            self.hard = replace(self.hard, voter=voter)
            self.event("may-vote" if voter else "may-not-vote")
        if voter and self.role is Role.LEARNER:
            self.become(Why.MAY_VOTE)
        elif not voter and self.role is Role.STANDBY:
            self.become(Why.MAY_NOT_VOTE)

    # Output

    def head(self, to: str, epoch: int | None = None) -> MessageHead:
        """The head of a message to a peer; ``epoch`` None: this peer's own."""
        epoch = self.epoch if epoch is None else epoch
        return MessageHead(sender=self.me, to=to, store=self.store, epoch=epoch)

    def send(self, message: PeerMessage) -> None:
        self.out.send.append(message)

    def event(self, name: str, **fields: Value) -> None:
        self.out.events.append((name, {"epoch": self.epoch, **fields}))

    def fault(self, message: PeerMessage, what: str) -> None:
        """Log that a message broke the rules."""
        self.event("fault", peer=message.sender, kind=type(message).__name__, what=what)

    def pop_ready(self) -> Ready | None:
        """The ``Ready`` so far, None if it is empty; a new one is begun."""
        out = self.out
        if self.hard is not self._on_disk and self.hard != self._on_disk:
            out.hard = self._on_disk = self.hard
        if not out:
            return None
        self.out = Ready()
        return out
