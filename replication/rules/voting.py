"""A peer's part in elections: when it stands, whom it asks, and whom it votes for.

Theory and rules: ``election.py``. A pre-vote asks whether a candidacy would succeed and changes
nothing anywhere, so a peer that was cut off does not unseat a master by coming back.

Rules
- ``stand``, ``take_over`` and ``count`` return an election that was won; the caller makes this peer
  master.
- The caller enters newer epochs that other peers name before it calls ``answer``.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Sequence

from .election import NO_ANSWER, Candidacy, may_found, why_not
from .logview import LogView
from .messages import RequestVote, Vote
from .ready import Elected, Value
from .standing import Standing
from .states import Role, Why
from .timing import NEVER, Timing


class Voting:
    """One peer's votes and candidacies. ``peers``: all that are configured, this one too."""

    def __init__(
        self,
        standing: Standing,
        log: LogView,
        peers: Sequence[str],
        timing: Timing,
        random: random_module.Random,
        now: float,
    ) -> None:
        self._standing = standing
        self._log = log
        self._peers = peers
        self._timing = timing
        self._random = random
        self._candidacy: Candidacy | None = None
        # A voter may have promised something to a master just before it was restarted.
        self._promised_until = now + timing.promise_s if standing.hard.voter else NEVER
        self._noted_epoch = 0
        self._logged_ask: dict[str, Value] = {}
        """The last question that was an event: asking it again, three times a second, is none."""
        self.waits_for: dict[str, str] = {}
        """The peers whose votes the last candidacy lacked, and why; empty with a master."""
        self.due: float
        """The time to stand for election, s, unless a master is heard before."""
        self.wait(now, soon=self._may_found)

    # The election timer

    def wait(self, now: float, *, soon: bool = False) -> None:
        """Restart the election timer."""
        least = 2 * self._timing.heartbeat_s if soon else self._timing.promise_s
        self.due = now + least + self._random.uniform(0, self._timing.election_spread_s)

    def promise(self, now: float) -> None:
        """A master was heard: it may rely on this peer from now on."""
        self.waits_for, self._logged_ask = {}, {}
        self._promised_until = now + self._timing.promise_s
        self.wait(now)

    def promised(self, now: float) -> bool:
        """True if a master, maybe this one, may rely on this peer not to vote."""
        return self._standing.role is Role.MASTER or now < self._promised_until

    @property
    def _may_found(self) -> bool:
        return may_found(self._log, self._standing.hard)

    @property
    def forms_group(self) -> bool:
        """True if this peer asks all others to begin a group: no store has a log yet."""
        return self._may_found and self._candidacy is not None

    @property
    def has_no_group(self) -> bool:
        return self._may_found and not self._standing.hard.voter

    def note(self, epoch: int) -> None:
        """Remember an epoch, in a store without a group. The next candidacy starts behind it; it is
        persisted only with a vote or a master."""
        self._noted_epoch = max(self._noted_epoch, epoch)

    # Asking

    def stand(self, now: float) -> Elected | None:
        """Ask for pre-votes, which tell if a candidacy would succeed."""
        standing, founding = self._standing, self._may_found
        if not founding and not (standing.hard.voter and self._log.configurations):
            self.wait(now)
            return None
        standing.become(Why.FOUNDING_TIMER if founding else Why.TIMER)
        epoch = max(standing.epoch, self._noted_epoch) + 1
        return self._campaign(epoch, now, pre=True, founding=founding)

    def take_over(self, now: float) -> Elected | None:
        """Ask for votes at once, as the master hands over."""
        if self._standing.role is not Role.STANDBY or not self._log.configurations:
            return None
        self._standing.become(Why.TAKE_OVER)
        return self._campaign(self._standing.epoch + 1, now, transfer=True)

    def count(self, vote: Vote, now: float) -> Elected | None:
        if self._candidacy is None:
            return None
        self._candidacy.count(vote)
        return self._result(self._candidacy, now)

    def give_up(self, why: Why) -> None:
        """End a candidacy, if there is one."""
        if self._candidacy is not None:
            self._candidacy = None
            self._standing.become(why)

    def _campaign(
        self,
        epoch: int,
        now: float,
        *,
        pre: bool = False,
        founding: bool = False,
        transfer: bool = False,
    ) -> Elected | None:
        standing, log = self._standing, self._log
        if not pre:
            standing.enter(epoch)
            standing.vote(standing.me, founding=founding)
        self.wait(now, soon=True)
        if pre or self._candidacy is None:
            last = self._candidacy or Candidacy(epoch, pre, founding, {}, 0, {standing.me: b""})
            lacked = (peer for peer in self._peers if peer not in last.grants)
            self.waits_for = {peer: last.refusals.get(peer, NO_ANSWER) for peer in lacked}
        grants = {standing.me: standing.store}
        candidacy = Candidacy(epoch, pre, founding, log.latest, len(self._peers), grants)
        self._candidacy = candidacy
        for peer in self._peers:
            if peer != standing.me:
                standing.send(
                    RequestVote(
                        **standing.head(peer, epoch),
                        last_index=log.last_index,
                        last_epoch=log.last_epoch,
                        pre=pre,
                        founding=founding,
                        transfer=transfer,
                    )
                )
        waits_for = ", ".join(f"{peer}: {why}" for peer, why in self.waits_for.items())
        ask: dict[str, Value] = {
            "pre": pre,
            "founding": founding,
            "asked_epoch": epoch,
            "waits_for": waits_for,
        }
        if ask != self._logged_ask:
            self._logged_ask = ask
            standing.event("asks", **ask)
        return self._result(candidacy, now)

    def _result(self, candidacy: Candidacy, now: float) -> Elected | None:
        if not candidacy.won:
            return None
        if candidacy.pre:
            self._standing.become(Why.WOULD_WIN)
            return self._campaign(candidacy.epoch, now, founding=candidacy.founding)
        self._candidacy = None
        self.waits_for, self._logged_ask = {}, {}
        self._standing.become(Why.WON)
        stores = candidacy.grants if candidacy.founding else self._log.latest
        return Elected(candidacy.epoch, stores)

    # Answering

    def why_not(self, ask: RequestVote, now: float) -> str:
        """See ``election.why_not``."""
        return why_not(ask, self._log, self._standing.hard, promised=self.promised(now))

    def answer(self, ask: RequestVote, reason: str, now: float) -> None:
        """Grant the vote, unless there is a ``reason`` not to. The caller has entered its epoch."""
        standing = self._standing
        if not ask.pre and not reason:
            if ask.epoch < standing.epoch:
                reason = "old epoch"
            elif standing.hard.vote not in {"", ask.sender} or standing.master is not None:
                reason = "vote is spent"
            else:
                standing.vote(ask.sender, founding=ask.founding)
                self.wait(now)
                standing.settle(self._log)
        epoch = ask.epoch if ask.pre and not reason else standing.epoch
        standing.send(
            Vote(
                **standing.head(ask.sender, epoch),
                granted=not reason,
                pre=ask.pre,
                founding=ask.founding,
                reason=reason,
            )
        )
