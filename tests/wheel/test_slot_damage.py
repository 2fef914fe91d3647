"""Slot files, state records and the catalog under damage; and the copies nobody may lose.

Every bit of a slot file and of a state record is flipped, every file cut at every byte. What was
not written is refused by name or cut off, never delivered, and what is sound is not touched by it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import lmdb
import numpy as np
import pyarrow as pa
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.rows import sort_rows
from slotwheel.wheel.slots.slot import DAY_S, path_of, slot_with
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.state import (
    Checkpoint,
    LmdbState,
    ProducerEntry,
    SlotInfo,
    StateUpdate,
    seal,
    unseal,
)
from slotwheel.wheel.wheel import Wheel
from support.crashfs import MODES, Mode
from support.crashlife import START_MS, PowerCut, Steps, World
from support.damage import assert_every_change_is_seen, flipped
from support.mending import put_in_place
from support.wheels import Node, master_of, opened

SECOND = START_MS // 1000 + 5
PATH = path_of(SECOND)
NOW = 1_800_000_000_000


def spilled_world() -> World:
    """A wheel with one slot file of two blocks and some rows in another one."""
    world = World(Steps(), embedded=False)
    world.open()
    world.append("a", [("x", 5100), ("y", 5700), ("x", 9000)])
    world.commit()
    world.spill(everything=True)
    world.append("b", [("x", 5200), ("z", 5999)])
    world.commit()
    world.spill(everything=True)
    return world


def reopen(world: World) -> None:
    world.let_go()
    world.open()


# -- damage is seen ------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_slot_file_is_seen_by_its_reader() -> None:
    world = spilled_world()
    info = world.state.durable.slots[SECOND]
    content = world.files.content(PATH)
    slot_files = SlotFiles(world.files, 4)
    assert len(slot_files.read(SECOND, info)) == 2
    for bit in range(len(content) * 8):
        world.files.replace(PATH, flipped(content, bit))
        with pytest.raises(Damaged, match=str(SECOND)):
            slot_files.read(SECOND, info)


def test_a_damaged_slot_is_not_delivered_and_its_repair_brings_every_row() -> None:
    world = spilled_world()
    content = world.files.content(PATH)
    rng = Random(1)
    for _ in range(40):
        world.files.replace(PATH, flipped(content, rng.randrange(len(content) * 8)))
        world.let_go()
        world.wheel = Wheel.open(world.files, world.state, world.config, world.now_ms)
        with pytest.raises(Damaged, match=str(SECOND)):
            master_of(world.wheel).next_chunk(START_MS + 20_000)
        assert not world.wheel.clean(START_MS + 20_000)
    assert not world.book.offered
    world.files.replace(PATH, content)
    reopen(world)
    world.finish()
    assert len(world.book.answered) == 5


def test_intake_goes_on_while_a_damaged_slot_waits(tmp_path: Path) -> None:
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        node.send([(NOW + 5, "t", b"spilled")], NOW)
        node.wheel.spill(NOW, everything=True)
        path = node.path / path_of((NOW + 5) // 1000)
        sound = path.read_bytes()
        path.write_bytes(flipped(sound, len(sound) * 8 - 160))
        with pytest.raises(Damaged, match=path.name):
            node.next_chunk(NOW + 5)
        node.send([(NOW + 6, "t", b"later")], NOW)
        path.write_bytes(sound)
        assert node.delivered(NOW + 6) == [b"spilled", b"later"]


def test_a_slot_file_cut_at_any_byte_is_refused_at_open_and_stays_as_it_is() -> None:
    world = spilled_world()
    content = world.files.content(PATH)
    for length in range(len(content)):
        world.files.replace(PATH, content[:length])
        with pytest.raises(Damaged, match=str(SECOND)):
            Wheel.open(world.files, world.state, world.config, world.now_ms)
        assert world.files.content(PATH) == content[:length]
    world.files.replace(PATH, content)
    reopen(world)
    world.finish()


@pytest.mark.parametrize("junk", [b"\0", b"\xff" * 700, bytes(5000)])
def test_bytes_behind_the_recorded_length_were_never_written(junk: bytes) -> None:
    world = spilled_world()
    content = world.files.content(PATH)
    world.files.replace(PATH, content + junk)
    reopen(world)
    assert world.files.content(PATH) == content
    assert world.wheel.mended
    world.finish()


RECORDS = StateUpdate(
    store_id=bytes(range(16)),
    epoch=3,
    vote="node-1",
    checkpoint=Checkpoint(7, 3, 40, 41, 1, Marks(Mark(5, 6, 7), 3), {"group": "default"}),
    slots={SECOND: SlotInfo(4096, 10, 1, 39, 0x12345678)},
    producers={7: [ProducerEntry(0, 0, START_MS, 2, 5), ProducerEntry(1, 5, START_MS, 3, 5)]},
)


def records_of(path: Path) -> list[tuple[str, bytes, bytes]]:
    """Every record of a state store but the version: database, key, bytes."""
    found = []
    with lmdb.open(str(path / "state"), max_dbs=3) as env:
        for name in ("meta", "slots", "producers"):
            database = env.open_db(name.encode())
            with env.begin(db=database) as txn:
                found += [(name, bytes(k), bytes(v)) for k, v in txn.cursor() if k != b"version"]
    return found


def put(path: Path, name: str, key: bytes, record: bytes) -> None:
    with lmdb.open(str(path / "state"), max_dbs=3) as env:
        database = env.open_db(name.encode())
        with env.begin(write=True, db=database) as txn:
            txn.put(key, record)


def test_every_flipped_bit_of_a_state_record_is_refused(tmp_path: Path) -> None:
    state = LmdbState(tmp_path)
    state.commit(RECORDS)
    state.close()
    records = records_of(tmp_path)
    assert len(records) == 6
    rng = Random(2)
    for name, key, record in records:
        unsealed = partial(lambda of, data: unseal(of, data, "state"), key)
        assert_every_change_is_seen(unsealed, record, match="checksum")
        put(tmp_path, name, key, flipped(record, rng.randrange(len(record) * 8)))
        state = LmdbState(tmp_path)
        with pytest.raises(Damaged, match="checksum"):
            state.load()
        state.close()
        put(tmp_path, name, key, record)
    state = LmdbState(tmp_path)
    assert state.load().slots == RECORDS.slots
    state.close()


def test_a_record_under_another_key_is_refused() -> None:
    """The length of one slot must not be taken for another's."""
    with pytest.raises(Damaged):
        unseal(b"slot 2", seal(b"slot 1", b"length"), "state")


# -- what has a receipt --------------------------------------------------------------------------


def test_a_receipt_survives_the_loss_of_every_unsynced_page() -> None:
    world = World(Steps(), embedded=False)
    world.open()
    for number in range(60):
        world.append(f"batch {number}", [("x", 1000 + number), ("y", 90_000)])
        world.commit()
        if number % 20 == 19:
            world.spill(everything=True)
        assert len(world.book.receipts) == 2 * (number + 1)
        after = World(Steps(), embedded=False)
        after.files = world.files.survivors("durable")
        after.state.durable = world.state.durable
        after.book = world.book
        after.open()  # holds every receipt against what is stored
        assert set(after.stored()) >= world.book.receipts


# -- what is deleted was delivered ---------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_between_delivery_mark_and_deletion_loses_no_row(mode: Mode) -> None:
    def play(world: World) -> None:
        world.wait(7_000)
        world.deliver()
        world.wheel.clean(world.now_ms)  # before the mark
        world.clean()  # behind it
        world.wait(3_000)
        world.deliver()
        world.clean()

    world = spilled_world()
    first = world.steps.count + 1
    play(world)
    last = world.steps.count
    assert {"state commit", f"unlink {PATH}"} <= set(world.steps.names[first:])
    for stop_at in range(first, last + 1):
        for seed in range(5 if mode == "random" else 1):
            world = spilled_world()
            world.steps.stop_at = stop_at
            with pytest.raises(PowerCut):
                play(world)
            answered = set(world.book.answered)
            world.crash(mode, Random(seed))
            world.open()
            assert set(world.stored()) | answered >= world.book.receipts
            world.finish()
            assert world.book.answered == world.book.receipts


# -- catalog and files ---------------------------------------------------------------------------


def test_a_slot_file_that_is_missing_is_refused_by_name() -> None:
    world = spilled_world()
    world.files.remove(PATH)
    with pytest.raises(Damaged, match=f"{PATH}.*no such file"):
        Wheel.open(world.files, world.state, world.config, world.now_ms)


def test_a_slot_file_without_a_record_is_removed_and_other_files_are_left_alone() -> None:
    world = spilled_world()
    world.files.replace(path_of(SECOND + 1), b"never committed")
    world.files.replace("slots/notes.txt", b"somebody's")
    names = world.files.list("slots")
    wheel = Wheel.open(world.files, world.state, world.config, world.now_ms)
    assert set(names) - set(world.files.list("slots")) == {f"{SECOND + 1}.arrows"}
    assert len(wheel.mended) == 1


def test_a_file_that_a_reader_opens_while_it_is_deleted_is_not_written_again() -> None:
    """The doomed file's handle came back into the cache, and the next spill to that second went
    into a file without a name."""
    world = spilled_world()
    slot_files = world.wheel._storage.slot_files
    unlink = world.files.unlink

    def unlink_while_somebody_reads(path: str) -> None:
        with slot_files.handles.use(path):
            pass
        unlink(path)

    world.files.unlink = unlink_while_somebody_reads  # type: ignore[method-assign]
    world.wait(12_000)
    world.deliver()
    world.clean()
    assert world.files.list("slots") == []
    world.append("late", [("x", 5300), ("y", 5301)])
    world.commit()
    world.spill(everything=True)
    world.check_disk()
    world.crash("durable", Random(0))
    world.open()
    world.finish()


def test_a_slot_that_is_deleted_under_its_reader_has_nothing_left_to_read() -> None:
    """A question about a message comes while the cleaner deletes its slot."""
    world = spilled_world()
    storage = world.wheel._storage
    point = storage.read_point(SECOND)
    world.wait(12_000)
    world.deliver()
    world.clean()
    assert storage.read_second(SECOND, point.files) == []
    assert storage.find(START_MS + 5100, 0) is None


def test_a_slot_file_that_somebody_else_deleted_is_damage_and_stops_no_spill() -> None:
    world = spilled_world()
    storage = world.wheel._storage
    storage.slot_files.close()
    world.files.unlink(PATH)
    info = storage.catalog[SECOND]
    with pytest.raises(Damaged, match="no such file"):
        storage.read_blocks(SECOND, info)
    assert list(world.wheel.damaged()) == [SECOND]
    assert storage.damaged[SECOND].__traceback__ is None, "its frames would keep the file's bytes"
    world.append("c", [("x", 5300), ("x", 9500)])
    world.commit()
    world.spill(everything=True)
    assert not storage.tail.pieces
    storage.note_sound(SECOND, storage.catalog[SECOND], storage.damaged[SECOND])
    assert world.wheel.scrubber.turn(1 << 20).passed
    assert list(world.wheel.damaged()) == [SECOND]


def test_a_deleted_file_is_not_sound_because_somebody_has_it_open(tmp_path: Path) -> None:
    """A peer that takes it for sound mends only the others of that time; and at its next start the
    whole directory counts as damaged."""
    far = WheelConfig(disk_reserve_bytes=0, far_horizon_ms=60 * DAY_S * 1000)
    with opened(tmp_path, far, NOW) as node:
        for due_ms in (NOW + 5_000, NOW + 5 * DAY_S * 1000):
            node.send([(due_ms, "t", b"")], NOW)
        node.wheel.spill(NOW, everything=True)
        storage = node.wheel._storage
        for slot, info in storage.catalog.items():
            assert len(list(storage.select(slot, info, lambda index: index.cancels >= 0))) == 1
            (tmp_path / path_of(slot)).unlink()
        assert node.wheel.scrubber.turn(1 << 20).passed
        assert list(node.wheel.damaged()) == list(storage.catalog)
        for slot, info in storage.catalog.items():
            with pytest.raises(Damaged, match="no such file"):
                list(storage.select(slot, info, lambda index: index.cancels >= 0))
        assert list(node.wheel.damaged()) == list(storage.catalog)


def test_damage_that_is_found_while_a_reader_is_at_it_stays_on_record() -> None:
    """The reader had the bytes before they were damaged."""
    world = spilled_world()
    storage, info = world.wheel._storage, world.wheel._storage.catalog[SECOND]
    content = world.files.content(PATH)
    with storage._reading(SECOND, info):
        world.files.replace(PATH, flipped(content, 9000))
        assert world.wheel.scrubber.turn(1 << 20).passed
        assert list(world.wheel.damaged()) == [SECOND]
    assert list(world.wheel.damaged()) == [SECOND]
    scrubber = world.wheel.scrubber
    world.files.replace(PATH, content)
    assert scrubber.turn(1 << 20).passed
    assert world.wheel.damaged() == {}
    scrubber.turn(100)
    world.files.replace(PATH, flipped(content, 80))  # in what the scrubber has read by now
    with pytest.raises(Damaged):
        storage.read_blocks(SECOND, info)
    while not scrubber.turn(100).passed:
        pass
    assert list(world.wheel.damaged()) == [SECOND]


def test_the_scrubber_finds_what_any_reader_would_a_little_at_a_time() -> None:
    world = spilled_world()
    scrubber = world.wheel.scrubber
    content = world.files.content(PATH)
    while not scrubber.turn(100).passed:
        pass
    assert world.wheel.damaged() == {}
    for bit in range(0, len(content) * 8, 1001):
        world.files.replace(PATH, flipped(content, bit))
        turns = 1
        while not scrubber.turn(700).passed:
            turns += 1
        assert turns > len(content) // 700
        [(second, text)] = world.wheel.damaged().items()
        assert second == SECOND
        assert PATH in text
    world.files.replace(PATH, content)  # somebody restored it
    scrubber.turn(1 << 20)
    assert world.wheel.damaged() == {}
    world.finish()


# -- cancels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_cancel_that_was_answered_survives_and_one_that_was_not_is_unknown(mode: Mode) -> None:
    world = spilled_world()
    assert world.cancel("a", 0) is CancelAnswer.CANCELLED
    first = world.steps.count + 1
    world.cancel("b", 0)
    for stop_at in range(first, world.steps.count + 1):
        again = spilled_world()
        again.cancel("a", 0)
        again.steps.stop_at = stop_at
        with pytest.raises(PowerCut):
            again.cancel("b", 0)
        again.crash(mode, Random(stop_at))
        again.open()
        again.finish()
        assert (SECOND * 1000 + 100, 0) not in again.book.answered


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_slot_that_was_healed_under_an_open_reader_is_read_whole(
    tmp_path: Path, more: int
) -> None:
    """A peer's rows make a file of fewer blocks: shorter, as long, or longer than the one read."""
    node = Node(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW)
    due = NOW + 60_000
    for number in range(6):
        node.send([(due + number, "t", b"%d" % number)], NOW)
        node.wheel.spill(NOW, everything=True)
    storage = node.wheel._storage
    second = due // 1000
    assert master_of(node.wheel).prepare(due - 1_000), "it was read ahead"
    before = storage.catalog[second]
    rows = sort_rows(pa.concat_batches(storage.read_blocks(second, before)))
    put_in_place(storage, second, [rows])
    size = 10
    if more:  # as long as the old one, or longer, once a last row is spilled
        size += before.length - (storage.catalog[second].length + one_row(tmp_path / "one", size))
        size += 800 * (more - 1)
    node.send([(due + 500, "t", b"x" * size)], due - 900)
    node.wheel.spill(due - 900, everything=True)
    after = storage.catalog[second].length
    assert [after < before.length, after == before.length, after > before.length][more]
    found: list[bytes] = []
    while (chunk := node.next_chunk(due + 5_000)) is not None:
        found += chunk.rows.column("value").to_pylist()
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    assert found == [*(b"%d" % number for number in range(6)), b"x" * size]
    node.close()


def test_files_that_became_one_under_an_open_reader_are_read_whole(tmp_path: Path) -> None:
    """The file of a second gets a row behind the reader's back, and goes into that of the day: into
    a shorter file than the one that was read."""
    day_ms = 86_400_000
    config = WheelConfig(disk_reserve_bytes=0, far_horizon_ms=10 * day_ms)
    begin = NOW - NOW % day_ms
    due = begin + 5 * day_ms + 1_000
    node = Node(tmp_path, config, begin)
    for number in range(6):
        node.send([(due + number, "t", b"%d" % number)], begin)
        node.wheel.spill(begin, everything=True)
    node.send([(due + 6, "t", b"6")], due - 60_000)
    node.wheel.spill(due - 60_000, everything=True)
    storage = node.wheel._storage
    second = due // 1000
    day, of_second = slot_with(second, DAY_S), second
    assert master_of(node.wheel).prepare(due - 1_000), "it was read ahead"
    while master_of(node.wheel).prepare(due - 1_000):
        pass
    before = storage.catalog[day]
    node.send([(due + 500, "t", b"7")], due - 900)
    node.wheel.spill(due - 900, everything=True)
    rows = [
        block
        for slot in (day, of_second)
        for block in storage.read_blocks(slot, storage.catalog[slot])
    ]
    put_in_place(storage, day, [sort_rows(pa.concat_batches(rows))], [day, of_second])
    assert list(storage.catalog) == [day]
    assert storage.catalog[day].length < before.length
    found: list[bytes] = []
    while (chunk := node.next_chunk(due + 900)) is not None:
        found += chunk.rows.column("value").to_pylist()
        master_of(node.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    assert found == [b"%d" % number for number in range(8)]
    node.close()


def one_row(path: Path, size: int) -> int:
    """How many bytes a block of one row with such a value adds to a slot file."""
    node = Node(path, WheelConfig(disk_reserve_bytes=0), NOW)
    lengths = []
    for _ in range(2):
        node.send([(NOW + 60_000, "t", b"x" * size)], NOW)
        node.wheel.spill(NOW, everything=True)
        lengths.append(node.wheel._storage.catalog[NOW // 1000 + 60].length)
    node.close()
    return lengths[1] - lengths[0]
