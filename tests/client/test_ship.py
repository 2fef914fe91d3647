"""Shipping for many callers: nothing waits, one call back, whole batches and single bad ones."""

from __future__ import annotations

import queue
import threading

import pyarrow as pa
import pytest

from slotwheel import (
    Client,
    InvalidBatch,
    InvalidMessage,
    Message,
    NotRunning,
    Overloaded,
    UnsupportedVersion,
)
from slotwheel.client.message import FlatMessage, flatten
from slotwheel.client.receipts import Receipts
from slotwheel.wheel.request import RequestKey
from support.fakewheel import FakeWheel
from support.proxy import Proxy
from support.served import ServedIntake
from support.waiting import PATIENCE_S, now_ms


def flats(count: int, *, start: int = 0, size: int = 1) -> list[FlatMessage]:
    return [
        flatten(Message("t", (b"%d" % number).ljust(size), delay=60))
        for number in range(start, start + count)
    ]


def shipped(
    client: Client,
    messages: list[FlatMessage] | pa.RecordBatch,
    *,
    whole: bool = False,
    request: RequestKey | None = None,
) -> Receipts:
    done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
    receipts = client.ship(messages, whole=whole, request=request, done=done.put)
    found = done.get(timeout=PATIENCE_S)
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
        client.send("t", b"first", delay=1).result(60)
    late = flatten(Message("t", b"late", delay=1e6))
    receipts = shipped(client, [*flats(3), late, *flats(3, start=4)])
    assert list(receipts.errors(0)) == [3]
    assert receipts.offsets(0).tolist() == [beyond + n for n in (0, 1, 2, -1 - beyond, 3, 4, 5)]
    only_bad = shipped(client, [late])
    assert isinstance(only_bad[0].error(0), InvalidMessage)


def test_a_whole_one_is_stored_with_all_or_none(client: Client, wheel: FakeWheel) -> None:
    late = flatten(Message("t", b"late", delay=1e6))
    batch = [*flats(3), late]
    refused = shipped(client, batch, whole=True)  # by the node: its horizon is not known yet
    assert [error.row for error in refused.errors(0).values()] == [3] * 4
    messages = [Message("t", delay=60)] * 3 + [Message("t", delay=1e6)]
    with pytest.raises(InvalidMessage) as at_once:
        client.prepare_many(messages, now_ms())
    assert at_once.value.row == 3
    assert not wheel.rows
    rows, numbers = client.prepare_many(messages[:3], now_ms())
    assert list(numbers) == [0, 1, 2]
    shipped(client, rows, whole=True)
    assert len(wheel.rows) == 3


def test_an_error_that_many_share_does_not_grow_with_each_who_asks(client: Client) -> None:
    late = flatten(Message("t", b"late", delay=1e6))
    receipts = shipped(client, [*flats(3), late], whole=True)
    shared = receipts.errors(0)[0]
    assert receipts.outcomes(0) == [shared] * 4
    raised = []
    for receipt in receipts:
        with pytest.raises(InvalidMessage) as found:
            receipt.result(0)
        raised.append(found.value)
    assert len({id(one) for one in (shared, *raised)}) == 5
    assert {str(one) for one in raised} == {str(shared)}
    assert shared.__traceback__ is None


def test_a_full_buffer_is_an_error_at_once(address: str, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.001
    wheel.may_commit.clear()
    done = threading.Event()
    with Client(address, timeout_s=20, buffer_bytes=3000) as client:
        client.ship(flats(1, size=2000), whole=False, done=lambda _: done.set())
        with pytest.raises(Overloaded, match="buffer"):
            client.ship(flats(1, size=2000), whole=False, done=lambda _: None)
        wheel.may_commit.set()
        assert done.wait(60)
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

    client.ship(flats(1), whole=False, done=fail).wait(60)
    shipped(client, flats(1))
    assert len(wheel.rows) == 2


def test_a_repeat_has_the_receipts_of_the_first_time(address: str, wheel: FakeWheel) -> None:
    """Another client, some time later: the delay has begun at the first time."""
    ids = []
    for _ in range(3):
        batch = [flatten(Message("t", b"%d" % n, delay=60)) for n in range(3)]
        with Client(address, timeout_s=20) as client:
            receipts = shipped(client, batch, request=RequestKey.of("k", b"body"))
            ids.append((receipts.result(0), receipts.due_ms.tolist()))
    assert ids[0] == ids[1] == ids[2]
    assert len(wheel.rows) == 3
    assert wheel.duplicates == 2


def test_another_request_under_a_key_is_refused(client: Client, wheel: FakeWheel) -> None:
    shipped(client, flats(2), request=RequestKey.of("k", b"one", 1)).result(0)
    refused = shipped(client, flats(2), request=RequestKey.of("k", b"two", 1))
    assert [type(error) for error in refused.errors(0).values()] == [InvalidMessage] * 2
    assert len(wheel.rows) == 2


def test_many_requests_are_under_way_at_once_beside_others(address: str, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.05
    done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
    with Client(address, timeout_s=PATIENCE_S) as client:
        for number in range(600):
            asked = RequestKey.of(str(number), b"", 1)
            client.ship(flats(1, start=number), whole=True, request=asked, done=done.put)
            client.send("t", b"other", delay=60)
        for _ in range(600):
            done.get(timeout=PATIENCE_S).result(0)
        client.flush(PATIENCE_S)
    values = wheel.values()
    assert sorted(values) == sorted([b"other"] * 600 + [b"%d" % n for n in range(600)])


def test_cut_connections_store_no_request_twice() -> None:
    wheel = FakeWheel(commit_s=0.003)
    server = ServedIntake(wheel, "127.0.0.1:0")
    ids: list[list[str]] = []
    with Proxy(server.port) as proxy:
        for _ in range(2):  # once more, by another client
            with Client(proxy.address, timeout_s=60) as client:
                done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
                for number in range(400):
                    one = [flatten(Message("t", b"%d" % number, delay=60))]
                    asked = RequestKey.of(str(number), b"")
                    client.ship(one, whole=True, request=asked, done=done.put)
                    if number % 100 == 50:
                        proxy.cut()
                ids.append(sorted(done.get(timeout=60).result(0)[0] for _ in range(400)))
    server.close()
    assert sorted(wheel.values()) == sorted(b"%d" % number for number in range(400))
    assert ids[0] == ids[1]


def test_a_node_that_knows_no_requests_is_an_error(
    address: str, wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotwheel.node.intake.actions.REQUESTS_IN_FLIGHT_MAX", 0)
    with Client(address, timeout_s=20) as client:
        receipts = shipped(client, flats(1), request=RequestKey.of("k", b"", 1))
        assert isinstance(receipts[0].error(0), UnsupportedVersion)
        shipped(client, flats(1)).result(0)
    assert len(wheel.rows) == 1


def test_what_may_be_stored_is_told_apart(address: str, wheel: FakeWheel) -> None:
    with Client(address, timeout_s=1) as client:
        shipped(client, flats(1)).result(0)  # it is connected
        wheel.commit_s = 30
        [error] = shipped(client, flats(1)).errors(0).values()
        assert error.uncertain
    with Client("127.0.0.1:1", timeout_s=0.3) as client:
        [error] = shipped(client, flats(1)).errors(0).values()
        assert not error.uncertain


def test_closing_ends_what_is_not_answered(address: str, wheel: FakeWheel) -> None:
    wheel.has_room.clear()
    done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
    client = Client(address, timeout_s=20)
    client.ship(flats(1), whole=True, done=done.put)
    client.close(0.1)
    [error] = done.get(timeout=PATIENCE_S).errors(0).values()
    assert isinstance(error, NotRunning)
