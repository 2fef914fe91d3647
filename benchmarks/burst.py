"""Half a million messages due in one second: when is the last one delivered?

All are sent beforehand, due uniformly in one second some way ahead, and are in slot files by then.
Judged by what the topics hold: ``delivered`` (embedded topics) or the broker's LogAppendTime. The
raw limit is measured in the same run. For Kafka it is a bare producer of the same client, with the
same settings, that sends the same records with the same headers from memory; for embedded topics it
is write + fdatasync of the same bytes, in groups of a chunk. A broker that has just started is slow
until its code is compiled, so a bare producer sends as many records to another topic first; the one
that counts comes last, when the broker is warmest.

    python -m benchmarks.burst [--sink embedded|kafka-python|confluent] [--messages 500000]
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.client import Client
from slotwheel.wheel.schema import Int64s

from ._load import TOPIC, VALUE_BYTES, delivered_times
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory
from .lateness import CONFLUENT, EMBEDDED, KAFKA_PYTHON, SINKS, start_broker

_ESTIMATES = {
    EMBEDDED: "0.6 us to take and sort, 0.5 us to write a message, a sync of 0.4 ms twice for each"
    " 16,384: 0.6 s for 500,000, so all leave in the second in which they are due",
    KAFKA_PYTHON: "20 us a record with headers: 50,000 a second, 10 s",
    CONFLUENT: "4 us a record with headers: 250,000 a second, 2 s",
}
_AHEAD_S = 20
_BATCH_ROWS = 5_000
_CHUNK_ROWS = 16_384
_RECORD_BYTES = 200
"""A row of an embedded topic with 100 B of value."""
_PARTITIONS = 4
_WARM, _BARE = "warm", "bare"
_DONE_S = 180.0


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=SINKS, default=EMBEDDED)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--ahead", type=float, default=_AHEAD_S, help="seconds until they are due")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.messages, chosen.ahead = min(chosen.messages, 20_000), 6.0
    with data_directory(chosen.dir) as directory, ExitStack() as stack:
        report = Report(f"a burst, {chosen.sink}", _ESTIMATES[chosen.sink], directory)
        report.begin()
        warm_memory(4.0 if chosen.warm_gib is None else chosen.warm_gib)
        node_options = ["--sink", chosen.sink, "--tail-age", "3s"]
        broker: Any = None
        if chosen.sink != EMBEDDED:
            broker = stack.enter_context(start_broker())
            for topic in (TOPIC, _WARM, _BARE):
                broker.create_topic(topic, partitions=_PARTITIONS)
            bare_producer(chosen.sink, broker.bootstrap, _WARM, chosen.messages)
            node_options += ["--bootstrap", broker.bootstrap]
        with BenchNode(directory / "data", *node_options) as node:
            second = int(time.time() + chosen.ahead)
            send_burst(node.address, chosen.messages, second * 1000)
            spare = second - time.time()
            if spare < 0:
                raise RuntimeError(f"sending took {-spare:.1f} s too long; raise --ahead")
            wait_until_left(node, chosen.messages, second)
            cpu_s = node.cpu_s
        if broker is None:
            due, _, at = delivered_times(directory / "data", TOPIC)
        else:
            due, at = kafka_times(broker.bootstrap, TOPIC, chosen.messages)
        _tell(report, due, at, second * 1000)
        rate = len(at) / max(0.001, (int(at.max()) - int(at.min())) / 1000)
        if broker is None:
            group = _CHUNK_ROWS * _RECORD_BYTES
            raw = raw_write_rate(directory, group, 1.0) / _RECORD_BYTES
            report.figure("raw write + fdatasync, messages/s", raw, f"{raw:,.0f}")
        else:
            raw = bare_producer(chosen.sink, broker.bootstrap, _BARE, chosen.messages)
            report.figure("bare producer, records/s", raw, f"{raw:,.0f}")
        report.ratio("to the raw limit", rate, raw)
        micros = cpu_s / len(at) * 1e6
        report.figure("node CPU, us/message (in and out)", micros, f"{micros:.1f}")
        report.end(chosen.json)
    return 0


def _tell(report: Report, due: Int64s, at: Int64s, second_ms: int) -> None:
    last = int(at.max()) - second_ms
    report.figure("last one after the second began, ms", last, f"{last:,}")
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        late = float(np.percentile(at - due, share))
        report.figure(f"lateness {name}, ms", late, f"{late:,.0f}")
    early = int(np.count_nonzero(at < due))
    report.figure("early", early, f"{early}", "0")
    rate = len(at) / max(0.001, (int(at.max()) - int(at.min())) / 1000)
    report.figure("delivered/s", rate, f"{rate:,.0f}")


def send_burst(address: str, messages: int, second_ms: int) -> None:
    generator = np.random.default_rng(3)
    value = generator.bytes(VALUE_BYTES)
    with Client(address, batch_rows=_BATCH_ROWS) as client:
        for first in range(0, messages, _BATCH_ROWS):
            rows = min(_BATCH_ROWS, messages - first)
            due = np.sort(generator.integers(0, 1000, rows)) + second_ms
            columns = [
                pa.array(due),
                pa.array([TOPIC] * rows),
                pa.array([b"k%d" % (one % 1000) for one in range(rows)]),
                pa.array([value] * rows),
            ]
            names = ["due", "topic", "key", "value"]
            client.send_table(pa.RecordBatch.from_arrays(columns, names=names))
        client.flush()


def wait_until_left(node: BenchNode, messages: int, second: int) -> None:
    deadline = second + _DONE_S
    with Client(node.address) as client:
        while client.status()["delivered"] < messages:
            if time.time() > deadline:
                raise RuntimeError(f"not delivered in time: {client.status()}")
            time.sleep(0.1 if time.time() > second else 0.5)


def kafka_times(bootstrap: str, topic: str, count: int) -> tuple[Int64s, Int64s]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=20_000,
        max_poll_records=10_000,
    )
    due, at = np.zeros(count, np.int64), np.zeros(count, np.int64)
    found = 0
    for record in consumer:
        due[found] = int(dict(record.headers)["slotwheel-due-ms"])
        at[found] = record.timestamp
        found += 1
        if found == count:
            break
    consumer.close()
    return due[:found], at[:found]


def _headers(number: int) -> list[tuple[str, str | bytes | None]]:
    """As long as those that the node adds."""
    return [
        ("slotwheel-id", b"default.1795247786598.%d.2acd0076" % number),
        ("slotwheel-due-ms", b"1795247786598"),
        ("slotwheel-created-ms", b"1795247766598"),
    ]


def bare_producer(sink: str, bootstrap: str, topic: str, count: int) -> float:
    """Records a second of a bare producer; the records are made before."""
    value = bytes(VALUE_BYTES)
    records = [(b"k%d" % (number % 1000), _headers(number)) for number in range(count)]
    if sink == CONFLUENT:
        from confluent_kafka import Producer

        from slotwheel.delivery.kafka.confluent_client import BATCH_BYTES

        durable = {"enable.idempotence": True, "acks": "all", "linger.ms": 1}
        sizes = {"batch.size": BATCH_BYTES, "queue.buffering.max.messages": 200_000}
        producer = Producer({"bootstrap.servers": bootstrap, **durable, **sizes})
        start = time.perf_counter()
        for key, headers in records:
            while True:
                try:
                    producer.produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.001)
        producer.flush()
        return count / (time.perf_counter() - start)
    from kafka import KafkaProducer

    from slotwheel.delivery.kafka.lane import BATCH_BYTES as PYTHON_BATCH_BYTES

    # Idempotence and acks=all are its defaults.
    bare = KafkaProducer(
        bootstrap_servers=bootstrap,
        batch_size=PYTHON_BATCH_BYTES,
        metrics_enabled=False,
    )
    start = time.perf_counter()
    for key, headers in records:
        bare.send(topic, value, key, headers=headers)
    bare.flush()
    rate = count / (time.perf_counter() - start)
    bare.close()
    return rate


if __name__ == "__main__":
    sys.exit(main())
