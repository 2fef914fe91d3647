"""Standing for election, and who may be voted for.

Theory: two majorities of the same stores have a store in common, and a store votes once an epoch;
so an epoch has one master. It votes only for a log that has every entry of its own that may be
committed; so a new master has every committed entry. And it grants no vote while a master may rely
on it; so an old master's lease ends before there is a new master.

Founding is the one election without admitted stores: every configured peer must grant, each with an
empty log, and the first entry admits exactly the stores that did.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...wheel.state import StoreIds
from .logview import LogView
from .messages import HardState, RequestVote, Vote

LOG_BEHIND = "log behind"
EPOCHS_AHEAD_MAX = 1 << 20
"""A message's epoch may be so far beyond one's own: as many elections as happen in days of nothing
else. Otherwise one forged message with the highest epoch there is would leave no epoch for any
further election, and the group without a master for good."""
NO_ANSWER = "does not answer"


@dataclass(slots=True, eq=False)
class Candidacy:
    """The votes of one epoch for this peer."""

    epoch: int
    pre: bool
    founding: bool
    electorate: StoreIds
    """The admitted stores, by the candidate's log."""
    peers: int
    """The number of configured peers; all of them must grant a founding."""
    grants: dict[str, bytes]
    """The peers that have granted, with their stores; the candidate itself from the start."""
    refusals: dict[str, str] = field(default_factory=dict)
    """The peers that have refused, and why."""

    @property
    def won(self) -> bool:
        if self.founding:
            return len(self.grants) >= self.peers
        granted = sum(self.grants.get(peer) == store for peer, store in self.electorate.items())
        return granted >= majority(self.electorate)

    def count(self, vote: Vote) -> None:
        asked = vote.epoch, vote.pre, vote.founding
        if vote.granted and asked == (self.epoch, self.pre, self.founding):
            self.grants[vote.sender] = vote.store
        elif not vote.granted:
            self.refusals[vote.sender] = vote.reason


def majority(stores: StoreIds) -> int:
    """The least number of stores that is more than half of them."""
    return len(stores) // 2 + 1


def may_found(log: LogView, hard: HardState) -> bool:
    """True if this store may take part in a founding: its log is empty, and it has never followed a
    master (or only one for whose founding it voted)."""
    return log.empty and (hard.epoch == 0 or hard.voter)


def why_not(ask: RequestVote, log: LogView, hard: HardState, *, promised: bool) -> str:
    """The reason for which this peer refuses the vote; empty if it grants it.

    ``promised``: a master may rely on this peer not to vote. That the vote of a real election's
    epoch is not spent yet has to be checked by the caller.
    """
    if ask.founding:
        if not may_found(log, hard):
            return "not empty" if not log.empty else "heard of a group"
    elif not hard.voter:
        return "store not admitted"
    if promised and not ask.transfer:
        return "has a master"
    if ask.pre and ask.epoch <= hard.epoch:
        return "old epoch"
    if not log.covered_by(ask.last_index, ask.last_epoch):
        return LOG_BEHIND
    return ""
