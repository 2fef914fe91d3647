"""Quotas: how much a principal may send, and have open, however many connections it makes.

Theory: each rate is a bucket that fills evenly and holds one second's worth. A batch passes if the
bucket holds anything, and takes all that it needs, so the bucket may be in debt: a batch that is
larger than a second's worth is not refused for ever, and the mean never exceeds the rate.

    rows-per-second = 1000; a batch of 5 000 passes at 0 s, and the next one at 4 s.

Rules
- A refused batch costs nothing, and its error says after how many milliseconds it would pass.
- A meter belongs to the principal, and not to a connection: otherwise a second connection doubled
  the quota. It outlives a reload of the security file, or who is over its quota got a new second
  each time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..wheel.errors import NOTHING_STORED, OverQuota
from .pending import NO_LIMITS, PendingLimit


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one principal; None: there is none."""

    rows_per_second: int | None = None
    bytes_per_second: int | None = None
    connections: int | None = None
    """Open at the same time on one node."""
    questions: int | None = None
    """Searches, status and the like that are being answered at the same time by one node, or one
    gateway."""
    pending: Mapping[str, PendingLimit] = field(default_factory=lambda: NO_LIMITS)
    """How much may be pending when it sends, by a topic's name or the begin of names and ``*``."""


NO_QUOTA = Quota()


class _Bucket:
    """A rate: ``level`` is what may be used now; below zero it is in debt."""

    __slots__ = ("_at_s", "_level", "_rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = self._level = rate
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """The seconds until something may pass; 0: it may now."""
        self._level = min(self._rate, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return 0.0 if self._level > 0 else -self._level / self._rate + 1e-3

    def take(self, amount: float) -> None:
        self._level -= amount


class Meter:
    """What one principal uses of its quota, and has sent: ``rows`` and ``nbytes`` since the start.
    ``clock``: monotonic, s. Thread-safe."""

    def __init__(
        self, principal: str, quota: Quota = NO_QUOTA, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.principal = principal
        self._clock = clock
        self._lock = threading.Lock()
        self._connections = self._questions = 0
        self.rows = self.nbytes = 0
        self.change(quota)

    def change(self, quota: Quota) -> None:
        """Set other limits. What is in use counts on."""
        with self._lock:
            if getattr(self, "quota", None) == quota:
                return
            self.quota = quota
            now_s = self._clock()
            rates = {"rows": quota.rows_per_second, "bytes": quota.bytes_per_second}
            self._buckets = {
                unit: _Bucket(rate, now_s) for unit, rate in rates.items() if rate is not None
            }

    def charge(self, rows: int, nbytes: int) -> None:
        """Count rows that are about to be stored. Errors: ``OverQuota``, and nothing is counted."""
        with self._lock:
            if self._buckets:
                now_s = self._clock()
                for unit, bucket in self._buckets.items():
                    if wait_s := bucket.wait_s(now_s):
                        raise self._over(f"{unit} per second", wait_s)
                for unit, bucket in self._buckets.items():
                    bucket.take(rows if unit == "rows" else nbytes)
            self.rows += rows
            self.nbytes += nbytes

    def connect(self) -> None:
        """Count a connection until ``disconnect``. Errors: ``OverQuota``."""
        with self._lock:
            limit = self.quota.connections
            if limit is not None and self._connections >= limit:
                raise self._over("connections", 1.0, limit)
            self._connections += 1

    def disconnect(self) -> None:
        with self._lock:
            self._connections -= 1

    def ask(self) -> None:
        """Count a question until ``answered``. Errors: ``OverQuota``."""
        with self._lock:
            limit = self.quota.questions
            if limit is not None and self._questions >= limit:
                raise self._over("questions", 1.0, limit)
            self._questions += 1

    def answered(self) -> None:
        with self._lock:
            self._questions -= 1

    @property
    def idle(self) -> bool:
        """True while it has neither a connection nor a question open."""
        return not (self._connections or self._questions)

    def _over(self, what: str, wait_s: float, limit: int | None = None) -> OverQuota:
        return OverQuota(
            f"{self.principal} is over its quota of {what}",
            limit=limit if limit is not None else self._rate_of(what),
            remedy=f"{NOTHING_STORED} Try again after the time that is given",
            retry_after_ms=math.ceil(wait_s * 1000),
        )

    def _rate_of(self, what: str) -> str:
        rows = what.startswith("rows")
        rate = self.quota.rows_per_second if rows else self.quota.bytes_per_second
        return f"{rate} {what}"


class CountedConnection:
    """A connection, which counts against the quota of whoever calls by it. Over HTTP that may be
    somebody else from one request to the next. Belongs to one thread."""

    __slots__ = ("_has_ended", "meter")

    def __init__(self) -> None:
        self.meter: Meter | None = None
        """Where it counts; None: nowhere."""
        self._has_ended = False

    def count_for(self, meter: Meter) -> None:
        """Count it there from now on, until ``end``; nowhere any more if it has ended: who calls
        may be found out only after that. Errors: ``OverQuota``, and it counts where it did
        before."""
        if meter is not self.meter and not self._has_ended:
            meter.connect()
            self._leave()
            self.meter = meter

    def end(self) -> None:
        self._has_ended = True
        self._leave()

    def _leave(self) -> None:
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.disconnect()
