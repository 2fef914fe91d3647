"""A snapshot's way from one directory to another, and everything the receiver refuses."""

from __future__ import annotations

import errno
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.cancelrecord import CancelRecord
from slotwheel.wheel.config import WIDTH_BITS
from slotwheel.wheel.errors import Damaged, InvalidConfiguration, UnsupportedVersion
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.mark import Mark, Marks, TopicMark
from slotwheel.wheel.peers import snapshot_header
from slotwheel.wheel.peers.snapshot import CHUNK_BYTES_MAX, SnapshotSource
from slotwheel.wheel.peers.snapshot_header import SnapshotHeader
from slotwheel.wheel.peers.snapshot_sink import SnapshotSink
from slotwheel.wheel.schedules import StoredSchedule, encode_schedule
from slotwheel.wheel.slots.slot import HOUR_S, path_of
from slotwheel.wheel.state import (
    Checkpoint,
    LmdbState,
    Loss,
    ProducerEntry,
    SlotInfo,
    StateUpdate,
)
from slotwheel.wheel.switch import complete_switch, set_aside
from support.crashfs import CrashFiles
from support.damage import assert_every_change_is_seen, flipped, of_version_at
from support.journals import store
from support.peerdirs import (
    DAY,
    GROUP,
    HOUR,
    SECOND,
    Replica,
    install,
    new_peer,
    old_peer,
    source_for,
    transfer,
    write_slots,
)

GOLDEN = Path(__file__).parent / "golden" / "snapshot-v2.bin"
RECORD = bytes.fromhex("020000000000000078016366800056280d0000680009")
GOLDEN_HEADER = SnapshotHeader(
    Checkpoint(
        17,
        3,
        42,
        40,
        2,
        Marks(Mark(5_000, 7, 9), 3, {"a.b": TopicMark(Mark(4_000, 1 << 60, 8), 2)}, 11, 1, 9, 1),
        {"group": "g", "slots": 7200, "key": "00" * 16, "stores": {"a": "11" * 16}},
    ),
    {-1: SlotInfo(1, 2, 0, -1, 0xFFFFFFFF), 1_900_000_000: SlotInfo(1 << 40, 9, 3, 41, 7)},
    {1: [ProducerEntry(1, 10, 1000, 5, 3), ProducerEntry(-2, 13, 1001, 6, 1)], (1 << 63) | 2: []},
    cancelled={4: RECORD, 5: bytes.fromhex("00000000010000007801030000000001")},
    cancelled_floor=3_999,
)


# -- the header


def test_the_header_of_version_1_is_read() -> None:
    """With a mark of each version in it. What was cancelled on its sender is not known of messages
    that may have left there."""
    expected = replace(GOLDEN_HEADER, cancelled={}, cancelled_floor=5_000 + 7_200_000)
    for name in ("snapshot-v1.bin", "snapshot-v1-mark-v2.bin", "snapshot-v1-mark-v3.bin"):
        assert SnapshotHeader.decode(GOLDEN.with_name(name).read_bytes()) == expected


def test_the_golden_header() -> None:
    assert CancelRecord.decode(RECORD, "golden").offsets.tolist() == [3, 8]
    assert SnapshotHeader.decode(GOLDEN.read_bytes()) == GOLDEN_HEADER
    assert GOLDEN_HEADER.encode() == GOLDEN.read_bytes()


SCHEDULED = replace(
    GOLDEN_HEADER,
    schedules={
        name: encode_schedule(
            StoredSchedule(7, 9, 1_800_000_000_000, 2, 1, 1_800_000_000_000, 5, 6, b'{"name":"t"}')
        )
        for name in ("a", "täglich")
    },
)


def test_the_golden_header_with_schedules() -> None:
    data = GOLDEN.with_name("snapshot-v3-schedules.bin").read_bytes()
    assert SnapshotHeader.decode(data) == SCHEDULED
    assert SCHEDULED.encode() == data
    of_version = of_version_at(8, 9)
    known = (8 * 8, 8 * 8 + 1)  # version 2 or 1 instead of 3
    assert_every_change_is_seen(
        *(SnapshotHeader.decode, data),
        of_version=lambda bit: of_version(bit) and bit not in known,
        match="snapshot",
    )


def test_a_program_without_schedules_refuses_a_snapshot_with_some_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_header, "VERSION", 2)
    data = GOLDEN.with_name("snapshot-v3-schedules.bin").read_bytes()
    with pytest.raises(UnsupportedVersion, match="version of the snapshot; got 3; expected 2"):
        SnapshotHeader.decode(data)


i64 = st.integers(-(2**63), 2**63 - 1)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)


@given(
    st.dictionaries(i64, st.builds(SlotInfo, u64, u64, u64, i64, u32), max_size=5),
    st.dictionaries(
        u64, st.lists(st.builds(ProducerEntry, i64, i64, i64, u64, u32), max_size=5), max_size=5
    ),
)
def test_round_trip(slots: dict[int, SlotInfo], producers: dict[int, list[ProducerEntry]]) -> None:
    header = replace(GOLDEN_HEADER, slots=slots, producers=producers)
    assert SnapshotHeader.decode(header.encode()) == header


def test_every_change_is_seen() -> None:
    data = GOLDEN.read_bytes()
    of_version = of_version_at(8, 9)
    known = 8 * 8  # version 3 instead of 2
    assert_every_change_is_seen(
        *(SnapshotHeader.decode, data),
        of_version=lambda bit: of_version(bit) and bit != known,
        match="snapshot",
    )


def test_another_version_is_refused_by_name() -> None:
    data = bytearray(GOLDEN.read_bytes())
    struct.pack_into("<H", data, 8, 4)
    with pytest.raises(UnsupportedVersion, match="version of the snapshot; got 4; expected 3"):
        SnapshotHeader.decode(bytes(data))


def forged(at: int, value: bytes) -> bytes:
    """Other bytes under a CRC that is right: a sender that errs."""
    data = bytearray(GOLDEN.read_bytes())
    data[at : at + len(value)] = value
    struct.pack_into("<I", data, 12, crc32c(bytes(data[16:])))
    return bytes(data)


CHECKPOINT_BYTES = struct.unpack_from("<I", GOLDEN.read_bytes(), 32)[0]
SLOTS_AT = 40 + CHECKPOINT_BYTES
CANCELLED_AT = SLOTS_AT + 2 * 44 + (16 + 2 * 40) + 16


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (24, struct.pack("<I", 3)),  # more slots than there are
        (24, struct.pack("<I", 1)),
        (24, struct.pack("<I", 2**32 - 1)),
        (28, struct.pack("<I", 1)),  # producers
        (28, struct.pack("<I", 2**32 - 1)),
        (32, struct.pack("<I", 2**32 - 1)),  # the checkpoint's length
        (32, struct.pack("<I", 0)),
        (36, b"\1"),  # the length of losses
        (10, b"\1"),  # reserved
        (40, b"["),  # no checkpoint
        (SLOTS_AT, struct.pack("<q", 1_900_000_000)),  # the same second twice
        (SLOTS_AT, struct.pack("<q", 1_900_000_001)),  # not ascending
        (SLOTS_AT + 2 * 44 + 8, struct.pack("<I", 1)),  # fewer entries of a producer
        (SLOTS_AT + 2 * 44 + 8, struct.pack("<I", 2**32 - 1)),
        (SLOTS_AT + 2 * 44 + 12, b"\1"),
        (CANCELLED_AT + 8, struct.pack("<I", 1)),  # fewer records of cancels
        (CANCELLED_AT + 8, struct.pack("<I", 2**32 - 1)),
        (CANCELLED_AT + 12, b"\1"),  # reserved
        (CANCELLED_AT + 16, struct.pack("<q", 5)),  # the same second twice
        (CANCELLED_AT + 16, struct.pack("<q", 6)),  # not ascending
        (CANCELLED_AT + 24, struct.pack("<I", len(RECORD) + 1)),
        (CANCELLED_AT + 28, b"\3"),  # more offsets than there are
    ],
)
def test_what_does_not_add_up_is_refused(at: int, value: bytes) -> None:
    with pytest.raises(Damaged, match="snapshot"):
        SnapshotHeader.decode(forged(at, value))


# -- source and sink


def source_of(peer: Replica) -> SnapshotSource:
    return SnapshotSource(peer.files, peer.state.load())


Chunk = tuple[int, int, bytes]


def received(peer: Replica, header: bytes, chunks: Iterator[Chunk] | list[Chunk]) -> StateUpdate:
    sink = SnapshotSink(peer.files, GROUP)
    sink.begin()
    sink.header(header)
    all_chunks(sink, chunks)
    return sink.finish()


def all_chunks(sink: SnapshotSink, chunks: Iterator[Chunk] | list[Chunk]) -> None:
    for chunk in chunks:
        sink.chunk(*chunk)


def test_the_source_tells_what_it_is() -> None:
    sender = new_peer()
    source = source_of(sender)
    assert (source.index, source.epoch) == (9, 3)
    assert source.nbytes == sum(map(len, sender.slot_content().values()))
    header = SnapshotHeader.decode(source.header())
    stored = sender.state.load()
    assert (header.checkpoint, header.slots) == (stored.checkpoint, stored.slots)
    assert header.producers == stored.producers


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 30])
def test_chunks_are_the_committed_bytes(size: int) -> None:
    """What a spill has written since, or a crash has left, does not travel."""
    sender = new_peer()
    source = source_of(sender)
    content = sender.slot_content()
    for second in content:
        handle = sender.files.open(path_of(second))
        handle.pwrite([b"uncommitted"], handle.size())
    got: dict[int, bytes] = {}
    for second, position, data in source.chunks(size):
        assert position == len(got.setdefault(second, b""))
        assert 0 < len(data) <= min(size, CHUNK_BYTES_MAX)
        got[second] += data
    assert got == content


def test_a_snapshot_without_slot_files() -> None:
    sender, peer = Replica(), old_peer()
    sender.fill(index=8, slots={}, entries=[], first_index=9)
    install(peer.files, peer.state, received(peer, source_of(sender).header(), []))
    assert peer.slot_content() == {}
    assert peer.files.list("slots") == []
    assert peer.faults() == []


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    sender = Replica(OsFiles(tmp_path / "sender"))
    keys = [(SECOND * 1000, offset) for offset in range(80)]
    sender.fill(
        index=1, slots={SECOND: [keys[:40], keys[40:]]}, entries=[], pad=300_000, first_index=2
    )
    peer = Replica(OsFiles(tmp_path / "peer"))
    source = source_of(sender)
    assert source.nbytes > 20 << 20
    tracemalloc.start()
    try:
        update = received(peer, source.header(), source.chunks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert update.slots == sender.state.load().slots


def test_real_files_and_a_real_state(tmp_path: Path) -> None:
    sender = new_peer()
    lost = Loss(SECOND, 3, 1, "damaged/there", at_most=True)
    sender.state.commit(StateUpdate(losses=[lost]))
    peer = Replica(OsFiles(tmp_path), LmdbState(tmp_path))
    write_slots(peer.files, {SECOND + 5: [[((SECOND + 5) * 1000, 0)]]})
    own = Loss(SECOND + 5, 1, 0)
    peer.state.commit(
        StateUpdate(store_id=peer.store, epoch=4, vote="me", voter=True, losses=[own])
    )
    peer.journal(first_index=1).close()
    source = source_of(sender)
    stored = install(peer.files, peer.state, received(peer, source.header(), source.chunks()))
    assert stored == peer.state.load() == complete_switch(peer.files, peer.state)
    assert (stored.epoch, stored.vote, stored.voter, stored.store_id) == (4, "me", True, peer.store)
    assert peer.slot_content() == sender.slot_content()
    assert stored.losses == [replace(lost, kept="")]
    assert peer.faults() == []
    [note] = peer.notes()
    assert "a repair that lost at most 3" in str(note)
    assert not (tmp_path / "incoming").exists()
    peer.state.close()


# -- what is refused


def with_header(change: Callable[[SnapshotHeader], SnapshotHeader]) -> bytes:
    stored = new_peer().state.load()
    header = SnapshotHeader(stored.checkpoint, stored.slots, stored.producers)
    return change(header).encode()


def regrouped(header: SnapshotHeader) -> SnapshotHeader:
    config = {**header.checkpoint.config, "group": "another"}
    return replace(header, checkpoint=replace(header.checkpoint, config=config))


def test_another_group_is_refused_by_name() -> None:
    sink = SnapshotSink(old_peer().files, GROUP)
    sink.begin()
    with pytest.raises(InvalidConfiguration, match=f"got another; expected {GROUP}"):
        sink.header(with_header(regrouped))
    with pytest.raises(InvalidConfiguration, match="group"):
        sink.header(SnapshotHeader(Checkpoint(index=9), {}, {}).encode())


@pytest.mark.parametrize("committed", [9, 10])
def test_what_would_take_committed_entries_back_is_refused(committed: int) -> None:
    sink = SnapshotSink(old_peer().files, GROUP, after_index=committed)
    sink.begin()
    with pytest.raises(LookupError, match=f"ends at entry 9, and {committed} is committed"):
        sink.header(source_of(new_peer()).header())
    sink = SnapshotSink(old_peer().files, GROUP, after_index=8)
    sink.begin()
    assert sink.header(source_of(new_peer()).header()).checkpoint.index == 9


def test_no_room_is_told_before_anything_is_written() -> None:
    peer = old_peer()
    peer.files.free = 1000
    sink = SnapshotSink(peer.files, GROUP)
    sink.begin()
    with pytest.raises(OSError, match="no room") as caught:
        sink.header(source_of(new_peer()).header())
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    "info",
    [
        SlotInfo(0, 1, 0, 1, 0),
        SlotInfo(9, 0, 0, 1, 0),
        SlotInfo(9, 1, 2, 1, 0),
        SlotInfo(9, 1, 0, 30, 0),  # the checkpoint's next offset
    ],
)
def test_a_catalog_that_contradicts_itself_is_refused(info: SlotInfo) -> None:
    sink = SnapshotSink(old_peer().files, GROUP)
    sink.begin()
    with pytest.raises(Damaged, match="snapshot"):
        sink.header(with_header(lambda one: replace(one, slots={SECOND: info})))


@pytest.mark.parametrize("number", [HOUR + 1, DAY + HOUR_S, 3 << WIDTH_BITS, (1 << 63) - 1])
def test_numbers_of_no_slots_are_refused(number: int) -> None:
    """Nobody could say when such a slot ends, and a receiver would stop at the first look."""
    sink = SnapshotSink(old_peer().files, GROUP)
    sink.begin()
    info = SlotInfo(9, 1, 0, 1, 0)
    with pytest.raises(Damaged, match="the numbers of slots"):
        sink.header(with_header(lambda one: replace(one, slots={number: info})))
    with pytest.raises(Damaged, match="the numbers of slots"):
        sink.header(with_header(lambda one: replace(one, losses=[Loss(number, 1, 0)])))


def lost(chunks: list[Chunk]) -> list[Chunk]:
    return chunks[:3] + chunks[4:]


def repeated(chunks: list[Chunk]) -> list[Chunk]:
    return chunks[:3] + chunks[2:]


def ends_early(chunks: list[Chunk]) -> list[Chunk]:
    return chunks[:-1]


def goes_on(chunks: list[Chunk]) -> list[Chunk]:
    return [*chunks, (SECOND + 9, 0, b"more")]


def file_again(chunks: list[Chunk]) -> list[Chunk]:
    first = [chunk for chunk in chunks if chunk[0] == chunks[0][0]]
    return first + first


def swapped(chunks: list[Chunk]) -> list[Chunk]:
    return [chunks[1], chunks[0], *chunks[2:]]


def too_long(chunks: list[Chunk]) -> list[Chunk]:
    at = max(n for n, chunk in enumerate(chunks) if chunk[0] == SECOND)
    second, position, data = chunks[at]
    return [*chunks[:at], (second, position, data + b"\0"), *chunks[at + 1 :]]


def empty(chunks: list[Chunk]) -> list[Chunk]:
    second, position, _ = chunks[0]
    return [(second, position, b""), *chunks]


def one_bit(chunks: list[Chunk]) -> list[Chunk]:
    second, position, data = chunks[2]
    return [*chunks[:2], (second, position, flipped(data, 77)), *chunks[3:]]


def other_file(chunks: list[Chunk]) -> list[Chunk]:
    """A chunk of another file in between."""
    return [chunks[0], chunks[-1], *chunks[1:]]


@pytest.mark.parametrize(
    "change",
    [
        lost,
        repeated,
        ends_early,
        goes_on,
        file_again,
        swapped,
        too_long,
        empty,
        one_bit,
        other_file,
    ],
)
def test_chunks_that_are_not_what_the_header_says(
    change: Callable[[list[Chunk]], list[Chunk]],
) -> None:
    peer, source = old_peer(), source_of(new_peer())
    before, source_slots = peer.slot_content(), SnapshotHeader.decode(source.header()).slots
    chunks = list(source.chunks(500))
    with pytest.raises(Damaged, match=r"incoming/slots/\d+(\+\d+)?\.arrows") as caught:
        received(peer, source.header(), change(chunks))
    assert "Nothing was changed" in caught.value.remedy
    assert peer.slot_content() == before
    # And the same peer takes the sound one, as far as it has not got it.
    assert transfer(peer, source_for(new_peer())).slots == source_slots


def test_a_file_that_grew_under_the_sink_is_seen() -> None:
    peer, source = old_peer(), source_of(new_peer())
    sink = SnapshotSink(peer.files, GROUP)
    sink.begin()
    sink.header(source.header())
    first, *rest = source.chunks(500)
    sink.chunk(*first)
    store(peer.files, f"incoming/slots/{SECOND}.arrows", bytes(1 << 16))
    with pytest.raises(Damaged, match="65536 bytes"):
        all_chunks(sink, rest)


def flip_a_bit(files: CrashFiles, path: str) -> None:
    files.replace(path, flipped(files.content(path), 999))


def shorten(files: CrashFiles, path: str) -> None:
    files.replace(path, files.content(path)[:-1])


@pytest.mark.parametrize("damage", [flip_a_bit, shorten, CrashFiles.remove])
def test_a_damaged_file_of_the_sender_does_not_travel(damage: Callable[..., None]) -> None:
    sender, peer = new_peer(), old_peer()
    path = path_of(SECOND + 2)
    damage(sender.files, path)
    source = source_of(sender)
    with pytest.raises(Damaged, match=path):
        received(peer, source.header(), source.chunks(300))


def test_what_is_discarded_leaves_nothing_behind() -> None:
    peer, source = old_peer(), source_of(new_peer())
    sink = SnapshotSink(peer.files, GROUP)
    sink.begin()
    sink.header(source.header())
    chunks = source.chunks(500)
    sink.chunk(*next(chunks))
    assert (sink.received, sink.expected) == (500, source.nbytes)
    sink.close()
    assert peer.files.list("incoming/slots") == [f"{SECOND}.arrows"]
    assert sink.expected == 0
    with pytest.raises(AssertionError, match="before the header"):
        sink.chunk(*next(chunks))
    for _ in range(2):
        assert len(list(sink.discard())) < 3
        assert "incoming" not in peer.files.list(".")


def test_a_full_disk_ends_a_reception_and_nothing_else() -> None:
    peer, source = old_peer(), source_of(new_peer())
    before = peer.slot_content()
    sink = SnapshotSink(peer.files, GROUP)
    sink.begin()
    sink.header(source.header())
    peer.files.free = 600
    with pytest.raises(OSError, match="No space"):
        all_chunks(sink, source.chunks(500))
    list(sink.discard())
    peer.files.free = 1 << 30
    assert peer.slot_content() == before
    assert received(peer, source.header(), source.chunks()).incoming


# -- opening


def test_a_reception_that_was_never_committed_changes_nothing_at_open() -> None:
    peer, source = old_peer(), source_of(new_peer())
    before = peer.state.load()
    received(peer, source.header(), source.chunks())  # whole, and never committed
    assert complete_switch(peer.files, peer.state) == before
    assert "incoming" in peer.files.list(".")
    assert peer.faults() == []


def test_a_file_that_is_missing_after_the_commit_is_damage() -> None:
    peer, source = old_peer(), source_of(new_peer())
    peer.state.commit(received(peer, source.header(), source.chunks()))
    peer.files.unlink(f"incoming/slots/{SECOND + 2}.arrows")
    with pytest.raises(Damaged, match=rf"slots/{SECOND + 2}\.arrows .* no such file"):
        complete_switch(peer.files, peer.state)
    assert peer.state.load().incoming


# -- set aside


def test_a_damaged_directory_is_set_aside_whole(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    for number in (1, 2):
        for part in ("journal", "slots", "state", "topics", "incoming"):
            (tmp_path / part).mkdir(exist_ok=True)
            (tmp_path / part / "content").write_text(f"{part} {number}")
        assert set_aside(files) == f"damaged-{number}"
        assert sorted(one.name for one in tmp_path.iterdir() if "damaged" not in one.name) == [
            "topics"
        ]
    for number in (1, 2):
        for part in ("journal", "slots", "state", "incoming"):
            text = (tmp_path / f"damaged-{number}" / part / "content").read_text()
            assert text == f"{part} {number}"


@pytest.mark.parametrize("after", range(4))
def test_a_set_aside_that_was_interrupted_goes_on(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles(tmp_path)
    for part in ("journal", "slots", "state"):
        (tmp_path / part).mkdir()
    rename = OsFiles.rename
    moved: list[str] = []

    def stops(self: OsFiles, source: str, target: str) -> None:
        if len(moved) == after:
            raise KeyboardInterrupt
        moved.append(source)
        rename(self, source, target)

    monkeypatch.setattr(OsFiles, "rename", stops)
    try:
        set_aside(files)
    except KeyboardInterrupt:
        assert (tmp_path / "state").exists()  # or the next start would see a new directory
        monkeypatch.undo()
        assert set_aside(files) == "damaged-1"
    assert sorted(one.name for one in (tmp_path / "damaged-1").iterdir()) == [
        "journal",
        "slots",
        "state",
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["damaged-1"]


def test_a_directory_that_was_set_aside_opens_empty(tmp_path: Path) -> None:
    files = OsFiles(tmp_path)
    state: Any = LmdbState(tmp_path)
    state.commit(StateUpdate(store_id=b"s" * 16, epoch=3, vote="v", voter=True))
    state.close()
    set_aside(files)
    state = LmdbState(tmp_path)
    stored = complete_switch(files, state)
    assert (stored.store_id, stored.epoch, stored.vote, stored.voter) == (b"", 0, "", False)
    state.close()
