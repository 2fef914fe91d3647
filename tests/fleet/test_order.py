"""Equal keys keep their order over a fleet, through failovers inside a wheel; and what becomes of
it when a key moves to another wheel."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from slotwheel import Message
from slotwheel.fleet.fleet import Fleet
from slotwheel.fleet.routing import Routing
from slotwheel.wheel.ids import MessageId
from support.broker import Cluster, TopicFactory
from support.kafkaread import Record, read_committed
from support.nodeprocess import NodeProcess
from support.peers import Peers
from support.waiting import now_ms

KEYS = [f"k{number}" for number in range(20)]
ROUNDS = 60


def firsts(records: Iterable[Record]) -> dict[bytes, list[int]]:
    """The numbers of each key's messages in the order in which they came first."""
    found: dict[bytes, dict[int, None]] = defaultdict(dict)
    for record in records:
        assert record.key is not None
        assert record.value is not None
        found[record.key].setdefault(int(record.value))
    return {key: list(numbers) for key, numbers in found.items()}


@pytest.mark.parametrize(
    "sink", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)]
)
def test_equal_keys_keep_their_order_through_failovers(
    tmp_path: Path, broker: Cluster, topic: TopicFactory, sink: str
) -> None:
    """Three messages of a key at a time are due in the same millisecond; a master is killed while
    messages come and leave, twice."""
    target, dead = topic("ordered", partitions=4), topic("dead")
    options = ("--sink", sink, "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    with (
        Peers(tmp_path, "--group", "north", "--election", "1s", *options) as peers,
        NodeProcess(tmp_path / "south", "--group", "south", *options) as south,
        Fleet({"north": peers.addresses, "south": south.address}, timeout_s=30) as fleet,
    ):
        peers.wait_until_whole()
        begin_ms = now_ms() + 1_000
        groups = set()
        for number in range(ROUNDS):
            due = begin_ms + number // 3 * 150
            messages = [Message(target, b"%d" % number, key=key, due=due) for key in KEYS]
            receipts = fleet.send_many(messages)
            if number in (20, 40):
                peers[peers.master()].kill()
                time.sleep(0.3)
            groups |= {MessageId.parse(text).group for text in receipts.result(30)}
            if number in (30, 50):
                for node in peers.nodes.values():
                    if not node.alive:
                        node.start()
        assert groups == {"north", "south"}
        records = read_committed(broker.bootstrap, target, ROUNDS * len(KEYS))
    order = firsts(records)
    assert order == {key.encode(): list(range(ROUNDS)) for key in KEYS}


def test_a_key_that_moves_keeps_its_order_as_far_as_both_wheels_are_in_time(
    tmp_path: Path, broker: Cluster, topic: TopicFactory
) -> None:
    """A third wheel is added while messages of a key are pending in its old one, which then stands
    still for a second: its messages come later than later ones of the new wheel."""
    target, dead = topic("moved"), topic("dead")
    options = ("--sink", "confluent", "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    two, three = Routing(["north", "south"]), Routing(["north", "south", "west"])
    key = next(
        text
        for text in (f"k{number}" for number in range(1_000))
        if (two.wheel_of(text.encode()), three.wheel_of(text.encode())) == ("north", "west")
    )
    nodes = {
        name: NodeProcess(tmp_path / name, "--group", name, *options)
        for name in ("north", "south", "west")
    }
    try:
        addresses = {name: node.start().address for name, node in nodes.items()}
        begin_ms = now_ms() + 2_500
        before = {name: addresses[name] for name in two.wheels}
        for wheels, numbers in ((before, range(0, 60, 2)), (addresses, range(1, 60, 2))):
            with Fleet(wheels, timeout_s=30) as fleet:
                receipts = fleet.send_many(
                    Message(target, b"%d" % n, key=key, due=begin_ms + n * 50) for n in numbers
                )
                (group,) = {MessageId.parse(text).group for text in receipts.result(30)}
                assert group == ("north" if wheels is before else "west")
        time.sleep(max(0.0, (begin_ms + 1_000 - now_ms()) / 1000))
        nodes["north"].running.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        nodes["north"].running.send_signal(signal.SIGCONT)
        records = read_committed(broker.bootstrap, target, 60)
    finally:
        for node in nodes.values():
            node.signal()
    order = firsts(records)[key.encode()]
    assert [n for n in order if n % 2 == 0] == list(range(0, 60, 2)), "within the old wheel"
    assert [n for n in order if n % 2] == list(range(1, 60, 2)), "within the new wheel"
    assert order != list(range(60)), "a wheel that stands still is overtaken"
    due = {n: begin_ms + n * 50 for n in range(60)}
    came = {int(record.value or b""): record.timestamp for record in reversed(records)}
    assert all(came[n] >= due[n] for n in came)
    for at, later in enumerate(order):
        for earlier in (n for n in order[at + 1 :] if n < later):
            # Overtaken by what is due later than it by no more than it was late itself.
            assert due[later] - due[earlier] <= came[earlier] - due[earlier]
