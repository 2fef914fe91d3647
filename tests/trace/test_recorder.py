"""Events wait, are dropped and counted, and are sent; whatever the target does."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from slotwheel.policy.headers import cut
from slotwheel.trace import EventSender, Recorder, decode
from slotwheel.trace.batches import BATCH_BYTES_MAX, EventColumns, encode
from slotwheel.trace.events import EVENT, EventKind
from slotwheel.trace.making import RecordEvents, TracedRecord
from slotwheel.wheel.errors import InvalidMessage, UnsupportedVersion
from slotwheel.wheel.rows import Header
from support.tracing import KeptEvents, listed
from support.waiting import eventually


def _records(count: int, key: bytes = b"k") -> list[TracedRecord]:
    return [TracedRecord("orders", 0, number, key, (), 0.0) for number in range(count)]


def _note(recorder: Recorder, records: Sequence[TracedRecord]) -> None:
    recorder.note_records(EventKind.RECEIVED, "billing", records)


def _made(records: Sequence[TracedRecord]) -> pa.RecordBatch:
    events = RecordEvents()
    events.add([(EventKind.RECEIVED, "billing", None, 1.0, *one) for one in records])
    made = events.make()
    return EventColumns(made.count, made.columns | {"number": 0}).rows()


def test_events_arrive_numbered_in_their_order_with_who_sent_them() -> None:
    kept = KeptEvents()
    recorder = Recorder(kept, client="till-7", tags={"shop": "north"})
    for _ in range(3):
        _note(recorder, _records(2))
    events = kept.of(recorder)
    assert [one["number"] for one in events] == list(range(6))
    assert [one["offset"] for one in events] == [0, 1, 0, 1, 0, 1]
    senders = {sender.name for sender, _ in kept.batches}
    assert len(senders) == 1
    assert kept.batches[0][0].client == "till-7"
    assert kept.batches[0][0].tags == {"shop": "north"}
    assert (recorder.sent, recorder.dropped, kept.closed) == (6, 0, True)


def test_what_has_no_room_is_dropped_and_an_event_says_how_many() -> None:
    kept = KeptEvents()
    kept.free.clear()
    recorder = Recorder(kept, events_max=100)
    began_s = time.monotonic()
    for _ in range(50):
        _note(recorder, _records(10))
    assert time.monotonic() - began_s < 30  # nobody waits for the target
    assert recorder.dropped == 400
    kept.free.set()
    eventually(lambda: any(one["kind"] == "dropped" for one in kept.events))
    _note(recorder, _records(10))
    events = kept.of(recorder)
    dropped = [one["count"] for one in events if one["kind"] == EventKind.DROPPED]
    assert sum(dropped) == recorder.dropped == 400
    numbers = {one["number"] for one in events}
    assert max(numbers) + 1 - len(numbers) == 400


@pytest.mark.parametrize("trouble", ["hangs", "refuses"])
def test_while_the_target_is_down_many_threads_go_on_and_each_missing_event_is_counted(
    trouble: str,
) -> None:
    """What arrived, what an event says is missing, and the gaps in the numbers are one account."""
    kept = KeptEvents()
    kept.away = trouble == "refuses"
    if trouble == "hangs":
        kept.free.clear()
    recorder = Recorder(kept, events_max=1000)

    def note() -> None:
        for number in range(2000):
            _note(recorder, _records(1 + number % 3))

    threads = [threading.Thread(target=note) for _ in range(8)]
    began_s = time.thread_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert time.thread_time() - began_s < 1
    noted = 8 * sum(1 + number % 3 for number in range(2000))
    assert (recorder.noted, recorder.sent, recorder.dropped) == (noted, 0, noted - 1000)
    kept.away = False
    kept.free.set()
    eventually(lambda: any(one["kind"] == "dropped" for one in kept.events))
    _note(recorder, _records(1))
    events = kept.of(recorder)
    told = [one["count"] for one in events if one["kind"] == EventKind.DROPPED]
    numbers = {one["number"] for one in events}
    missing = noted + 1 - (len(events) - len(told))
    assert recorder.dropped == sum(told) == missing == max(numbers) + 1 - len(numbers)
    assert len(numbers) == len(events) == recorder.sent


def test_what_the_target_refuses_is_sent_again_until_it_takes_it() -> None:
    kept = KeptEvents()
    kept.away = True
    recorder = Recorder(kept)
    _note(recorder, _records(5))
    eventually(lambda: kept.tries >= 2)
    kept.away = False
    assert len(kept.of(recorder)) == 5
    assert recorder.dropped == 0


def test_a_target_that_stays_away_holds_no_end_up_and_all_is_counted() -> None:
    kept = KeptEvents()
    kept.away = True
    recorder = Recorder(kept)
    _note(recorder, _records(5))
    began_s = time.monotonic()
    recorder.close(0.3)
    _note(recorder, _records(1))
    recorder.close()
    assert time.monotonic() - began_s < 5
    assert (kept.events, recorder.dropped) == ([], 6)


def test_what_cannot_be_made_costs_no_event_of_later() -> None:
    kept = KeptEvents()
    recorder = Recorder(kept)
    no_number: Any = "none"
    bad = TracedRecord("orders", no_number, 0, b"k", (), 0.0)
    _note(recorder, [bad, bad, bad])
    eventually(lambda: len(kept.events) == 1)
    kept.free.clear()
    _note(recorder, _records(1))
    eventually(lambda: kept.tries == 2)  # what comes now leaves together, behind that one
    for record in (*_records(2), bad, *_records(1)):
        _note(recorder, [record])
    kept.free.set()
    events = kept.of(recorder)
    assert [one["kind"] for one in events] == ["dropped"] + ["received"] * 4 + ["dropped"]
    assert (events[0]["count"], events[5]["count"]) == (3, 1)
    assert (recorder.dropped, recorder.sent) == (4, 6)
    assert [one["number"] for one in events] == [3, 4, 5, 6, 7, 9]


def test_what_comes_behind_the_end_or_has_no_room_takes_no_memory() -> None:
    full, closed = Recorder(KeptEvents(), events_max=0), Recorder(KeptEvents())
    closed.close()
    tracemalloc.start()
    try:
        for _ in range(2000):
            _note(full, _records(2))
            _note(closed, _records(1))
            assert full.dropped
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (full.dropped, closed.dropped) == (4000, 2000)
    assert kept < 200_000
    full.close()


def test_what_waits_to_become_an_event_keeps_no_record() -> None:
    class Heavy:
        topic, partition, offset, key, received_s = "orders", 0, 7, b"k", 0.0
        headers: Sequence[Header] = ()

    kept = KeptEvents()
    recorder = Recorder(kept)
    record = Heavy()
    there = weakref.ref(record)
    recorder.note_records(EventKind.RECEIVED, "billing", [record])
    del record
    assert there() is None
    assert [one["offset"] for one in kept.of(recorder)] == [7]


def test_batches_with_one_long_error_can_be_read() -> None:
    """The error stands once in a batch, and once for each event in memory."""
    kept = KeptEvents()
    recorder = Recorder(kept)
    error = "the broker does not take it; " * 30
    recorder.note_records(EventKind.PROCESSED, "billing", _records(60_000), error)
    recorder.close(60)
    events = kept.of(recorder)  # decodes what the target has
    assert len(events) == recorder.sent == 60_000
    assert {one["error"] for one in events} == {cut(error).decode()}


def test_batches_are_small_enough_for_a_topic() -> None:
    kept = KeptEvents()
    recorder = Recorder(kept)
    # No two are alike, or compression would make them small.
    keys = [bytes(number * at % 251 for at in range(40_000)) for number in range(1, 60)]
    records = [
        TracedRecord("orders", 0, number, key * 2, (), 0.0) for number, key in enumerate(keys)
    ]
    large = [*records, TracedRecord("orders", 0, 99, os.urandom(BATCH_BYTES_MAX), (), 0.0)]
    _note(recorder, large)
    events = kept.of(recorder, EventKind.RECEIVED)
    assert [one["offset"] for one in events] == list(
        range(59)
    )  # all but the one too large by itself
    assert recorder.dropped == 1


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no stream",
        encode(EventSender("a"), _made(_records(2)))[:-40],
        encode(EventSender("a"), _made(_records(2)))[:300],
    ],
)
def test_what_is_no_batch_of_events_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode(value)


@pytest.mark.parametrize(
    "text",
    [b"", b"a.b", b"g.1.2.0000000G", b"g.01.2.00000003", b"g.1.-2.00000003", b"g.1.2.3", b"\xff"],
)
def test_what_is_no_id_is_none_and_mixes_with_no_other(text: bytes) -> None:
    good = b"g.-5.17.ffffffff"
    records = [
        TracedRecord("orders", 0, 0, None, [("slotwheel-id", text)], 0.0),
        TracedRecord("orders", 0, 1, None, [("slotwheel-id", good), ("slotwheel-id", text)], 0.0),
        TracedRecord("orders", 0, 2, None, [("slotwheel-origin-id", good)], 0.0),
    ]
    events = listed(_made(records))
    assert [one["id"] for one in events] == [None, good.decode(), None]
    assert [one["origin"] for one in events] == [None, None, good.decode()]


def test_another_version_is_told() -> None:
    value = encode(EventSender("a"), _made(_records(2)))
    place = value.index(b"slotwheel.trace")
    at = value.index(b"2", place)
    with pytest.raises((UnsupportedVersion, InvalidMessage)):
        decode(value[:at] + b"9" + value[at + 1 :])


def test_another_schema_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("a", pa.int64())], metadata=EVENT.metadata)) as out:
        out.write_batch(pa.RecordBatch.from_pydict({"a": [1]}))
    with pytest.raises(InvalidMessage):
        decode(bytes(sink.getvalue()))
