"""Appends the records of sources to the wheel: of all sources side by side, of each in its order.

Rules
- Of one source an append is waited for before the next. To go on without a result could leave a
  gap, which nothing would show if the append failed later.
- What the wheel cannot accept now is tried again, unchanged, until it can.
- A message to a topic that Kafka does not have is a dead letter now, as it is refused at the other
  ways in (``Door``), and not hours later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.errors import NotMaster, NotRunning, Overloaded
from .agreeing import is_done
from .delay_source import DelaySource
from .door import Door
from .ports import Clock, IntakeEvents, PoliciesPort, WheelPort
from .records import ConsumerRecords, rows_of

OFF_INTERVAL_S = 60.0
"""So often at most, s, it is said that timestamps are far from the node's clock."""
SLOW_COMMIT_S = 60.0
"""An append that is not committed after this time, s, is an alarm, once."""
_ROOM_WAIT_S = 0.5
_ASKED_WAIT_S = 0.05

GiveUp = Callable[[DelaySource, Exception], None]


class ClockInDoubt(Exception):
    """Records that were taken now would leave too early, or be taken for beyond the horizon."""


class _Queued(NamedTuple):
    source: DelaySource
    part: ConsumerRecords
    future: Future[Any]
    rows: int
    nbytes: int
    dead: int
    off: tuple[int, ...]
    started: float


class _Parts:
    """What is left of a source's records, the next part last. ``asked``: since when Kafka is asked
    for the topics of that part; None: it is not."""

    def __init__(self, records: ConsumerRecords) -> None:
        self.left = [records]
        self.asked: float | None = None


class SourceAppender:
    """For the thread of the intake."""

    def __init__(
        self,
        wheel: WheelPort,
        clock: Clock,
        events: IntakeEvents,
        *,
        dead_topic: str = DEAD_LETTER_TOPIC,
        policies: PoliciesPort | None = None,
        door: Door | None = None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._events = events
        self._dead_topic = dead_topic
        self._policies = policies
        self._door = door
        self._next_off = 0.0

    def time(self) -> int:
        """ms since 1970. Errors: ``ClockInDoubt``."""
        now_ms = self._clock()
        try:
            self._wheel.check_clock(now_ms)
        except Overloaded as error:
            raise ClockInDoubt(error.message) from None
        return now_ms

    def append(
        self,
        records: Mapping[DelaySource, ConsumerRecords],
        stop: threading.Event,
        give_up: GiveUp,
    ) -> bool:
        """Append all records, each source's cut so that each batch is within its limits. Returns
        whether that was done before ``stop``. ``give_up``: called with a source whose records
        cannot be appended. Errors: ``NotMaster``, ``NotRunning``, ``ClockInDoubt``."""
        pending = {source: _Parts(found) for source, found in records.items()}
        while pending and not stop.is_set():
            queued: list[_Queued] = []
            for source, parts in list(pending.items()):
                try:
                    one = self._queue_next(source, parts)
                except (NotMaster, NotRunning, ClockInDoubt):
                    raise
                except Overloaded as error:
                    self._events.refused(error.code, len(parts.left[-1].offsets))
                    # A stop between two tries: what was not appended is read again.
                    if self._wheel.wait_for_room(_ROOM_WAIT_S):
                        stop.wait(0.02)
                    break
                except Exception as error:
                    give_up(source, error)
                    del pending[source]
                else:
                    if one is not None:
                        queued.append(one)
                    elif not parts.left:
                        del pending[source]
            for one in queued:
                self._wait_for(one, pending, stop, give_up)
            if pending and all(parts.asked is not None for parts in pending.values()):
                stop.wait(_ASKED_WAIT_S)
        return not pending

    def _queue_next(self, source: DelaySource, parts: _Parts) -> _Queued | None:
        """Append the source's next part; None if there is none, it was cut in two, or Kafka is
        asked for its topics."""
        part = self._trimmed(source, parts.left[-1])
        if not part.offsets:
            parts.left.pop()
            return None
        config = self._wheel.config
        count = len(part.offsets)
        started = time.perf_counter()
        now_ms = self.time()
        settings = None if self._policies is None else self._policies.current
        made = partial(rows_of, part, str(source.place), config, now_ms, self._dead_topic, settings)
        rows, dead, off = made()
        if self._door is not None:
            parts.asked = parts.asked or started
            absent = self._door.absent(rows, started - parts.asked, settled=True)
            if absent is None:
                return None
            parts.asked = None
            if absent:
                rows, dead, off = made(absent)
        too_much = rows.num_rows > config.batch_rows_max or rows.nbytes > config.batch_bytes_max
        if too_much and count > 1:
            parts.left[-1:] = [part.part(count // 2), part.part(0, count // 2)]
            return None
        future = self._wheel.append_source(
            rows, now_ms, source=source.number, first=part.offsets[0], last=part.offsets[-1]
        )
        parts.left.pop()
        return _Queued(source, part, future, count, rows.nbytes, dead, off, started)

    def _wait_for(
        self,
        one: _Queued,
        pending: dict[DelaySource, _Parts],
        stop: threading.Event,
        give_up: GiveUp,
    ) -> None:
        try:
            if not self._committed(one.future, stop):
                return  # what was not stored is read again after the start
        except (NotMaster, NotRunning):
            raise
        except Overloaded as error:
            self._events.refused(error.code, one.rows)
            pending[one.source].left.append(one.part)
            return
        except Exception as error:
            give_up(one.source, error)
            del pending[one.source]
            return
        one.source.backoff.worked()
        self._events.appended(one.rows, one.nbytes, time.perf_counter() - one.started)
        if one.dead:
            self._events.event(
                "delay-topic-dead-letters", source=str(one.source.place), count=one.dead
            )
        if one.off and time.monotonic() >= self._next_off:
            self._next_off = time.monotonic() + OFF_INTERVAL_S
            self._events.event(
                "delay-topic-timestamps-far",
                source=str(one.source.place),
                count=len(one.off),
                behind_ms=max(0, -min(one.off)),
                ahead_ms=max(0, *one.off),
            )
        if not pending[one.source].left:
            del pending[one.source]

    def _committed(self, future: Future[Any], stop: threading.Event) -> bool:
        """Wait until an append is committed, however long; False on ``stop``."""
        slow_at = time.monotonic() + SLOW_COMMIT_S
        while not stop.is_set():
            if is_done(future):
                return True
            if time.monotonic() >= slow_at:
                slow_at = float("inf")
                self._events.alarm("delay-topic-commit-slow")
        return False

    def _trimmed(self, source: DelaySource, records: ConsumerRecords) -> ConsumerRecords:
        position, start = source.position(self._wheel), 0
        while start < len(records.offsets) and records.offsets[start] <= position:
            start += 1
        return records.part(start) if start else records
