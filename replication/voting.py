"""Asking for votes, and giving them.

Theory and rules: ``election.py``. A pre-vote asks whether a candidacy would succeed and changes
nothing anywhere, so a peer that was cut off does not unseat a master by coming back.
"""

from __future__ import annotations

from .election import Candidacy, why_not
from .mastery import Master
from .messages import AskVote, HardState, TakeOver, Vote
from .peer import Peer
from .ready import Mastery
from .states import Role, Why


class Voting(Peer):
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
