"""From what happens to what is seen of it: metrics, log lines, and the flags of health.

Every room tells its events through a protocol of its own; this one object answers to both. Its
methods are called from many threads and return at once.
"""

from __future__ import annotations

import logging
import threading

import numpy as np

from ..wheel.schema import Int64s
from .logs import event
from .metrics import Metrics

log = logging.getLogger("slotwheel.node")


class NodeEvents:
    """Fits ``DeliveryEvents`` and ``IntakeEvents``.

    ``sink_problem`` and ``held`` are for health: why the sink cannot be reached (None: it can),
    and the topics that are held back with the reason.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._held: dict[str, str] = {}
        self.sink_problem: str | None = None

    # The ways in

    def appended(self, rows: int, nbytes: int, seconds: float) -> None:
        self._metrics.appended.inc(rows)
        self._metrics.appended_bytes.inc(nbytes)
        self._metrics.append_seconds.observe_one(seconds)

    def refused(self, code: str, rows: int) -> None:
        self._metrics.refused_batches.labels(code).inc()
        self._metrics.refused.labels(code).inc(rows)

    def event(self, name: str, **fields: object) -> None:
        event(log, logging.INFO, name, **fields)

    # The ways out

    def delivered(self, lateness_ms: Int64s) -> None:
        early = int(np.count_nonzero(lateness_ms < 0))
        if early:
            self._metrics.early.inc(early)
            self.alarm("early", f"{early} rows were delivered before their due time")
        self._metrics.lateness.observe(lateness_ms / 1000)

    def dead(self, count: int, reason: str) -> None:
        event(log, logging.WARNING, "dead letters", count=count, reason=reason)

    def held(self, topic: str, reason: str) -> None:
        with self._lock:
            self._held[topic] = reason
        event(log, logging.WARNING, "topic held back", topic=topic, reason=reason)

    def released(self, topic: str) -> None:
        with self._lock:
            self._held.pop(topic, None)
        event(log, logging.INFO, "topic released", topic=topic)

    def held_topics(self) -> dict[str, str]:
        with self._lock:
            return dict(self._held)

    def sink_down(self, reason: str) -> None:
        self.sink_problem = reason or "the sink takes nothing now"
        event(
            log,
            logging.WARNING,
            "sink unreachable: messages are stored, and delivered when it comes back",
            reason=self.sink_problem,
        )

    def sink_up(self) -> None:
        self.sink_problem = None
        event(log, logging.INFO, "sink reachable again")

    # Anywhere

    def alarm(self, kind: str, text: str = "", **fields: object) -> None:
        """Something a person should look at."""
        self._metrics.alarms.labels(kind).inc()
        if text:
            fields = {"reason": text, **fields}
        event(log, logging.ERROR, f"alarm {kind}", **fields)

    def failed(self, kind: str, error: Exception) -> None:
        """A loop failed and goes on."""
        self._metrics.alarms.labels(kind).inc()
        expected = isinstance(error, OSError)
        log.error(
            "alarm %s: %s: %s",
            kind,
            type(error).__name__,
            error,
            exc_info=None if expected else error,
        )
