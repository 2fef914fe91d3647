"""How late do messages leave, at a steady rate in and out?

A paced client sends ``--rate`` messages a second, each due 2 to 12 s ahead at a millisecond of its
own. Lateness is judged by what the topics hold, not by what the node says: ``delivered`` (embedded
topics) or the broker's LogAppendTime (Kafka), less the later of due and created. The node's own
histogram is printed beside it, and for embedded topics what a spill does to those that are due
while it runs.

    python -m benchmarks.lateness --rate 50000 --seconds 60 [--sink embedded|kafka-python|confluent]
"""

from __future__ import annotations

import multiprocessing
import re
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.client import Client
from slotwheel.wheel.schema import Int64s

from ._load import TOPIC, VALUE_BYTES, delivered_times
from ._node import BenchNode
from .harness import Report, data_directory, options, warm_memory, with_tests_support

EMBEDDED, KAFKA_PYTHON, CONFLUENT = SINKS = ("embedded", "kafka-python", "confluent")
_RATES = {EMBEDDED: 50_000, KAFKA_PYTHON: 20_000, CONFLUENT: 50_000}
_ESTIMATES = {
    EMBEDDED: "a chunk is written and synced twice (block, then index): 2 x 0.4 ms, and 0.5 ms to"
    " take and sort it; what becomes due meanwhile waits for the next one: 1 to 3 ms",
    KAFKA_PYTHON: "20 us a record: at 20 k/s a chunk of 5 ms is 100 records, 2 ms to send, 1 ms to"
    " be acknowledged; what becomes due meanwhile waits for the next one: 5 to 10 ms",
    CONFLUENT: "4 us a record with headers: at 50 k/s a chunk of 5 ms is 250 records, 1 ms to send,"
    " 1 to 5 ms to be acknowledged (linger): 5 to 10 ms",
}
_AHEAD_MS = (2_000, 12_000)
_BATCH_S = 0.02
_PARTITIONS = 4
_DONE_S = 60.0
_SPILLED = re.compile(r"^(\S+) debug spilled .*seconds=([0-9.]+)", re.MULTILINE)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=SINKS, default=EMBEDDED)
    parser.add_argument("--rate", type=int, help="messages a second [by the sink]")
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args(arguments)
    rate = chosen.rate or _RATES[chosen.sink]
    seconds = min(chosen.seconds, 6.0) if chosen.quick else chosen.seconds
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"lateness, {chosen.sink}", _ESTIMATES[chosen.sink], directory)
        report.begin()
        warm_memory(4.0 if chosen.warm_gib is None else chosen.warm_gib)
        node_options = ["--sink", chosen.sink]
        broker: Any = None
        if chosen.sink == EMBEDDED:
            node_options += ["--log-level", "debug"]  # it says when it spilled
        else:
            broker = stack.enter_context(start_broker())
            create_topic(broker, TOPIC)
            node_options += ["--bootstrap", broker.bootstrap]
        with BenchNode(directory / "data", *node_options) as node:
            sent = send_paced(node, rate, seconds)
            wait_until_delivered(node, sent)
            own, cpu_s = own_histogram(node.metrics()), node.cpu_s
            peak = node.rss_max
        if broker is None:
            accepted, delivered = accepted_times(directory / "data")
            late = delivered - accepted
        else:
            late = kafka_lateness(broker.bootstrap, TOPIC, sent)
        tell(report, late, sent, seconds)
        if broker is None:
            tell_of_spills(report, accepted, late, node.log())
        report.figure("node's own histogram", own["p99 <="], str(own))
        micros = cpu_s / sent * 1e6
        report.figure("node CPU, us/message", micros, f"{micros:.1f}")
        report.figure("peak resident, MB", peak / 1e6, f"{peak / 1e6:.0f}")
        report.end(chosen.json)
    return 0


def tell(report: Report, late: Int64s, sent: int, seconds: float) -> None:
    if len(late) != sent:
        raise RuntimeError(f"{sent} messages were sent, {len(late)} were delivered")
    rate = sent / seconds
    report.figure("messages", sent, f"{sent:,}, {rate:,.0f}/s")
    for name, share in (("p50", 50), ("p99", 99), ("p99.9", 99.9), ("max", 100)):
        value = float(np.percentile(late, share))
        report.figure(f"lateness {name}, ms", value, f"{value:.0f}")
    early = int(np.count_nonzero(late < 0))
    report.figure("early", early, f"{early}", "0")


def tell_of_spills(report: Report, accepted: Int64s, late: Int64s, log: str) -> None:
    """What was due, or accepted, while a spill ran, against the rest of the time between spills."""
    while_spilling = np.zeros(len(late), np.bool_)
    for ended, seconds in _SPILLED.findall(log):
        end_ms = datetime.fromisoformat(ended).timestamp() * 1000
        while_spilling |= (accepted >= end_ms - float(seconds) * 1000) & (accepted <= end_ms)
    if while_spilling.any() and not while_spilling.all():
        during, rest = (
            float(np.percentile(late[at], 99)) for at in (while_spilling, ~while_spilling)
        )
        report.figure("lateness p99 while a spill runs, ms", during, f"{during:.0f}")
        report.figure("lateness p99 without a spill, ms", rest, f"{rest:.0f}")
        # Times are whole milliseconds: a half is what 0 may be.
        name = "p99 while a spill runs, to p99 without"
        report.ratio(name, max(during, 0.5), max(rest, 0.5))


def send_paced(node: BenchNode, rate: int, seconds: float, topic: str = TOPIC) -> int:
    """Send at a steady rate from a process of its own; the number of messages stored."""
    context = multiprocessing.get_context("spawn")
    result: Any = context.Queue()
    sender = context.Process(
        target=_pace, args=(node.address, rate, seconds, topic, result), daemon=True
    )
    sender.start()
    sent, refused, behind_s = result.get(timeout=seconds + 120)
    sender.join(10)
    if behind_s > 0.5:
        print(f"the sender fell {behind_s:.1f} s behind its pace: the rate was lower than asked")
    return int(sent - refused)


def _pace(address: str, rate: int, seconds: float, topic: str, result: Any) -> None:
    generator = np.random.default_rng(7)
    most = max(1, int(rate * _BATCH_S) + 1)
    values = pa.array([generator.bytes(VALUE_BYTES) for _ in range(most)], pa.binary())
    keys = pa.array([f"k{i % 1000}".encode() for i in range(most)], pa.binary())
    topics = pa.array([topic] * most, pa.utf8())
    handed = []
    sent, behind_s = 0, 0.0
    with Client(address, batch_rows=most) as client:
        client.status()
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds:
            rows = min(most, int(elapsed * rate) - sent)
            if rows < most - 1:
                time.sleep((most - 1 - rows) / rate)
                continue
            behind_s = max(behind_s, elapsed - sent / rate - _BATCH_S)
            now_ms = time.time_ns() // 1_000_000
            due = generator.integers(*_AHEAD_MS, rows) + now_ms
            columns = [pa.array(due), topics.slice(0, rows), keys.slice(0, rows)]
            columns.append(values.slice(0, rows))
            names = ["due", "topic", "key", "value"]
            handed.append(client.send_table(pa.RecordBatch.from_arrays(columns, names=names)))
            sent += rows
        client.flush()
        result.put((sent, sum(len(one.errors()) for one in handed), behind_s))


def wait_until_delivered(node: BenchNode, sent: int) -> None:
    deadline = time.monotonic() + _AHEAD_MS[1] / 1000 + _DONE_S
    with Client(node.address) as client:
        while (status := client.status())["delivered"] < sent:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not delivered in time: {status}")
            time.sleep(0.2)


def accepted_times(data: Path, topic: str = TOPIC) -> tuple[Int64s, Int64s]:
    """Of each message of an embedded topic the later of due and created, and when it was delivered,
    ms."""
    due, created, delivered = delivered_times(data, topic)
    return np.maximum(due, created), delivered


def create_topic(broker: Any, topic: str) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    broker.create_topic(topic, partitions=_PARTITIONS, **config)


def kafka_lateness(bootstrap: str, topic: str, count: int) -> Int64s:
    """How late each of ``count`` records came, ms."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=20_000,
        max_poll_records=10_000,
    )
    late = np.empty(count, np.int64)
    found = 0
    for record in consumer:
        headers = dict(record.headers)
        accepted = max(int(headers["slotwheel-due-ms"]), int(headers["slotwheel-created-ms"]))
        late[found] = record.timestamp - accepted
        found += 1
        if found == count:
            break
    consumer.close()
    return late[:found]


def own_histogram(metrics: dict[str, float]) -> dict[str, float]:
    """Upper bounds in ms of the node's own p50, p99, p99.9, by its buckets."""
    prefix = 'slotwheel_lateness_seconds_bucket{le="'
    buckets = [
        (float(name.removeprefix(prefix).rstrip('"}')) * 1000, count)
        for name, count in metrics.items()
        if name.startswith(prefix)
    ]
    buckets.sort()
    total = buckets[-1][1] if buckets else 0.0
    found = {}
    for share in (0.5, 0.99, 0.999):
        bound = next((bound for bound, count in buckets if count >= share * total), 0.0)
        found[f"p{share * 100:g} <="] = bound
    return found


def start_broker() -> Any:
    with_tests_support()
    from support.broker import Broker

    return Broker(steady=True)


if __name__ == "__main__":
    sys.exit(main())
