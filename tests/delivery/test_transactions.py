"""Transactions on a real broker, with both clients: what is committed is read with its mark, and
nothing else ever is."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from statistics import median
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from slotwheel.delivery.kafka.confluent import ConfluentSink
from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings, SendPlan
from slotwheel.delivery.kafka.records import to_records
from slotwheel.delivery.kafka.sink import KafkaSink
from slotwheel.delivery.kafka.topicbook import TopicInfo, Unreachable
from slotwheel.delivery.kafka.transactions import (
    METADATA_BYTES_MAX,
    Aborted,
    Fenced,
    Refused,
    StoredMark,
    Transactions,
    Unclear,
)
from slotwheel.delivery.sink import Answer
from support.broker import Broker, Cluster, TopicFactory
from support.deliveries import MINT, Sent, rows_of
from support.kafkaread import RecordReader
from support.stopwatch import Stopwatch
from support.waiting import PATIENCE_S, eventually

KINDS: list[type[KafkaSink]] = [ConfluentSink, KafkaPythonSink]
pytestmark = pytest.mark.parametrize("kind", KINDS, ids=["confluent", "kafka-python"])

Make = Callable[..., Transactions]


class Rig:
    """One wheel group: its transactions, as often as wanted, and its topics."""

    def __init__(self, kind: type[KafkaSink], broker: Cluster, dead: str, stack: ExitStack) -> None:
        self.kind, self.broker, self.dead, self._stack = kind, broker, dead, stack
        self.group = f"slotwheel-{uuid.uuid4().hex[:8]}"

    def make(self, **settings: Any) -> Transactions:
        used = KafkaSettings(self.broker.bootstrap, **settings)
        made = self.kind.make_transactions(used, self.group, self.dead)
        self._stack.callback(made.close)
        return made

    def started(self, **settings: float) -> Transactions:
        made = self.make(**settings)
        made.start()
        return made

    def mark(self) -> StoredMark | None:
        return self.make().start()


@pytest.fixture
def rig(kind: type[KafkaSink], broker: Cluster, topic: TopicFactory) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(kind, broker, topic("dead"), stack)


def plan(sent: list[Sent]) -> SendPlan:
    rows = rows_of(sent)
    partitions = np.array([-1 if s.partition is None else s.partition for s in sent], np.int64)
    topics = {one.topic: TopicInfo(1) for one in sent}
    return SendPlan(rows, to_records(rows, MINT), list(range(len(sent))), partitions, topics)


def values(count: int, topic: str, first: int = 0) -> list[Sent]:
    return [Sent(topic, b"%d" % n, b"k") for n in range(first, first + count)]


def committed(bootstrap: str, topic: str, *, ended: bool = True) -> list[bytes]:
    """What a reader of committed records gets; with ``ended``, once no transaction is open."""
    with closing(RecordReader(bootstrap, [topic])) as reader:
        if ended:
            eventually(lambda: reader.ends() == reader.ends(committed=False))
        return [record.value or b"" for record in reader.new_records()]


def test_rows_and_mark_count_together_or_not_at_all(rig: Rig, topic: TopicFactory) -> None:
    target = topic("target")
    transactions = rig.make()
    assert transactions.start() is None
    text = "m" * 3600
    for turn in range(64):
        transactions.begin()
        assert transactions.send(plan(values(3, target, turn * 3))) == {}
        transactions.commit(turn, text)
    transactions.begin()
    assert transactions.send(plan(values(3, target, 1000))) == {}
    transactions.abort()
    assert transactions.start() == StoredMark(63, text)
    # The mark is read from this group, whatever the user's consumers belong to.
    theirs = {"group.id": "theirs", "isolation.level": "read_uncommitted"}
    assert rig.make(extra=theirs).start() == StoredMark(63, text)
    assert transactions.start() == StoredMark(63, text)
    transactions.begin()
    transactions.commit(64, "m" * METADATA_BYTES_MAX)
    assert committed(rig.broker.bootstrap, target) == [b"%d" % n for n in range(192)]
    assert rig.mark() == StoredMark(64, "m" * METADATA_BYTES_MAX)


def test_a_second_start_fences_the_first(rig: Rig, topic: TopicFactory) -> None:
    target = topic("target")
    first = rig.started()
    first.begin()
    first.commit(1, "first")
    first.begin()
    assert first.send(plan(values(5, target))) == {}
    second = rig.make()
    assert second.start() == StoredMark(1, "first")
    # Whatever the first one still tries, it does not come through, and the second is not disturbed.
    assert first.send(plan(values(5, target, 10))).keys() == set(range(5))
    with pytest.raises(Fenced):
        first.commit(2, "stale")
    with pytest.raises(Unclear):
        first.begin()
    for turn in range(3):
        second.begin()
        assert second.send(plan(values(1, target, 20 + turn))) == {}
        second.commit(turn + 5, "second")
    assert committed(rig.broker.bootstrap, target) == [b"20", b"21", b"22"]
    assert rig.mark() == StoredMark(7, "second")


def test_the_idle_first_one_is_fenced_too(rig: Rig, topic: TopicFactory) -> None:
    first = rig.started()
    rig.started()
    with pytest.raises(Fenced):  # noqa: PT012 - whichever call comes to the broker first
        first.begin()
        first.commit(1, "stale")
    assert rig.mark() is None


def test_an_unfinished_mark_is_waited_for(rig: Rig) -> None:
    """A stranger's transaction with the group's offset: it may count yet, so it is not skipped."""
    config = {"bootstrap.servers": rig.broker.bootstrap, "transactional.id": rig.group + "-other"}
    other = Producer(config)
    other.init_transactions(10)
    with closing(Consumer({"group.id": rig.group})) as consumer:
        group = consumer.consumer_group_metadata()
    other.begin_transaction()
    other.send_offsets_to_transaction([TopicPartition(rig.dead, 0, 7, "late")], group, 10)
    with ThreadPoolExecutor(1) as thread:
        mark = thread.submit(rig.make().start)
        time.sleep(1.5)
        assert not mark.done()
        other.commit_transaction(10)
        assert mark.result(60) == StoredMark(7, "late")


def test_a_refused_row_is_found(rig: Rig, topic: TopicFactory) -> None:
    """What only the broker knows: a limit that we may not read, and a topic that wants keys."""
    compacted, small = topic("compacted", cleanup_policy="compact"), topic("small")
    small = topic("small", max_message_bytes=2000)
    bad_key = [*values(3, compacted), Sent(compacted, b"no key"), *values(2, compacted, 7)]
    large = [*values(3, small), Sent(small, b"x" * 3000), *values(2, small, 7)]
    transactions = rig.started()
    transactions.begin()
    transactions.commit(1, "before")
    for rows in (bad_key, large):
        transactions.begin()
        found = transactions.send(plan(rows))
        assert found[3].answer is Answer.REFUSED
        exact = [row for row, one in found.items() if one.answer is Answer.REFUSED]
        assert all(one.bystander for row, one in found.items() if row != 3 or len(exact) > 1)
        with pytest.raises(Aborted):
            transactions.commit(2, "not this one")
        transactions.begin()
        found = transactions.send(plan(rows), singly=True)
        assert found[3].answer is Answer.REFUSED
        assert not found[3].bystander
        assert all(one.bystander for row, one in found.items() if row != 3)
        transactions.abort()
        rest = [one for row, one in enumerate(rows) if row != 3]
        transactions.begin()
        assert transactions.send(plan(rest)) == {}
        transactions.commit(3, "after")
        assert committed(rig.broker.bootstrap, rows[0].topic) == [one.value for one in rest]
    assert rig.mark() == StoredMark(3, "after")


def test_the_sink_finds_the_refused_row(rig: Rig, topic: TopicFactory) -> None:
    name = topic("compacted", cleanup_policy="compact")
    settings = KafkaSettings(rig.broker.bootstrap)
    transactions = rig.started()
    with closing(rig.kind(MINT, settings, transactions)) as sink:
        rows = rows_of([*values(3, name), Sent(name, b"no key"), *values(3, name, 4)])
        for _ in range(2):
            transactions.begin()
            answers = sink.deliver(rows)
            transactions.abort()
            if answers.which(Answer.REFUSED).any():
                break
        assert np.flatnonzero(answers.which(Answer.REFUSED)).tolist() == [3]
        assert not answers.which(Answer.NOT_NOW).any()


def test_a_renewal_does_not_hide_another_master(rig: Rig, topic: TopicFactory) -> None:
    name = topic("compacted", cleanup_policy="compact")
    first = rig.started()
    first.begin()
    assert first.send(plan([Sent(name, b"no key")])).keys() == {0}
    first.abort()
    second = rig.started()
    second.begin()
    second.commit(5, "second")
    with pytest.raises(Fenced):
        first.begin()


@pytest.mark.soak
def test_an_outage_between_send_and_commit(kind: type[KafkaSink], own_broker: Broker) -> None:
    dead, target = own_broker.create_topic("dead"), own_broker.create_topic("target")
    with ExitStack() as stack:
        rig = Rig(kind, own_broker, dead, stack)
        transactions = rig.started(delivery_timeout_s=4.0, metadata_timeout_s=1.0)
        transactions.begin()
        transactions.commit(1, "before")
        transactions.begin()
        assert transactions.send(plan(values(5, target))) == {}
        own_broker.kill()
        began = Stopwatch()
        with pytest.raises(Unclear):
            transactions.commit(2, "unclear")
        with pytest.raises(Unreachable):
            transactions.start()
        assert began.seconds < 15
        own_broker.start()
        mark = _start_again(transactions)
        assert mark is not None
        assert (mark.offset, mark.metadata) in ((1, "before"), (2, "unclear"))
        # A broker alone that has just restarted may take the target for deleted, and never write
        # there that the transaction was aborted.
        counts = committed(own_broker.bootstrap, target, ended=False)
        assert counts == ([b"%d" % n for n in range(5)] if mark.offset == 2 else [])
        own_broker.pause()
        began = Stopwatch()
        transactions.begin()
        assert transactions.send(plan(values(5, target))).keys() == set(range(5))
        with suppress(Unclear):  # or it is certain that the broker got nothing
            transactions.abort()
        transactions.close()
        assert began.seconds < 15
        own_broker.resume()


def _start_again(transactions: Transactions) -> StoredMark | None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return transactions.start()
        except (Unreachable, Fenced):  # by a late request of a producer that was abandoned
            assert time.monotonic() < deadline


_MASTER = """
import sys
from test_transactions import KINDS, Rig, plan, values
from contextlib import ExitStack
from support.broker import Cluster
kind, bootstrap, group, dead, target = sys.argv[1:]
rig = Rig(KINDS[int(kind)], Cluster(bootstrap), dead, ExitStack())
rig.group = group
transactions = rig.started()
transactions.begin()
assert transactions.send(plan(values(5, target))) == {}
print("open", flush=True)
sys.stdin.read()
"""


def test_a_killed_masters_transaction_ends_at_once(rig: Rig, topic: TopicFactory) -> None:
    target = topic("target")
    arguments = [str(KINDS.index(rig.kind)), rig.broker.bootstrap, rig.group, rig.dead, target]
    code = f"import sys; sys.path[:0] = {[*sys.path, __file__.rpartition('/')[0]]!r}\n" + _MASTER
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as master:
        assert master.stdout is not None
        assert master.stdout.readline() == "open\n"
        master.kill()
    began = Stopwatch()
    transactions = rig.make()
    assert transactions.start() is None
    transactions.begin()
    assert transactions.send(plan(values(1, target, 9))) == {}
    transactions.commit(1, "next")
    assert committed(rig.broker.bootstrap, target) == [b"9"]
    assert began.seconds < 5


def test_what_only_a_person_can_mend(rig: Rig) -> None:
    rig.dead = "no-such-topic"
    with pytest.raises(Refused, match="no-such-topic"):
        rig.make().start()


def test_members_are_counted(rig: Rig) -> None:
    transactions = rig.started()
    transactions.begin()
    transactions.commit(1, "mark")
    config = {"bootstrap.servers": rig.broker.bootstrap, "group.id": rig.group}
    with closing(Consumer(config)) as member:
        member.subscribe([rig.dead])
        deadline = time.monotonic() + PATIENCE_S
        while not member.assignment():
            assert time.monotonic() < deadline
            member.poll(0.1)
        assert rig.mark() == StoredMark(1, "mark", members=1)


def test_cycle_time(rig: Rig, topic: TopicFactory, figure: Callable[[str], None]) -> None:
    target = topic("target")
    rows = plan([Sent(target, b"x" * 100, b"k%d" % n) for n in range(1000)])
    transactions = rig.make()
    starting = Stopwatch()
    transactions.start()
    line = f"{rig.kind.__name__}: start {starting.seconds * 1000:.0f} ms"
    taken = []
    for turn in range(20):
        cycle = Stopwatch()
        transactions.begin()
        assert transactions.send(rows) == {}
        transactions.commit(turn, "mark")
        taken.append(cycle.seconds * 1000)
    figure(f"{line}; begin to commit of 1000 rows {median(taken):.0f} ms (median of {len(taken)})")


def test_close_is_quick_and_may_come_twice(rig: Rig) -> None:
    transactions = rig.started()
    transactions.begin()
    began = Stopwatch()
    transactions.close()
    transactions.close()
    assert began.seconds < 2
    with pytest.raises(Unreachable):
        transactions.start()
