"""Outputs, retries, dead letters and positions in one Kafka transaction."""

from __future__ import annotations

import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from slotwheel import Consumer, InvalidMessage, NotRunning, Received
from slotwheel.consumer import confluent_transactor, kafka_python_transactor
from slotwheel.consumer.confluent_source import ConfluentSource
from slotwheel.consumer.confluent_transactor import ConfluentTransactor
from slotwheel.consumer.inflight import CommitBatch
from slotwheel.consumer.kafka_python_source import KafkaPythonSource
from slotwheel.consumer.kafka_python_transactor import KafkaPythonTransactor
from slotwheel.consumer.message import OutputRecord, SourcePartition
from slotwheel.consumer.source import ConsumerFailed, Source
from slotwheel.consumer.transactions import TransactionFailed, Transactor
from slotwheel.wheel.errors import NodeUnreachable
from support.broker import Cluster, TopicFactory
from support.consumerprocess import QUICK
from support.consuming import (
    Group,
    MakeGroup,
    Wheel,
    committed,
    fill,
    numbers,
    opened,
    take,
    values,
)
from support.kafkaread import read_committed
from support.sourcecontract import Book
from support.waiting import PATIENCE_S, eventually

KINDS: dict[str, tuple[Any, Any]] = {
    "kafka-python": (KafkaPythonSource, KafkaPythonTransactor),
    "confluent": (ConfluentSource, ConfluentTransactor),
}
both_clients = pytest.mark.parametrize("client", list(KINDS))
ODD = [(b"", b""), (None, b"v"), (b"k", None), (None, None)]


@both_clients
def test_outputs_leave_with_the_position_behind_their_message(
    broker: Cluster, group: MakeGroup, wheel: Wheel, topic: TopicFactory, client: str
) -> None:
    own, out = group(1), topic("out", 3)
    fill(broker.bootstrap, own.topic, numbers(6))
    more: dict[str, Any] = {"transactional": True, "delay_topic": wheel.delays, "client": client}
    with opened(broker, own, wheel, **more) as consumer:
        messages = take(consumer, 6)
        headers = [("h", b""), ("null", None), ("h", b"2")]
        for message, (key, value) in zip(messages, ODD, strict=False):
            consumer.send(out, value, key=key, headers=headers, message=message)
        consumer.send(out, b"named", partition=2, message=messages[4])
        consumer.done(*messages[1:])
        consumer.commit()
        assert read_committed(broker.bootstrap, out, 0) == []
        assert committed(broker.bootstrap, own.name, own.topic) is None
        with pytest.raises(NotRunning, match="has been answered"):
            consumer.send(out, b"late", message=messages[1])
        with pytest.raises(InvalidMessage, match="no such topic"):
            consumer.send("no-such-topic", b"", message=messages[0])
        with pytest.raises(InvalidMessage, match="without its message"):
            consumer.send(out, b"whose?")
        unusable: list[tuple[str, dict[str, Any]]] = [
            ("no such partition", {"partition": 3}),
            ("negative partition", {"partition": -1}),
            ("unusable headers", {"headers": [(b"h", b"v")]}),
            ("unusable header 'h'", {"headers": [("h", 5)]}),
            ("unusable value", {"value": 5}),
            ("unusable key", {"key": 5}),
        ]
        for match, wrong in unusable:
            with pytest.raises(InvalidMessage, match=match):
                consumer.send(out, message=messages[0], **wrong)
        consumer.done(messages[0])
        consumer.commit()
        got = read_committed(broker.bootstrap, out, 5)
        assert committed(broker.bootstrap, own.name, own.topic) == 6
    assert len(got) == 5
    named = [one for one in got if one.value == b"named"]
    assert [one.partition for one in named] == [2]
    odd = [one for one in got if one.value != b"named"]
    assert sorted(map(str, ((one.key, one.value) for one in odd))) == sorted(map(str, ODD))
    assert all([tuple(pair) for pair in one.headers] == headers for one in odd)


@both_clients
def test_a_retry_goes_through_the_delay_topic_and_takes_the_outputs_back(
    broker: Cluster, group: MakeGroup, wheel: Wheel, topic: TopicFactory, client: str
) -> None:
    own, out = group(1), topic("out")
    fill(broker.bootstrap, own.topic, numbers(3), headers=[("trace", b"t")])
    more: dict[str, Any] = {"transactional": True, "delay_topic": wheel.delays, "client": client}
    seen: dict[int, Received] = {}  # by attempt: if its transaction fails, one is seen again
    with opened(broker, own, wheel, retry="quick", **more) as consumer:
        for message in consumer:
            consumer.send(out, b"%s-%d" % (message.value or b"", message.attempt))
            if message.value == b"1":
                seen[message.attempt] = message
                consumer.retry(message, ValueError(f"attempt {message.attempt}"))
                if message.attempt == 3:
                    break
            else:
                consumer.done(message)
        got = read_committed(broker.bootstrap, out, 2)
        letters = read_committed(broker.bootstrap, wheel.letters, 1)
    assert sorted(one.value or b"" for one in got) == [b"0-1", b"2-1"]
    assert sorted(seen) == [1, 2, 3]
    assert seen[3].origin == seen[1].place
    assert (seen[3].first_error, seen[3].last_error) == (
        "ValueError: attempt 1",
        "ValueError: attempt 2",
    )
    assert dict(seen[3].headers)["trace"] == b"t"
    ours = [dict(one.headers) for one in letters]
    (headers,) = [one for one in ours if one["slotwheel-origin-topic"] == own.topic.encode()]
    assert headers["slotwheel-dead-reason"] == b"retries-used-up"
    assert headers["slotwheel-dead-attempts"] == b"3"


@both_clients
def test_a_message_whose_output_is_refused_is_buried_and_the_others_go_on(
    broker: Cluster, group: MakeGroup, wheel: Wheel, topic: TopicFactory, client: str
) -> None:
    own, out = group(1), topic("small", max_message_bytes=2000)
    fill(broker.bootstrap, own.topic, numbers(4))
    more: dict[str, Any] = {"transactional": True, "delay_topic": wheel.delays, "client": client}
    done: set[int] = set()
    answered: list[Received] = []
    with opened(broker, own, wheel, **more) as consumer:
        # At first all of them are in one transaction.
        while committed(broker.bootstrap, own.name, own.topic) != 4:
            for message in take(consumer, 4) if not done else consumer.take(1, 0.1):
                number = int(message.value or b"")
                consumer.send(out, b"x" * (5000 if number == 1 else 1), message=message)
                done.add(number)
                answered.append(message)
            if len(done) == 4:
                consumer.done(*answered)
                answered.clear()
        (letter,) = read_committed(broker.bootstrap, own.dead, 1)
        assert len(read_committed(broker.bootstrap, out, 3)) == 3
    assert letter.value == b"1"
    assert dict(letter.headers)["slotwheel-dead-reason"] == b"refused"


@both_clients
def test_a_letter_that_its_topic_does_not_take_is_shortened(
    broker: Cluster, group: MakeGroup, wheel: Wheel, topic: TopicFactory, client: str
) -> None:
    own = group(1)
    own = Group(own.name, own.topic, topic("dead", max_message_bytes=2000))
    fill(broker.bootstrap, own.topic, [b"0", b"x" * 5000, b"2"])
    more: dict[str, Any] = {"transactional": True, "delay_topic": wheel.delays, "client": client}
    handed: list[int] = []
    with opened(broker, own, wheel, **more) as consumer:
        while committed(broker.bootstrap, own.name, own.topic) != 3:
            for message in consumer.take(1, 0.1):
                handed.append(message.offset)
                if message.offset == 1:
                    consumer.dead(message, "never")
                else:
                    consumer.done(message)
    (letter,) = read_committed(broker.bootstrap, own.dead, 1)
    headers = dict(letter.headers)
    assert letter.value is None
    assert headers["slotwheel-dead-reason"] == b"refused"
    assert headers["slotwheel-dead-value-bytes"] == b"5000"
    # More than once only if a transaction took too long for a busy machine.
    assert len(handed) < 10


@both_clients
def test_a_topic_that_takes_no_dead_letter_at_all_ends_the_consumer(
    broker: Cluster, group: MakeGroup, wheel: Wheel, topic: TopicFactory, client: str
) -> None:
    own = group(1)
    own = Group(own.name, own.topic, topic("dead", max_message_bytes=200))
    fill(broker.bootstrap, own.topic, [b"0"])
    more: dict[str, Any] = {"transactional": True, "delay_topic": wheel.delays, "client": client}
    with opened(broker, own, wheel, **more) as consumer:

        def bury() -> None:
            for message in consumer.take(1, 0.1):
                consumer.dead(message, "never")

        with pytest.raises(ConsumerFailed, match=f"dead letter is refused.*{own.dead}"):
            eventually(bury)
    assert committed(broker.bootstrap, own.name, own.topic) is None


@both_clients
def test_without_brokers_a_transactional_consumer_says_so(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (confluent_transactor, kafka_python_transactor):
        monkeypatch.setattr(module, "END_S", 0.3)
    own: dict[str, Any] = {"transactional": True, "delay_topic": "delays", "retry": "1s"}
    with pytest.raises(NodeUnreachable, match="no Kafka broker answers"):
        Consumer("work", "group", bootstrap="127.0.0.1:9", client=client, wait_s=0, **own)


@pytest.mark.parametrize("answers", [True, False])
def test_only_brokers_that_answer_say_that_a_topic_is_not_there(answers: bool) -> None:
    metadata = SimpleNamespace(_last_successful_refresh_ms=0.0)

    def ask(_topic: str, _wait_ms: float) -> None:
        if answers:
            metadata._last_successful_refresh_ms = time.monotonic() * 1000 + 1
        raise KafkaTimeoutError

    made = KafkaPythonTransactor("127.0.0.1:9", "id", {})
    producer: Any = SimpleNamespace(_wait_on_metadata=ask, _metadata=metadata)
    lane: Any = SimpleNamespace(producer=producer)
    made._lane = lane
    assert made.partitions("work") == (0 if answers else None)


@both_clients
def test_a_member_that_was_rebalanced_away_commits_nothing(
    broker: Cluster, group: MakeGroup, topic: TopicFactory, client: str
) -> None:
    own, out = group(2), topic("out")
    source_of, transactor_of = KINDS[client]
    fill(broker.bootstrap, own.topic, numbers(4))

    def member(name: str) -> tuple[Source, Book, Transactor]:
        book = Book()
        made = source_of(broker.bootstrap, own.name, [own.topic], book, extra=QUICK[client])
        transactor: Transactor = transactor_of(broker.bootstrap, f"{own.name}-{name}", {})
        transactor.start()
        return made, book, transactor

    def batch(book: Book, value: bytes) -> CommitBatch:
        partition = SourcePartition(own.topic, 0)
        output = OutputRecord(out, value, None, [])
        return CommitBatch({partition: 1}, [(partition, 0, output)], book.member)

    first, book, transactor = member("first")
    with closing(first), closing(transactor):
        eventually(lambda: first.poll(0.1, 10) is not None and len(book.own) == 2)
        before = batch(book, b"fenced")
        second, other, more = member("second")
        with closing(second), closing(more):
            deadline = time.monotonic() + PATIENCE_S
            while len(book.own) != 1 or len(other.own) != 1:
                assert time.monotonic() < deadline
                first.poll(0.05, 10)
                second.poll(0.05, 10)
            with pytest.raises(TransactionFailed) as failed:
                transactor.commit(before)
            assert not failed.value.fenced
            transactor.start()
            with closing(transactor_of(broker.bootstrap, f"{own.name}-first", {})) as rival:
                rival.start()
                with pytest.raises(TransactionFailed) as failed:
                    transactor.commit(batch(book, b"fenced"))
                assert failed.value.fenced
                transactor.start()
            transactor.commit(batch(book, b"member"))
    assert [one.value for one in read_committed(broker.bootstrap, out, 1)] == [b"member"]


@both_clients
def test_after_an_unclear_end_everything_counts_once(
    broker: Cluster,
    group: MakeGroup,
    wheel: Wheel,
    topic: TopicFactory,
    client: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every other transaction is reported as failed: half of those before it was committed, half
    behind."""
    own, out = group(2), topic("out")
    kind = KINDS[client][1]
    commit, calls = kind.commit, []

    def unclear(self: Transactor, batch: CommitBatch) -> None:
        calls.append(len(batch.outputs))
        if len(calls) % 4 == 1:
            raise TransactionFailed("before")
        commit(self, batch)
        if len(calls) % 4 == 3:
            raise TransactionFailed("behind")

    monkeypatch.setattr(kind, "commit", unclear)
    fill(broker.bootstrap, own.topic, numbers(150))
    more: dict[str, Any] = {"transactional": True, "delay_topic": wheel.delays, "client": client}
    with opened(broker, own, wheel, messages_max=20, **more) as consumer:
        # On a machine that is busy enough a transaction takes longer than it may, and comes again.
        deadline = time.monotonic() + 240
        sent = 150
        while (finished := _finished(broker, own)) < sent or len(calls) < 4:
            if finished == sent:  # one transaction may have had very many
                fill(broker.bootstrap, own.topic, numbers(sent + 50)[sent:])
                sent += 50
            assert time.monotonic() < deadline, f"{finished} finished, {len(calls)} transactions"
            for message in consumer.take(10, 0.05):
                try:
                    consumer.send(out, message.value, message=message)
                except NotRunning:
                    continue  # it begins again
                consumer.done(message)
    got = read_committed(broker.bootstrap, out, sent)
    assert values(got) == list(range(sent))


def _finished(broker: Cluster, own: Group) -> int:
    parts = [committed(broker.bootstrap, own.name, own.topic, part) or 0 for part in (0, 1)]
    return sum(parts)
