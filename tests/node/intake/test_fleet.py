"""Wheels of a fleet share delay topics: a clean hand-over is exact, and what comes twice after the
death of a whole wheel is what it had appended and not stored.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata

from slotwheel.broker.sources import Place, StoredOffset
from slotwheel.node.intake import delay_topic
from slotwheel.node.intake.confluent_reader import ConfluentReader
from slotwheel.node.intake.delay_topic import DelayTopicIntake
from slotwheel.node.intake.fleet import FleetLost, FleetName, FleetPlace, SeenMember, disturbance
from slotwheel.node.intake.kafka_member import KafkaFleetMember
from slotwheel.node.intake.kafka_reader import KafkaPythonReader
from slotwheel.node.intake.source_reader import SourceReader
from slotwheel.wheel.rows import Header
from support.broker import Cluster, TopicFactory
from support.events import ToldEvents
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms

READERS: dict[str, Callable[..., SourceReader]] = {
    "kafka-python": KafkaPythonReader,
    "confluent-kafka": ConfluentReader,
}
SESSION = {"session.timeout.ms": "6000"}
"""The shortest that brokers allow by default."""
PARTITIONS = 4


class SharingWheel:
    """A wheel of a fleet: a ``FakeWheel`` and its intake."""

    def __init__(
        self,
        broker: Cluster,
        topic: str,
        fleet: str,
        name: str,
        reader: str,
        wheel: FakeWheel | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self.name = name
        self.wheel = wheel or FakeWheel()
        self.events = ToldEvents()
        self.members: list[KafkaFleetMember] = []

        def join(member: FleetName) -> KafkaFleetMember:
            self.members.append(KafkaFleetMember(broker.bootstrap, member, [topic], SESSION))
            return self.members[-1]

        self.intake = DelayTopicIntake(
            self.wheel,
            lambda: READERS[reader](broker.bootstrap, fleet),
            topics=[topic],
            fleet=FleetPlace(fleet, name, join, alone),
            events=self.events,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.intake.run, args=[self._stop])

    def start(self) -> SharingWheel:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def numbers(self) -> list[int]:
        return [int(value) for value in self.wheel.values()]

    def partitions(self) -> int:
        state = self.intake.fleet_state
        return -1 if state is None or state.problem else state.partitions


@contextmanager
def started(*wheels: SharingWheel) -> Iterator[None]:
    for wheel in wheels:
        wheel.start()
    try:
        yield
    finally:
        for wheel in wheels:
            wheel.stop()


def produce(producer: KafkaProducer, topic: str, values: range) -> None:
    due = b"%d" % (now_ms() + 60_000)
    headers: list[Header] = [("slotwheel-topic", b"orders"), ("slotwheel-due-ms", due)]
    for number in values:
        producer.send(topic, b"%d" % number, headers=headers, partition=number % PARTITIONS)
    producer.flush()


def taken(*wheels: SharingWheel) -> Counter[int]:
    """How often each record was taken, by whichever wheel."""
    return Counter(chain.from_iterable(wheel.numbers() for wheel in wheels))


def sources_of(wheel: SharingWheel, numbers: Collection[int]) -> dict[int, str]:
    """By record what its message's header says of where it stood."""
    sources = {}
    for row in wheel.wheel.rows:
        headers = {header["key"]: header["value"] for header in row["headers"]}
        sources[int(row["value"])] = headers["slotwheel-source"].decode()
    return {number: sources[number] for number in numbers}


def ready(*wheels: SharingWheel) -> bool:
    return not any(wheel.intake.unready() for wheel in wheels)


@pytest.mark.parametrize("reader", READERS)
def test_clean_hand_overs_are_exact(broker: Cluster, topic: TopicFactory, reader: str) -> None:
    delays = topic("delays", PARTITIONS)
    fleet = f"{delays}-{reader}"
    wheels = [SharingWheel(broker, delays, fleet, name, reader) for name in ("a", "b", "c")]
    first, second, third = wheels
    sent = 0
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:

        def send() -> None:
            nonlocal sent
            produce(producer, delays, range(sent, sent + 1000))
            sent += 1000

        send()
        with started(first):
            eventually(lambda: first.partitions() == PARTITIONS)
            eventually(lambda: ready(first))
            with started(second):
                send()
                eventually(lambda: first.partitions() == second.partitions() == 2)
                send()
                with started(third):
                    send()
                    eventually(lambda: third.partitions() == 1)
                    eventually(lambda: ready(*wheels))
                    send()
                    eventually(third.numbers)
                send()
                eventually(lambda: first.partitions() + second.partitions() == PARTITIONS)
            send()
            eventually(lambda: taken(*wheels).total() >= sent)
            eventually(lambda: ready(first))
            assert first.partitions() == PARTITIONS
    assert taken(*wheels) == Counter(range(sent))
    for wheel in wheels:
        assert wheel.numbers()
        assert not wheel.events.alarms
    sources = {number: f"{delays}/{number % 4}/{number // 4}" for number in first.numbers()}
    assert sources_of(first, sources) == sources


NAME = FleetName("fleet", "a", "1234")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], ""),
        ([SeenMember("a", str(NAME)), SeenMember("b", "slotwheel-wheel/fleet/b/99")], ""),
        ([SeenMember("a", "slotwheel-wheel/fleet/a/99")], "another wheel of the fleet"),
        ([SeenMember("", "rdkafka", "/10.0.0.7")], "no wheel of this fleet: client.id 'rdkafka'"),
        ([SeenMember("b", "slotwheel-wheel/other/b/99")], "no wheel of this fleet"),
        ([SeenMember("b", "slotwheel-wheel/fleet/c/99")], "no wheel of this fleet"),
        ([SeenMember("b", "slotwheel-wheel/fleet/b")], "no wheel of this fleet"),
    ],
)
def test_who_must_not_be_in_the_group(members: list[SeenMember], expected: str) -> None:
    text = disturbance(members, NAME)
    assert (expected in text) if expected else not text
    assert FleetName.parse(str(NAME)) == NAME


def test_a_wheel_that_is_put_out_throws_away_what_it_has_read(
    broker: Cluster, topic: TopicFactory
) -> None:
    """It is stopped, as a process by SIGSTOP, between reading and appending, and another wheel
    reads the same records meanwhile."""
    delays = topic("delays", PARTITIONS)
    first, second = (SharingWheel(broker, delays, delays, name, "kafka-python") for name in "ab")
    paused, goes_on = threading.Event(), threading.Event()
    confirm = KafkaFleetMember.confirm

    def stopped(member: KafkaFleetMember, offsets: Mapping[Place, StoredOffset]) -> None:
        paused.set()
        assert goes_on.wait(60)
        member._confirmed = -float("inf")  # the time is over, by this wheel's own clock
        confirm(member, offsets)

    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer, started(first):
        eventually(lambda: first.partitions() == PARTITIONS)
        eventually(lambda: ready(first))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(first.members[-1], "confirm", partial(stopped, first.members[-1]))
            produce(producer, delays, range(1000))
            assert paused.wait(60)
            first.members[-1].leave()  # as the broker does when the session is over
            with started(second):
                eventually(lambda: taken(second).total() == 1000)
                goes_on.set()
                eventually(lambda: first.events.names.count("delay-fleet-lost") == 1)
                eventually(lambda: first.partitions() == second.partitions() == 2)
                produce(producer, delays, range(1000, 2000))
                eventually(lambda: taken(first, second).total() >= 2000)
    assert taken(first, second) == Counter(range(2000))
    assert len(taken(first)) == 500


def test_what_was_appended_and_not_stored_comes_twice_from_one_source(
    broker: Cluster, topic: TopicFactory
) -> None:
    """A wheel dies between its append and the store, for longer than its session. When it comes
    back it goes on at what the other wheel has stored since."""
    delays = topic("delays", PARTITIONS)
    first, second = (SharingWheel(broker, delays, delays, name, "kafka-python") for name in "ab")
    dies, lies_dead = threading.Event(), threading.Event()

    def die(_: Mapping[Place, StoredOffset]) -> None:
        dies.set()
        assert lies_dead.wait(60)
        raise FleetLost("it has died")

    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer, started(first):
        eventually(lambda: first.partitions() == PARTITIONS)
        produce(producer, delays, range(1000))
        eventually(lambda: taken(first).total() == 1000)
        eventually(lambda: ready(first))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(first.members[-1], "store", die)
            produce(producer, delays, range(1000, 2000))
            assert dies.wait(60)
            twice = {number for number in taken(first) if number >= 1000}
            first.members[-1].leave()  # as the broker does when the session is over
            with started(second):
                eventually(lambda: taken(second).total() == 1000)
                lies_dead.set()
                eventually(lambda: first.partitions() == second.partitions() == 2)
                produce(producer, delays, range(2000, 3000))
                eventually(lambda: len(taken(first, second)) == 3000)
    counts = taken(first, second)
    assert {number for number, count in counts.items() if count > 1} == twice
    assert set(counts.values()) == {1, 2}
    assert [sources_of(wheel, twice) for wheel in (first, second)] == [
        {number: f"{delays}/{number % 4}/{number // 4}" for number in twice}
    ] * 2


def test_peers_hand_the_membership_on_at_once(broker: Cluster, topic: TopicFactory) -> None:
    """The next master has the same log, name and identity. The group does not share out anew, and
    the former master is put out."""
    delays = topic("delays", PARTITIONS)
    former = SharingWheel(broker, delays, delays, "a", "kafka-python", alone=False)
    other = SharingWheel(broker, delays, delays, "b", "kafka-python")
    heir = SharingWheel(broker, delays, delays, "a", "kafka-python", former.wheel, alone=False)
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer, started(other):
        with started(former):
            eventually(lambda: former.partitions() == other.partitions() == 2)
            produce(producer, delays, range(1000))
            eventually(lambda: taken(former, other).total() == 1000)
        shared = other.intake.fleet_state
        with started(heir):
            eventually(lambda: heir.partitions() == 2)
            produce(producer, delays, range(1000, 2000))
            eventually(lambda: taken(heir, other).total() >= 2000)
            assert other.intake.fleet_state == shared
    assert taken(heir, other) == Counter(range(2000))
    assert not heir.events.alarms


def test_two_wheels_of_one_name(broker: Cluster, topic: TopicFactory) -> None:
    delays = topic("delays", PARTITIONS)
    first, twin = (SharingWheel(broker, delays, delays, "a", "kafka-python") for _ in "12")
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer, started(first):
        eventually(lambda: ready(first))
        with started(twin):
            eventually(lambda: twin.events.alarms)
            assert "another wheel of the fleet" in str(twin.intake.unready())
            produce(producer, delays, range(1000))
            eventually(lambda: taken(first).total() == 1000)
            assert not first.events.alarms
        assert not taken(twin)
    assert [name for name, _ in twin.events.alarms] == ["delay-fleet-disturbed"]


@pytest.mark.parametrize("reader", READERS)
def test_a_stranger_stops_the_reading_until_it_is_gone(
    broker: Cluster, topic: TopicFactory, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stranger has stored is of no wheel: such a partition is not read either."""
    monkeypatch.setattr(delay_topic, "WATCH_INTERVAL_S", 0.5)
    delays = topic("delays", PARTITIONS)
    fleet = f"{delays}-{reader}"
    wheel = SharingWheel(broker, delays, fleet, "a", reader)
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer, started(wheel):
        eventually(lambda: ready(wheel))
        stranger = KafkaConsumer(
            delays,
            bootstrap_servers=broker.bootstrap,
            group_id=fleet,
            client_id="stranger",
            partition_assignment_strategy=[CooperativeStickyAssignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        with closing(stranger):
            eventually(lambda: stranger.poll(100) or wheel.events.alarms)
            eventually(lambda: "client.id 'stranger'" in str(wheel.intake.unready()))
            produce(producer, delays, range(1000))
            got = eventually(lambda: stranger.poll(100))
            assert not taken(wheel)
            (place, *_) = got
            stranger.commit({place: OffsetAndMetadata(17, "", -1)})
        reason = (
            f"(partition {place.partition}) is not read: where to begin is not known: the offset 17"
            " that Kafka has stored for it is of no wheel of the fleet"
        )
        eventually(lambda: reason in str(wheel.intake.unready()))
        eventually(lambda: taken(wheel).total() == 750)
    assert set(taken(wheel).values()) == {1}


def test_a_wheel_that_is_emptied_lets_the_others_have_its_partitions(
    broker: Cluster, topic: TopicFactory
) -> None:
    name, fleet = topic("delays", PARTITIONS), topic("fleet")
    north = SharingWheel(broker, name, fleet, "north", "kafka-python", alone=False)
    south = SharingWheel(broker, name, fleet, "south", "kafka-python", alone=False)
    with (
        closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer,
        started(north, south),
    ):
        eventually(lambda: ready(north, south) and north.partitions() == PARTITIONS // 2)
        produce(producer, name, range(100))
        eventually(lambda: len(taken(north, south)) == 100)
        north.wheel.draining = {"since_ms": now_ms()}
        eventually(lambda: south.partitions() == PARTITIONS)
        assert ready(north)
        produce(producer, name, range(100, 200))
        eventually(lambda: len(taken(north, south)) == 200)
        assert set(taken(north, south).values()) == {1}
        assert max(north.numbers()) < 100
        north.wheel.draining = {}
        eventually(lambda: north.partitions() == PARTITIONS // 2)
