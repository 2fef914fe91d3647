"""The entry's bytes: what is written is what is read, and nothing else is ever read."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.answers import Before, NamedAnswer
from slotwheel.wheel.errors import Damaged, UnsupportedVersion
from slotwheel.wheel.journal import entry as entry_module
from slotwheel.wheel.journal.entry import (
    HEADER_BYTES,
    NOTES_VERSION,
    PARTS_VERSION,
    Entry,
    EntryKind,
    EntryPart,
    NoteKind,
    decode_entry,
    with_parts,
)
from slotwheel.wheel.names import encode_named
from slotwheel.wheel.schedules import SchedulePut, encode_changes
from support.damage import assert_every_change_is_seen

GOLDEN = Path(__file__).parent / "golden"
PARTS = [EntryPart(7, 5, 1), EntryPart(0, -1, 3), EntryPart(2**64 - 1, 2**63 - 1, 2)]
# These files are never rewritten: a version of the format that cannot read them is a new version.
GOLDEN_ENTRIES = {
    "entry-v1-rows.bin": Entry(EntryKind.ROWS, 3, 17, 170, 10, 7, 5, bytes(range(100))),
    "entry-v1-mark.bin": Entry(EntryKind.MARK, 2**63, 2**64 - 1, -1, 0, 0, -1, b"mark", flags=0x81),
    "entry-v1-config.bin": Entry(EntryKind.CONFIG, 1, 1, 0, 0, 2**64 - 1, 2**63 - 1, b""),
    "entry-v2-parts.bin": Entry(
        *(EntryKind.ROWS, 3, 18, 180, 6, 0, -1),
        with_parts(bytes(range(64)), PARTS),
        version=PARTS_VERSION,
    ),
    "entry-v3-notes.bin": Entry(
        *(EntryKind.ROWS, 3, 19, 186, 2, 0, -1),
        with_parts(
            bytes(range(64)),
            [EntryPart(7, 6, 2)],
            {NoteKind.NAMES: encode_named([NamedAnswer(0, Before.REPLACED, 1_800_000_000_000, 5)])},
        ),
        version=NOTES_VERSION,
    ),
    "entry-v3-schedules.bin": Entry(
        *(EntryKind.SCHEDULES, 3, 20, 188, 0, 0, -1),
        encode_changes([SchedulePut("täglich", b'{"name":"t"}', 1_800_000_000_000)]),
        version=NOTES_VERSION,
    ),
}

unsigned64 = st.integers(0, 2**64 - 1)
signed64 = st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    Entry,
    kind=st.sampled_from([EntryKind.ROWS, EntryKind.MARK, EntryKind.CONFIG]),
    epoch=unsigned64,
    index=unsigned64,
    base_offset=signed64,
    count=st.integers(0, 2**32 - 1),
    producer=unsigned64,
    sequence=signed64,
    payload=st.binary(max_size=200),
    flags=st.integers(0, 255),
)


def encoded(entry: Entry) -> bytes:
    return b"".join(entry.encode())


def forged(data: bytes, at: int, value: bytes) -> bytes:
    """Other bytes at a place, under a CRC that is right."""
    changed = bytearray(data)
    changed[at : at + len(value)] = value
    struct.pack_into("<I", changed, 8, crc32c(bytes(changed[12:])))
    return bytes(changed)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(GOLDEN_ENTRIES["entry-v3-schedules.bin"], version=1),
        replace(GOLDEN_ENTRIES["entry-v3-schedules.bin"], version=2),
        replace(GOLDEN_ENTRIES["entry-v3-schedules.bin"], count=1),
        replace(GOLDEN_ENTRIES["entry-v3-schedules.bin"], producer=7),
    ],
    ids=["version 1", "version 2", "rows", "a producer"],
)
def test_changes_of_schedules_that_an_older_program_would_read_are_damage(wrong: Entry) -> None:
    with pytest.raises(Damaged, match="changes of schedules in version 3"):
        decode_entry(encoded(wrong), "some/file", 0)


@given(entries)
def test_round_trip(entry: Entry) -> None:
    assert decode_entry(encoded(entry), "x", 0) == entry


@pytest.mark.parametrize(
    "payload",
    [
        b"12345678",
        bytearray(b"12345678"),
        memoryview(b"12345678"),
        memoryview(pa.py_buffer(b"12345678")),
        np.frombuffer(b"12345678", np.int64).data,
        np.frombuffer(b"12345678", np.int16).data,
        memoryview(b"x12345678y")[1:9],
    ],
    ids=["bytes", "bytearray", "memoryview", "arrow", "int64", "int16", "slice"],
)
def test_any_buffer_is_a_payload(payload: bytes) -> None:
    header, body = Entry(EntryKind.ROWS, 1, 1, 0, 1, 0, -1, payload).encode()
    assert len(body) == 8
    assert bytes(decode_entry(bytes(header) + bytes(body), "x", 0).payload) == b"12345678"


@pytest.mark.parametrize("payload", [b"", bytearray(), memoryview(b""), np.zeros(0, np.int64).data])
def test_an_empty_payload_of_any_kind(payload: bytes) -> None:
    assert (
        decode_entry(encoded(Entry(EntryKind.MARK, 1, 1, 0, 0, 0, -1, payload)), "x", 0).payload
        == b""
    )


def test_the_payload_is_never_copied() -> None:
    payload = bytes(1000)
    assert Entry(EntryKind.ROWS, 1, 1, 0, 1, 0, -1, payload).encode()[1] is payload
    data = encoded(Entry(EntryKind.ROWS, 1, 1, 0, 1, 0, -1, payload))
    view = decode_entry(data, "x", 0).payload
    assert isinstance(view, memoryview)
    assert view.obj is data


@pytest.mark.parametrize("name", GOLDEN_ENTRIES)
def test_golden_bytes(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    assert decode_entry(data, name, 0) == GOLDEN_ENTRIES[name]
    assert encoded(GOLDEN_ENTRIES[name]) == data


@pytest.mark.parametrize("name", GOLDEN_ENTRIES)
def test_every_change_is_seen(name: str) -> None:
    # Of a version whose only bit is flipped there is nothing left; another bit makes it version 3.
    known = (8 * 4, 8 * 4 + 1)

    def decode(data: bytes) -> None:
        # Rows of a later version that is called an earlier one are refused when they are read.
        if decode_entry(data, "some/file", 0).ends_like_a_later_version:
            raise Damaged("some/file", 0, expected="the end", found="more")

    assert_every_change_is_seen(
        decode,
        (GOLDEN / name).read_bytes(),
        of_version=lambda bit: bit // 8 in (4, 5) and bit not in known,
        match="some/file",
    )


@pytest.mark.parametrize("kind", [0, 5, 255])
def test_an_unknown_kind_under_a_right_crc_is_refused(kind: int) -> None:
    data = encoded(GOLDEN_ENTRIES["entry-v1-rows.bin"])
    with pytest.raises(Damaged, match=f"found kind {kind}"):
        decode_entry(forged(data, 12, bytes([kind])), "x", 0)


def test_reserved_fields_must_be_zero() -> None:
    data = encoded(GOLDEN_ENTRIES["entry-v1-rows.bin"])
    for at in (6, 14):
        with pytest.raises(Damaged, match="reserved"):
            decode_entry(forged(data, at, b"\1"), "x", 0)


def test_zeros_are_no_entry() -> None:
    with pytest.raises(Damaged):
        decode_entry(bytes(HEADER_BYTES), "x", 0)


def test_errors_name_place_expected_and_found() -> None:
    data = encoded(GOLDEN_ENTRIES["entry-v1-rows.bin"])
    with pytest.raises(Damaged) as damage:
        decode_entry(b"XXXX" + data[4:], "journal/1", 4096)
    assert (damage.value.path, damage.value.position) == ("journal/1", 4096)
    assert "SWEN" in str(damage.value)
    assert "XXXX" in str(damage.value)
    with pytest.raises(UnsupportedVersion) as version:
        decode_entry(data[:4] + b"\4\0" + data[6:], "journal/1", 4096)
    assert (version.value.got, version.value.limit) == (4, 3)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_entry(data: bytes) -> None:
    with pytest.raises((Damaged, UnsupportedVersion)):
        decode_entry(data, "x", 0)


def no_crc(*arguments: object, **options: object) -> int:
    raise AssertionError("a CRC is computed again")


@given(entries)
def test_a_received_entry_keeps_its_bytes_and_needs_no_second_crc(entry: Entry) -> None:
    data = encoded(entry)
    received = decode_entry(bytearray(data), "x", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_module, "crc32c", no_crc)
        assert encoded(received) == data
        assert encoded(entry) == data  # the maker's own, encoded once above
    assert received == entry
    assert hash(entry) == hash(replace(entry))


def test_a_changed_copy_has_a_header_of_its_own() -> None:
    one = GOLDEN_ENTRIES["entry-v1-rows.bin"]
    received = decode_entry(encoded(one), "x", 0)
    for entry in (one, received):
        other = replace(entry, index=18)
        assert decode_entry(encoded(other), "x", 0).index == 18
    assert "header" not in repr(received)


parts = st.lists(
    st.builds(EntryPart, unsigned64, signed64, st.integers(1, 1 << 24)), min_size=2, max_size=30
)


def of_parts(batch: bytes, its: list[EntryPart], **fields: Any) -> Entry:
    made = Entry(
        *(EntryKind.ROWS, 1, 1, 0, sum(part.rows for part in its), 0, -1),
        with_parts(batch, its),
        version=PARTS_VERSION,
    )
    return replace(made, **fields)


@given(st.binary(max_size=50), parts)
def test_parts_come_back_with_their_batch(batch: bytes, its: list[EntryPart]) -> None:
    received = decode_entry(encoded(of_parts(batch, its)), "x", 0)
    assert received == of_parts(batch, its)
    assert (list(received.parts), bytes(received.batch)) == (its, batch)


def test_an_entry_of_one_caller_is_its_only_part() -> None:
    one = GOLDEN_ENTRIES["entry-v1-rows.bin"]
    assert (one.parts, one.batch) == ((EntryPart(7, 5, 10),), one.payload)
    assert not GOLDEN_ENTRIES["entry-v1-mark.bin"].parts


@pytest.mark.parametrize(
    "wrong",
    [
        of_parts(b"rows", PARTS, count=7),
        of_parts(b"rows", PARTS, producer=1),
        of_parts(b"rows", PARTS, sequence=0),
        of_parts(b"rows", PARTS, kind=EntryKind.MARK),
        of_parts(b"rows", PARTS[:1]),
        of_parts(b"rows", []),
        of_parts(b"rows", [EntryPart(1, 1, 0), EntryPart(2, 2, 6)]),
        of_parts(b"rows", PARTS, payload=b""),
        of_parts(b"rows", PARTS, payload=b"rows" * 30),
        of_parts(b"rows", PARTS, payload=with_parts(b"", PARTS)[1:]),
        of_parts(b"rows", PARTS, payload=with_parts(b"rows", PARTS)[:-1]),
        of_parts(b"rows", PARTS, payload=with_parts(b"rows", PARTS)[:-9] + b"\1" + bytes(8)),
        of_parts(
            b"",
            PARTS,
            payload=struct.pack("<QqIIQqIII4s", 7, 0, 3, 0, 8, 0, 3, 1, 2, b"SWPT"),
        ),
    ],
)
def test_a_table_that_is_not_right_under_a_right_crc_is_damage(wrong: Entry) -> None:
    with pytest.raises(Damaged, match=r"some/file.*several callers"):
        decode_entry(encoded(wrong), "some/file", 0)


@pytest.mark.parametrize(
    ("name", "version"), [("v2-parts", 2), ("v3-notes", 3), ("v3-schedules", 3)]
)
def test_a_reader_of_the_version_before_refuses_by_name(
    name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could read the rows, but whoever sends them again would have them stored twice, or two
    messages would have one name."""
    monkeypatch.setattr(entry_module, "NOTES_VERSION", version - 1)
    data = (GOLDEN / f"entry-{name}.bin").read_bytes()
    with pytest.raises(UnsupportedVersion, match=rf"got {version}; expected {version - 1}\."):
        decode_entry(data, "some/file", 0)


def test_parts_are_read_from_any_buffer() -> None:
    """A view of Arrow's memory has signed bytes: the producers of half of all clients differ."""
    parts = [EntryPart((1 << 63) - 1, 1, 1), EntryPart(0x80FF, 2, 1)]
    made = of_parts(b"rows", parts)
    head, payload = made.encode()
    received = memoryview(pa.py_buffer(bytes(head) + bytes(payload)))
    for buffer in (received, received.cast("B")):
        assert list(decode_entry(buffer, "peer a", 0).parts) == parts
