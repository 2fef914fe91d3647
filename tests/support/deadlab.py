"""Dead letters in a topic, embedded or of a real Kafka, a node beside it, and what gets redriven.

with EmbeddedLab(tmp_path) as lab:
    lab.bury([letter("orders", n) for n in range(100)])
    lab.dead("redrive", "--yes")
    lab.arrived("orders", 100)
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa
from confluent_kafka import Producer

from slotwheel import Client, Message
from slotwheel.policy.deadletters import (
    BURIED,
    CONSUMER,
    DEAD_LETTER_TOPIC,
    letter_headers,
    notes_topic,
)
from slotwheel.reading.kafka.dump import DUMP
from slotwheel.wheel.rows import Header, header_column
from slotwheel.wheel.schema import TIME
from support.broker import Cluster, TopicFactory
from support.kafkaread import read_all
from support.nodeprocess import (
    NodeProcess,
    command_line,
    environment,
    run_cli,
    run_process,
    topic_rows,
)


class Letter(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def letter(
    topic: str | None,
    number: int,
    reason: str = BURIED,
    group: str = "",
    partition: int | None = None,
    value_bytes: int = 0,
) -> Letter:
    """A letter as a consumer buries it. It says in a header of its own which one it is."""
    meant = None if topic is None else topic.encode()
    said = letter_headers(
        CONSUMER, reason, f"why {number}", meant, group=group, partition=partition
    )
    value = (b"%d" % number).ljust(value_bytes)
    return Letter(b"k%d" % (number % 10), value, [("own", b"%d" % number), *said])


def dump_of(headers: Sequence[Sequence[Header]], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Records of a topic, as a dump has them; the one at position n was written at n s."""
    count = len(headers)
    columns = [
        pa.array(["dead"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([1000 * n for n in range(count)], pa.int64()).cast(TIME),
        pa.array([b"k%d" % (n % 3) for n in range(count)], pa.binary()),
        pa.array(values, pa.binary()),
        header_column(headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DUMP)


class Again(NamedTuple):
    """A message that got to a topic. ``appended_ms``: when, by that topic's clock."""

    value: bytes | None
    key: bytes | None
    headers: list[Header]
    appended_ms: int
    due_ms: int
    partition: int


class EmbeddedLab:
    """A node with embedded topics."""

    gives_ids = True
    """Whether a letter that is buried has an id: a node delivered it."""

    def __init__(self, path: Path, *options: str) -> None:
        self.names: dict[str, str] = {}
        self.topic = DEAD_LETTER_TOPIC
        self.buried = 0
        self.node = NodeProcess(path / "data", *options)

    @property
    def where(self) -> list[str]:
        return ["--data", str(self.node.data)]

    def target(self, name: str) -> str:
        """The topic that stands for that name."""
        return self.names.get(name, name)

    def __enter__(self) -> Self:
        self.node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.node.__exit__()

    def bury(self, letters: Sequence[Letter]) -> None:
        with Client(self.node.address) as client:
            messages = (
                Message(self.topic, one.value, one.key, one.headers, delay=0) for one in letters
            )
            client.send_many(messages).result(60)
        self.buried += len(letters)
        self.node.wait_for(self.topic, self.buried)

    def command(self, *arguments: str) -> list[str]:
        name, *more = arguments
        node = ["--node", self.node.address] if name == "redrive" else []
        return ["dead", name, *more, *self.where, "--topic", self.topic, *node]

    def dead(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_cli(*self.command(*arguments))

    def dead_process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_process(*self.command(*arguments))

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command_line(*self.command(*arguments)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )

    def killed(self, after: int, *arguments: str) -> int:
        """Run a redrive, and kill it once it has sent about so many letters. How many it sent."""
        with Client(self.node.address) as client:
            before = int(client.status()["accepted"])
            process = self.started(*arguments)
            while client.status()["accepted"] < before + 1 + after and process.poll() is None:
                time.sleep(0.001)
            process.kill()
            process.communicate()
            return int(client.status()["accepted"]) - before

    def arrived(self, topic: str, count: int) -> list[Again]:
        """All that is there, once there are so many."""
        rows = self.node.wait_for(topic, count)
        return [
            Again(
                row["value"],
                row["key"],
                [(one["key"], one["value"]) for one in row["headers"]],
                int(row["delivered"].timestamp() * 1000),
                int(row["due"].timestamp() * 1000),
                -1 if row["partition"] is None else row["partition"],
            )
            for row in rows
        ]

    def notes(self) -> int:
        """How many notes there are now."""
        name = notes_topic(self.topic)
        known = (self.node.data / "topics" / name).exists()
        return len(topic_rows(self.node.data, name)) if known else 0


class KafkaLab(EmbeddedLab):
    """A node before a Kafka. ``names``: topics that exist there, by what tests call them."""

    gives_ids = False

    def __init__(
        self, path: Path, broker: Cluster, topic: TopicFactory, *options: str, partitions: int = 3
    ) -> None:
        self.names = {}
        self.broker = broker
        self.topic = topic("dead", partitions)
        self.notes_topic = broker.create_topic(notes_topic(self.topic), 1)
        self.buried = 0
        sink = options or ("--sink", "confluent")
        self.node = NodeProcess(
            path / "data",
            *sink,
            *("--bootstrap", broker.bootstrap, "--dead-letter-topic", self.topic),
        )

    @property
    def where(self) -> list[str]:
        return ["--bootstrap", self.broker.bootstrap]

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.broker.delete_topic(self.notes_topic)

    def bury(self, letters: Iterable[Letter]) -> None:
        fast = {"queue.buffering.max.messages": 1_000_000, "linger.ms": 20}
        fast |= {"message.max.bytes": 4_000_000}
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **fast})
        for number, one in enumerate(letters):
            producer.produce(self.topic, one.value, one.key, headers=list(one.headers))
            self.buried += 1
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0

    def arrived(self, topic: str, count: int) -> list[Again]:
        return [
            Again(one.value, one.key, list(one.headers), one.appended_ms, one.due_ms, one.partition)
            for one in read_all(self.broker.bootstrap, [topic], count)
        ]


def numbers(arrived: Iterable[Again]) -> Counter[int]:
    """How often each letter arrived, by the number that it says."""
    return Counter(int(dict(one.headers)["own"] or b"") for one in arrived)
