"""Wheels of a fleet on a real Kafka, as processes, while they join, stop, die and are paused.

Every record of the delay topic is delivered, none early. What comes twice is of a wheel that died
whole, or was paused, for longer than its session: of each of its partitions what it appended last.
The two messages of such a record name the same source.

The long run: ``python -m pytest -m soak tests/test_fleet_kills.py``
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from slotwheel import Client
from support.broker import Cluster, TopicFactory
from support.kafkaread import Arrived, Reader, assert_none_early
from support.nodeprocess import NodeProcess
from support.peers import Peers
from support.waiting import eventually

SINKS = ("kafka-python", "confluent")
SESSION_S = 6.0
APPEND_MAX = 10_000
"""The most records that one poll of a reader returns."""
_OVER_S = SESSION_S + 2.0


class Delays:
    """A delay topic that a thread fills with ``count`` records, ``rate`` a second, which are due up
    to ``delay_ms`` later; the topic for which they are meant is ``target``."""

    def __init__(
        self, broker: Cluster, topic: TopicFactory, partitions: int, count: int, rate: int
    ) -> None:
        self.broker = broker
        self.count = count
        self.name = topic("delays", partitions, message_timestamp_type="CreateTime")
        self.target, self.dead = topic("target", 4), topic("dead")
        self._partitions, self._rate = partitions, rate
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._produce)

    @property
    def is_filling(self) -> bool:
        return self._thread.is_alive()

    @contextmanager
    def filling(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._thread.join()
        assert not self._failed, self._failed[0]

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "acks": "all"})
        chance = random.Random(self.count)
        started = time.monotonic()

        def note(error: object, _message: Any) -> None:
            if error is not None:
                self._failed.append(str(error))

        for number in range(self.count):
            producer.produce(
                self.name,
                b"%d" % number,
                partition=number % self._partitions,
                headers=[
                    ("slotwheel-topic", self.target.encode()),
                    ("slotwheel-delay-ms", b"%d" % chance.randrange(3000)),
                ],
                on_delivery=note,
            )
            if number % 100 == 0:
                producer.poll(0)
                time.sleep(max(0.0, started + number / self._rate - time.monotonic()))
        producer.flush(60)

    def options(self, sink: str, group: str) -> list[str]:
        return [
            *("--sink", sink, "--bootstrap", self.broker.bootstrap, "--group", group),
            *("--dead-letter-topic", self.dead, "--delay-topic", self.name),
            *("--delay-fleet", self.name),
            *("--kafka", f"session.timeout.ms={SESSION_S * 1000:.0f}"),
        ]


class Account:
    """What was delivered of ``delays``: of each source the ids of its messages."""

    def __init__(self, delays: Delays, arrived: Sequence[Arrived]) -> None:
        assert_none_early(arrived)
        self.ids: dict[tuple[int, int], set[str]] = defaultdict(set)
        numbers: dict[tuple[int, int], set[int]] = defaultdict(set)
        for message in arrived:
            headers = dict(message.headers)
            name, partition, offset = (headers["slotwheel-source"] or b"").decode().split("/")
            assert name == delays.name
            place = int(partition), int(offset)
            self.ids[place].add(message.id)
            numbers[place].add(int(message.value or b""))
        self.numbers = {number for found in numbers.values() for number in found}
        assert all(len(found) == 1 for found in numbers.values()), "one source, one record"
        assert len(self.numbers) == len(numbers), "one record, one source"

    @property
    def repeated(self) -> list[tuple[int, int]]:
        return sorted(place for place, ids in self.ids.items() if len(ids) > 1)

    def runs(self) -> dict[int, list[int]]:
        """Of each partition the lengths of the stretches of records that were taken twice."""
        runs: dict[int, list[int]] = defaultdict(list)
        last = (-1, -1)
        for partition, offset in self.repeated:
            if (partition, offset - 1) == last:
                runs[partition][-1] += 1
            else:
                runs[partition].append(1)
            last = partition, offset
        return runs

    def check(self, delays: Delays, deaths: int) -> None:
        """``deaths``: how often a wheel was away for longer than its session."""
        assert self.numbers == set(range(delays.count))
        for partition, lengths in self.runs().items():
            assert len(lengths) <= deaths, f"partition {partition}: {lengths}"
            assert max(lengths) <= APPEND_MAX, f"partition {partition}: {lengths}"


def is_ready(*nodes: NodeProcess) -> bool:
    return all(node.get("/readyz")[0] == 200 for node in nodes)


def partitions_of(node: NodeProcess) -> int:
    return int(node.metric("slotwheel_delay_fleet_partitions"))


def members_at(node: NodeProcess) -> list[str]:
    with Client(node.address) as client:
        fleet: dict[str, Any] = client.status()["delay_topics"]["fleet"]
    return [] if fleet["problem"] else fleet["members"]


def account_of(delays: Delays) -> Account:
    """Waits until each record was delivered."""
    reader = Reader(delays.broker.bootstrap, [delays.target])
    arrived: list[Arrived] = []
    seen: set[bytes | None] = set()

    def whole() -> bool:
        new = reader.new()
        arrived.extend(new)
        seen.update(message.value for message in new)
        return len(seen) == delays.count

    try:
        eventually(whole, otherwise=lambda: f"{len(seen)} of {delays.count}")
    finally:
        reader.close()
    return Account(delays, arrived)


@pytest.mark.parametrize("sink", SINKS)
def test_deaths_and_pauses(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, figure: Callable[[str], None], sink: str
) -> None:
    delays = Delays(broker, topic, 6, 10_000, 1000)
    first, second, third = nodes = [
        NodeProcess(tmp_path / name, *delays.options(sink, name)) for name in ("a", "b", "c")
    ]
    with ExitStack() as opened:
        for node in nodes:
            opened.enter_context(node)
        eventually(lambda: [partitions_of(node) for node in nodes] == [2, 2, 2])
        eventually(lambda: is_ready(*nodes))
        eventually(lambda: members_at(first) == ["a", "b", "c"])
        with delays.filling():
            second.kill()
            third.running.send_signal(signal.SIGSTOP)
            time.sleep(_OVER_S)
            third.running.send_signal(signal.SIGCONT)
            second.start()
            eventually(lambda: [partitions_of(node) for node in nodes] == [2, 2, 2])
            first.signal()  # a clean stop
            eventually(lambda: partitions_of(second) + partitions_of(third) == 6)
        first.start()
        eventually(lambda: is_ready(*nodes))
        account = account_of(delays)
    figure(f"{sink}: {delays.count} records, taken twice: {dict(account.runs())}")
    account.check(delays, deaths=2)


class Chaos:
    """Does to the wheels ``a`` and ``b``, and to ``c`` of three peers, what happens to them in
    years, in a random order. ``deaths`` counts absences of a whole wheel beyond its session."""

    def __init__(self, nodes: dict[str, NodeProcess], peers: Peers, seed: int) -> None:
        self._nodes, self._peers = nodes, peers
        self._random = random.Random(seed)
        self.done: list[str] = []
        self.deaths = 0

    def turn(self) -> None:
        event = self._random.choice(
            (self._stop, self._die, self._die_shortly, self._pause, self._fail_over, self._hand_on)
        )
        self.done.append(event.__name__.strip("_"))
        event()
        time.sleep(self._random.uniform(1, 4))

    def _one(self) -> NodeProcess:
        return self._nodes[self._random.choice(sorted(self._nodes))]

    def _stop(self) -> None:
        node = self._one()
        node.signal()
        time.sleep(self._random.uniform(0, 10))
        node.start()

    def _die(self) -> None:
        node = self._one()
        node.kill()
        self.deaths += 1
        time.sleep(_OVER_S + self._random.uniform(0, 4))
        node.start()

    def _die_shortly(self) -> None:
        node = self._one()
        node.kill()
        self.deaths += 1  # a busy machine may take longer to start it than the session
        node.start()

    def _pause(self) -> None:
        node = self._one()
        node.running.send_signal(signal.SIGSTOP)
        self.deaths += 1
        time.sleep(_OVER_S)
        node.running.send_signal(signal.SIGCONT)

    def _fail_over(self) -> None:
        peer = self._peers[self._peers.master()]
        peer.kill()
        time.sleep(self._random.uniform(1, 5))
        self._peers.start()
        self._peers.wait_until_whole()

    def _hand_on(self) -> None:
        self._peers.step_down(self._peers.master())
        self._peers.wait_until_whole()


@pytest.mark.soak
@pytest.mark.parametrize("sink", SINKS)
def test_a_fleet_in_troubled_times(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, figure: Callable[[str], None], sink: str
) -> None:
    delays = Delays(broker, topic, 12, 400_000, 2000)
    nodes = {name: NodeProcess(tmp_path / name, *delays.options(sink, name)) for name in ("a", "b")}
    with ExitStack() as opened:
        for node in nodes.values():
            opened.enter_context(node)
        (tmp_path / "c").mkdir()
        peers = opened.enter_context(Peers(tmp_path / "c", *delays.options(sink, "c")))
        eventually(lambda: [partitions_of(node) for node in nodes.values()] == [4, 4])
        chaos = Chaos(nodes, peers, seed=len(sink))
        with delays.filling():
            while delays.is_filling:
                chaos.turn()
        eventually(lambda: is_ready(*nodes.values()))
        account = account_of(delays)
    figure(
        f"{sink}: {delays.count} records; {', '.join(chaos.done)}: a whole wheel was away"
        f" {chaos.deaths} times; taken twice: {len(account.repeated)}, by partition"
        f" {dict(account.runs())}"
    )
    account.check(delays, chaos.deaths)
