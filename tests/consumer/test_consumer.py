"""A consumer on a real Kafka, with a node that brings retries back."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Consumer, InvalidConfiguration, InvalidMessage, Message, Received
from slotwheel.consumer import parts
from slotwheel.wheel.errors import NodeUnreachable
from support.broker import Cluster, TopicFactory
from support.consuming import (
    Group,
    MakeGroup,
    Wheel,
    committed,
    fill,
    finish,
    numbers,
    opened,
    take,
    values,
)
from support.kafkaread import read_committed
from support.nodeprocess import NodeProcess
from support.sourcecontract import send_not_text
from support.stopwatch import Stopwatch
from support.waiting import PATIENCE_S, eventually, now_ms

CLIENTS = ["kafka-python", "confluent"]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_not_finished_comes_again_and_no_position_passes_it(
    broker: Cluster, group: MakeGroup, wheel: Wheel, client: str
) -> None:
    own = group(1)
    fill(broker.bootstrap, own.topic, numbers(20))
    with opened(broker, own, wheel, client=client) as consumer:
        messages = take(consumer, 20)
        consumer.done(*(one for one in reversed(messages) if one.offset not in (7, 9)))
        consumer.commit()
        assert committed(broker.bootstrap, own.name, own.topic) == 7
        consumer.done(messages[7])
        consumer.commit()
        assert committed(broker.bootstrap, own.name, own.topic) == 9
    with opened(broker, own, wheel, client=client) as consumer:
        assert values(take(consumer, 11)) == list(range(9, 20))


def test_a_message_that_fails_comes_again_by_its_policy_and_is_buried_at_last(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    own = group(1)
    fill(broker.bootstrap, own.topic, [b"1"], headers=[("trace", b"t")])
    arrived: list[Received] = []
    with opened(broker, own, wheel, retry="quick") as consumer:
        for message in consumer:
            arrived.append(message)
            consumer.retry(message, ValueError(f"attempt {message.attempt}"))
            if message.attempt == 3:
                break
        (letter,) = read_committed(broker.bootstrap, own.dead, 1)
        consumer.commit()
    assert [one.attempt for one in arrived] == [1, 2, 3]
    first, second, third = arrived
    assert (second.topic, third.topic) == (f"{own.name}-retry",) * 2
    assert second.origin == third.origin == first.place
    assert third.first_error == "ValueError: attempt 1"
    assert third.last_error == "ValueError: attempt 2"
    assert third.id
    assert third.id != second.id
    assert dict(third.headers)["trace"] == b"t"
    gaps = [second.timestamp_ms - first.timestamp_ms, third.timestamp_ms - second.timestamp_ms]
    assert gaps[0] >= 200
    assert gaps[1] >= 300
    headers = dict(letter.headers)
    assert letter.value == b"1"
    assert headers["slotwheel-dead-reason"] == b"retries-used-up"
    assert headers["slotwheel-dead-error"] == b"ValueError: attempt 3"
    assert headers["slotwheel-dead-group"] == own.name.encode()
    assert headers["slotwheel-dead-source"] == f"{third.topic}/0/{third.offset}".encode()
    assert headers["slotwheel-dead-attempts"] == b"3"
    assert headers["slotwheel-origin-topic"] == own.topic.encode()
    assert headers["__connect.errors.exception.class.name"] == b"ValueError"
    assert headers["trace"] == b"t"


def test_the_application_buries_what_can_never_be_processed(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    own = group(1)
    fill(broker.bootstrap, own.topic, [b"1", b"2"])
    with opened(broker, own, wheel) as consumer:
        first, second = take(consumer, 2)
        consumer.dead(first, "no such customer")
        consumer.done(first)  # too late
        consumer.done(second)
        (letter,) = read_committed(broker.bootstrap, own.dead, 1)
        _commits(consumer, broker, own, 2)
    headers = dict(letter.headers)
    assert headers["slotwheel-dead-reason"] == b"buried"
    assert headers["slotwheel-dead-error"] == b"no such customer"


def _commits(consumer: Consumer, broker: Cluster, own: Group, position: int) -> None:
    """It commits that position in time. What comes again is finished again: on a busy machine a
    member may lose its partitions for a moment."""
    found: int | None = None

    def now() -> bool:
        nonlocal found
        consumer.done(*consumer.take(10, 0.0))
        consumer.commit()
        found = committed(broker.bootstrap, own.name, own.topic)
        return found == position

    eventually(now, otherwise=lambda: f"{found} is committed")


@pytest.mark.parametrize("client", CLIENTS)
def test_of_three_messages_with_a_time_to_live_the_expired_one_is_buried(
    broker: Cluster, group: MakeGroup, wheel: Wheel, topic: TopicFactory, client: str
) -> None:
    """``ttl`` of 20 s, 5 s (created 6 s ago) and 30 s; and the expired one as the last of its
    poll."""
    own = group(1)
    # The topic keeps the producer's time.
    own = Group(own.name, topic("stamped", message_timestamp_type="CreateTime"), own.dead)
    for value, ttl, ago_ms in ((b"1", 20, 0), (b"2", 5, 6000), (b"3", 30, 0), (b"4", 5, 6000)):
        header = ("ttl", ttl.to_bytes(8, "big"))
        stamp = now_ms() - ago_ms
        fill(broker.bootstrap, own.topic, [value], headers=[header], timestamp_ms=stamp)
    expires = ("slotwheel-expires-ms", b"%d" % (now_ms() - 1))
    fill(broker.bootstrap, own.topic, [b"5"], headers=[expires])
    with opened(broker, own, wheel, client=client) as consumer:
        assert values(finish(consumer, 2)) == [1, 3]
        # Perhaps 3 once more: a member that joins again begins at 2, which is not finished before
        # its letter is stored.
        again = consumer.take(1, 0.3)
        consumer.done(*again)
        assert values(again) in ([], [3])
        letters = read_committed(broker.bootstrap, own.dead, 3)
        _commits(consumer, broker, own, 5)
    assert sorted(one.value or b"" for one in letters) == [b"2", b"4", b"5"]
    for letter in letters:
        assert dict(letter.headers)["slotwheel-dead-reason"] == b"expired"


def test_two_groups_with_a_routing_key_each_see_their_own(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    """Group one takes ``rk2`` and ``rk3`` and never sees ``rk1``; group two the other way round."""
    one, two = group(1), group(1)
    two = Group(two.name, one.topic, two.dead)
    for rest in (1, 2, 0):
        key = ("routing key", b"rk%d" % (rest + 1))
        own_numbers = [b"%d" % number for number in range(30) if number % 3 == rest]
        fill(broker.bootstrap, one.topic, own_numbers, headers=[key])
    rules = [
        {"header": "routing key", "in": ["rk2", "rk3"]},
        {"header": "routing key", "equals": "rk1"},
    ]
    wanted = [[n for n in range(30) if n % 3], [n for n in range(30) if not n % 3]]
    for own, rule, numbers_ in zip((one, two), rules, wanted, strict=True):
        with opened(broker, own, wheel, where=rule) as consumer:
            got = finish(consumer, len(numbers_))
            assert values(got) == numbers_
            assert consumer.take(1, 0.2) == []
            consumer.commit()
        # What was left out as the last of its poll counts as finished.
        assert committed(broker.bootstrap, own.name, own.topic) == 30
    with pytest.raises(InvalidMessage, match="has another rule"):
        Consumer(
            one.topic,
            one.name,
            bootstrap=broker.bootstrap,
            wheel=wheel.address,
            where={"header": "routing key", "equals": "rk2"},
        )
    with pytest.raises(InvalidMessage, match="has another rule"):
        Consumer(one.topic, one.name, bootstrap=broker.bootstrap, wheel=wheel.address)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_record_whose_headers_cannot_be_read_holds_nothing_up(
    broker: Cluster, group: MakeGroup, wheel: Wheel, client: str
) -> None:
    own = group(1)
    send_not_text(broker.bootstrap, own.topic, b"0", [("region", b"eu")])
    fill(broker.bootstrap, own.topic, [b"1"], headers=[("region", b"eu")])
    fill(broker.bootstrap, own.topic, [b"2"], headers=[("region", b"us")])
    rule = {"header": "region", "equals": "eu"}
    with opened(broker, own, wheel, client=client, where=rule) as consumer:
        message = take(consumer, 1)[0]
        if client == "kafka-python":
            consumer.dead(message, "as the application likes")
            (message,) = take(consumer, 1)
        assert message.value == b"1"
        consumer.done(message)
        (letter,) = read_committed(broker.bootstrap, own.dead, 1)
        _commits(consumer, broker, own, 3)
    headers = dict(letter.headers)
    reason = b"buried" if client == "kafka-python" else b"bad-record"
    assert (letter.value, headers["slotwheel-dead-reason"]) == (b"0", reason)
    assert headers["slotwheel-dead-source"] == f"{own.topic}/0/0".encode()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_rebalance_loses_nothing_and_repeats_only_what_was_not_finished(
    broker: Cluster, group: MakeGroup, wheel: Wheel, client: str
) -> None:
    own = group(4)
    count = 400
    fill(broker.bootstrap, own.topic, numbers(count))
    with opened(broker, own, wheel, client=client) as first:
        held = take(first, count)
        first.done(*(one for one in held if one.offset % 10))
        with opened(broker, own, wheel, client=client) as second:
            found: list[Received] = []
            # The first unfinished one of each partition is its record 0: all comes again, but only
            # to whoever got the partition.
            deadline = time.monotonic() + PATIENCE_S
            while len({one.partition for one in found}) < 2 or len(found) < 100:
                found += second.take(1000, 0.1)
                assert time.monotonic() < deadline
            moved = {one.partition for one in found}
            assert len(moved) == 2
            # Late answers for partitions that are the other's now say nothing.
            first.done(*(one for one in held if one.partition in moved))
            first.commit()
            for partition in moved:
                position = committed(broker.bootstrap, own.name, own.topic, partition)
                assert position in (None, 0)
            second.done(*found)
            again = first.take(1000, 0.2)
            first.done(*held, *again)
            second.commit()
            first.commit()
            done = {one.value for one in (*held, *again, *found)}
            assert len(done) == count
            for part in range(4):
                size = sum(1 for one in held if one.partition == part)
                assert committed(broker.bootstrap, own.name, own.topic, part) == size


def test_no_more_is_read_than_may_be_under_way(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    own = group(2)
    fill(broker.bootstrap, own.topic, numbers(2000))
    with opened(broker, own, wheel, messages_max=50) as consumer:
        inflight = consumer._inflight
        held = take(consumer, 50)
        assert consumer.take(100, 0.5) == []
        assert inflight.room() == 0
        got = list(held)
        consumer.done(*held)
        while len(got) < 2000:
            batch = take(consumer, 1)
            got += batch
            consumer.done(*batch)
        assert values(got) == list(range(2000))
    with opened(broker, own, wheel, bytes_max=1) as consumer:
        assert consumer.take(1, 0.3) == []


def test_messages_are_handled_side_by_side_and_each_fate_is_its_own(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    """Of ten, one raises and one hangs past its limit, both at their first attempts: they come
    again, and the others do not wait for them."""
    own = group(2)
    fill(broker.bootstrap, own.topic, numbers(10))
    seen: Counter[tuple[int, int]] = Counter()
    times: dict[int, float] = {}
    release = threading.Event()
    with opened(broker, own, wheel) as consumer:

        def handle(message: Received) -> None:
            number, attempt = int(message.value or b""), message.attempt
            seen[number, attempt] += 1
            if (number, attempt) == (3, 1):
                raise ValueError("three")
            if (number, attempt) == (5, 1):
                release.wait(60)
                return
            times[number] = time.monotonic()
            if len(times) == 10:
                consumer.close()

        began = time.monotonic()
        consumer.run(handle, workers=2, limit_s=1.0)
        release.set()
    # A group that changes while it begins may repeat what was not committed.
    assert set(seen) == {(number, 1) for number in range(10)} | {(3, 2), (5, 2)}
    assert max(times[n] for n in range(10) if n not in (3, 5)) - began < 10


def test_a_handler_that_dies_or_hangs_in_its_process_costs_only_its_message(
    broker: Cluster, group: MakeGroup, wheel: Wheel, tmp_path: Any
) -> None:
    from support import handlers

    own = group(1)
    fill(broker.bootstrap, own.topic, numbers(6), headers=[("lines", str(tmp_path).encode())])
    with opened(broker, own, wheel) as consumer:

        def stop_behind_the_last() -> None:
            eventually(lambda: len(list(tmp_path.iterdir())) == 6)
            time.sleep(0.2)
            consumer.close()

        stop = threading.Thread(target=stop_behind_the_last)
        stop.start()
        consumer.run(handlers.dies_or_hangs, workers=2, limit_s=1.5, processes=True)
        stop.join()
    assert {one.name for one in tmp_path.iterdir()} == {
        *("0-1", "1-2", "2-2", "3-2", "4-1", "5-1"),
    }


def test_it_closes_within_two_seconds_whatever_its_handlers_do(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    own = group(1)
    fill(broker.bootstrap, own.topic, numbers(3))
    with opened(broker, own, wheel) as consumer:
        started = threading.Event()

        def hang(message: Received) -> None:
            started.set()
            time.sleep(20)

        running = threading.Thread(target=consumer.run, args=(hang,))
        running.start()
        assert started.wait(60)
        began = Stopwatch()
        consumer.close()
        running.join(60)
        assert began.seconds < 2
    assert committed(broker.bootstrap, own.name, own.topic) is None


def test_what_cannot_be_is_refused_with_its_remedy(
    broker: Cluster, group: MakeGroup, wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_ASK_S", 0.5)
    own = group(1)
    good: dict[str, Any] = {"bootstrap": broker.bootstrap, "wheel": wheel.address}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("bootstrap or data", {"bootstrap": None}),
        ("bootstrap or data", {"data": "somewhere"}),
        ("unknown client", {"client": "pulsar"}),
        ("no usable messages_max", {"messages_max": 0}),
        ("without a delay topic", {"transactional": True}),
        ("a delay topic without transactions", {"delay_topic": "delays"}),
        ("a transactional id without transactions", {"transactional_id": "one"}),
        ("no such retry policy", {"retry": "unknown"}),
        ("no such retry policy", {"retry": "1s soon"}),
        ("not a rule", {"where": {"header": "a"}}),
        ("no such topic.*no-such-letters", {"dead_letter_topic": "no-such-letters"}),
        ("no such topic.*no-such-delays", {"transactional": True, "delay_topic": "no-such-delays"}),
    ]
    for match, change in cases:
        with pytest.raises((InvalidConfiguration, InvalidMessage), match=match):
            Consumer(own.topic, own.name, **good | {"dead_letter_topic": own.dead} | change)
    with pytest.raises(InvalidMessage, match="illegal topic name"):
        Consumer("a b", own.name, **good)
    with pytest.raises(NodeUnreachable):
        Consumer(own.topic, own.name, bootstrap=broker.bootstrap, wheel="127.0.0.1:9", wait_s=0)


def test_embedded_topics_are_consumed_and_retried_like_those_of_kafka(tmp_path: Path) -> None:
    arrived: list[tuple[int, int]] = []
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.address) as client:
            client.send_many([Message("work", b"%d" % n, delay=0) for n in range(5)]).result(60)
        own: dict[str, Any] = {"data": node.data, "wheel": node.address, "retry": "50ms"}
        for _ in range(2):  # the second one has nothing left to do
            with Consumer("work", "group", **own) as consumer:
                while len(arrived) < 6:
                    (message,) = take(consumer, 1)
                    arrived.append((int(message.value or b""), message.attempt))
                    if arrived[-1] == (3, 1):
                        consumer.retry(message, "once more")
                    elif arrived[-1] == (4, 1):
                        consumer.dead(message, "never")
                    else:
                        consumer.done(message)
                (letter,) = node.wait_for("slotwheel-dead-letters", 1)
                assert consumer.take(1, 0.1) == []
        node.signal()
    assert sorted(arrived) == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]
    assert letter["value"] == b"4"
    positions = json.loads((tmp_path / "data/consumers/group/positions.json").read_text())
    assert positions["positions"] == {"work": 5, "group-retry": 1}


def test_a_consumer_without_transactions_sends_nothing(
    broker: Cluster, group: MakeGroup, wheel: Wheel
) -> None:
    own = group(1)
    with (
        opened(broker, own, wheel) as consumer,
        pytest.raises(InvalidConfiguration, match="transactional=True"),
    ):
        consumer.send("somewhere", b"x")
