"""Shipping for many callers: nothing waits, one call back, whole batches and single bad ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from slotwheel import Client, InvalidBatch, InvalidMessage, Message, NotRunning, Overloaded
from slotwheel.client.message import FlatMessage, flatten
from slotwheel.client.receipts import Receipts
from support.fakewheel import FakeWheel
from support.waiting import now_ms


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, timeout_s=20) as made:
        yield made


def flats(count: int, *, start: int = 0, size: int = 1) -> list[FlatMessage]:
    return [
        flatten(Message("t", (b"%d" % number).ljust(size), delay=60), now_ms())
        for number in range(start, start + count)
    ]


def shipped(client: Client, messages: list[FlatMessage], *, whole: bool = False) -> Receipts:
    done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
    receipts = client.ship(messages, whole=whole, done=done.put)
    found = done.get(timeout=10)
    assert found is receipts
    assert receipts.done()
    assert done.empty()
    return receipts


def test_done_is_called_once_when_all_have_their_ids(client: Client, wheel: FakeWheel) -> None:
    receipts = shipped(client, flats(300))
    assert len(set(receipts.result(0))) == 300
    assert wheel.values() == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("beyond", [False, True], ids=["limits not known", "limits known"])
def test_a_bad_one_among_many_fails_alone(client: Client, wheel: FakeWheel, beyond: bool) -> None:
    if beyond:
        client.send("t", b"first", delay=1).result(5)
    late = flatten(Message("t", b"late", delay=1e6), now_ms())
    receipts = shipped(client, [*flats(3), late, *flats(3, start=4)])
    assert list(receipts.errors(0)) == [3]
    assert receipts.offsets(0).tolist() == [beyond + n for n in (0, 1, 2, -1 - beyond, 3, 4, 5)]
    only_bad = shipped(client, [late])
    assert isinstance(only_bad[0].error(0), InvalidMessage)


def test_a_whole_one_is_stored_with_all_or_none(client: Client, wheel: FakeWheel) -> None:
    late = flatten(Message("t", b"late", delay=1e6), now_ms())
    batch = [*flats(3), late]
    refused = shipped(client, batch, whole=True)  # by the node: its horizon is not known yet
    assert [error.row for error in refused.errors(0).values()] == [3] * 4
    done: list[Receipts] = []
    with pytest.raises(InvalidMessage) as at_once:
        client.ship(batch, whole=True, done=done.append)
    assert at_once.value.row == 3
    assert not wheel.rows
    assert not done


def test_a_full_buffer_is_an_error_at_once(address: str, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.3
    done = threading.Event()
    with Client(address, timeout_s=20, buffer_bytes=3000) as client:
        client.ship(flats(1, size=2000), whole=False, done=lambda _: done.set())
        with pytest.raises(Overloaded, match="buffer"):
            client.ship(flats(1, size=2000), whole=False, done=lambda _: None)
        assert done.wait(10)
        shipped(client, flats(1, size=2000))
    assert len(wheel.rows) == 2


def test_more_than_a_batch_is_refused(client: Client) -> None:
    rows, nbytes = client.batch_limits
    for batch in ([], flats(1) * (rows + 1), flats(1, size=1 << 20) * (nbytes >> 20)):
        with pytest.raises(InvalidBatch, match="not one batch"):
            client.ship(batch, whole=True, done=lambda _: None)


def test_a_call_back_that_fails_harms_nothing(client: Client, wheel: FakeWheel) -> None:
    def fail(_: Receipts) -> None:
        raise RuntimeError("the event loop is closed")

    client.ship(flats(1), whole=False, done=fail).wait(10)
    shipped(client, flats(1))
    assert len(wheel.rows) == 2


def test_closing_ends_what_is_not_answered(address: str, wheel: FakeWheel) -> None:
    wheel.has_room.clear()
    done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
    client = Client(address, timeout_s=20)
    client.ship(flats(1), whole=True, done=done.put)
    client.close(0.1)
    [error] = done.get(timeout=10).errors(0).values()
    assert isinstance(error, NotRunning)
