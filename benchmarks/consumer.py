"""What ``Consumer`` costs beside the bare client, in the same run and on the same topic.

A topic is filled with records as the wheel delivers them. The bare client reads them all and
touches value and headers; so does each of ours, which also says of each message that it is done,
and commits. With a filter, one record of 100 is wanted, and the rate is that of all records.

    python -m benchmarks.consumer [--client kafka-python|confluent] [--messages 500000]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

from slotwheel.consumer import Consumer
from slotwheel.consumer.observing import ConsumerObserver

from ._load import Headers, fill_topic
from ._node import BenchNode
from .harness import Report, data_directory, options, warm_memory
from .lateness import CONFLUENT, KAFKA_PYTHON, start_broker

TOPIC = "orders"
_ESTIMATES = {
    KAFKA_PYTHON: "kafka-python decodes a record with three headers in 13 us; an object of ours,"
    " a place in the tracker and two answers cost 4: 75 % of the bare consumer",
    CONFLUENT: "confluent hands on a record in 3 us with headers; an object of ours, a place in the"
    " tracker and the answer cost 4, and 2 in batches: 40 %, and 60 % in batches",
}
_ONE_GOALS = {KAFKA_PYTHON: ">= 60 %", CONFLUENT: ">= 25 %"}
_BATCH = 1000
_WANTED = 100


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--client", choices=(KAFKA_PYTHON, CONFLUENT), default=KAFKA_PYTHON)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args(arguments)
    client = chosen.client
    count = chosen.messages or {KAFKA_PYTHON: 200_000, CONFLUENT: 1_000_000}[client]
    repeats = chosen.repeats
    if chosen.quick:
        count, repeats = 20_000, 1
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"consumer, {client}", _ESTIMATES[client], directory)
        report.begin()
        warm_memory(2.0 if chosen.warm_gib is None else chosen.warm_gib)
        broker = stack.enter_context(start_broker())
        broker.create_topic(TOPIC)
        fill_topic(broker.bootstrap, TOPIC, count, delivered_headers)
        node = stack.enter_context(BenchNode(directory / "data"))  # keeps the rule of each group
        lab = Lab(broker.bootstrap, node.address, client, count)
        bare = {KAFKA_PYTHON: lab.bare_kafka_python, CONFLUENT: lab.bare_confluent}[client]
        bare()  # a broker that has just started is slow
        ways: dict[str, Callable[[], float]] = {
            "bare": bare,
            "one by one": lab.one_by_one,
            "in batches": lab.in_batches,
            "99 of 100 filtered away": lab.filtered,
        }
        best = dict.fromkeys(ways, 0.0)
        for _ in range(repeats):  # in turns: the machine is the same for all
            for name, measure in ways.items():
                best[name] = max(best[name], measure())
        for name, rate in best.items():
            report.figure(f"{name}, messages/s", rate, f"{rate:,.0f}")
        goals = {
            "one by one": _ONE_GOALS[client],
            "in batches": ">= 60 %",
            "99 of 100 filtered away": ">= 80 %",
        }
        for name, goal in goals.items():
            report.ratio(f"{name}, to the bare client", best[name], best["bare"], goal)
        report.end(chosen.json)
    return 0


def delivered_headers(number: int) -> Headers:
    """As a node delivers a record, besides one of its own."""
    return [
        ("region", b"eu" if number % _WANTED == 0 else b"us"),
        ("slotwheel-id", b"default.1790000000000.%d.0a1b2c3d" % number),
        ("slotwheel-due-ms", b"1790000000000"),
        ("slotwheel-created-ms", b"1789999990000"),
    ]


class Lab:
    """Each way to read the topic from its beginning; all return records a second, from the first
    one to the last."""

    def __init__(self, bootstrap: str, wheel: str, client: str, count: int) -> None:
        self._bootstrap, self._wheel = bootstrap, wheel
        self._client, self._count = client, count
        self._number = 0
        self.observer: ConsumerObserver | None = None
        """Of the consumers that are made from now on."""

    def bare_kafka_python(self) -> float:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, max_poll_records=2_000
        )
        part = TopicPartition(TOPIC, 0)
        consumer.assign([part])
        consumer.seek_to_beginning(part)

        def records() -> Iterator[Any]:
            while True:
                for found in consumer.poll(timeout_ms=1000).values():
                    yield from found

        rate = self._timed(len(one.value) + len(one.headers) for one in records())
        consumer.close(autocommit=False)
        return rate

    def bare_confluent(self) -> float:
        from confluent_kafka import Consumer as Bare
        from confluent_kafka import TopicPartition

        consumer = Bare(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "bare",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # By default a full queue is left alone for a second, which hides all other costs.
                "fetch.queue.backoff.ms": 10,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])

        def records() -> Iterator[Any]:
            while True:
                yield from consumer.consume(_BATCH, 1.0)

        rate = self._timed(
            len(one.value()) + len(one.headers()) for one in records() if one.error() is None
        )
        consumer.close()
        return rate

    def one_by_one(self) -> float:
        with self._consumer() as consumer:

            def sizes() -> Iterator[int]:
                for message in consumer:
                    yield len(message.value or b"") + len(message.headers)
                    consumer.done(message)

            return self._timed(sizes())

    def in_batches(self) -> float:
        with self._consumer() as consumer:

            def sizes() -> Iterator[int]:
                while True:
                    messages = consumer.take(_BATCH)
                    for message in messages:
                        yield len(message.value or b"") + len(message.headers)
                    consumer.done(*messages)

            return self._timed(sizes())

    def filtered(self) -> float:
        """Of all records: the filter reads each of them."""
        rule = {"header": "region", "equals": "eu"}
        with self._consumer(where=rule) as consumer:
            first, wanted = 0.0, (self._count - 1) // _WANTED
            for message in islice(consumer, wanted):
                first = first or time.perf_counter()
                consumer.done(message)
            return wanted * _WANTED / (time.perf_counter() - first)

    def _consumer(self, **more: Any) -> Consumer:
        self._number += 1
        return Consumer(
            TOPIC,
            f"group-{self._number}-{time.time_ns()}",
            bootstrap=self._bootstrap,
            wheel=self._wheel,
            client=self._client,
            create_topics=True,
            retry="1s",
            observer=self.observer,
            **more,
        )

    def _timed(self, sizes: Iterator[int]) -> float:
        next(sizes)
        started = time.perf_counter()
        for _ in islice(sizes, self._count - 1):
            pass
        return (self._count - 1) / max(0.001, time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
