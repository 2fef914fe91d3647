"""Data directories full of pending messages, written by the engine in this process.

The engine reads no clock, so a directory can be one of forty days ago: what is due in a minute lies
in the file of a day there, as it would after forty days of waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import TIME
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel

from ._load import VALUE_BYTES, named_headers
from .spill import Repeated

_RLOCK = threading.RLock
_BATCH_ROWS = 10_000
_STEADY_FROM_MS = 1_900_000_000_000
_TAIL_ROWS = 20_000
"""So many rows stay in the journal, for a restart to read: about what waits for a spill."""


@dataclass(frozen=True)
class Wave:
    """``rows`` messages to ``topics`` in turn, due uniformly over ``span_ms`` from ``from_ms`` on;
    with a span of 0 all at that millisecond. ``value_bytes``: of each. ``named``: each has a name,
    ``pending-`` and its number from 0."""

    rows: int
    from_ms: int
    span_ms: int
    topics: Sequence[str]
    value_bytes: int = VALUE_BYTES
    named: bool = False


class _MeasuredLock:
    """A lock that notes for how long it was held at the longest, in processor time of its holder:
    on a busy machine a thread is also stopped while it holds a lock."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._lock: Any = _RLOCK()
        self._depth = 0
        self._since_s = 0.0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = bool(self._lock.acquire(blocking, timeout))
        if taken:
            self._depth += 1
            if self._depth == 1:
                self._since_s = time.thread_time()
        return taken

    def release(self) -> None:
        if self._depth == 1:
            self.longest_s = max(self.longest_s, time.thread_time() - self._since_s)
        self._depth -= 1
        self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    # -- for a condition over it -----------------------------------------------------------------

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> tuple[int, Any]:
        depth, self._depth = self._depth, 0
        return depth, self._lock._release_save()

    def _acquire_restore(self, state: tuple[int, Any]) -> None:
        self._lock._acquire_restore(state[1])
        self._depth, self._since_s = state[0], time.thread_time()


@contextmanager
def _measured() -> Iterator[list[_MeasuredLock]]:
    """Locks that are made meanwhile are measured; they are in the list."""
    locks: list[_MeasuredLock] = []

    def measured_lock() -> _MeasuredLock:
        locks.append(_MeasuredLock())
        return locks[-1]

    with patch.object(threading, "RLock", measured_lock):
        yield locks


@dataclass
class Built:
    """``appends_s``: how long a message took to be queued, again and again while spills ran: it
    waits for the owner's lock, and for no disk. ``lock_s``: processor time for which
    that lock was held at the longest. ``spills_s``: of each spill."""

    rows: int = 0
    seconds: float = 0.0
    slot_files: int = 0
    slot_rows: int = 0
    slot_bytes: int = 0
    lock_s: float = 0.0
    appends_s: list[float] = field(default_factory=list)
    spills_s: list[float] = field(default_factory=list)

    @property
    def row_bytes(self) -> float:
        """Bytes of a row in slot files."""
        return self.slot_bytes / max(1, self.slot_rows)


def build(path: Path, config: WheelConfig, now_ms: int, waves: Sequence[Wave]) -> Built:
    """Write the messages of ``waves`` into a new directory, all sent at ``now_ms``."""
    built = Built()
    begun = time.perf_counter()
    with ExitStack() as stack:
        files = stack.enter_context(closing(OsFiles(path)))
        with _measured() as locks:
            wheel = stack.enter_context(closing(Wheel.open(files, LmdbState(path), config, now_ms)))
        beside = replace(waves[0], topics=["beside"], named=False)
        probe = _batch(np.random.default_rng(1), beside, 1)

        def append() -> float:
            started = time.perf_counter()
            wheel.append(probe, now_ms)
            return time.perf_counter() - started

        with Repeated(append) as appending:

            def spill_all() -> None:
                appending.since_last()
                built.spills_s.append(spill(wheel, now_ms))
                built.appends_s += appending.since_last()
                wheel.clean(now_ms)  # runs of names are merged, as in a node

            for batch in batches(waves):
                wheel.append(batch, now_ms)
                write(wheel)
                if wheel.spill_needed(now_ms):
                    spill_all()
            spill_all()
        wheel.append(_batch(np.random.default_rng(2), beside, _TAIL_ROWS), now_ms)
        write(wheel)
        count(built, wheel)
        built.lock_s = max(lock.longest_s for lock in locks)
    built.seconds = time.perf_counter() - begun
    return built


def count(built: Built, wheel: Wheel) -> None:
    """Fill in what stands in the slot files."""
    status = wheel.status()
    built.rows = status.pending
    built.slot_files, built.slot_rows = status.slot_files, status.slot_rows
    built.slot_bytes = status.slot_bytes


def write(wheel: Wheel) -> None:
    while wheel.write_pending(0):
        pass


def spill(wheel: Wheel, now_ms: int) -> float:
    """Spill all of the tail; how long that took, s."""
    started = time.perf_counter()
    wheel.spill(now_ms, everything=True)
    return time.perf_counter() - started


def batches(waves: Sequence[Wave]) -> Iterator[pa.RecordBatch]:
    """The messages of ``waves``, INPUT schema."""
    generator = np.random.default_rng(9)
    for wave in waves:
        for first in range(0, wave.rows, _BATCH_ROWS):
            yield _batch(generator, wave, min(_BATCH_ROWS, wave.rows - first), first)


def _batch(generator: np.random.Generator, wave: Wave, rows: int, first: int = 0) -> pa.RecordBatch:
    due = generator.integers(0, max(1, wave.span_ms), rows) + wave.from_ms
    topics = pa.array(wave.topics, pa.utf8()).take(pa.array(np.arange(rows) % len(wave.topics)))
    values = pa.repeat(pa.scalar(bytes(wave.value_bytes), pa.binary()), rows)
    batch = pa.record_batch({"due": pa.array(due).cast(TIME), "topic": topics, "value": values})
    if wave.named:
        batch = batch.append_column("headers", named_headers("pending", first, rows))
    return batch


def steady(path: Path, config: WheelConfig, minutes: int, span_ms: int) -> Built:
    """``minutes`` of a given clock at 50 messages a second, due uniformly over ``span_ms``: written
    each second, spilled as the engine asks for it."""
    built = Built()
    begun = time.perf_counter()
    generator = np.random.default_rng(5)
    with (
        closing(OsFiles(path)) as files,
        closing(Wheel.open(files, LmdbState(path), config, _STEADY_FROM_MS)) as wheel,
    ):
        for second in range(minutes * 60):
            now_ms = _STEADY_FROM_MS + second * 1000
            wheel.append(_batch(generator, Wave(50, now_ms, span_ms, ["orders"]), 50), now_ms)
            write(wheel)
            deliver(wheel, now_ms)
            if wheel.spill_needed(now_ms):
                started = time.perf_counter()
                wheel.spill(now_ms)
                built.spills_s.append(time.perf_counter() - started)
        built.spills_s.append(spill(wheel, now_ms))
        count(built, wheel)
    built.seconds = time.perf_counter() - begun
    return built


def deliver(wheel: Wheel, now_ms: int) -> None:
    """Take what is due, as a sink does that accepts everything."""
    master = wheel.dispatcher
    assert master is not None
    while True:
        chunk = master.next_chunk(now_ms)
        if chunk is not None:
            master.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
        elif not wheel.has_queued:
            break
        write(wheel)
    master.append_mark(now_ms)
    write(wheel)
    wheel.clean(now_ms)
