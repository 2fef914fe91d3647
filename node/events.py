"""From events to metrics, log lines, and the flags of health.

Each room reports its events to an interface of its own; ``NodeEvents`` implements all of them. Its
methods are called from many threads and return at once.
"""

from __future__ import annotations

import logging
import time

import numpy as np

from ..delivery.ports import DeliveryEvents
from ..wheel.errors import remedy_for
from ..wheel.schema import Int64s
from .duty import Duty
from .intake.ports import IntakeEvents
from .logs import event
from .metrics import Metrics

log = logging.getLogger("slotwheel.node")

LOG_MISSED_EVERY_S = 60.0
_DEPARTURES_STALE_S = 10.0
"""A failure counts for so long, s: departures that are kept are not reported."""


class NodeEvents(DeliveryEvents, IntakeEvents):
    """Events of the ways in and out, and of replication."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._down = ""  # of the hand
        self._unreached = ""  # of the check at the start
        self._next_missed_s = 0.0
        self.departures = Duty("keeping what left, when and how", _DEPARTURES_STALE_S)

    def delivered(self, lateness_ms: Int64s) -> None:
        early = int(np.count_nonzero(lateness_ms < 0))
        if early:
            self._metrics.early.inc(early)
            self.alarm("early", reason=f"{early} rows were delivered before their due time")
        self._metrics.lateness.observe(lateness_ms / 1000)

    def dead(self, count: int, reason: str) -> None:
        event(log, logging.WARNING, "dead letters", count=count, reason=reason)

    def not_kept(self, count: int, reason: str) -> None:
        self._metrics.departures_missed.inc(count)
        self.departures.failed(reason)
        if time.monotonic() >= self._next_missed_s:
            self._next_missed_s = time.monotonic() + LOG_MISSED_EVERY_S
            text = "messages left, and it could not be kept how"
            event(log, logging.WARNING, text, count=count, reason=reason)

    def expired(self, count: int) -> None:
        event(log, logging.WARNING, "messages expired", count=count)

    def held(self, topic: str, reason: str) -> None:
        event(log, logging.WARNING, "topic held back", topic=topic, reason=reason)

    def set_aside(self, topic: str) -> None:
        event(log, logging.INFO, "topic is large, and delivered beside the others", topic=topic)

    def released(self, topic: str) -> None:
        event(log, logging.INFO, "topic released", topic=topic)

    @property
    def sink_problem(self) -> str | None:
        """The reason that the sink cannot be reached, for health; None while none is known. The
        hand has one, and the check at the start another; neither takes back the other's."""
        return self._down or self._unreached or None

    def sink_down(self, reason: str) -> None:
        self._down = reason or "the sink takes nothing now"
        _log_down(self._down)

    def sink_up(self) -> None:
        if self._down:
            self._down = ""
            event(log, logging.INFO, "sink reachable again")

    def sink_unreached(self, reason: str) -> None:
        """The sink has not been reached since the start."""
        self._unreached = reason
        _log_down(reason)

    def sink_reached(self) -> None:
        if self._unreached:
            self._unreached = ""
            event(log, logging.INFO, "sink reachable again")

    def failed(self, kind: str, error: Exception) -> None:
        """A loop failed and is tried again."""
        self._metrics.alarms.labels(kind).inc()
        text = f"alarm {kind}: {type(error).__name__}: {error}"
        if isinstance(error, OSError):
            log.error("%s. %s", text, remedy_for(error))
        else:
            log.error("%s", text, exc_info=error)

    def appended(self, rows: int, nbytes: int, seconds: float) -> None:
        self._metrics.appended.inc(rows)
        self._metrics.appended_bytes.inc(nbytes)
        self._metrics.append_seconds.observe_one(seconds)

    def refused(self, code: str, rows: int) -> None:
        self._metrics.refused_batches.labels(code).inc()
        self._metrics.refused.labels(code).inc(rows)

    def event(self, name: str, **fields: object) -> None:
        event(log, logging.INFO, name, **fields)

    def alarm(self, name: str, **fields: object) -> None:
        self._metrics.alarms.labels(name).inc()
        event(log, logging.ERROR, f"alarm {name}", **fields)


def _log_down(reason: str) -> None:
    event(
        log,
        logging.WARNING,
        "sink unreachable: messages are stored, and delivered when it comes back",
        reason=reason,
    )
