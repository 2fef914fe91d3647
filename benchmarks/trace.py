"""What tracing and the audit cost a sender and a consumer: the same work with a tracer, with an
auditor, and without, in turns.

A sender sends single messages, many, and tables; a consumer reads a topic of Kafka one by one and
in batches. With a tracer each message has its events, which leave for the trace topic of the same
node meanwhile; the rate is that of the messages, and what the tracer has left to do behind the last
one is told beside it.

    python -m benchmarks.trace [--client kafka-python|confluent]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from slotwheel.audit import AUDIT_TOPIC, Auditor
from slotwheel.client import Client, Message
from slotwheel.consumer.observing import ConsumerObserver
from slotwheel.trace import Tracer, WheelTarget

from ._load import VALUE_BYTES, fill_topic
from ._node import BenchNode
from .consumer import TOPIC, Lab, delivered_headers
from .harness import Report, data_directory, options, warm_memory
from .lateness import CONFLUENT, KAFKA_PYTHON, start_broker

_ESTIMATE = (
    "an event of a row that was sent is columns that are there, its due time, check and key, and"
    " lz4 at 1 GB/s: 0.1 us beside 0.7 us a row of a table and 2 us a message; of a record that"
    " was received it is a few entries in lists, and columns of them: 1 us, and 2 us one by one,"
    " beside 20 us by kafka-python and 7 us by confluent-kafka;"
    " a sum of the auditor is a hash and a sort of two columns: 0.1 us a row, 1 us a"
    " message or record"
)
_BATCH = 5_000
_DELAY_MS = 3_600_000
_EVENTS_MAX = 1 << 30


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--client", choices=(KAFKA_PYTHON, CONFLUENT), default=KAFKA_PYTHON)
    parser.add_argument("--repeats", type=int, default=4)
    chosen = parser.parse_args(arguments)
    share, repeats = (0.02, 1) if chosen.quick else (1.0, chosen.repeats)
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"trace, {chosen.client}", _ESTIMATE, directory)
        report.begin()
        warm_memory(2.0 if chosen.warm_gib is None else chosen.warm_gib)
        node = stack.enter_context(BenchNode(directory / "data"))
        for name, send, count in (
            ("single messages", _single, 100_000),
            ("many messages", _many, 1_000_000),
            ("tables", _tables, 6_000_000),
        ):
            _compare(report, f"sender, {name}", _Sending(node, send, int(count * share)), repeats)
        broker = stack.enter_context(start_broker())
        broker.create_topic(TOPIC)
        records = int({KAFKA_PYTHON: 200_000, CONFLUENT: 1_000_000}[chosen.client] * share)
        fill_topic(broker.bootstrap, TOPIC, records, delivered_headers)
        lab = Lab(broker.bootstrap, node.address, chosen.client, records)
        for name, read in (("one by one", lab.one_by_one), ("in batches", lab.in_batches)):
            _compare(report, f"consumer, {name}", _Consuming(node, lab, read), repeats, ">= 85 %")
        report.end(chosen.json)
    return 0


class _Sending:
    def __init__(self, node: BenchNode, send: Callable[[Client, int], None], count: int) -> None:
        self.node, self._send, self._count = node, send, count

    def rate(self, observer: ConsumerObserver | None) -> float:
        with Client(self.node.address, observer=observer) as client:
            begun = time.perf_counter()
            self._send(client, self._count)
            client.flush()
            return self._count / (time.perf_counter() - begun)


class _Consuming:
    def __init__(self, node: BenchNode, lab: Lab, read: Callable[[], float]) -> None:
        self.node, self._lab, self._read = node, lab, read

    def rate(self, observer: ConsumerObserver | None) -> float:
        self._lab.observer = observer
        return self._read()


def _compare(
    report: Report,
    name: str,
    work: _Sending | _Consuming,
    repeats: int,
    goal: str = ">= 90 %",
) -> None:
    work.rate(None)  # the first one is slower, or faster, than all others
    rates: dict[str, list[float]] = {"": [], ", traced": [], ", audited": []}
    left_s = 0.0
    for number in range(repeats):
        # A machine is not the same all the time: each way comes before the others as often as
        # behind them.
        for way in reversed(rates) if number % 2 else rates:
            if way == ", traced":
                with _tracing(work.node) as tracer:
                    rates[way].append(work.rate(tracer))
                    begun = time.perf_counter()
                left_s = max(left_s, time.perf_counter() - begun)
                if tracer.dropped:
                    raise RuntimeError(f"{tracer.dropped} of {tracer.noted} events were dropped")
            elif way == ", audited":
                with _auditing(work.node) as auditor:
                    rates[way].append(work.rate(auditor))
                if auditor.missing:
                    raise RuntimeError(f"{auditor.missing} messages are in no sum")
            else:
                rates[way].append(work.rate(None))
    medians = {way: statistics.median(found) for way, found in rates.items()}
    for way, rate in medians.items():
        report.figure(f"{name}{way}, messages/s", rate, f"{rate:,.0f}")
        if way:
            report.ratio(f"{name}{way}", rate, medians[""], goal)
    report.figure(f"{name}, events that leave behind it, s", left_s, f"{left_s:.1f}")


@contextmanager
def _tracing(node: BenchNode) -> Iterator[Tracer]:
    tracer = Tracer(WheelTarget(node.address), client="benchmark", events_max=_EVENTS_MAX)
    try:
        yield tracer
    finally:
        tracer.close(120.0)


@contextmanager
def _auditing(node: BenchNode) -> Iterator[Auditor]:
    target = WheelTarget(node.address, AUDIT_TOPIC)
    auditor = Auditor(target, client="benchmark", notes_max=_EVENTS_MAX)
    try:
        yield auditor
    finally:
        auditor.close(120.0)


def _single(client: Client, count: int) -> None:
    value = bytes(VALUE_BYTES)
    for _ in range(count):
        client.send("later", value, key=b"key", delay=_DELAY_MS / 1000)


def _many(client: Client, count: int) -> None:
    value = bytes(VALUE_BYTES)
    for _ in range(max(1, count // _BATCH)):
        client.send_many(
            Message("later", value, key=b"key", delay=_DELAY_MS / 1000) for _ in range(_BATCH)
        )


def _tables(client: Client, count: int) -> None:
    due_ms = time.time_ns() // 1_000_000 + _DELAY_MS
    content = {"topic": "later", "value": bytes(VALUE_BYTES), "key": b"key"}
    columns = {"due": [due_ms] * _BATCH, **{name: [one] * _BATCH for name, one in content.items()}}
    table = pa.table(columns)
    for _ in range(max(1, count // _BATCH)):
        client.send_table(table)


if __name__ == "__main__":
    sys.exit(main())
