"""The table of sources: whatever happens to a delay topic, each record is delivered or is named as
not read, and the node never calls itself ready while one stands unread.

Three delay topics, of 1, 3 and 100 partitions, are read by one node; each event happens to all of
them, while the node runs and while it stands.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition, codec
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from slotwheel import Client
from slotwheel.node.config import NodeConfig
from slotwheel.node.intake.confluent_reader import ConfluentReader
from slotwheel.node.intake.delay_topic import DelayTopicIntake
from slotwheel.node.intake.kafka_reader import KafkaPythonReader
from slotwheel.node.intake.ports import IntakeEvents
from slotwheel.node.intake.source_reader import SourceReader
from slotwheel.node.node import Node
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.rows import from_columns
from support.broker import Cluster
from support.fakewheel import FakeWheel
from support.secured import SecuredBroker, group, topic
from support.waiting import eventually

CLIENTS = ["kafka-python", "confluent"]
READERS: dict[str, Callable[..., SourceReader]] = {
    "kafka-python": KafkaPythonReader,
    "confluent": ConfluentReader,
}
SIZES = (1, 3, 100)
CODECS = ("gzip", "snappy", "lz4", "zstd")
_HEARS_SOON = {"topic.metadata.refresh.interval.ms": "1000"}
"""Whoever asked a moment too early, for partitions that were just made, asks again after 5 minutes
otherwise."""
_numbers = itertools.count()


class Delays:
    """Delay topics of some sizes, and what was produced to each partition of them."""

    def __init__(self, broker: Cluster, sizes: tuple[int, ...], prefix: str) -> None:
        self.broker = broker
        self.target = f"{prefix}target"
        self.sizes = {f"{prefix}of{size}": size for size in sizes}
        broker.create_topics([self.target])
        for name, size in self.sizes.items():
            broker.create_topics([name], size, message_timestamp_type="CreateTime")
        self.produced = 0

    def produce(self, each: int = 1, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """Produce to all partitions of all topics. With a transactional id, as much again is
        produced behind it and aborted."""
        where = {"bootstrap.servers": self.broker.bootstrap}
        producer = Producer({**where, **_HEARS_SOON, **settings})
        if "transactional.id" in settings:
            producer.init_transactions()
            producer.begin_transaction()
        count = self._produce(producer, each)
        if "transactional.id" in settings:
            producer.commit_transaction()
            producer.begin_transaction()
            self._produce(producer, each)
            producer.abort_transaction()
        self.produced += count

    def _produce(self, producer: Producer, each: int) -> int:
        topic, delay = ("slotwheel-topic", self.target.encode()), ("slotwheel-delay-ms", b"0")
        wanted = [
            (name, partition)
            for name, size in self.sizes.items()
            for partition in range(size)
            for _ in range(each)
        ]
        left = wanted

        def all_are_stored() -> bool:
            """A broker that is busy knows partitions a moment after they were made."""
            nonlocal left
            failed = []

            def note(error: object, message: Any) -> None:
                if error is not None:
                    failed.append((message.topic(), message.partition()))

            for name, partition in left:
                more: dict[str, Any] = {"partition": partition, "on_delivery": note}
                try:
                    producer.produce(name, b"x" * 100, headers=[topic, delay], **more)
                except KafkaException:  # the client itself has heard of fewer partitions
                    failed.append((name, partition))
            assert producer.flush(60) == 0
            left = failed
            return not left

        eventually(all_are_stored)
        return len(wanted)

    def add_partitions(self) -> None:
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            self.sizes = {name: size + 1 for name, size in self.sizes.items()}
            admin.create_partitions(dict(self.sizes))

    def delete_records(self) -> None:
        places = [
            TopicPartition(name, one) for name in self.sizes for one in range(self.sizes[name])
        ]
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.delete_records(dict.fromkeys(places, -1))

    def delete(self) -> None:
        self.broker.delete_topic(*self.sizes)

    def make_anew(self) -> None:
        for name, size in self.sizes.items():
            eventually(partial(self._made, name, size))

    def _made(self, name: str, size: int) -> bool:
        """A topic that was deleted just now is in the way for a moment."""
        try:
            self.broker.create_topics([name], size)
        except TopicAlreadyExistsError:
            return False
        return True


@contextmanager
def node_of(data: Path, delays: Delays, client: str, **more: Any) -> Iterator[Node]:
    config = NodeConfig(
        data,
        listen="127.0.0.1:0",
        metrics=None,
        sink=client,
        bootstrap=delays.broker.bootstrap,
        delay_topics=tuple(delays.sizes),
        **more,
    )
    node = Node(config)
    node.start()
    try:
        yield node
    finally:
        node.stop(5.0)


def delivered(node: Node) -> int:
    return node.wheel.status().delivered


def named(node: Node) -> tuple[int, set[str]]:
    """How many offsets are named as not read, and the topics of which their number is unknown."""
    rows = node._delay_topics()["delay_topics"]["not_read"]
    known = sum(row["last"] - row["first"] + 1 for row in rows if row.get("last") is not None)
    return known, {row["topic"] for row in rows if "last" in row and row["last"] is None}


def lags(node: Node) -> set[int | None]:
    sources = node._sources
    assert sources is not None
    return {one.lag for one in sources.states()}


def check_all_is_read(node: Node, delays: Delays) -> None:
    """All that can be read is delivered, the lag is nothing, and so much is named as is lost."""

    def whole() -> bool:
        return delivered(node) == delays.produced and not node.unready() and lags(node) == {0}

    try:
        eventually(whole)
    except AssertionError:
        raise AssertionError(
            f"{delivered(node)} of {delays.produced}, lag {lags(node)}, {node.unready()}"
        ) from None
    # Nothing comes twice, either.
    assert delivered(node) == delays.produced


def test_every_record_is_delivered_or_named(tmp_path: Path, broker: Cluster) -> None:
    """By each client at once: it is the broker that takes its time."""
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        jobs = [threads.submit(tell, tmp_path / client, broker, client) for client in CLIENTS]
        for job in jobs:
            job.result()


def tell(data: Path, broker: Cluster, client: str) -> None:
    delays = Delays(broker, SIZES, f"table{next(_numbers)}-{client}-")
    transaction = {"transactional.id": f"{delays.target}-t"}

    # While the node runs
    with node_of(data, delays, client) as node:
        delays.produce(2)
        check_all_is_read(node, delays)
        delays.produce(settings=transaction)
        check_all_is_read(node, delays)
        for codec in CODECS:
            delays.produce(settings={"compression.type": codec})
        check_all_is_read(node, delays)
        delays.add_partitions()
        delays.produce()
        check_all_is_read(node, delays)
        delays.delete_records()
        delays.produce()
        check_all_is_read(node, delays)
        assert named(node) == (0, set())
        delays.delete()
        eventually(lambda: all(name in str(node.unready()) for name in delays.sizes))
        delays.make_anew()
        delays.produce()
        check_all_is_read(node, delays)
        assert named(node)[0] == 0

    # While it stands
    delays.produce(2)
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
    delays.produce(settings=transaction)
    for codec in CODECS:
        delays.produce(settings={"compression.type": codec})
    delays.add_partitions()
    delays.produce()
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
        with Client(node.listening) as asking:
            asking.acknowledge_unread()
            assert "delay_topics" in asking.status()
        assert named(node) == (0, set())
    before = delays.produced
    delays.produce(3)
    lost = delays.produced - before
    delays.delete_records()
    delays.produced = before
    delays.produce()
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
        assert named(node) == (lost, set())
    before = delays.produced
    delays.produce(2)
    delays.delete()
    delays.produced = before
    delays.make_anew()
    delays.produce(9)  # more than were read of the old one
    with node_of(data, delays, client) as node:
        check_all_is_read(node, delays)
        assert named(node) == (lost, set(delays.sizes))


@pytest.mark.parametrize("client", CLIENTS)
def test_an_empty_directory_goes_on_where_the_old_one_was(
    tmp_path: Path, broker: Cluster, client: str
) -> None:
    delays = Delays(broker, (3,), f"lost{next(_numbers)}-{client}-")
    group = WheelConfig(group=f"lost-{client}")
    delays.produce(20)
    with node_of(tmp_path / "first", delays, client, wheel=group) as node:
        check_all_is_read(node, delays)
    delays.produced = 0
    delays.produce(3)
    with node_of(tmp_path / "second", delays, client, wheel=group) as node:
        check_all_is_read(node, delays)
    # What nobody can know is not guessed: the group's offsets expired, and the records are old.
    old = int(time.time() - 8 * 86_400) * 1000
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        (name,) = delays.sizes
        headers = [("slotwheel-topic", delays.target.encode()), ("slotwheel-delay-ms", b"0")]
        producer.send(name, b"old", headers=headers, partition=0, timestamp_ms=old)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_groups([f"slotwheel-{group.group}"])
        admin.delete_records({TopicPartition(name, one): 23 for one in range(3)})
    with node_of(tmp_path / "third", delays, client, wheel=group) as node:
        eventually(lambda: "--delay-from" in str(node.unready()))
        assert f"{name!r} (partition 0) is not read" in str(node.unready())
        assert delivered(node) == 0
    delays.produced = 1
    more: dict[str, Any] = {"wheel": group, "delay_from": "earliest"}
    with node_of(tmp_path / "third", delays, client, **more) as node:
        check_all_is_read(node, delays)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("killed", [False, True])
def test_a_directory_of_an_earlier_version_goes_on_where_it_is(
    tmp_path: Path, broker: Cluster, client: str, killed: bool
) -> None:
    """It has a position for partition 0 of one topic, without its name, and stored it in Kafka for
    the group up to five seconds before. Another topic has more records than that."""
    delays = Delays(broker, (1, 3), f"old{next(_numbers)}-{client}-")
    group = WheelConfig(group=f"old-{client}-{killed}")
    read, _other = delays.sizes
    delays.produce(40)
    node = Node(NodeConfig(tmp_path / "data", listen="127.0.0.1:0", metrics=None, wheel=group))
    node.start()
    rows = from_columns([0], [delays.target], [None], [None], [b"x"], [()])
    node.wheel.append_source(rows, int(time.time() * 1000), source=0, first=0, last=29).result(60)
    node.stop()
    offset = OffsetAndMetadata(21 if killed else 30, "", -1)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_group_offsets(f"slotwheel-{group.group}", {TopicPartition(read, 0): offset})
    delays.produced = 1 + 10 + 3 * 40
    for _ in range(2):
        with node_of(tmp_path / "data", delays, client, wheel=group) as node:
            eventually(lambda: node.wheel.status().accepted == delays.produced)
            eventually(lambda: not node.unready() and lags(node) == {0})


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with SecuredBroker() as broker:
        yield broker


@contextmanager
def reading(
    wheel: FakeWheel, delays: Delays, client: str, bootstrap: str, settings: dict[str, str]
) -> Iterator[DelayTopicIntake]:
    """Read delay topics without a node, and so without a sink."""
    open_reader = partial(READERS[client], bootstrap, delays.target, settings)
    topics = list(delays.sizes)
    intake = DelayTopicIntake(wheel, open_reader, topics=topics, events=IntakeEvents())
    stop = threading.Event()
    thread = threading.Thread(target=intake.run, args=[stop])
    thread.start()
    try:
        yield intake
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


class Restricted:
    """A user of ``broker`` with the least rights, who reads delay topics by SASL_SSL."""

    def __init__(self, broker: SecuredBroker, client: str, sizes: tuple[int, ...]) -> None:
        self._broker, self._client = broker, client
        self._prefix = f"rights{next(_numbers)}-{client}-"
        self.delays, self._wheel = Delays(broker, sizes, self._prefix), FakeWheel()
        self._rights = [topic(self._prefix, "DESCRIBE", "READ"), group(self.delays.target)]
        self._settings = broker.user(*self._rights)

    @contextmanager
    def reading(self) -> Iterator[DelayTopicIntake]:
        where = self._broker.secured
        with reading(self._wheel, self.delays, self._client, where, self._settings) as intake:
            yield intake

    def is_whole(self, intake: DelayTopicIntake) -> bool:
        whole = {one.lag for one in intake.states()} == {0}
        return whole and not intake.unready() and len(self._wheel.rows) == self.delays.produced

    def allow(self) -> None:
        self._broker.allow(self._settings["sasl.username"], self._rights)

    def deny(self, operation: str) -> None:
        take(self._broker, self._settings["sasl.username"], self._prefix, operation)


@pytest.mark.parametrize("sizes", [SIZES[:2], pytest.param(SIZES, marks=pytest.mark.soak)])
def test_rights_and_brokers_come_and_go(secured: SecuredBroker, sizes: tuple[int, ...]) -> None:
    """While it is read, by each client, and before."""
    users = [Restricted(secured, client, sizes) for client in CLIENTS]

    def each(intakes: list[DelayTopicIntake], is_so: Callable[[Restricted, str], bool]) -> bool:
        told = (str(intake.unready()) for intake in intakes)
        return all(map(is_so, users, told))

    def whole(intakes: list[DelayTopicIntake]) -> bool:
        return all(user.is_whole(intake) for user, intake in zip(users, intakes, strict=True))

    for user in users:
        user.delays.produce()
    with ExitStack() as stack:
        intakes = [stack.enter_context(user.reading()) for user in users]
        eventually(lambda: whole(intakes))
        for user in users:
            user.deny("READ")
            user.delays.produce()
        named = lambda user, told: all(name in told for name in user.delays.sizes)  # noqa: E731
        eventually(lambda: each(intakes, named))
        for user in users:
            user.allow()
        eventually(lambda: whole(intakes))
        secured.kill()
        eventually(lambda: each(intakes, lambda _, told: "cannot be reached" in told))
        secured.start()
        for user in users:
            user.delays.produce()
        eventually(lambda: whole(intakes))
    for user in users:
        user.deny("READ")
        user.deny("DESCRIBE")
        user.delays.produce()
    with ExitStack() as stack:
        again = [stack.enter_context(user.reading()) for user in users]
        without = lambda user, told: told.count("uthoriz") == len(user.delays.sizes)  # noqa: E731
        eventually(lambda: each(again, without))
        for user in users:
            user.allow()
        eventually(lambda: whole(again))


def take(broker: Cluster, user: str, prefix: str, operation: str) -> None:
    """Take a right at topics from a user."""
    wanted = ACLFilter(
        principal=f"User:{user}",
        host="*",
        operation=ACLOperation[operation],
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePatternFilter(
            ResourceType.TOPIC, prefix, ACLResourcePatternType.PREFIXED
        ),
    )
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_acls([wanted])


def test_a_codec_that_is_not_installed_is_named(
    tmp_path: Path, broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops its own partition only, and no thread hangs or spins."""
    monkeypatch.setattr(codec, "snappy", None)
    delays = Delays(broker, (3,), f"codec{next(_numbers)}-")
    (name,) = delays.sizes
    delays.produce()
    headers = [("slotwheel-topic", delays.target.encode()), ("slotwheel-delay-ms", b"0")]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "snappy"})
    producer.produce(name, b"x" * 100, headers=headers, partition=1)  # type: ignore[arg-type]
    producer.flush(60)
    delays.produce()
    with node_of(tmp_path / "data", delays, CLIENTS[0]) as node:
        eventually(lambda: delivered(node) == 5)
        eventually(lambda: "codec" in str(node.unready()))
        assert f"{name!r} (partition 1) is not read: a codec is not installed" in str(
            node.unready()
        )
        used = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - used < 0.8
        monkeypatch.undo()
        delays.produced += 1
        check_all_is_read(node, delays)
