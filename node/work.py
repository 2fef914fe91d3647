"""The work of the node's own threads, one class or function each; ``Loop`` calls them.

- syncer: writes and syncs queued entries (group commit)
- slot-files: spills the tail, deletes covered slot files
- prefetcher: reads ahead: the next window of a slot, the next slot
- scrubber: reads slot files ahead, to find damage before they are due (``damage.py``)
- departures: deletes old files of departures
- clock: reports a wall clock that has jumped ahead
- sink-check: asks the sink at the start, until it was reached once
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
from ..wheel.dispatcher import Dispatcher
from ..wheel.errors import Damaged, SyncFailed
from ..wheel.wheel import Wheel
from . import memory
from .clock import LOOK_EVERY_S, NodeClock
from .duty import Duty
from .events import LOG_MISSED_EVERY_S, NodeEvents
from .intake.ports import Clock
from .logs import event
from .metrics import Metrics

log = logging.getLogger("slotwheel.node")

SYNC_WAIT_S = 0.1
SPILL_EVERY_S = 0.05
CLEAN_EVERY_S = 0.25
PREPARE_EVERY_S = 0.05
DAMAGED_EVERY_S = 1.0
"""A damaged slot file is opened again after this time, s, as each time all of it is read."""
SINK_CHECK_EVERY_S = 1.0
DEPARTURES_EVERY_S = 10.0
RELEASE_AFTER_S = 2.0
_AHEAD = 3
"""So many ranges of a spill are prepared ahead, as now preparing is slower and now writing."""

T = TypeVar("T")


def sync(wheel: Wheel, metrics: Metrics, wait_s: float = SYNC_WAIT_S) -> bool:
    """Commit a group, if an entry is queued within ``wait_s``. Returns False if none was."""
    if not wheel.write_pending(wait_s):
        return False
    metrics.group_commits.inc()
    return True


def prepare(dispatcher: Dispatcher, sink: Sink, clock: Clock) -> float:
    """Read a window or slot ahead, if one is coming, and let the sink expect its topics. Returns
    the pause before the next call, s."""
    try:
        more = dispatcher.prepare(clock())
        sink.expect(dispatcher.coming_topics())
        return 0.0 if more else PREPARE_EVERY_S
    except Damaged:  # the storage keeps the error, and ``damage`` reports it
        return DAMAGED_EVERY_S


def clean(departures: DepartureKeeper, clock: Clock) -> float:
    """Delete old files of departures. Returns the pause until the next call, s."""
    deleted = departures.clean(clock())
    if deleted:
        event(log, logging.DEBUG, "deleted files of departures", files=deleted)
    return DEPARTURES_EVERY_S


class SlotFileWork:
    """Spills and cleans, and learns where the rows are in wide slot files that are due soon. After
    a failed spill (a full disk) it still cleans: that frees space."""

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
        except SyncFailed:  # nothing may be written now, and an error in cleaning would hide this
            raise
        except BaseException:
            self._clean()
            raise
        self._clean()
        self._wheel.index_ahead(self._clock())
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

    def _ahead(self, items: Iterator[T]) -> Iterator[T]:
        """Make the next items on the helper's thread while the last one is used."""
        coming = deque(self._helper.submit(next, items, None) for _ in range(_AHEAD))
        while (item := coming.popleft().result()) is not None:
            coming.append(self._helper.submit(next, items, None))
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
        missed, reason = self._wheel.archive_missed
        if missed > self._missed:
            self._missed = missed
            self.archive.failed(reason)
        elif deleted:
            self.archive.worked()
        self._log_missed(missed, reason)

    def _log_missed(self, missed: int, reason: str) -> None:
        if missed == self._missed_logged or time.monotonic() < self._next_log_s:
            return
        text = "files were deleted that the archive could not keep"
        event(log, logging.WARNING, text, files=missed - self._missed_logged, reason=reason)
        self._missed_logged = missed
        self._next_log_s = time.monotonic() + LOG_MISSED_EVERY_S


class ClockWatch:
    """Reports a wall clock that is not believed; writes the offset of one that is to the state."""

    def __init__(self, clock: NodeClock, events: NodeEvents) -> None:
        self._clock = clock
        self._events = events
        self._reported = False

    def turn(self) -> float:
        doubt = self._clock.why_not_believed()
        if doubt and not self._reported:
            jumped = bool(self._clock.ahead_ms)
            self._events.alarm("clock-jumped" if jumped else "clock-behind", reason=doubt)
        elif self._reported and not doubt:
            self._events.event("clock-believed")
        self._reported = bool(doubt)
        if not doubt:
            self._clock.note()
        return LOOK_EVERY_S


class SinkCheck:
    """Asks the sink until it can be reached, and calls ``done``. From then on the hand reports a
    sink that is down. ``target`` names the sink in the log."""

    def __init__(
        self, sink: Sink, events: NodeEvents, target: str, done: Callable[[], None]
    ) -> None:
        self._sink = sink
        self._events = events
        self._target = target
        self._done = done

    def turn(self) -> float:
        if self._sink.healthy():
            self._events.sink_reached()
            self._done()
            return 0.0
        if self._events.sink_problem is None:
            self._events.sink_unreached(f"no answer from {self._target}")
        return SINK_CHECK_EVERY_S
