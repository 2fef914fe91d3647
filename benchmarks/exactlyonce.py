"""What exactly-once into Kafka costs, beside at-least-once in the same run.

- *burst*: so many messages due in one second; *sustained*: ``--overload`` messages a second, more
  than can leave, sent and delivered at the same time. Both by the broker's LogAppendTime.
- *lateness*, as a consumer of committed records sees it, at a steady ``--rate``: from the later of
  due and created to the clock of that consumer, a process of its own, when it gets the record.
  Beside it the same at least once, which shows what the consumer itself takes.
- *takeover*: three peers, SIGKILL to the master: until that consumer gets the next message.

    python -m benchmarks.exactlyonce [--sink confluent|kafka-python] [--messages 300000]
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slotwheel.client import Client
from slotwheel.client.message import Message
from slotwheel.wheel.schema import Int64s

from ._load import TOPIC
from ._node import BenchNode
from ._peers import BenchPeers
from .burst import kafka_times, send_burst, wait_until_left
from .harness import Report, data_directory, options, warm_memory
from .lateness import CONFLUENT, KAFKA_PYTHON, send_paced, start_broker, wait_until_delivered

ONCE, AT_LEAST = "exactly-once", "at-least-once"
_ESTIMATES = {
    CONFLUENT: "a transaction of 16,384 records takes 280 ms to send and some 20 ms to begin, mark"
    " and commit: 7 % of the rate. At 20,000/s one of 25 ms carries 500 records: p99 50 ms",
    KAFKA_PYTHON: "a transaction of 16,384 records takes 400 ms to send and some 20 ms more: 5 % of"
    " the rate. At 3,000/s one of 20 ms carries 60 records: p99 50 ms",
}
_RATE_GOALS = {CONFLUENT: ">= 80 %", KAFKA_PYTHON: ">= 60 %"}
_LATE_GOALS = {CONFLUENT: "<= 60", KAFKA_PYTHON: "<= 250"}
_RATES = {CONFLUENT: 20_000, KAFKA_PYTHON: 3_000}
_OVERLOADS = {CONFLUENT: 80_000, KAFKA_PYTHON: 30_000}
_MESSAGES = {CONFLUENT: 300_000, KAFKA_PYTHON: 60_000}
_PARTITIONS = 4
_AHEAD_S = 12.0
_EVERY_S = 0.01
PARTS = ("burst", "sustained", "lateness", "takeover")


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--sink", choices=(CONFLUENT, KAFKA_PYTHON), default=CONFLUENT)
    parser.add_argument("--messages", type=int, help="of the burst")
    parser.add_argument("--overload", type=int, help="messages a second, sustained")
    parser.add_argument("--rate", type=int, help="messages a second, for lateness")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--takeovers", type=int, default=3)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be given again")
    chosen = parser.parse_args(arguments)
    sink = chosen.sink
    count = chosen.messages or _MESSAGES[sink]
    seconds, ahead, takeovers = chosen.seconds, _AHEAD_S, chosen.takeovers
    overload, rate = chosen.overload or _OVERLOADS[sink], chosen.rate or _RATES[sink]
    if chosen.quick:
        count, seconds, ahead, takeovers, overload, rate = 3_000, 2.0, 2.5, 1, 2_000, 500
    parts = chosen.only or PARTS
    with data_directory(chosen.dir) as directory, start_broker() as broker:
        report = Report(f"exactly once, {sink}", _ESTIMATES[sink], directory)
        report.begin()
        warm_memory(4.0 if chosen.warm_gib is None else chosen.warm_gib)
        lab = Lab(broker, sink, directory)
        if not chosen.quick:
            lab.burst(AT_LEAST, count, ahead)  # a broker that has just started is slow
        if "burst" in parts:
            tell_rates(report, "burst", sink, lambda mode: lab.burst(mode, count, ahead))
        if "sustained" in parts:
            tell_rates(
                report, "sustained", sink, lambda mode: lab.sustained(mode, overload, seconds)
            )
        for mode in (AT_LEAST, ONCE) if "lateness" in parts else ():
            late = lab.lateness(mode, rate, seconds)
            for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
                value = float(np.percentile(late, share))
                goal = _LATE_GOALS[sink] if (mode, name) == (ONCE, "p99") else ""
                title = f"lateness {name} at {rate:,}/s, {mode}, ms"
                report.figure(title, value, f"{value:.0f}", goal)
        for mode in (AT_LEAST, ONCE) if "takeover" in parts else ():
            value = max(lab.takeover(mode) for _ in range(takeovers))
            report.figure(f"takeover, longest of {takeovers}, {mode}, s", value, f"{value:.2f}")
        report.end(chosen.json)
    return 0


def tell_rates(report: Report, what: str, sink: str, measure: Callable[[str], float]) -> None:
    rates = {mode: measure(mode) for mode in (AT_LEAST, ONCE)}
    for mode, found in rates.items():
        report.figure(f"{what}, {mode}, messages/s", found, f"{found:,.0f}")
    report.ratio(f"{what}, to {AT_LEAST}", rates[ONCE], rates[AT_LEAST], _RATE_GOALS[sink])


class Lab:
    """A broker, and nodes that deliver to it; each measurement has its own topic and directory."""

    def __init__(self, broker: Any, sink: str, directory: Path) -> None:
        self._broker = broker
        self._sink = sink
        self._directory = directory
        self._number = 0

    def _fresh(self, mode: str) -> tuple[Path, list[str]]:
        """Nothing is left of the measurement before. A directory, and the options of a node."""
        self._number += 1
        if self._number > 1:
            self._broker.delete_topic(TOPIC)
            time.sleep(1.0)
        self._broker.create_topic(TOPIC, partitions=_PARTITIONS)
        dead = self._broker.create_topic(f"dead-{self._number}")
        words = ["--sink", self._sink, "--bootstrap", self._broker.bootstrap]
        words += ["--delivery", mode, "--dead-letter-topic", dead]
        words += ["--group", f"run-{self._number}"]
        return self._directory / str(self._number), words

    def burst(self, mode: str, count: int, ahead_s: float) -> float:
        """Messages a second."""
        data, words = self._fresh(mode)
        with BenchNode(data, *words, "--tail-age", "3s") as node:
            second = int(time.time() + ahead_s)
            send_burst(node.address, count, second * 1000)
            wait_until_left(node, count, second)
        return self._rate(count)

    def sustained(self, mode: str, rate: int, seconds: float) -> float:
        """Messages a second, with as many and more coming in beside it."""
        data, words = self._fresh(mode)
        with BenchNode(data, *words) as node:
            sent = send_paced(node, rate, seconds)
            wait_until_left(node, sent, int(time.time()))
        return self._rate(sent)

    def _rate(self, count: int) -> float:
        _, at = kafka_times(self._broker.bootstrap, TOPIC, count)
        return len(at) / max(0.001, (int(at.max()) - int(at.min())) / 1000)

    def lateness(self, mode: str, rate: int, seconds: float) -> Int64s:
        """Of each message, ms."""
        data, words = self._fresh(mode)
        with BenchNode(data, *words) as node, Following(self._broker.bootstrap) as following:
            sent = send_paced(node, rate, seconds)
            wait_until_delivered(node, sent)
            found = following.read(sent)
        late: Int64s = found[:, 1] - found[:, 0]
        return late

    def takeover(self, mode: str) -> float:
        """Seconds from the master's end to the next message."""
        data, words = self._fresh(mode)
        data.mkdir()
        group = BenchPeers(data, *words)
        with group as peers, Following(self._broker.bootstrap) as following:
            stop = threading.Event()
            sender = threading.Thread(target=_keep_sending, args=(peers.address, stop))
            sender.start()
            time.sleep(3.0)
            peers.view()
            killed_ms = time.time() * 1000
            peers.nodes[peers.master].kill()
            time.sleep(8.0)
            stop.set()
            sender.join()
            found = following.read(0)
        # The longest silence after the kill: what was on its way when it came may still arrive.
        at = np.sort(found[found[:, 1] > killed_ms - 100, 1])
        return float(np.diff(at).max()) / 1000


def _keep_sending(address: str, stop: threading.Event) -> None:
    with Client(address.split(","), timeout_s=60) as client:
        number = 0
        while not stop.wait(_EVERY_S):
            client.send(Message(TOPIC, b"%d" % number, delay=0.05))
            number += 1


class Following:
    """A process that reads the topic's committed records as they come."""

    def __init__(self, bootstrap: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._wanted: Any = context.Queue()
        self._found: Any = context.Queue()
        arguments = (bootstrap, self._wanted, self._found)
        self._process = context.Process(target=_follow, args=arguments, daemon=True)

    def __enter__(self) -> Following:
        self._process.start()
        self._found.get(timeout=60)  # it has begun
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(10)

    def read(self, count: int) -> Int64s:
        """Due (or created, if later) and the time at which it came, ms; shape (messages, 2)."""
        self._wanted.put(count)
        found: Int64s = self._found.get(timeout=120)
        return found


def _follow(bootstrap: str, wanted: Any, found: Any) -> None:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"isolation.level": "read_committed", "fetch.wait.max.ms": 5}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "follows", **settings})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(_PARTITIONS)])
    consumer.consume(1, 0.5)
    found.put("ready")
    rows: list[tuple[float, float]] = []
    limit: int | None = None
    while limit is None or len(rows) < limit:
        records = consumer.consume(2_000, 0.01)
        now_ms = time.time() * 1000
        for record in records:
            if record.error() is None:
                headers: dict[str, Any] = dict(record.headers() or [])
                due, created = headers["slotwheel-due-ms"], headers["slotwheel-created-ms"]
                rows.append((max(float(due), float(created)), now_ms))
        if limit is None and not wanted.empty():
            limit = wanted.get()
    found.put(np.array(rows))
    time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
