"""Segment header and frame: every bit counts, and a frame is valid only where it was made."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.journal.scan import walk
from slotwheel.wheel.journal.segment import (
    FRAME_BYTES,
    PADDING,
    SegmentHeader,
    decode_frame,
    encode_frame,
    end_mark,
    index_of,
    is_segment_name,
    is_spare_name,
    padded,
    segment_path,
    spare_path,
)
from support.crashfs import CrashFiles
from support.damage import assert_every_change_is_seen, of_version_at
from support.journals import STORE, entry

GOLDEN = Path(__file__).parent / "golden"
HEADER = SegmentHeader(first_index=42, last_epoch=3, store_id=STORE)
SEED = HEADER.seed


REUSED = replace(HEADER, marked=True)


def test_header_round_trip() -> None:
    for header in (HEADER, REUSED):
        assert SegmentHeader.decode(header.encode(), "x") == header
        assert header.durable_index == 41
    assert REUSED.seed != HEADER.seed


@pytest.mark.parametrize("header", [HEADER, REUSED])
def test_every_change_of_the_header_is_seen(header: SegmentHeader) -> None:
    def decode(data: bytes) -> object:
        return SegmentHeader.decode(data, "some/file")

    of_version = of_version_at(8, 9)
    whole = header.encode()
    assert_every_change_is_seen(
        decode, whole, of_version=of_version, match="some/file", longer=False
    )


@pytest.mark.parametrize(
    ("first", "durable", "flags"), [(0, 2**64 - 1, 0), (42, 42, 0), (42, 40, 0), (42, 41, 2)]
)
def test_a_header_that_contradicts_itself_is_refused(first: int, durable: int, flags: int) -> None:
    checked = struct.pack("<QQQ16sQ", first, durable, 3, STORE, flags)
    data = struct.pack("<8sHHI", b"SWJOURNL", 1, 0, crc32c(checked)) + checked
    with pytest.raises(Damaged):
        SegmentHeader.decode(data, "x")


def test_frame_round_trip() -> None:
    assert decode_frame(encode_frame(SEED, 64, 100, 41), SEED, "x", 64, 1000) == (100, 41)


def test_the_end_mark_is_no_frame_and_is_valid_in_one_place_only() -> None:
    mark = end_mark(SEED, 64)
    assert len(mark) == FRAME_BYTES
    with pytest.raises(Damaged, match="an entry of"):
        decode_frame(mark, SEED, "x", 64, 1000)
    assert mark not in (end_mark(SEED, 72), end_mark(REUSED.seed, 64), bytes(FRAME_BYTES))


def test_every_change_of_a_frame_is_seen() -> None:
    def decode(data: bytes) -> object:
        return decode_frame(data, SEED, "x", 64, 2**32)

    assert_every_change_is_seen(decode, encode_frame(SEED, 64, 100, 41), longer=False)


def test_a_frame_is_valid_only_at_its_place_in_its_segment_of_its_store() -> None:
    frame = encode_frame(SEED, 64, 100, 41)
    others = [
        SegmentHeader(43, 3, STORE).seed,
        SegmentHeader(42, 4, STORE).seed,
        SegmentHeader(42, 3, bytes(16)).seed,
    ]
    for seed, position in [(SEED, 72), *((seed, 64) for seed in others)]:
        with pytest.raises(Damaged, match="CRC"):
            decode_frame(frame, seed, "x", position, 1000)


@pytest.mark.parametrize("length", [0, 63, 1001, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_under_a_right_crc(length: int) -> None:
    with pytest.raises(Damaged, match="64 to 1000 bytes"):
        decode_frame(encode_frame(SEED, 64, length, 41), SEED, "x", 64, 1000)


def test_padding_fills_up_to_eight() -> None:
    for length in range(64, 90):
        assert length + len(PADDING[length % 8]) == padded(length)
        assert padded(length) % 8 == 0


def test_names() -> None:
    assert segment_path(42) == "journal/00000000000000000042.journal"
    assert index_of(segment_path(2**63)) == 2**63
    assert is_segment_name("00000000000000000042.journal")
    for other in ("42.journal", "00000000000000000042.journal.bak", "0000000000000000004x.journal"):
        assert not is_segment_name(other)
    spare = spare_path(42).removeprefix("journal/")
    assert (spare, is_spare_name(spare)) == ("00000000000000000042.spare", True)
    assert not is_segment_name(spare)
    assert not is_spare_name("42.spare")


def test_golden_segment() -> None:
    """Never rewritten: entries 42 to 44, the last written when 43 was durable."""
    files = CrashFiles()
    files.replace(segment_path(42), (GOLDEN / "segment-v1.journal").read_bytes())
    found = list(walk(files, segment_path(42)))
    assert [one.entry for one in found] == [entry(42, 5), entry(43, 0), entry(44, 100)]
    assert [one.durable for one in found] == [41, 41, 43]
    assert [one.position for one in found] == [64, 160, 248]


def test_golden_segment_in_a_reused_file() -> None:
    """Never rewritten: entries 142 and 143, an end mark, and what stood there before."""
    content = (GOLDEN / "segment-v1-reused.journal").read_bytes()
    files = CrashFiles()
    files.replace(segment_path(142), content)
    found = list(walk(files, segment_path(142)))
    assert [one.entry for one in found] == [entry(142, 5), entry(143, 0)]
    assert [one.durable for one in found] == [141, 142]
    assert content[found[-1].end :].startswith(b"SWFR")
    assert content[found[-1].end + FRAME_BYTES :].endswith(bytes(entry(44, 100).payload) + bytes(4))
    assert SegmentHeader.decode(content, "x") == SegmentHeader(142, 1, STORE, marked=True)
