"""The work of the node's own threads, one class or function each; ``Loop`` calls them.

- syncer: writes and syncs what is queued (group commit)
- slot-files: spills the tail, deletes covered slot files
- prefetcher: reads ahead: the next window of a slot, the next slot
- scrubber: reads slot files ahead, to find damage before they are due (``damage.py``)
- departures: deletes the files of what left long ago
- clock: reports a wall clock that has jumped ahead
- sink-check: at the start, until the sink was reached once; logs if it cannot be
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..delivery.departures import DepartureKeeper
from ..delivery.sink import Sink
from ..intake.ports import Clock
from ..wheel.dispatcher import Dispatcher
from ..wheel.errors import Damaged, SyncFailed
from ..wheel.wheel import Wheel
from . import memory
from .clock import LOOK_EVERY_S, NodeClock
from .duty import Duty
from .events import LOG_MISSED_EVERY_S, NodeEvents
from .logs import event
from .metrics import Metrics

log = logging.getLogger("slotwheel.node")

SYNC_WAIT_S = 0.1
SPILL_EVERY_S = 0.05
CLEAN_EVERY_S = 0.25
PREPARE_EVERY_S = 0.05
DAMAGED_EVERY_S = 1.0
"""How often a damaged slot file is opened again, s: each time all of it is read."""
SINK_CHECK_EVERY_S = 1.0
DEPARTURES_EVERY_S = 10.0
RELEASE_AFTER_S = 2.0
_AHEAD = 3
"""Ranges of a spill that are prepared ahead, as preparing and writing take turns in being
slower."""

T = TypeVar("T")


def sync(wheel: Wheel, metrics: Metrics, wait_s: float = SYNC_WAIT_S) -> bool:
    """One group commit, if anything is queued within ``wait_s``. Returns whether there was."""
    if not wheel.write_pending(wait_s):
        return False
    metrics.group_commits.inc()
    return True


def prepare(dispatcher: Dispatcher, sink: Sink, clock: Clock) -> float:
    """Read one window or slot ahead, if there is one, and let the sink know its topics."""
    try:
        more = dispatcher.prepare(clock())
        sink.expect(dispatcher.coming_topics())
        return 0.0 if more else PREPARE_EVERY_S
    except Damaged:  # the storage keeps the error, and ``damage`` reports it
        return DAMAGED_EVERY_S


def clean(departures: DepartureKeeper, clock: Clock) -> float:
    """Delete departures that are older than they have to be."""
    deleted = departures.clean(clock())
    if deleted:
        event(log, logging.DEBUG, "deleted files of departures", files=deleted)
    return DEPARTURES_EVERY_S


class SlotFileWork:
    """Spills and cleans. A spill that fails (a full disk) changes nothing, and the cleaner, which
    frees space, still runs."""

    def __init__(self, wheel: Wheel, clock: Clock, metrics: Metrics) -> None:
        self._wheel = wheel
        self._clock = clock
        self._metrics = metrics
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="spill-helper")
        self._next_clean_s = 0.0
        self._missed = self._missed_logged = 0
        self._next_log_s = 0.0
        self.archive = Duty("keeping delivered files in the archive")
        self._release_at_s: float | None = None

    def turn(self) -> float:
        try:
            self._spill()
        except SyncFailed:  # nothing more is written, and no later error may hide this one
            raise
        except BaseException:
            self._clean()
            raise
        self._clean()
        self._release()
        return SPILL_EVERY_S

    def _spill(self) -> None:
        now_ms = self._clock()
        if not self._wheel.spill_needed(now_ms):
            return
        started = time.perf_counter()
        self._release_at_s = time.monotonic() + RELEASE_AFTER_S
        report = self._wheel.spill(now_ms, ahead=self._ahead)
        seconds = time.perf_counter() - started
        self._metrics.spill_seconds.observe_one(seconds)
        self._metrics.spilled.inc(report.rows)
        event(
            log,
            logging.DEBUG,
            "spilled",
            rows=report.rows,
            skipped=report.skipped,
            slots=report.slots,
            bytes=report.nbytes,
            seconds=round(seconds, 3),
        )

    def _ahead(self, made: Iterator[T]) -> Iterator[T]:
        """Make the next items on the helper's thread while the last one is used."""
        coming = deque(self._helper.submit(next, made, None) for _ in range(_AHEAD))
        while (item := coming.popleft().result()) is not None:
            coming.append(self._helper.submit(next, made, None))
            yield item

    def _release(self) -> None:
        """Return free memory to the kernel, a while after the last spill."""
        if self._release_at_s is not None and time.monotonic() >= self._release_at_s:
            self._release_at_s = None
            memory.release()

    def _clean(self) -> None:
        if time.monotonic() < self._next_clean_s:
            return
        self._next_clean_s = time.monotonic() + CLEAN_EVERY_S
        deleted = self._wheel.clean(self._clock())
        if deleted:
            event(log, logging.DEBUG, "deleted covered slot files", files=deleted)
        missed, why = self._wheel.archive_missed
        if missed > self._missed:
            self._missed = missed
            self.archive.failed(why)
        elif deleted:
            self.archive.worked()
        self._log_missed(missed, why)

    def _log_missed(self, missed: int, why: str) -> None:
        if missed == self._missed_logged or time.monotonic() < self._next_log_s:
            return
        text = "files were deleted that the archive could not keep"
        event(log, logging.WARNING, text, files=missed - self._missed_logged, reason=why)
        self._missed_logged = missed
        self._next_log_s = time.monotonic() + LOG_MISSED_EVERY_S


class ClockWatch:
    """Reports a wall clock that is not believed, and keeps note of one that is."""

    def __init__(self, clock: NodeClock, events: NodeEvents) -> None:
        self._clock = clock
        self._events = events
        self._told = False

    def turn(self) -> float:
        why = self._clock.why_not_believed()
        if why and not self._told:
            jumped = bool(self._clock.ahead_ms)
            self._events.alarm("clock-jumped" if jumped else "clock-behind", reason=why)
        elif self._told and not why:
            self._events.event("clock-believed")
        self._told = bool(why)
        if not why:
            self._clock.note()
        return LOOK_EVERY_S


class SinkCheck:
    """Asks the sink whether it can be reached, until it can. From then on the hand reports that."""

    def __init__(
        self, sink: Sink, events: NodeEvents, where: str, done: Callable[[], None]
    ) -> None:
        self._sink = sink
        self._events = events
        self._where = where
        self._done = done

    def turn(self) -> float:
        if self._sink.healthy():
            self._events.sink_reached()
            self._done()
            return 0.0
        if self._events.sink_problem is None:
            self._events.sink_unreached(f"no answer from {self._where}")
        return SINK_CHECK_EVERY_S
