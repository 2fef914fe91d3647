"""A second of a gigabyte: how late does another topic's messages leave beside it?

One run, three stretches of the same steady topic: with nothing else due; beside a second in which
``--mib`` of one topic are due, in values of ``--value-bytes``; and beside another such second whose
bytes are of five topics that take nothing at first, so that they are held back, and are mended two
seconds later. Everything is sent beforehand. Judged by what the steady topic holds: ``delivered``
(embedded topics) or the broker's LogAppendTime, less due.

    python -m benchmarks.bigsecond [--sink embedded|kafka-python|confluent] [--mib 1024]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.client import Client
from slotwheel.wheel.schema import Int64s

from ._load import delivered_times
from ._node import BenchNode
from .burst import kafka_times
from .harness import Report, data_directory, options, raw_write_rate, warm_memory
from .lateness import EMBEDDED, SINKS, start_broker

_ESTIMATE = (
    "a chunk of 8 MiB takes the disk 20 ms and Kafka 60 to 100; the steady topic's rows leave"
    " beside it, and wait at most for the chunk that shares the disk or the broker with them"
)
STEADY, LARGE = "steady", "large"
HELD = [f"held-{number}" for number in range(5)]
_RATE = 500
_VALUE_BYTES = 990_000
_BATCH_BYTES = 12 << 20
_QUIET_S = 6
_BESIDE_S = 12
_MENDED_AFTER_S = 2.0
_GOALS = {"beside a large second": 100, "beside one with five held topics": 300}


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=SINKS, default=EMBEDDED)
    parser.add_argument("--delivery", default="at-least-once")
    parser.add_argument("--mib", type=int, default=1024, help="of each large second")
    parser.add_argument("--value-bytes", type=int, default=_VALUE_BYTES)
    parser.add_argument("--ahead", type=float, help="seconds until the first is due [by --mib]")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.mib = min(chosen.mib, 48)
    quiet_s, beside_s = (1, 3) if chosen.quick else (_QUIET_S, _BESIDE_S)
    ahead_s = chosen.ahead or 6.0 + chosen.mib / 30
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"a large second, {chosen.sink}", _ESTIMATE, directory)
        report.begin()
        warm_memory(4.0 if chosen.warm_gib is None else chosen.warm_gib)
        data = directory / "data"
        node_options = ["--sink", chosen.sink, "--delivery", chosen.delivery]
        broker: Any = None
        if chosen.sink != EMBEDDED:
            broker = stack.enter_context(start_broker())
            node_options += ["--bootstrap", broker.bootstrap]
        with BenchNode(data, *node_options) as node:
            mend = _break_embedded(data) if broker is None else _break_kafka(broker)
            base = int(time.time() + ahead_s)
            large = base + quiet_s
            held, end = large + beside_s, large + 2 * beside_s
            steady_s = end - base
            sent = _send_steady(node.address, base, steady_s)
            count = chosen.mib * (1 << 20) // chosen.value_bytes
            sent += _send_large(node.address, [LARGE], large, count, chosen.value_bytes)
            sent += _send_large(node.address, HELD, held, count, chosen.value_bytes)
            spare = base - time.time()
            if spare < 0:
                raise RuntimeError(f"sending took {-spare:.1f} s too long; raise --ahead")
            print(f"sent, {spare:.1f} s to spare", flush=True)
            _sleep_until(held + _MENDED_AFTER_S)
            mend()
            _wait(node, sent, held)
            rss = node.rss_max
        if broker is None:
            due, _, at = delivered_times(data, STEADY)
            ends = {topic: delivered_times(data, topic)[2] for topic in (LARGE, *HELD)}
        else:
            due, at = kafka_times(broker.bootstrap, STEADY, _RATE * steady_s)
            ends = {}
        _tell(report, due, at, (base, large, held, end))
        for name, topics, second in (("large", [LARGE], large), ("held", HELD, held)):
            if ends:
                last = max(int(ends[topic].max()) for topic in topics) - second * 1000
                report.figure(f"last of the {name} second, ms", last, f"{last:,}")
        raw = raw_write_rate(directory, 8 << 20, 1.0) / (1 << 20)
        report.figure("raw write + fdatasync of 8 MiB, MiB/s", raw, f"{raw:,.0f}")
        report.figure("peak resident, MB", rss / 1e6, f"{rss / 1e6:.0f}")
        report.end(chosen.json)
    return 0


def _tell(report: Report, due: Int64s, at: Int64s, borders: tuple[int, int, int, int]) -> None:
    names = ["with nothing else due", *_GOALS]
    stretches = dict(zip(names, pairwise(borders), strict=True))
    for name, (first, end) in stretches.items():
        mine = (due >= first * 1000) & (due < end * 1000)
        late = (at - due)[mine]
        for label, share in (("p50", 50), ("p99", 99), ("max", 100)):
            value = float(np.percentile(late, share))
            goal = f"<= {_GOALS[name]}" if label == "p99" and name in _GOALS else ""
            report.figure(f"another topic {name}: {label}, ms", value, f"{value:.0f}", goal)
        # Of the messages that are due within two seconds, too: a longer stretch hides a stall.
        close = float(np.percentile((at - due)[mine & (due < (first + 2) * 1000)], 99))
        report.figure(f"another topic {name}, first 2 s: p99, ms", close, f"{close:.0f}")
    report.figure("early", early := int(np.count_nonzero(at < due)), f"{early}", "0")


def _send_steady(address: str, base: int, seconds: int) -> int:
    rows = _RATE * seconds
    due = base * 1000 + np.arange(rows) * 1000 // _RATE
    columns = [pa.array(due), pa.array([STEADY] * rows), pa.array([bytes(100)] * rows)]
    with Client(address, batch_rows=1000) as client:
        client.send_table(pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"]))
        client.flush()
    return rows


def _send_large(
    address: str, topics: Sequence[str], second: int, rows: int, value_bytes: int
) -> int:
    generator = np.random.default_rng(5)
    each = max(1, _BATCH_BYTES // max(300, value_bytes))
    values = pa.array([generator.bytes(value_bytes) for _ in range(min(each, 64))], pa.binary())
    with Client(address, batch_rows=each, buffer_bytes=64 << 20) as client:
        for first in range(0, rows, each):
            count = min(each, rows - first)
            number = np.arange(first, first + count)
            columns = [
                pa.array(second * 1000 + number * 1000 // rows),
                pa.array([topics[at % len(topics)] for at in range(first, first + count)]),
                values.take(pa.array(number % len(values))),
            ]
            client.send_table(pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"]))
        client.flush()
    return rows


def _break_embedded(data: Path) -> Callable[[], None]:
    """Put a file where each held topic's directory would be. Returns what takes them away."""
    paths = [data / "topics" / topic for topic in HELD]
    for path in paths:
        path.touch()

    def mend() -> None:
        for path in paths:
            path.unlink()

    return mend


def _break_kafka(broker: Any) -> Callable[[], None]:
    """Topics that want a replica more than there is. Returns what takes that back."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    for topic in (STEADY, LARGE, *HELD):
        config = {"message.timestamp.type": "LogAppendTime"}
        if topic in HELD:
            config["min.insync.replicas"] = "2"
        broker.create_topic(topic, partitions=4, **config)

    def mend() -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for topic in HELD:
            entry = ConfigEntry(
                "min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET
            )
            one = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            for future in admin.incremental_alter_configs([one]).values():
                future.result(10)

    return mend


def _sleep_until(second: float) -> None:
    time.sleep(max(0.0, second - time.time()))


def _wait(node: BenchNode, sent: int, second: int) -> None:
    deadline = second + 180
    with Client(node.address) as client:
        while (status := client.status())["delivered"] < sent:
            if time.time() > deadline:
                raise RuntimeError(f"{sent} were sent, not delivered in time: {status}")
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
