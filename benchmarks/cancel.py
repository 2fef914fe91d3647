"""How many messages a second are cancelled, each with a truthful, durable answer?

Messages that are due in an hour are sent, their slot files written; then one client cancels them,
so many ids a call. An answer is durable: its row is synced like any other. The raw limit is
write + fdatasync of an entry of as many cancel rows.

    python -m benchmarks.cancel [--ids 1,100,10000] [--messages 200000]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pyarrow as pa

from slotwheel.client import Client

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


if __name__ == "__main__":
    sys.exit(main())
