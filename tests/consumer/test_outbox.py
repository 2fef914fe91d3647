"""Messages that failed, on their way to a node: its client is real, the node is made up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from slotwheel import Client
from slotwheel.client.message import clock_ms
from slotwheel.consumer import outbox, parts
from slotwheel.consumer.clock import RemoteClock
from slotwheel.consumer.failing import Cause, Failing
from slotwheel.consumer.inflight import InFlight
from slotwheel.consumer.message import Received, SourcePartition
from slotwheel.consumer.outbox import WheelOutbox
from slotwheel.consumer.parts import Parts, Wanted
from slotwheel.policy.retry import RetryPolicy
from slotwheel.wheel.errors import Overloaded, UnknownTopic
from support.fakewheel import FakeWheel
from support.served import ServedIntake
from support.stopwatch import Stopwatch
from support.waiting import eventually

PARTITION = SourcePartition("work", 0)
FAILING = Failing("group", RetryPolicy.literal("1s 2s"), "dead", RemoteClock(None))


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def client(wheel: FakeWheel) -> Iterator[Client]:
    server = ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05)
    with Client(f"127.0.0.1:{server.port}", timeout_s=3.0, buffer_bytes=4 << 20) as made:
        yield made
    server.close()


def received(inflight: InFlight, count: int, value: bytes) -> list[Received]:
    inflight.assigned([PARTITION], None)
    messages = [Received(*PARTITION, n, b"k", value, [], clock_ms()) for n in range(count)]
    inflight.receive(PARTITION, messages, count - 1)
    return messages


def test_a_node_that_takes_nothing_keeps_nobody_waiting(
    wheel: FakeWheel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times as much fails as the client's buffer takes."""
    monkeypatch.setattr(outbox, "SENT_BYTES_MAX", 2 << 20)
    full = True

    def refuse(_: object) -> None:
        if full:
            raise Overloaded("full")

    wheel.before_append = refuse
    inflight = InFlight(1000, 1 << 30)
    box = WheelOutbox(client, FAILING, inflight)
    for message in received(inflight, 40, bytes(500_000)):
        box.retry(message, Cause("no"))
    for _ in range(3):
        watch = Stopwatch()
        assert box.settle() == 40
        assert watch.seconds < 1
    full = False
    eventually(lambda: box.settle() == 0)
    assert inflight.batch().positions == {PARTITION: 40}
    assert sum(batch.num_rows for batch in wheel.batches) == 40


@pytest.mark.parametrize("bury", [False, True])
def test_what_is_for_a_topic_that_is_gone_waits_until_it_is_there(
    wheel: FakeWheel,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bury: bool,
) -> None:
    monkeypatch.setattr(outbox, "_MISSING_S", 0.05)
    gone, times = "dead" if bury else FAILING.retries, 0

    def refuse(_: object) -> None:
        nonlocal times
        times += 1
        if times < 3:
            raise UnknownTopic.of([gone])

    wheel.before_append = refuse
    inflight = InFlight(10, 1 << 20)
    (message,) = received(inflight, 1, b"whole")
    box = WheelOutbox(client, FAILING, inflight)
    box.bury(message, "buried", Cause("no")) if bury else box.retry(message, Cause("no"))
    eventually(lambda: box.settle() == 0)
    (row,) = wheel.rows
    assert (row["topic"], row["value"]) == (gone, b"whole")
    assert f"Kafka has no such topic; got {gone}" in caplog.text


def test_a_message_larger_than_all_that_may_be_under_way_is_sent_by_itself(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "SENT_BYTES_MAX", 1000)
    inflight = InFlight(1000, 1 << 30)
    box = WheelOutbox(client, FAILING, inflight)
    for message in received(inflight, 3, bytes(5000)):
        box.bury(message, "buried", Cause("no"))
    eventually(lambda: box.settle() == 0)
    assert inflight.batch().positions == {PARTITION: 3}


def test_what_cannot_become_a_record_is_not_answered(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    inflight = InFlight(10, 1000)
    (message,) = received(inflight, 1, b"")
    box = WheelOutbox(client, FAILING, inflight)
    with monkeypatch.context() as patch:
        patch.setattr(Failing, "again", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            box.retry(message, Cause("no"))
    box.retry(message, Cause("no"))
    eventually(lambda: box.settle() == 0)
    assert inflight.batch().positions == {PARTITION: 1}


def test_an_error_that_cannot_say_what_it_is_has_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("nothing to say")

    assert Cause.of(Mute()) == Cause("Mute", "Mute")


def test_who_asks_for_the_time_while_a_consumer_ends_leaves_no_client_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of its own asks. It may come to that when all else is closed."""
    made: list[Client] = []

    class Noted(Client):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            made.append(self)

    monkeypatch.setattr(parts, "Client", Noted)
    stub = SimpleNamespace(start=lambda: None, close=lambda: None)
    for name, found in (
        ("_policy", RetryPolicy.literal("1s")),
        ("_make_transactor", stub),
        ("_make_source", stub),
    ):
        monkeypatch.setattr(Parts, name, lambda *_given, found=found: found)
    wanted = Wanted(
        topics=("work",),
        group="group",
        bootstrap="127.0.0.1:1",
        data=None,
        client="kafka-python",
        wheel="127.0.0.1:1",
        retry="1s",
        where=None,
        transactional=True,
        transactional_id=None,
        delay_topic="delays",
        dead_letter_topic="dead",
        create_topics=False,
        messages_max=1,
        bytes_max=1,
        kafka={},
        observer=None,
        wait_s=None,
    )
    whole = Parts(wanted)
    whole.close()
    whole.clock._ask()
    assert made
    assert all(client._closed for client in made)
