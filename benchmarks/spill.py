"""What does a spill cost, by the number of slots that its rows are due in?

A wheel in this process with a full tail is spilled into slots that are there already (each append
opens a file) or new. Wall time, and beside it the raw limit of the same run: the same bytes in one
file, written and synced. Then the same beside a thread that appends to another file and syncs it,
as journal and topics are, and one that appends messages to the wheel: how long that takes while a
spill runs, and without one. An append waits for the wheel's lock and for no disk.

    python -m benchmarks.spill [--slots 1,60,1200,7180] [--messages 900000]

With ``--slots 86380`` it is a wheel of a day.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel

from ._load import TOPIC
from .harness import Report, data_directory, median_spread, options, raw_write_rate, warm_memory

_ESTIMATE = (
    "900,000 rows are 128 MiB: sort and gather 0.35 s, encode 0.1, checksum 0.02; to open, write"
    " and close a file 25 us, so 0.2 s for 7,180; then 149 MB are synced, 0.15 s"
)
_NOW_MS = 1_900_000_000_000
_BATCH_ROWS = 10_000
_SYNCED = bytes(100_000)
_PAUSE_S = 0.003
_QUIET_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--slots", default="1,60,1200,7180")
    parser.add_argument("--messages", type=int, default=900_000, help="in the tail")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages, chosen.repeats = min(chosen.messages, 100_000), 1
    with data_directory(chosen.dir) as directory:
        report = Report("a spill", _ESTIMATE, directory)
        report.begin()
        warm_memory(3.0 if chosen.warm_gib is None else chosen.warm_gib)
        for slots in (int(text) for text in chosen.slots.split(",")):
            files = OsFiles(directory / f"slots-{slots}")
            config = WheelConfig(
                slots=max(7200, slots + 11), disk_reserve_bytes=0, tail_bytes_refuse=8 << 30
            )
            wheel = Wheel.open(files, LmdbState(files.root), config, _NOW_MS)
            walls, cpus, nbytes = [], [], 0
            for _ in range(1 + chosen.repeats):  # the first makes the files
                _fill(wheel, chosen.messages, slots)
                started, cpu = time.perf_counter(), time.process_time()
                told = wheel.spill(_NOW_MS, everything=True)
                walls.append(time.perf_counter() - started)
                cpus.append(time.process_time() - cpu)
                nbytes = told.nbytes
            with synced(directory / "synced") as sync, Repeated(sync) as syncs:
                append = appends(wheel, slots)
                with Repeated(append) as appending:
                    during, quiet = _waits(wheel, [syncs, appending], chosen, slots)
            wheel.close()
            files.close()
            middle, spread = median_spread(walls[1:])
            text = f"{middle:.2f} (± {spread / 2:.0%})"
            report.figure(f"into {slots} slots, s", middle, text)
            report.figure(f"into {slots} new slots, s", walls[0], f"{walls[0]:.2f}")
            micros = median_spread(cpus[1:])[0] / chosen.messages * 1e6
            report.figure(f"CPU, {slots} slots, us/message", micros, f"{micros:.2f}")
            for when, (synced_s, appended_s) in (("a spill", during), ("none", quiet)):
                p90, p99 = np.percentile(synced_s or [0.0], [90, 99]) * 1000
                name = f"a sync beside {when}, {slots} slots, ms, p99"
                report.figure(name, float(p99), f"{p99:.1f} (p90 {p90:.1f})")
                p99, longest = np.percentile(appended_s or [0.0], [99, 100]) * 1000
                name = f"an append beside {when}, {slots} slots, ms, longest"
                report.figure(name, float(longest), f"{longest:.1f} (p99 {p99:.1f})")
            raw = raw_write_rate(directory, nbytes, 0.1)
            report.ratio(f"to one write + fdatasync, {slots} slots", nbytes / middle, raw)
        report.end(chosen.json)
    return 0


class Repeated:
    """A thread that calls ``act`` again and again, with a pause behind each. ``act`` returns how
    long it took, s."""

    def __init__(self, act: Callable[[], float]) -> None:
        self._act = act
        self._seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def since_last(self) -> list[float]:
        """The seconds of each call that ended since the last call of this."""
        seconds, self._seconds = self._seconds, []
        return seconds

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._seconds.append(self._act())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def synced(path: Path) -> Iterator[Callable[[], float]]:
    """Appends to a file at ``path`` and syncs it; the sync is timed."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)

    def sync() -> float:
        os.write(handle, _SYNCED)
        started = time.perf_counter()
        os.fdatasync(handle)
        return time.perf_counter() - started

    try:
        yield sync
    finally:
        os.close(handle)
        path.unlink()


def appends(wheel: Wheel, slots: int) -> Callable[[], float]:
    """Appends a message; until it is queued is timed. It is written with the next filling."""
    message = _batch(np.random.default_rng(1), 1, slots)

    def append() -> float:
        started = time.perf_counter()
        wheel.append(message, _NOW_MS)
        return time.perf_counter() - started

    return append


def _waits(
    wheel: Wheel, repeated: list[Repeated], chosen: argparse.Namespace, slots: int
) -> tuple[list[list[float]], list[list[float]]]:
    """How long the calls of each took while spills ran, and without one, s."""
    during: list[list[float]] = [[] for _ in repeated]
    quiet: list[list[float]] = [[] for _ in repeated]

    def note(waits: list[list[float]]) -> None:
        for waited_s, calls in zip(waits, repeated, strict=True):
            waited_s.extend(calls.since_last())

    for _ in range(chosen.repeats):
        _fill(wheel, chosen.messages, slots)
        note([[] for _ in repeated])
        time.sleep(_QUIET_S)
        note(quiet)
        wheel.spill(_NOW_MS, everything=True)
        note(during)
    return during, quiet


def _fill(wheel: Wheel, messages: int, slots: int) -> None:
    generator = np.random.default_rng(9)
    for first in range(0, messages, _BATCH_ROWS):
        rows = min(_BATCH_ROWS, messages - first)
        wheel.append(_batch(generator, rows, slots), _NOW_MS)
        while wheel.write_pending(0):
            pass


def _batch(generator: np.random.Generator, rows: int, slots: int) -> pa.RecordBatch:
    due = generator.integers(10_000, 10_000 + slots * 1000, rows) + _NOW_MS
    nothing = [None] * rows
    return from_columns(due, [TOPIC] * rows, nothing, nothing, [bytes(100)] * rows, [()] * rows)


if __name__ == "__main__":
    sys.exit(main())
