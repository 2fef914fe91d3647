"""Held-back topics: probed and drained on the side, while the main mark goes on.

For each topic, again and again: wait, probe, and after a successful probe deliver chunk after chunk
until one is not answered as a whole or the topic has caught up. Everything that may wait for the
sink or the disk - the probe, the delivery, reading - runs in a few worker threads, at most one job
a topic; everything that moves a mark runs in the hand's thread, in ``turn``. So a topic that hangs
costs the others nothing, and turns are fair: each held-back topic gets one chunk between two chunks
of the main mark, or, where that takes longer than ``_TURN_S``, comes first in the next turn.
``in_turn``: a delivery runs in the hand's thread as well, and is settled before the next one; then
one topic after the other gets a chunk between two of the main mark.

A topic that has too many bytes in one slot is held back as well, so that the others need not wait
for them. Nothing has failed, so it is not probed.

A topic's waiting time is kept for a while after its release, so that one that goes on failing is
not tried more and more often.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from cachetools import TTLCache

from ..wheel.backoff import Backoff
from ..wheel.due.chunk import Chunk
from ..wheel.schema import times
from .departures import DepartureKeeper
from .handover import BatchOutcome, release
from .ports import DeliveryEvents, DuePort
from .sink import Sink

log = logging.getLogger(__name__)

WORKERS = 4
REMEMBERED_S = 60.0
_TRY_SOON_S = 0.005
_TURN_S = 0.02
"""The longest time, s, that a turn gives to held-back topics while the main line waits."""


@dataclass(slots=True)
class _Held:
    """A held-back topic. At most one of ``probe``, ``reading`` and ``job`` runs; ``job`` delivers
    ``chunk``."""

    backoff: Backoff
    next_try_s: float
    probe: Future[bool] | None = None
    job: Future[BatchOutcome] | None = None
    chunk: Chunk | None = None
    reading: Future[None] | None = None
    usable: bool = False
    """The last probe or chunk succeeded: the next chunk needs no probe."""


@dataclass(slots=True)
class HeldTopics:
    """The held-back topics of a wheel. ``hand_over`` delivers a chunk as a trial, in a worker
    unless ``in_turn``. ``settle`` reports its outcome, in the hand's thread."""

    wheel: DuePort
    sink: Sink
    hand_over: Callable[[Chunk], BatchOutcome]
    settle: Callable[[Chunk, BatchOutcome], object]
    clock: Callable[[], int]
    events: DeliveryEvents
    departures: DepartureKeeper
    in_turn: bool = False
    _topics: dict[str, _Held] = field(default_factory=dict)
    _backoffs: TTLCache[str, Backoff] = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._backoffs = TTLCache(10_000, REMEMBERED_S)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="held-topic")

    def turn(self, may_start: Callable[[], bool]) -> bool:
        """Do one step for each held-back topic. Returns True when any of them made progress.
        ``may_start`` is asked before each topic; False: its next chunk has to wait."""
        moved = False
        self._look()
        ends_s = time.monotonic() + _TURN_S
        for topic, state in list(self._topics.items()):
            self._topics[topic] = self._topics.pop(topic)  # the others come first in the next turn
            if state.job is not None:
                moved |= self._finish(state)
            if state.job is None and may_start() and self._start(topic, state):
                moved = True
                if self.in_turn:  # the main line has waited for this one; the next waits for it
                    break
            if time.monotonic() > ends_s:  # the main line waits
                break
        return moved

    def wait_s(self) -> float | None:
        """The seconds until a turn can do something; None when no topic is held back."""
        if not self._topics:
            return None
        if any(state.job or state.probe or state.reading for state in self._topics.values()):
            return _TRY_SOON_S
        first = min(state.next_try_s for state in self._topics.values())
        return max(0.0, first - time.monotonic())

    def close(self, timeout_s: float = 1.0) -> None:
        """Report jobs that end within ``timeout_s``; the rows of later ones will be repeated."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        jobs = [state for state in self._topics.values() if state.job is not None]
        wait([state.job for state in jobs if state.job is not None], timeout_s)
        for state in jobs:
            job, chunk = state.job, state.chunk
            if job is None or chunk is None or not job.done():
                continue
            if job.cancelled() or job.exception() is not None:
                release(self.wheel, chunk, handed=not job.cancelled())
            else:
                self.settle(chunk, job.result())

    def _look(self) -> None:
        """See which topics are held back, and report those that are new or released."""
        now_held = self.wheel.held_topics()
        for topic in [name for name in self._topics if name not in now_held]:
            self._backoffs[topic] = self._topics.pop(topic).backoff
            self.events.released(topic)
        new = [topic for topic in now_held if topic not in self._topics]
        large = self.wheel.large_topics() if new else set()
        for topic in new:
            backoff = self._backoffs.pop(topic, None) or Backoff()
            if topic in large:  # nothing has failed
                self._topics[topic] = _Held(backoff, time.monotonic(), usable=True)
                self.events.set_aside(topic)
            else:
                self._topics[topic] = _Held(backoff, time.monotonic() + backoff.failed())

    def _start(self, topic: str, state: _Held) -> bool:
        if state.probe is not None:
            if not state.probe.done():
                return False
            probe, state.probe = state.probe, None
            state.usable = probe.exception() is None and probe.result()
            if not state.usable:
                self._failed(state)
                return False
        just_read = state.reading is not None
        if just_read and not self._has_read(state):
            return False
        if not state.usable:
            if time.monotonic() >= state.next_try_s:
                state.probe = self._pool.submit(self.sink.probe, topic)
            return False
        if time.monotonic() < state.next_try_s:
            return False
        now_ms = self.clock()
        if not just_read and self.wheel.has_to_read(topic, now_ms):
            state.reading = self._pool.submit(self.wheel.prepare_topic, topic)
            return False
        try:
            chunk = self.wheel.next_topic_chunk(topic, now_ms)
        except Exception:  # a damaged slot file, for example: not tried again at once
            self._failed(state)
            raise
        if chunk is None:
            # The topic was released, which the next turn sees; or its next row waits for the commit
            # of a cancel, or for the main line.
            state.next_try_s = time.monotonic() + _TRY_SOON_S
            return topic not in self.wheel.held_topics()
        self.departures.withdrawn(chunk, now_ms)
        if not chunk.rows.num_rows:
            self.settle(chunk, BatchOutcome.nothing(0, ""))
            return True
        if int(times(chunk.rows, "due").max()) > self.clock():
            release(self.wheel, chunk, handed=False)
            return False
        state.chunk = chunk
        if self.in_turn:
            state.job = _now(self.hand_over, chunk)
            return self._finish(state)
        state.job = self._pool.submit(self._deliver, topic, chunk)
        return True

    def _deliver(self, topic: str, chunk: Chunk) -> BatchOutcome:
        outcome = self.hand_over(chunk)
        try:
            self.wheel.prepare_topic(topic)
        except Exception:  # the next reading finds it, too, and reports it
            log.debug("reading ahead failed", exc_info=True)
        return outcome

    @staticmethod
    def _failed(state: _Held) -> None:
        state.usable = False
        state.next_try_s = time.monotonic() + state.backoff.failed()

    def _has_read(self, state: _Held) -> bool:
        """False while the topic is being read. Errors: that of the reading."""
        reading = state.reading
        assert reading is not None
        if not reading.done():
            return False
        state.reading = None
        error = reading.exception()
        if error is not None:
            self._failed(state)
            raise error
        return True

    def _finish(self, state: _Held) -> bool:
        job, chunk = state.job, state.chunk
        assert job is not None
        assert chunk is not None
        if not job.done():
            return False
        state.job = state.chunk = None
        error = job.exception()
        if error is not None:
            self._failed(state)
            release(self.wheel, chunk, handed=True)
            raise error  # the hand's loop reports it and goes on
        outcome = job.result()
        self.settle(chunk, outcome)
        state.usable = outcome.complete
        if outcome.complete:
            state.backoff.worked()
        else:
            self._failed(state)
        return True


def _now(call: Callable[[Chunk], BatchOutcome], chunk: Chunk) -> Future[BatchOutcome]:
    """Call in this thread; the future is done."""
    done: Future[BatchOutcome] = Future()
    try:
        done.set_result(call(chunk))
    except Exception as error:
        done.set_exception(error)
    return done
