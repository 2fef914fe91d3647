"""What an auditor sends, against receipts and against what a consumer did."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from slotwheel import Client, Message, Received
from slotwheel.account.vocabulary import Tier
from slotwheel.audit import Auditor
from slotwheel.audit.sums import SumKey, SummedRange
from slotwheel.consumer.message import SourcePartition
from slotwheel.trace import Observers
from slotwheel.wheel.errors import InvalidMessage
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.rows import Header
from support.auditing import KeptSums, pairs, plain_sums
from support.fakewheel import FakeWheel, served
from support.waiting import eventually

_PLACE = SourcePartition("orders", 0)


@pytest.fixture
def kept() -> KeptSums:
    return KeptSums()


@pytest.fixture
def wheel() -> FakeWheel:
    return FakeWheel()


@pytest.fixture
def address(wheel: FakeWheel) -> Iterator[str]:
    with served(wheel) as address:
        yield address


def _auditor(kept: KeptSums, every_s: float = 0.05, **more: int) -> Auditor:
    return Auditor(kept, client="test", interval_s=1, every_s=every_s, **more)


def _rows(topic: str, ids: list[str]) -> list[tuple[str, int, int]]:
    parsed = [MessageId.parse(one) for one in ids]
    return [(topic, one.due, one.offset) for one in parsed]


def test_a_client_s_sums_are_those_of_its_receipts(
    wheel: FakeWheel, address: str, kept: KeptSums
) -> None:
    def refuse(rows: pa.RecordBatch) -> None:
        for row, key in enumerate(rows.column("key").to_pylist()):
            if key == b"bad":
                raise InvalidMessage("this one not", row=row)

    wheel.before_append = refuse
    auditor = _auditor(kept)
    table = {
        "due": [1_000 * one for one in range(50)],
        "topic": ["tables"] * 50,
        "value": [b""] * 50,
    }
    with Client(address, observer=Observers(auditor)) as client:
        single = [client.send("orders", b"v", delay=one * 0.4).id for one in range(9)]
        many = client.send_many(Message("bills", b"v", delay=one) for one in range(50)).result()
        some = client.send_many(
            Message("some", b"v", b"bad" if one % 3 else b"good", delay=5 - one) for one in range(9)
        ).outcomes()
        tables = client.send_table(pa.table(table)).result()
    auditor.close()
    good = [one for one in some if isinstance(one, str)]
    assert len(good) == 3
    sent = _rows("orders", single) + _rows("bills", many)
    sent += _rows("some", good) + _rows("tables", list(tables))
    assert pairs(kept.sums) == plain_sums(sent, (Tier.PRODUCED, "default", ""), 1_000)
    assert all(not one.unsure for one in kept.sums.values())
    assert [one.number for one in kept.batches] == list(range(len(kept.batches)))
    assert [one.last for one in kept.batches].count(True) == kept.batches[-1].last == 1


def test_what_may_be_stored_without_a_receipt_is_unsure_and_what_cannot_be_is_not_there(
    address: str, kept: KeptSums
) -> None:
    auditor = _auditor(kept)
    with Client(address, acks="0", observer=auditor) as client:
        client.send("orders", b"v", delay=1)
        client.flush()
    with Client("127.0.0.1:1", timeout_s=0.3, observer=auditor) as client:
        assert client.send("orders", b"v", delay=1).error() is not None
    auditor.close()
    assert [(one.count, one.unsure) for one in kept.sums.values()] == [(0, 1)]


def test_an_auditor_tells_that_it_is_there_before_it_has_anything_to_tell(kept: KeptSums) -> None:
    auditor = _auditor(kept, every_s=60)
    eventually(lambda: kept.batches)
    assert (kept.batches[0].sums, kept.batches[0].last) == ({}, False)
    auditor.close()
    assert [one.number for one in kept.batches] == [0, 1]


def test_no_message_waits_for_another_thread_that_notes_some(kept: KeptSums) -> None:
    auditor = _auditor(kept, every_s=60, notes_max=400)
    messages = [_received(offset, None) for offset in range(1_000)]

    def note() -> None:
        for one in messages[:300]:
            auditor.processed("billing", [one], None)
        auditor.processed("billing", messages[300:], None)

    thread = threading.Thread(target=note, daemon=True)
    with auditor._lock:  # as whoever looks for room does
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    auditor.close()
    rows = [("orders", 1_500, offset) for offset in range(300)]
    about = (Tier.CONSUMED, "default", "billing")
    assert pairs(kept.sums) == plain_sums(rows, about, 1_000)
    assert auditor.missing == sum(one.missing for one in kept.batches) == 700


def test_what_many_threads_note_is_all_summed(kept: KeptSums) -> None:
    auditor = _auditor(kept)

    def note(first: int) -> None:
        for offset in range(first, first + 2_000):
            auditor.processed("billing", [_received(offset, None)], None)

    threads = [threading.Thread(target=note, args=(2_000 * one,)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    auditor.close()
    rows = [("orders", 1_500, offset) for offset in range(8_000)]
    found = pairs(kept.sums)
    assert found == plain_sums(rows, (Tier.CONSUMED, "default", "billing"), 1_000)
    assert auditor.missing == 0


def test_a_topic_that_is_away_costs_no_sum(address: str, kept: KeptSums) -> None:
    kept.away = True
    auditor = _auditor(kept)
    with Client(address, observer=auditor) as client:
        for _ in range(3):
            client.send_many(Message("bills", b"v", delay=9) for _ in range(100)).result()
            time.sleep(0.1)
        kept.away = False
    auditor.close()
    assert sum(one.count for one in kept.sums.values()) == 300
    assert auditor.missing == 0


def test_sums_that_find_no_room_are_counted(address: str, kept: KeptSums) -> None:
    auditor = _auditor(kept, sums_max=2)
    with Client(address, observer=auditor) as client:
        client.send_many(Message("bills", b"v", delay=one) for one in range(10)).result()
    auditor.close()
    missing = sum(one.missing for one in kept.batches)
    assert missing == auditor.missing > 0
    assert sum(one.count for one in kept.sums.values()) + missing == 10


def _received(offset: int, lane: object, *, wheel: bool = True) -> Received:
    headers: list[Header] = []
    if wheel:
        headers.append(("slotwheel-id", b"default.1500.%d.00000000" % offset))
    return Received(*_PLACE, offset, None, None, headers, 2_000, lane=lane)


def test_a_consumer_s_sums_and_up_to_where_they_are_complete(kept: KeptSums) -> None:
    auditor = _auditor(kept, every_s=60)
    first, second = object(), object()
    messages = [_received(offset, first) for offset in range(5, 9)]
    auditor.received("billing", messages)
    for one in messages:
        one.received_s = 1.0
    auditor.processed("billing", messages[:2], None)
    auditor.processed("billing", messages[2:3], "failed")
    auditor.buried("billing", messages[2], "buried")
    auditor.buried("billing", _received(9, first), "expired")
    auditor.left_out("billing", "orders", messages[3].headers)
    auditor.processed("billing", [_received(10, first, wheel=False)], None)
    auditor.committed("billing", {_PLACE: 8})
    auditor.received("billing", [_received(20, second)])
    auditor.committed("billing", {_PLACE: 21})
    auditor.close()
    orders = [("orders", 1_500, offset) for offset in (5, 6, 7, 9)]
    expected = plain_sums(orders, (Tier.CONSUMED, "default", "billing"), 1_000)
    left_out = (Tier.LEFT_OUT.value, "default", "billing")
    assert pairs(kept.sums) == expected | plain_sums([("orders", 1_500, 8)], left_out, 1_000)
    ranges = [one for batch in kept.batches for one in batch.ranges]
    assert ranges == [
        SummedRange("billing", *_PLACE, 5, 8),
        SummedRange("billing", *_PLACE, 20, 21),
    ]
    key = SumKey(Tier.CONSUMED, "default", "orders", "billing", 1_000)
    assert kept.sums[key].late_max_ms > 1_000_000


def test_a_range_is_sent_when_the_sums_of_its_messages_are(kept: KeptSums) -> None:
    auditor = _auditor(kept, every_s=0.2)
    message = _received(0, object())
    auditor.received("billing", [message])
    auditor.processed("billing", [message], None)
    auditor.committed("billing", {_PLACE: 1})
    eventually(lambda: any(one.ranges for one in kept.batches))
    numbers = [one.number for one in kept.batches if one.ranges or one.sums]
    auditor.close()
    assert len(numbers) == 2
    assert sum(len(one.ranges) for one in kept.batches) == 1
