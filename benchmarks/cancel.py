"""How many messages a second are cancelled, each with a truthful, durable answer?

Messages that are due in an hour are sent, their slot files written; then one client cancels them,
so many ids a call. An answer is durable: its row is synced like any other. The raw limit is
write + fdatasync of an entry of as many cancel rows.

Then the worst case, in a wheel of its own: 10,000 ids of one slot of 100 MB are cancelled while
their topic is held back, so that the answers depend on what stands in the slot's file. Another
thread appends meanwhile: what does it feel?

    python -m benchmarks.cancel [--ids 1,100,10000] [--messages 200000]
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotwheel.client import Client
from slotwheel.node.node import SWITCH_INTERVAL_S
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import TIME
from slotwheel.wheel.state import LmdbState
from slotwheel.wheel.wheel import Wheel

from ._load import TOPIC, VALUE_BYTES
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory

_ESTIMATE = (
    "one id: a call of 0.2 ms and a sync of 0.3 ms, 2,000 a second; many: the node parses an id in"
    " 2 us, checks its seal in 0.15, looks whether it has left in 0.5, stores a row in 1; the"
    " client encodes ids and decodes answers in 2: 150,000 a second"
)
_ROW_BYTES = 60
_ENTRY_BYTES = 650
_NOW_MS = 1_900_000_000_000
_HELD = "held-back"
_IDS = 10_000


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--ids", default="1,100,10000", help="ids in a call")
    parser.add_argument("--messages", type=int, default=200_000, help="at most, for each figure")
    parser.add_argument("--seconds", type=float, default=5.0, help="at most, for each figure")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages, chosen.seconds = min(chosen.messages, 20_000), 2.0
    with data_directory(chosen.dir) as directory:
        report = Report("cancelling", _ESTIMATE, directory)
        report.begin()
        warm_memory(1.0 if chosen.warm_gib is None else chosen.warm_gib)
        with (
            BenchNode(directory / "data", "--tail-age", "500ms", "--tail-keep", "1ms") as node,
            Client(node.address) as client,
        ):
            for at_once in (int(text) for text in chosen.ids.split(",")):
                count = max(at_once, min(chosen.messages, at_once * 5_000))
                ids = _send(client, count)
                rate, waits = _cancel(client, ids, at_once, chosen.seconds)
                report.figure(f"cancelled/s, {at_once} a call", rate, f"{rate:,.0f}")
                middle = float(np.percentile(waits, 50)) * 1000
                report.figure(f"answer p50, {at_once} a call, ms", middle, f"{middle:.2f}")
                group = _ENTRY_BYTES + at_once * _ROW_BYTES
                raw = raw_write_rate(directory, group, 1.0) / group * at_once
                report.ratio(f"to write + fdatasync, {at_once} a call", rate, raw)
        _while_held(report, directory / "held", 10_000 if chosen.quick else 100_000)
        report.end(chosen.json)
    return 0


def _send(client: Client, count: int) -> list[str]:
    """So many messages, in slot files; their ids."""
    generator = np.random.default_rng(5)
    now_ms = time.time_ns() // 1_000_000
    due = np.sort(generator.integers(3_600_000, 3_900_000, count)) + now_ms
    table = pa.table(
        {
            "due": due,
            "topic": pa.repeat(pa.scalar(TOPIC), count),
            "value": pa.repeat(pa.scalar(bytes(VALUE_BYTES), pa.binary()), count),
        }
    )
    ids = client.send_table(table).result(60)
    deadline = time.monotonic() + 30
    while client.status()["tail_rows"]:
        if time.monotonic() > deadline:
            raise RuntimeError("the messages were not spilled")
        time.sleep(0.05)
    return ids


def _cancel(
    client: Client, ids: list[str], at_once: int, seconds: float
) -> tuple[float, list[float]]:
    waits: list[float] = []
    done, start = 0, time.perf_counter()
    while done < len(ids) and time.perf_counter() - start < seconds:
        begun = time.perf_counter()
        part = ids[done : done + at_once]
        answers = client.cancel(part)
        waits.append(time.perf_counter() - begun)
        if answers != ["cancelled"] * len(part):
            raise RuntimeError(f"a message was not cancelled: {set(answers)}")
        done += len(part)
    return done / (time.perf_counter() - start), waits


def _while_held(report: Report, path: Path, count: int) -> None:
    """``count`` messages of 1 KB are due in one second; the sink takes all but one topic's."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    files, state = OsFiles(path), LmdbState(path)
    wheel = Wheel.open(files, state, WheelConfig(disk_reserve_bytes=0), _NOW_MS)
    syncing = threading.Event()
    syncer = threading.Thread(target=_sync, args=(wheel, syncing), daemon=True)
    syncer.start()
    rows = pa.record_batch(
        {
            "due": pa.array(_NOW_MS + 5_000 + np.arange(1000) % 1000, pa.int64()).cast(TIME),
            "topic": [_HELD if row % 2 else TOPIC for row in range(1000)],
            "value": [bytes(1000)] * 1000,
        }
    )
    receipts = [wheel.append(rows, _NOW_MS).result(30) for _ in range(count // 1000)]
    wheel.spill(_NOW_MS, everything=True)
    now_ms = _NOW_MS + 7_000
    master = wheel.dispatcher
    assert master is not None
    while wheel.status().pending > count // 2:
        chunk = master.next_chunk(now_ms)
        if chunk is None:  # a mark that reaches so far is on its way to the disk
            time.sleep(0.001)
            continue
        master.answer(chunk, np.asarray(pc.not_equal(chunk.rows.column("topic"), _HELD)))
    ids = [
        str(wheel.mint.one(int(receipt.due[row]), receipt.base_offset + row))
        for receipt in receipts
        for row in range(1, 1000, 2)
    ]
    quiet = _appends(wheel, now_ms, lambda: time.sleep(2.0))
    waits: list[float] = []

    def cancel() -> None:
        for first in range(0, len(ids), _IDS):
            begun = time.perf_counter()
            answers = wheel.cancel(ids[first : first + _IDS], now_ms)
            waits.append(time.perf_counter() - begun)
            if set(answers) != {CancelAnswer.CANCELLED}:
                raise RuntimeError(f"a message was not cancelled: {set(answers)}")

    busy = _appends(wheel, now_ms, cancel)
    longest = max(waits)
    report.figure(f"{_IDS} ids of a topic held back, at most, s", longest, f"{longest:.2f}", "2 s")
    for name, found in (("alone", quiet), ("beside it", busy)):
        worst = float(np.percentile(found, 99)) * 1000
        report.figure(f"append p99 {name}, ms", worst, f"{worst:.2f}")
    syncing.set()
    syncer.join()
    wheel.close()
    files.close()


def _sync(wheel: Wheel, ending: threading.Event) -> None:
    while not ending.is_set():
        wheel.write_pending(0.01)


def _appends(wheel: Wheel, now_ms: int, meanwhile: Callable[[], None]) -> list[float]:
    """How long one append after the other waits for its sync, in seconds, while that runs."""
    waits: list[float] = []
    ending = threading.Event()
    row = pa.record_batch(
        {"due": pa.array([now_ms + 60_000]).cast(TIME), "topic": [TOPIC], "value": [b"x"]}
    )

    def run() -> None:
        while not ending.is_set():
            begun = time.perf_counter()
            wheel.append(row, now_ms).result(30)
            waits.append(time.perf_counter() - begun)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    meanwhile()
    ending.set()
    thread.join()
    return waits


if __name__ == "__main__":
    sys.exit(main())
