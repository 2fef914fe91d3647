"""What does one message cost, stage by stage, in microseconds of processor time?

One wheel in this process and one thread that does each stage in turn, so that nothing else is
counted: no transport, no other threads, no waiting for the interpreter. It is processor time, so
other load on the machine matters little. The transport and the client are the difference to
``benchmarks.ingest`` (node CPU). Messages are due over a minute (full slots); for batches of 1000
also over two hours: then a spill opens 7200 files, and delivery ends a chunk at each slot.

What is overdue leaves in full chunks. At a steady rate a chunk is what became due since the last
one began: for each of ``--rates`` messages come in batches of 20 ms, and leave at the longest
distance that the hand keeps between chunks (``delivery/pace.py``), or, where that is shorter, in
chunks of the 2 ms that an embedded topic takes to answer.

What ``--trace-retain`` and the records for Kafka cost stands besides; keys, which these messages do
not have, add to it.

    python -m benchmarks.stages [--rows 10,1000,10000] [--rates 10000,50000] [--messages 1000000]
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from slotwheel.delivery import pace
from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.departures import KeptDepartures
from slotwheel.delivery.embedded.sink import EmbeddedSink
from slotwheel.delivery.handover import hand_over
from slotwheel.delivery.kafka.records import to_records
from slotwheel.delivery.ports import DeliveryEvents
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel

from ._load import TOPIC
from .harness import Report, data_directory, options, warm_memory

_ESTIMATE = (
    "batches of 1000, 100 B: checks, columns and one copy 0.25 us; journal (checksum, write, sync)"
    " 0.3; commit and ids 0.15; spill over 7200 slots (sort, gather, encode, open, write) 0.8, over"
    " 60 0.5; read, sort and take 0.5; deliver to an embedded topic 0.5: 2.2 us in all. Over 7200"
    " slots a chunk is 140 rows, and its 1 ms of reading, two syncs and calls is 7 us a message; at"
    " 10,000 a second it is 90 rows, or 11 us a message, at 100,000 250 rows, or 4 us"
)
_NOW_MS = 1_900_000_000_000
_AHEAD_MS = 10_000
"""Nothing is due earlier."""
_BATCH_S = 0.02
_RATE_SECONDS = 4
_ANSWER_MS = 2
BESIDES = DEPARTURES, RECORDS = "departures", "records for Kafka"
"""Further stages, not counted with the others: with ``--trace-retain``, and with another sink."""
STAGES = ("intake", "journal", "ids", "spill", "read", "deliver", "answer", "clean")


class Meter:
    """Processor time of this process by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.seconds[stage] += time.process_time() - begun


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="10,1000,10000", help="messages in a batch")
    parser.add_argument("--rates", default="10000,50000,100000", help="messages a second")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages = min(chosen.messages, 100_000)
    with data_directory(chosen.dir) as directory:
        report = Report("one message, stage by stage", _ESTIMATE, directory)
        report.begin()
        warm_memory(2.0 if chosen.warm_gib is None else chosen.warm_gib)
        sizes = [int(text) for text in chosen.rows.split(",")]
        for rows, span_s in [*((rows, 60) for rows in sizes), (1000, 7_180)]:
            # Small batches cost more each: fewer of them tell as much.
            count = max(rows, min(chosen.messages, rows * 5_000))
            of = f"batches of {rows}" if span_s == 60 else f"batches of {rows} over two hours"
            make = [_batch(rows, chosen.value_bytes, span_s * 1000, seed) for seed in range(20)]
            meter = Meter()
            _life(directory / f"rows-{rows}-{span_s}", make, count, meter)
            _tell(report, meter, count, of)
        for rate in map(int, chosen.rates.split(",")):
            rows = max(1, int(rate * _BATCH_S))
            count = rows * max(1, min(chosen.messages // 5, rate * _RATE_SECONDS) // rows)
            span_ms = count * 1000 // rate
            make = [_batch(rows, chosen.value_bytes, span_ms, seed) for seed in range(20)]
            meter = Meter()
            longest_s = min(pace.LONGEST_S, pace.ROWS_MAX / rate)
            step_ms = max(_ANSWER_MS, int(longest_s * 1000))
            _life(directory / f"rate-{rate}", make, count, meter, step_ms)
            _tell(report, meter, count, f"{rate:,} a second")
        report.end(chosen.json)
    return 0


def _tell(report: Report, meter: Meter, count: int, of: str) -> None:
    micros = {stage: seconds / count * 1e6 for stage, seconds in meter.seconds.items()}
    for stage in STAGES:
        report.figure(f"{stage}, {of}, us", micros[stage], f"{micros[stage]:.3f}")
    whole = sum(micros[stage] for stage in STAGES)
    report.figure(f"all, {of}, us", whole, f"{whole:.2f}")
    for stage in BESIDES:
        report.figure(f"{stage} besides, {of}, us", micros[stage], f"{micros[stage]:.3f}")


def _life(
    path: Path, batches: list[pa.RecordBatch], count: int, meter: Meter, step_ms: int = 0
) -> None:
    """``count`` messages come in, are spilled, and leave: every ``step_ms`` those that are due by
    then, or all of them later if that is 0."""
    now_ms = _NOW_MS
    rows = batches[0].num_rows
    config = WheelConfig(disk_reserve_bytes=0)
    files = OsFiles(path)
    state = LmdbState(path)
    wheel = Wheel.open(files, state, config, now_ms)
    sink = EmbeddedSink(files, wheel.mint, lambda: now_ms, threads=1)
    letters = DeadLetters(sink, None)
    kept = KeptDepartures(files, config.horizon_ms, 0, DeliveryEvents())
    for number in range(count // rows):
        with meter.of("intake"):
            future = wheel.append(batches[number % len(batches)], now_ms)
        with meter.of("journal"):
            wheel.write_pending(0)
        with meter.of("ids"):
            receipt = future.result(0)
            wheel.mint.checks(receipt.due, np.arange(rows) + receipt.base_offset)
        if wheel.spill_needed(now_ms):
            with meter.of("spill"):
                wheel.spill(now_ms)
    with meter.of("spill"):
        wheel.spill(now_ms, everything=True)
    now_ms += _AHEAD_MS if step_ms else config.horizon_ms + 2_000
    master = wheel.dispatcher
    assert master is not None
    while True:
        with meter.of("read"):
            while step_ms and master.prepare(now_ms):
                pass
            chunk = master.next_chunk(now_ms)
        if chunk is None:
            if wheel.write_pending(0):  # a mark that reaches further, which rows may wait for
                continue
            if not step_ms or not wheel.status().pending:
                break
            now_ms += step_ms
            continue
        with meter.of("deliver"):
            outcome = hand_over(sink, letters, chunk.rows, now_ms)
        with meter.of(RECORDS):
            to_records(chunk.rows, wheel.mint)
        with meter.of(DEPARTURES):
            kept.withdrawn(chunk, now_ms)
            kept.answered(chunk, outcome, now_ms)
        with meter.of("answer"):
            master.answer(chunk, outcome.answered)
            wheel.write_pending(0)
    with meter.of("clean"):
        master.append_mark(now_ms, at_once=True)
        wheel.write_pending(0)
        while wheel.clean(now_ms):
            pass
    left = wheel.status().pending
    kept.close()
    sink.close()
    wheel.close()
    files.close()
    if left:
        raise RuntimeError(f"{left} messages were not delivered")


def _batch(rows: int, value_bytes: int, span_ms: int, seed: int) -> pa.RecordBatch:
    generator = np.random.default_rng(seed)
    due = generator.integers(_AHEAD_MS, _AHEAD_MS + span_ms, rows) + _NOW_MS
    nothing = [None] * rows
    values = [generator.bytes(value_bytes)] * rows
    return from_columns(due, [TOPIC] * rows, nothing, nothing, values, [()] * rows)


if __name__ == "__main__":
    sys.exit(main())
