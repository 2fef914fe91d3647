"""The roles of a peer, and what changes them, as data.

Theory: the table below is the whole of it. The core changes roles only by it, and the diagram in
docs/replication.md is made from it (by its test), so the two cannot differ.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    LEARNER = "learner"
    """Copies only: its store is not admitted, or not known to be."""
    STANDBY = "standby"
    """Copies and votes."""
    PRE_CANDIDATE = "pre-candidate"
    """Asks which peers would vote for it, without promising or persisting anything."""
    CANDIDATE = "candidate"
    """Asks for votes in an epoch of its own, having voted for itself."""
    MASTER = "master"


class Why(Enum):
    """Reasons to change the role."""

    MAY_VOTE = "its store may vote"
    MAY_NOT_VOTE = "its store may not vote any more"
    TIMER = "heard of no master for long"
    FOUNDING_TIMER = "empty, and heard of no group"
    TAKE_OVER = "the master hands over"
    WOULD_WIN = "enough would vote for it"
    WON = "enough voted for it"
    MASTER_HEARD = "heard a master"
    NEWER_EPOCH = "a newer epoch"
    LOG_CUT = "could not write what it claimed to have"
    LOST_MAJORITY = "no majority answers"
    CANNOT_WRITE = "cannot write its first entry"
    HANDED_OVER = "told another to take over"


TRANSITIONS: dict[tuple[Role, Why], Role] = {
    (Role.LEARNER, Why.MAY_VOTE): Role.STANDBY,
    (Role.LEARNER, Why.FOUNDING_TIMER): Role.PRE_CANDIDATE,
    (Role.STANDBY, Why.MAY_NOT_VOTE): Role.LEARNER,
    (Role.STANDBY, Why.TIMER): Role.PRE_CANDIDATE,
    (Role.STANDBY, Why.FOUNDING_TIMER): Role.PRE_CANDIDATE,
    (Role.STANDBY, Why.TAKE_OVER): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Why.TIMER): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, Why.FOUNDING_TIMER): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, Why.WOULD_WIN): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Why.MASTER_HEARD): Role.STANDBY,
    (Role.PRE_CANDIDATE, Why.NEWER_EPOCH): Role.STANDBY,
    (Role.PRE_CANDIDATE, Why.LOG_CUT): Role.STANDBY,
    (Role.CANDIDATE, Why.TIMER): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, Why.FOUNDING_TIMER): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, Why.WON): Role.MASTER,
    (Role.CANDIDATE, Why.MASTER_HEARD): Role.STANDBY,
    (Role.CANDIDATE, Why.NEWER_EPOCH): Role.STANDBY,
    (Role.CANDIDATE, Why.LOG_CUT): Role.STANDBY,
    (Role.MASTER, Why.NEWER_EPOCH): Role.STANDBY,
    (Role.MASTER, Why.LOST_MAJORITY): Role.STANDBY,
    (Role.MASTER, Why.CANNOT_WRITE): Role.STANDBY,
    (Role.MASTER, Why.HANDED_OVER): Role.STANDBY,
    (Role.MASTER, Why.LOG_CUT): Role.STANDBY,
}
"""A standby whose store may not vote becomes a learner at once."""
