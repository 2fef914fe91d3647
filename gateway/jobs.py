"""Jobs: work that lasts longer than a request, such as the cancel of many messages.

Theory: a job is a thread, a state, and a summary that is true at any moment, also when the job was
stopped or has failed. It belongs to this gateway: one that ends takes its jobs with it, and nothing
has to be undone, as each kind of work can be begun again and does nothing twice.

Rules
- Few run at a time, and few are kept: what is too much is refused, or forgotten, the oldest first.
- A job is stopped between two of its steps; what it had begun is brought to its end.
- Whoever has begun a job may lose the right for it while it runs. It ends with its next step then:
  otherwise a million cancels would go on for minutes under a right that was taken away.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..client.message import clock_ms
from ..wheel.errors import Overloaded, SlotwheelError
from .errors import ErrorBody, HttpError, error_body, from_slotwheel

log = logging.getLogger("slotwheel.gateway")

RUNNING_MAX = 4
KEPT_MAX = 100
KEPT_MS = 24 * 3_600_000


class JobReport(msgspec.Struct):
    """A job, and how far it has come."""

    id: str
    kind: str
    """``cancellation`` or ``redrive``."""
    state: Literal["running", "done", "failed", "cancelled"]
    """``cancelled``: it was stopped before it was complete."""
    created_ms: int
    ended_ms: int | None
    done: int
    """Of ``total``."""
    total: int
    summary: dict[str, Any]
    """What was done so far; true also of a job that was stopped or has failed."""
    error: ErrorBody | None


class JobReports(msgspec.Struct):
    """All jobs that are running or kept, the newest first."""

    jobs: list[JobReport]


class GatewayJob:
    """``summary``: called at any time, by any thread, for what was done so far. ``principal``: who
    has begun it; ``demand``: raises ``Forbidden`` once that one has lost the right for it."""

    def __init__(
        self,
        kind: str,
        total: int,
        summary: Callable[[], dict[str, Any]],
        principal: str = "",
        demand: Callable[[], None] = lambda: None,
    ) -> None:
        self.principal = principal
        self._demand = demand
        self.id = secrets.token_hex(8)
        self.total = total
        self._kind = kind
        self._summary = summary
        self._created_ms = clock_ms()
        self._done = 0
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._ended_ms: int | None = None
        self._error: ErrorBody | None = None

    # Of the work

    def advance(self, count: int) -> None:
        self._done += count

    def stopped(self) -> bool:
        """Returns True when the work is to end."""
        try:
            self._demand()
        except SlotwheelError as error:
            self._error = error_body(from_slotwheel(error))
            return True
        return self._stop.is_set()

    # Of everybody

    def stop(self) -> None:
        self._stop.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        return self._ended.wait(timeout_s)

    @property
    def ended_ms(self) -> int | None:
        return self._ended_ms

    def report(self) -> JobReport:
        ended_ms, summary = self._ended_ms, self._summary()
        state: Literal["running", "done", "failed", "cancelled"] = "running"
        if ended_ms is not None:
            state = "done"
            if self._error is not None:
                state = "failed"
            elif self._stop.is_set() and not summary.get("complete"):
                state = "cancelled"
        return JobReport(
            self.id,
            self._kind,
            state,
            self._created_ms,
            ended_ms,
            self._done,
            self.total,
            summary,
            self._error,
        )

    def run(self, work: Callable[[GatewayJob], None]) -> None:
        """Do the work to its end; by a thread of its own."""
        try:
            work(self)
        except SlotwheelError as error:
            self._error = error_body(from_slotwheel(error))
        except Exception as error:
            log.error("job %s failed", self.id, exc_info=error)
            text = f"the gateway failed on this job: {type(error).__name__}"
            self._error = error_body(HttpError(500, text))
        finally:
            self._ended_ms = clock_ms()
            self._ended.set()


class Jobs:
    """All jobs of a gateway. Thread-safe."""

    def __init__(self, running_max: int = RUNNING_MAX, kept_max: int = KEPT_MAX) -> None:
        self._running_max = running_max
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._jobs: dict[str, GatewayJob] = {}

    def start(self, job: GatewayJob, work: Callable[[GatewayJob], None]) -> None:
        """Errors: ``Overloaded``: as many are running as may."""
        with self._lock:
            running = sum(one.ended_ms is None for one in self._jobs.values())
            if running >= self._running_max:
                raise Overloaded(
                    "as many jobs are running as may",
                    got=running,
                    limit=self._running_max,
                    remedy="Wait until one of them has ended, or stop one",
                )
            self._jobs[job.id] = job
            self._forget()
        threading.Thread(target=job.run, args=(work,), name=f"job {job.id}", daemon=True).start()

    def find(self, job_id: str) -> GatewayJob | None:
        with self._lock:
            self._forget()
            return self._jobs.get(job_id)

    def every(self) -> list[GatewayJob]:
        """The newest first."""
        with self._lock:
            self._forget()
            return list(reversed(self._jobs.values()))

    def stop(self, timeout_s: float) -> None:
        """Stop all, and wait for their ends for so long at most."""
        jobs = self.every()
        for job in jobs:
            job.stop()
        for job in jobs:
            job.wait(timeout_s)

    def _forget(self) -> None:
        ended = [one for one in self._jobs.values() if one.ended_ms is not None]
        too_many = len(self._jobs) - self._kept_max
        for number, one in enumerate(ended):
            if number < too_many or (one.ended_ms or 0) < clock_ms() - KEPT_MS:
                del self._jobs[one.id]
