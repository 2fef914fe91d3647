"""How fast are records of a Kafka delay topic taken in, durably and exactly once?

A topic is filled with records that say in their headers when they are due. Then a node is started
on it, and judged by how long it takes until it has accepted all. The raw limit is a bare consumer
of the same client on the same topic, in the same run, that touches value and headers and stores
nothing.

    python -m benchmarks.intake [--client kafka-python|confluent] [--messages 500000]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from slotwheel.client import Client

from ._load import TOPIC, Headers, fill_topic
from ._node import BenchNode
from .harness import Report, data_directory, options, warm_memory
from .lateness import CONFLUENT, KAFKA_PYTHON, start_broker

DELAYS = "delays"
_ESTIMATES = {
    KAFKA_PYTHON: "kafka-python decodes a record with two headers in 12 us; to make it a row costs"
    " 3 us, to store it 1: 60,000 a second, 75 % of the bare consumer",
    CONFLUENT: "confluent hands on a record in 2.5 us with headers; to make it a row costs 3 us, to"
    " store it 1: 150,000 a second, 40 % of the bare consumer",
}
_DONE_S = 300.0
_HEADERS: Headers = [("slotwheel-topic", TOPIC.encode()), ("slotwheel-delay-ms", b"3600000")]


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--client", choices=(KAFKA_PYTHON, CONFLUENT), default=KAFKA_PYTHON)
    parser.add_argument("--messages", type=int, default=500_000)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages = min(chosen.messages, 20_000)
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"delay topic, {chosen.client}", _ESTIMATES[chosen.client], directory)
        report.begin()
        warm_memory(2.0 if chosen.warm_gib is None else chosen.warm_gib)
        broker = stack.enter_context(start_broker())
        for topic in (DELAYS, TOPIC):
            broker.create_topic(topic)
        fill_topic(broker.bootstrap, DELAYS, chosen.messages, lambda _: _HEADERS)
        bare = {KAFKA_PYTHON: _bare_kafka_python, CONFLUENT: _bare_confluent}[chosen.client]
        raw = _timed(chosen.messages, lambda: bare(broker.bootstrap, chosen.messages))
        kafka = ("--sink", chosen.client, "--bootstrap", broker.bootstrap)
        with BenchNode(directory / "data", *kafka, "--delay-topic", DELAYS) as node:
            cpu = node.cpu_s
            started = time.perf_counter() - node.ready_s
            first = _accepted(node, 1)
            last = _accepted(node, chosen.messages)
            cpu_s = node.cpu_s - cpu
        rate = chosen.messages / max(0.001, last - first)
        report.figure("messages/s, from the first to the last", rate, f"{rate:,.0f}")
        whole = last - started
        report.figure("from the start of the node, s", whole, f"{whole:.2f}")
        report.figure("bare consumer, records/s", raw, f"{raw:,.0f}")
        report.ratio("to the bare consumer", rate, raw)
        micros = cpu_s / chosen.messages * 1e6
        report.figure("node CPU, us/message", micros, f"{micros:.1f}")
        report.end(chosen.json)
    return 0


def _timed(count: int, consume: Callable[[], float]) -> float:
    """Records a second. ``consume`` says when it had the first one."""
    first = consume()
    return count / max(0.001, time.perf_counter() - first)


def _bare_kafka_python(bootstrap: str, count: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_poll_records=10_000
    )
    part = TopicPartition(DELAYS, 0)
    consumer.assign([part])
    consumer.seek_to_beginning(part)
    first, found, seen = 0.0, 0, 0
    while found < count:
        for records in consumer.poll(timeout_ms=1000).values():
            first = first or time.perf_counter()
            found += len(records)
            seen += sum(len(record.value) + len(record.headers) for record in records)
    consumer.close(autocommit=False)
    return first


def _bare_confluent(bootstrap: str, count: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bare",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(DELAYS, 0, 0)])
    first, found, seen = 0.0, 0, 0
    while found < count:
        for message in consumer.consume(1000, 1.0):
            first = first or time.perf_counter()
            if message.error() is None:
                found += 1
                seen += len(message.value() or b"") + len(message.headers() or ())
    consumer.close()
    return first


def _accepted(node: BenchNode, count: int) -> float:
    """When the node had accepted so many."""
    deadline = time.monotonic() + _DONE_S
    with Client(node.address) as client:
        while (status := client.status())["accepted"] < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{count} records were not taken in: {status}")
            time.sleep(0.005)
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
