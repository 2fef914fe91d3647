"""The times of an account: which bucket a message is in, when it is judged, when it is late.

Rules
- A bucket is ``interval_ms`` of due times, from ``due - due % interval``; its end belongs to the
  next one. Due times are in ids, so all tiers put a message into the same bucket.
- What may still come is waited for until ``grace_ms`` after the moment from which on it could have
  come. Without it each message that is under way when somebody looks would be called lost. For
  example, with 5 s of grace a message that is due at 12:00:07 is judged from 12:00:12 on, and the
  bucket of 12:00:00 to 12:00:10 from 12:00:15 on.
- A message can leave the wheel when it is due, or when it was accepted if that was later. A message
  that came an hour after its due time and left at once is not late: nobody could have been faster.
- It is *late* at a boundary if passing it took more than ``late_ms``; ``vocabulary.Boundary`` says
  from when on that counts, and ``judging.judge`` compares. The proof has a problem *late*, too, but
  only if it was given a limit to be held to (``replay/judging/punctuality.py``), and a trace has an
  anomaly of that name (``trace/chains/anomalies.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np

from ..wheel.schema import Int64s, Mask

INTERVAL_MS = 10_000
GRACE_MS = 5_000
LATE_MS = 2_000
NEVER_MS = int(np.iinfo(np.int64).max)
"""Stands for the time of what has not happened."""


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """``interval_ms``: width of a bucket; ``grace_ms``: how long what may still come is waited for;
    ``late_ms``: what takes longer at a boundary is late."""

    interval_ms: int = INTERVAL_MS
    grace_ms: int = GRACE_MS
    late_ms: int = LATE_MS

    @overload
    def settled(self, since_ms: int, now_ms: int) -> bool: ...
    @overload
    def settled(self, since_ms: Int64s, now_ms: int) -> Mask: ...
    def settled(self, since_ms: int | Int64s, now_ms: int) -> bool | Mask:
        """Returns True when the grace of what could come from ``since_ms`` on is over; all that
        there was at ``now_ms`` was seen. A column, shape (n,), is answered time by time."""
        return since_ms <= now_ms - self.grace_ms


@overload
def bucket_of(due_ms: int, interval_ms: int) -> int: ...
@overload
def bucket_of(due_ms: Int64s, interval_ms: int) -> Int64s: ...
def bucket_of(due_ms: int | Int64s, interval_ms: int) -> int | Int64s:
    """The begin of the bucket, ms, that each due time lies in; of the same shape."""
    return due_ms - due_ms % interval_ms


@overload
def ready_ms(due_ms: int, created_ms: int) -> int: ...
@overload
def ready_ms(due_ms: Int64s, created_ms: Int64s) -> Int64s: ...
def ready_ms(due_ms: int | Int64s, created_ms: int | Int64s) -> int | Int64s:
    """The time, ms, from which each message could leave the wheel: it was due, or was accepted if
    that was later; of the same shape."""
    if isinstance(due_ms, int):
        assert isinstance(created_ms, int)
        return max(due_ms, created_ms)
    return np.maximum(due_ms, created_ms)
