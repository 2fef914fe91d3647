"""The judge of a boundary: it compares what came to it with what came out of it.

Theory: whatever passes a boundary was seen ``before`` times in front of it and ``after`` times
behind it. With ids a row is one message. Without ids a row is the sum of a bucket's messages, and a
difference says how many are wrong, but not which.

    before  after  spare     a message, by its id        a sum of messages
    1       0      0         lost, or open               lost, or open
    1       2      0         repeated                    repeated
    1       2      1         equal                       unknown
    1       1      0         equal                       equal, or differs by the hash

Rules
- What is missing is open until it is settled. A sum is open until then whatever it is: with one
  message lost and one that came twice it would be called equal as long as the second one is still
  to come.
- A difference that something unseen may explain is unknown and no fault. It takes what was not
  seen behind the boundary to explain that something is missing there, and what was not seen in
  front of it to explain that more came out. For example, when a producer was killed before it said
  what it had sent, more may be accepted than is known to be sent; but what is known to be sent and
  was not accepted is lost all the same.
- ``spare`` more behind the boundary are no fault: a message that is twice in its topic may be
  answered for twice. In a sum they may hide a loss: 11 after 10, with 2 spare, are one answer that
  was repeated, or two and a lost message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..wheel.schema import Int64s, Mask
from .limits import AccountLimits
from .vocabulary import AuditVerdict

ANY_NUMBER = int(np.iinfo(np.int64).max)
"""``spare`` where other programs put messages, too: no surplus is a fault or makes a sum
unknown."""


@dataclass(frozen=True, slots=True)
class Crossings:
    """How often messages were seen on both sides of a boundary. Columns have shape (n,), with a row
    for each message, or for each sum of messages."""

    before: Int64s
    after: Int64s
    spare: Int64s
    """So many more behind the boundary are no fault."""
    settled: Mask
    """Everything in front of the boundary should be behind it by now (``AccountLimits.settled``),
    and nothing else holds it back."""
    unseen_before: Mask
    """Some of what came to the boundary may not have been seen."""
    unseen_after: Mask
    """Some of what came out of it may not have been seen."""
    late_ms: Int64s
    """The time that passing took; in a sum, that of the slowest message."""
    other: Mask | None = None
    """Sums: the hashes of both sides differ. None: each row is a message, known by its id."""


def judge(rows: Crossings, limits: AccountLimits) -> Mapping[AuditVerdict, Mask]:
    """The rows of each verdict, as masks of shape (n,). A sum has one verdict. A late message has
    a second one, as it may also have come twice."""
    surplus = rows.after - rows.before
    short, over = surplus < 0, surplus > rows.spare
    none = np.zeros(len(surplus), np.bool_)
    other, doubtful = none, none
    open_ = short & ~rows.settled
    if rows.other is not None:
        other = (surplus == 0) & rows.other
        doubtful = (surplus > 0) & ~over & (rows.spare < ANY_NUMBER)
        open_ = ~rows.settled
    explained = (short & rows.unseen_after) | ((over | other) & rows.unseen_before)
    unknown = (explained | doubtful) & ~open_
    sure = ~(unknown | open_)
    equal = sure & ~(short | over | other)
    late = (rows.before > 0) & ~short & (rows.late_ms > limits.late_ms)
    if rows.other is not None:
        late = equal & (rows.late_ms > limits.late_ms)
        equal &= ~late
    return {
        AuditVerdict.LOST: short & sure,
        AuditVerdict.REPEATED: over & sure,
        AuditVerdict.DIFFERS: other & sure,
        AuditVerdict.UNKNOWN: unknown,
        AuditVerdict.LATE: late,
        AuditVerdict.OPEN: open_,
        AuditVerdict.EQUAL: equal,
    }
