"""Events as they travel, and as they stand beside those of other senders."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.trace import EventKind, EventSender, decode
from slotwheel.trace.batches import EventColumns, encode, joined
from slotwheel.trace.events import EVENT, ID, STORED, with_sender
from slotwheel.wheel.errors import InvalidMessage, UnsupportedVersion
from slotwheel.wheel.schema import TIME


def test_an_event_beside_others_has_its_sender() -> None:
    rows = [{"number": number, "at": 1, "kind": EventKind.PRODUCED} for number in range(3)]
    sent = EventSender("s1", "billing", "host", {"shop": "north"})
    sender, events = decode(encode(sent, pa.RecordBatch.from_pylist(rows, schema=EVENT)))
    other = with_sender(EventSender("s2"), events.slice(0, 1))
    together = pa.Table.from_batches([with_sender(sender, events), other]).unify_dictionaries()
    assert together.schema.equals(STORED, check_metadata=True)
    assert together.column("sender").to_pylist() == ["s1", "s1", "s1", "s2"]
    assert json.loads(together.column("sender_tags")[0].as_py()) == {"shop": "north"}
    assert together.column("number").to_pylist() == [0, 1, 2, 0]


def batch_of(rows: int = 50) -> bytes:
    events = [{"number": n, "at": n, "kind": "produced", "tag": "t" * n} for n in range(rows)]
    return encode(EventSender("s1"), pa.RecordBatch.from_pylist(events, schema=EVENT))


def with_about(about: object, rows: int = 1, same: object = None, **claimed: bytes) -> bytes:
    """A batch whose sender is anything; ``same``, ``claimed``: as its metadata."""
    metadata = {
        **EVENT.metadata,
        b"slotwheel.trace.sender": json.dumps(about).encode(),
        b"slotwheel.trace.count": b"%d" % rows,
        b"slotwheel.trace.same": json.dumps(same or {"at": 1, "kind": "k"}).encode(),
    }
    metadata |= {f"slotwheel.trace.{name}".encode(): text for name, text in claimed.items()}
    schema = pa.schema([("number", pa.int64())], metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"number": range(rows)}, schema=schema))
    return bytes(sink.getvalue())


ABOUT = {"name": "s", "client": "c", "address": "a", "tags": {}}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no batch",
        b"\xff" * 64,
        batch_of()[:-100],
        b"x" * (2 << 20),
        with_about("s"),
        with_about({**ABOUT, "name": ""}),
        with_about({**ABOUT, "name": "n" * 257}),
        with_about({**ABOUT, "name": "\ud800"}),
        with_about({**ABOUT, "tags": [1]}),
        with_about({**ABOUT, "tags": {"a": "b" * 5000}}),
        with_about({"name": "s"}),
        with_about(ABOUT, (1 << 17) + 1),
        with_about(ABOUT, 2, count=b"1"),
        with_about(ABOUT, 1, count=b"-1"),
        with_about(ABOUT, 1, [1]),
        with_about(ABOUT, 1, {"at": 1}),
        with_about(ABOUT, 1, {"at": 1, "kind": 1}),
        with_about(ABOUT, 1, {"at": True, "kind": "k"}),
        with_about(ABOUT, 1, {"at": 1 << 70, "kind": "k"}),
        with_about(ABOUT, 1, {"at": 1, "kind": "k", "value": "v"}),
        with_about(ABOUT, 1, {"at": 1, "kind": "k", "id.offset": (1 << 63) - 1}),
        with_about(ABOUT, 1, {"at": 1, "kind": "k", "id.group": "g"}),
        with_about(ABOUT, 1, {"at": 1, "kind": "\ud800"}),
        with_about(ABOUT, 100_000, {"at": 1, "kind": "k" * 1000}),
    ],
)
def test_what_is_no_batch_of_events_is_refused(value: bytes) -> None:
    assert decode(with_about(ABOUT))[1].num_rows == 1
    with pytest.raises(InvalidMessage):
        decode(value)


def test_a_sender_in_too_many_brackets_is_refused() -> None:
    schema = EVENT.with_metadata(
        {**EVENT.metadata, b"slotwheel.trace.sender": b"[" * 100_000 + b"]" * 100_000}
    )
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    with pytest.raises(InvalidMessage):
        decode(bytes(sink.getvalue()))


def test_nulls_where_none_may_be_are_refused() -> None:
    columns = {name: pa.nulls(1, EVENT.field(name).type) for name in EVENT.names}
    empty = pa.RecordBatch.from_arrays(list(columns.values()), schema=EVENT)
    with pytest.raises(InvalidMessage, match="nulls"):
        decode(encode(EventSender("s"), empty))
    parts = {"group": None, "due": 1, "offset": 1, "check": 1}
    children = [pa.array([parts[field.name]], field.type) for field in ID]
    no_group = pa.StructArray.from_arrays(children, fields=list(ID))
    sound = {"number": pa.array([1]), "at": pa.array([1]).cast(TIME), "kind": pa.array(["k"])}
    arrays = list((columns | sound | {"id": no_group}).values())
    with pytest.raises(InvalidMessage, match="an id in column id"):
        decode(encode(EventSender("s"), pa.RecordBatch.from_arrays(arrays, schema=EVENT)))


def test_a_buffer_that_claims_too_much_is_refused_before_it_is_made() -> None:
    """Each place that holds the size of a compressed buffer is changed to 1 TiB."""
    value = batch_of(5000)
    sizes = [
        at
        for at in range(0, len(value) - 8, 8)
        if 4096 < int.from_bytes(value[at : at + 8], "little") < 1 << 27
        and value[at + 8 : at + 12] == b"\x04\x22\x4d\x18"  # how LZ4 begins
    ]
    assert sizes
    for at in sizes:
        claimed = value[:at] + (1 << 40).to_bytes(8, "little") + value[at + 8 :]
        with pytest.raises(InvalidMessage, match="claims"):
            decode(claimed)


def test_bytes_that_were_changed_never_do_more_than_be_refused() -> None:
    value = batch_of()
    numbers = random.Random(3)
    for _ in range(3000):
        changed = bytearray(value)
        for _ in range(numbers.choice([1, 1, 2, 8])):
            changed[numbers.randrange(len(changed))] = numbers.randrange(256)
        with suppress(InvalidMessage, UnsupportedVersion):
            decode(bytes(changed))


def test_what_is_the_same_for_all_events_stands_there_once_and_nothing_else_changes() -> None:
    ids = {"id.group": "g", "id.due": 5, "id.offset": 70, "id.check": 3}
    same = {"number": 10, "at": 1_000, "kind": "produced", "topic": "orders", **ids}
    keys = pa.array([b"a", None, b"c"], pa.binary())
    events = EventColumns(3, {**same, "key": keys, "error": "e" * 2000})
    value = encode(EventSender("s"), events)
    rows = decode(value)[1]
    assert rows.schema.equals(EVENT)
    assert rows.column("number").to_pylist() == [10, 11, 12]
    assert [one["offset"] for one in rows.column("id").to_pylist()] == [70, 71, 72]
    assert rows.column("key").to_pylist() == [b"a", None, b"c"]
    assert rows.column("error").to_pylist() == ["e" * 2000] * 3
    assert rows.column("tag").null_count == 3
    assert rows.equals(decode(encode(EventSender("s"), rows))[1])
    assert decode(encode(EventSender("s"), events.slice(1, 2)))[1].equals(rows.slice(1))


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc"), st.booleans()), max_size=8))
def test_events_that_are_joined_are_those_that_were_there(
    parts: list[tuple[int, str, bool]],
) -> None:
    made: list[EventColumns] = []
    number = 0
    for count, topic, keyed in parts:
        number += topic == "c"  # a gap
        columns: dict[str, Any] = {"number": number, "at": 7, "kind": "k", "topic": topic}
        if keyed:
            columns["key"] = pa.array([topic.encode()] * count, pa.binary())
        made.append(EventColumns(count, columns))
        number += count
    found = list(joined(made, 6))
    assert all(one.count <= 6 for one in found)
    assert [row for one in found for row in one.rows().to_pylist()] == [
        row for one in made for row in one.rows().to_pylist()
    ]
