"""Peers' messages as bytes: what goes in comes out, and nothing else is taken for a message."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.replication.rules import messages
from slotwheel.replication.rules.messages import (
    Ack,
    Append,
    EntryMeta,
    Heartbeat,
    PeerMessage,
    RequestVote,
    SnapshotOffer,
    TakeOver,
    Vote,
)
from slotwheel.replication.transport import encoding
from slotwheel.wheel.errors import Damaged, InvalidBatch, SlotwheelError, UnsupportedVersion
from slotwheel.wheel.journal.entry import Entry, EntryKind
from support.damage import assert_every_change_is_seen, of_version_at

STORE = bytes(range(16))
OTHER_STORE = bytes(range(16, 32))


def entry(
    index: int, epoch: int = 3, payload: Any = b"payload", kind: EntryKind = EntryKind.ROWS
) -> Entry:
    return Entry(kind, epoch, index, index * 10, 1, 0, -1, payload)


def config_entry(index: int, epoch: int, stores: dict[str, bytes] | None) -> Entry:
    fields: dict[str, Any] = {"version": 1, "group": "g"}
    if stores is not None:
        fields["stores"] = {node_id: store.hex() for node_id, store in stores.items()}
    return entry(index, epoch, json.dumps(fields).encode(), EntryKind.CONFIG)


def packed(entries: list[Entry]) -> bytes:
    return b"".join(encoding.pack_entries(entries))


indexes = st.integers(0, encoding.INDEX_LIMIT - 1)
times = st.floats(allow_nan=False, allow_infinity=False)
names = st.text("abcdefgh-_.0", min_size=1, max_size=64)
base = {
    "sender": names,
    "to": names,
    "store": st.binary(min_size=16, max_size=16),
    "epoch": indexes,
}
any_message: st.SearchStrategy[PeerMessage] = st.one_of(
    st.builds(
        RequestVote,
        **base,
        last_index=indexes,
        last_epoch=indexes,
        pre=st.booleans(),
        founding=st.booleans(),
        transfer=st.booleans(),
    ),
    st.builds(
        Vote,
        **base,
        granted=st.booleans(),
        pre=st.booleans(),
        founding=st.booleans(),
        reason=st.text(max_size=200),
    ),
    st.builds(Heartbeat, **base, commit=indexes, sent_at=times),
    st.builds(
        Ack,
        **base,
        durable=indexes,
        verified=indexes,
        sent_at=times,
        rejected=st.booleans(),
        voter=st.booleans(),
        hint=indexes,
    ),
    st.builds(SnapshotOffer, **base, sent_at=times),
    st.builds(TakeOver, **base),
    st.builds(
        Append,
        **base,
        prev_index=indexes,
        prev_epoch=indexes,
        entries=st.just(()),
        commit=indexes,
        sent_at=times,
    ),
)


@given(any_message)
def test_a_message_comes_out_as_it_went_in(message: PeerMessage) -> None:
    assert encoding.decode(encoding.encode(message)) == message


@pytest.mark.parametrize("layout", encoding._KINDS.values(), ids=lambda layout: layout.cls.__name__)
def test_every_field_of_every_kind_crosses(layout: Any) -> None:
    crossing = {name for name, _ in layout.numbers} | set(layout.flags)
    crossing |= {"sender", "to", "store", "epoch"}
    crossing |= {"reason"} if layout.reason else set()
    crossing |= {"entries"} if layout.entries else set()
    assert crossing == {field.name for field in dataclasses.fields(layout.cls)}


def test_every_kind_has_a_layout() -> None:
    kinds = {cls for cls in vars(messages).values() if isinstance(cls, type)}
    kinds = {cls for cls in kinds if issubclass(cls, PeerMessage) and cls is not PeerMessage}
    assert {layout.cls for layout in encoding._KINDS.values()} == kinds


def shipped(*entries: Entry, prev_epoch: int = 1, epoch: int = 9) -> Append:
    return Append(
        sender="a",
        to="b",
        store=STORE,
        epoch=epoch,
        prev_index=entries[0].index - 1,
        prev_epoch=prev_epoch,
        entries=tuple(EntryMeta(one.epoch, encoding.stores_of(one)) for one in entries),
        commit=2,
        sent_at=1.5,
    )


def test_entries_arrive_as_the_same_bytes_and_uncopied() -> None:
    stores = {"a": STORE, "b": OTHER_STORE}
    entries = [
        entry(7, 3, np.arange(5, dtype=np.int64)),
        config_entry(8, 4, stores),
        config_entry(9, 4, None),
        entry(10, 4, b""),
        entry(11, 9, b"x" * 3_000_000),
    ]
    body = packed(entries)
    found = encoding.unpack_entries(body, "peer a")
    expected = [b"".join(map(bytes, one.encode())) for one in entries]
    assert [b"".join(map(bytes, one.encode())) for one in found] == expected
    message = shipped(*entries)
    assert encoding.decode(encoding.encode(message), found) == message
    assert message.entries[1].stores == stores
    assert all(memoryview(one.payload).obj is body for one in found)


def test_a_long_reason_is_cut_between_characters() -> None:
    message = Vote("a", "b", STORE, 1, granted=False, reason="x" + "ä" * 1000)
    found = encoding.decode(encoding.encode(message))
    assert isinstance(found, Vote)
    assert found.reason == "x" + "ä" * 499


SAMPLES = [
    RequestVote("a", "b", STORE, 4, last_index=9, last_epoch=3, pre=True),
    Vote("a", "b", STORE, 4, granted=False, reason="my lease runs"),
    shipped(entry(5), entry(6)),
    Heartbeat("a", "b", STORE, 4, commit=7, sent_at=2.0),
    Ack("a", "b", STORE, 4, durable=5, verified=6, sent_at=2.0),
    SnapshotOffer("a", "b", STORE, 4, sent_at=2.0),
    TakeOver("a", "b", STORE, 4),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda one: type(one).__name__)
def test_every_cut_and_every_flipped_bit_of_a_header_is_refused(message: PeerMessage) -> None:
    entries = [entry(5), entry(6)] if isinstance(message, Append) else []
    whole = encoding.encode(message)
    assert encoding.decode(whole, entries) == message
    with pytest.raises(InvalidBatch):
        encoding.decode(whole + whole, entries)
    assert_every_change_is_seen(
        lambda data: encoding.decode(data, entries),
        whole,
        of_version=of_version_at(4, 5),
        error=InvalidBatch,
    )


def resealed(header: bytearray) -> bytes:
    """With the right CRC: what a buggy or hostile sender makes, and no accident."""
    header[8:12] = crc32c(bytes(header[12:])).to_bytes(4, "little")
    return bytes(header)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_header_with_the_right_crc_and_wrong_content_breaks_nothing(
    message: PeerMessage, data: st.DataObject
) -> None:
    entries = [entry(5), entry(6)] if isinstance(message, Append) else []
    header = bytearray(encoding.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(4, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = encoding.decode(resealed(header), entries)
    except SlotwheelError:
        return
    assert encoding.decode(encoding.encode(found), entries) == found


def test_another_version_is_refused_by_name() -> None:
    header = bytearray(encoding.encode(SAMPLES[0]))
    header[4] = 2
    with pytest.raises(UnsupportedVersion, match="got 2; expected 1"):
        encoding.decode(resealed(header))


@pytest.mark.parametrize(
    "number", [b"\0\0\0\0\0\0\xf0\x7f", b"\0\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf0\xff"]
)
def test_a_time_that_is_no_number_is_refused(number: bytes) -> None:
    header = bytearray(encoding.encode(SnapshotOffer("a", "b", STORE, 4, sent_at=2.0)))
    header[48:56] = number
    with pytest.raises(InvalidBatch, match="usable sent_at"):
        encoding.decode(resealed(header))


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(5)],
        [entry(5), entry(6), entry(7)],
        [entry(5), entry(7)],
        [entry(6), entry(5)],
        [entry(5), entry(6, epoch=2)],
        [entry(5, epoch=0), entry(6)],
        [entry(5), entry(6, epoch=10)],
    ],
)
def test_entries_that_do_not_fit_their_header_are_refused(entries: list[Entry]) -> None:
    header = encoding.encode(shipped(entry(5), entry(6)))
    with pytest.raises(InvalidBatch, match="not a peer's message"):
        encoding.decode(header, entries)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'{"stores": 3}', b'{"stores": {"a": "00"}}', b"[" * 100_000]
)
def test_a_configuration_that_is_none_is_refused(payload: bytes) -> None:
    broken = entry(5, 3, payload, EntryKind.CONFIG)
    header = encoding.encode(Append("a", "b", STORE, 9, 4, 1, (EntryMeta(3),), 0, 0.0))
    with pytest.raises(InvalidBatch, match="not a readable configuration"):
        encoding.decode(header, [broken])


def test_every_cut_and_every_flipped_byte_of_the_entries_is_refused() -> None:
    entries = [entry(5, payload=b"twelve bytes"), entry(6, payload=b"")]
    whole = packed(entries)
    assert encoding.unpack_entries(whole, "peer a") == entries
    first = len(packed(entries[:1]))
    for length in set(range(1, len(whole))) - {first}:
        with pytest.raises(Damaged, match="peer a"):
            encoding.unpack_entries(whole[:length], "peer a")
    assert encoding.unpack_entries(whole[:first], "peer a") == entries[:1]  # the count tells
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        with pytest.raises((Damaged, UnsupportedVersion), match="peer a"):
            encoding.unpack_entries(bytes(changed), "peer a")


@pytest.mark.parametrize("length", [0, 11, 13, 1 << 20, (1 << 32) - 1])
def test_an_entry_that_lies_about_its_length_is_refused(length: int) -> None:
    body = bytearray(packed([entry(5, payload=b"twelve bytes"), entry(6)]))
    body[16:20] = length.to_bytes(4, "little")
    with pytest.raises(Damaged, match="peer a"):
        encoding.unpack_entries(bytes(body), "peer a")


def test_a_message_has_no_more_entries_than_allowed() -> None:
    most = packed([entry(1, payload=b"")]) * encoding.ENTRIES_MAX
    assert len(encoding.unpack_entries(most, "peer a")) == encoding.ENTRIES_MAX
    with pytest.raises(InvalidBatch, match="too many entries from peer a"):
        encoding.unpack_entries(most + b"x", "peer a")
