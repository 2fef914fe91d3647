"""The Kafka delay topic: one partition of it, read exactly once into the journal.

Theory: the wheel's own log has the position in the partition (an append carries the last source
offset, and both are committed as one entry). So reading always starts at ``source_position + 1``,
after a start, a failure or a doubt, and the offsets committed to Kafka only show the lag.

    position of the log -> seek -> poll -> trim -> rows (or dead letters) -> append -> committed
          ^                                                                        |
          +---------------- any failure: alarm, back off, begin here again --------+

Rules: an append is waited for before the next (its batches are large enough to share a sync); no
exception ends the loop; an append that the wheel cannot accept now is tried again, unchanged, until
it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from typing import Any, Protocol

from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.backoff import Backoff
from ..wheel.errors import Overloaded
from .ports import Clock, IntakeEvents, PoliciesPort, WheelPort
from .records import ConsumerRecords, rows_of

POLL_S = 0.25
COMMIT_INTERVAL_S = 5.0
CHECK_INTERVAL_S = 2.0
OFF_INTERVAL_S = 60.0
"""So often at most, s, it is said that timestamps are far from the node's clock."""
SLOW_COMMIT_S = 60.0
"""An append that is not committed after this time, s, is an alarm, once."""
_ROOM_WAIT_S = 0.5


class SourceUnreachable(Exception):
    """The broker did not answer; it may later."""


class SourceOutOfRange(Exception):
    """The position is not in the partition any more, or not yet."""


class SourceReader(Protocol):
    """A consumer of one assigned partition, without group membership, read-committed.

    Errors of all methods: ``SourceUnreachable``; of ``poll``: ``SourceOutOfRange`` too.
    """

    def seek(self, offset: int) -> None: ...
    def poll(self, timeout_s: float) -> ConsumerRecords: ...
    def range(self) -> tuple[int, int]:
        """The earliest offset there is, and the one after the last."""

    def commit(self, offset: int) -> None:
        """Commit ``offset`` to Kafka, for its lag figures only: everything below was read."""

    def close(self) -> None: ...


class DelayTopicIntake:
    """Reads a delay topic. ``open_reader``: makes a reader of ``topic``'s ``partition``; ``run``: a
    thread's target.

    ``position``, ``lag`` (records, None: not known) and ``reachable`` are for metrics.
    """

    def __init__(
        self,
        wheel: WheelPort,
        open_reader: Callable[[], SourceReader],
        *,
        topic: str,
        partition: int,
        clock: Clock = lambda: time.time_ns() // 1_000_000,
        events: IntakeEvents,
        dead_topic: str = DEAD_LETTER_TOPIC,
        policies: PoliciesPort | None = None,
    ) -> None:
        self._wheel = wheel
        self._open_reader = open_reader
        self._source = f"{topic}/{partition}"
        self._partition = partition
        self._clock = clock
        self._events = events
        self._dead_topic = dead_topic
        self._policies = policies
        self._backoff = Backoff(0.1)
        self._next_commit = 0.0
        self._next_check = 0.0
        self._next_off = 0.0
        self.reachable: bool | None = None
        self.lag: int | None = None

    @property
    def position(self) -> int:
        """The last source offset in the wheel's log; -1: none."""
        return self._wheel.source_position(self._partition)

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set; then returns within about half a second."""
        while not stop.is_set():
            try:
                self._read(stop)
            except SourceUnreachable as error:
                self._set_reachable(False, str(error))
                stop.wait(self._backoff.failed())
            except Exception as error:
                self._events.alarm("delay-topic-failed", source=self._source, error=repr(error))
                stop.wait(self._backoff.failed())

    def _read(self, stop: threading.Event) -> None:
        reader = self._open_reader()
        try:
            reader.seek(self.position + 1)
            while not stop.is_set():
                try:
                    records = reader.poll(POLL_S)
                except SourceOutOfRange:
                    self._find_the_way_back(reader, stop)
                    continue
                if records.offsets:
                    self._set_reachable(True)
                    self._append_records(records, stop)
                self._look_after(reader)
            reader.commit(self.position + 1)
        finally:
            reader.close()

    def _find_the_way_back(self, reader: SourceReader, stop: threading.Event) -> None:
        wanted = self.position + 1
        earliest, end = reader.range()
        if earliest > wanted:
            self._events.alarm(
                "delay-topic-records-missed", source=self._source, wanted=wanted, earliest=earliest
            )
            reader.seek(earliest)
        elif wanted > end:
            # The topic was made again: its offsets would look old, and its records be skipped.
            self._events.alarm(
                "delay-topic-shorter-than-read", source=self._source, wanted=wanted, end=end
            )
            stop.wait(self._backoff.failed())
            reader.seek(wanted)
        else:
            reader.seek(wanted)

    def _append_records(self, records: ConsumerRecords, stop: threading.Event) -> None:
        """Append all of ``records``, cut so that each batch is within its limits."""
        config = self._wheel.config
        parts = [records]
        while parts and not stop.is_set():
            part = self._trimmed(parts.pop())
            if not part.offsets:
                continue
            count = len(part.offsets)
            started = time.perf_counter()
            now_ms = self._clock()
            settings = None if self._policies is None else self._policies.current
            rows, dead, off = rows_of(
                part, self._source, config, now_ms, self._dead_topic, settings
            )
            too_much = rows.num_rows > config.batch_rows_max or rows.nbytes > config.batch_bytes_max
            if too_much and count > 1:
                parts += [part.part(count // 2), part.part(0, count // 2)]
                continue
            try:
                future = self._wheel.append_source(
                    rows,
                    now_ms,
                    partition=self._partition,
                    first=part.offsets[0],
                    last=part.offsets[-1],
                )
                if not self._committed(future, stop):
                    return  # records that were not stored are read again after the start
            except Overloaded as error:
                self._events.refused(error.code, count)
                # A stop between two tries: records that were not appended are read again after the
                # start.
                if self._wheel.wait_for_room(_ROOM_WAIT_S):
                    stop.wait(0.02)
                parts.append(part)
                continue
            self._backoff.worked()
            self._events.appended(count, rows.nbytes, time.perf_counter() - started)
            if dead:
                self._events.event("delay-topic-dead-letters", source=self._source, count=dead)
            if off and time.monotonic() >= self._next_off:
                self._next_off = time.monotonic() + OFF_INTERVAL_S
                self._events.event(
                    "delay-topic-timestamps-far",
                    source=self._source,
                    count=len(off),
                    behind_ms=max(0, -min(off)),
                    ahead_ms=max(0, *off),
                )

    def _committed(self, future: Future[Any], stop: threading.Event) -> bool:
        """Wait until an append is committed, however long; False on ``stop``. To read on without a
        result could leave a gap, which nothing would show if the append failed later."""
        slow_at = time.monotonic() + SLOW_COMMIT_S
        while not stop.is_set():
            try:
                error = future.exception(POLL_S)
            except TimeoutError:
                if time.monotonic() >= slow_at:
                    slow_at = float("inf")
                    self._events.alarm("delay-topic-commit-slow", source=self._source)
                continue
            if error is not None:
                raise copy(error)  # the future's own would refer to these frames, and they to it
            return True
        return False

    def _trimmed(self, records: ConsumerRecords) -> ConsumerRecords:
        position, start = self.position, 0
        while start < len(records.offsets) and records.offsets[start] <= position:
            start += 1
        return records.part(start) if start else records

    def _look_after(self, reader: SourceReader) -> None:
        """Regularly: commit the position to Kafka, measure the lag, notice an absent broker."""
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + COMMIT_INTERVAL_S
            reader.commit(self.position + 1)
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL_S
            # With a broker that is away, some clients only return empty polls.
            _, end = reader.range()
            self.lag = max(0, end - self.position - 1)
            self._set_reachable(True)

    def _set_reachable(self, reachable: bool, why: str = "") -> None:
        if reachable is self.reachable:
            return
        self.reachable = reachable
        if reachable:
            self._backoff.worked()
            self._events.event("delay-topic-reachable", source=self._source)
        else:
            self.lag = None
            self._events.event("delay-topic-unreachable", source=self._source, error=why)
