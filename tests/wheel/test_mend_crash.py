"""A repair, and a slot made anew from a peer, cut short at every step: what is found is the damaged
file or the new one, what is sound is there once, and what is lost is on record once.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import cache
from random import Random

import pyarrow as pa
import pytest

from slotwheel.reading.verify.salvage import _bytes, repair, salvage
from slotwheel.reading.verify.slots import verify_slots, verify_state
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.files import Files
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.peers.heal import SlotRows, rows_below
from slotwheel.wheel.schema import ROW, times
from slotwheel.wheel.slots.blocks import encode_blocks, seal, sound_blocks
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.slots.slotfile import schema_message
from slotwheel.wheel.state import Loss, StateUpdate
from slotwheel.wheel.wheel import Wheel
from support.crashfs import MODES, CrashFiles, CrashHandle, Mode, PowerCut
from support.memstate import MemoryState
from support.steps import Steps
from support.wheels import batch

NOW = 1_800_000_000_000
SECOND = NOW // TICK_MS + 60
PATH = path_of(SECOND)
CONFIG = WheelConfig(disk_reserve_bytes=0, segment_bytes=1_000)


class Directory:
    """A stopped node's files and state."""

    def __init__(self, files: CrashFiles, state: MemoryState) -> None:
        self.files = files
        self.state = state

    @classmethod
    def with_three_blocks(cls) -> Directory:
        """In one slot file, of four rows each, of which the journal has dropped all."""
        steps = Steps()
        found = cls(CrashFiles(steps=steps), MemoryState(step=steps.hit))
        wheel = found.opened()
        for block in range(3):
            append(wheel, [(SECOND * TICK_MS + 10 * n + block, "t", b"sound") for n in range(4)])
            wheel.spill(NOW, everything=True)
        for _ in range(3):
            append(wheel, [(NOW + 90_000, "later", b"x" * 900)])
            wheel.spill(NOW, everything=True)
        wheel.close()
        return found

    def damaged(self) -> Directory:
        """The second block is."""
        content = bytearray(self.files.content(PATH))
        _, (start, end), _ = sound_blocks(memoryview(bytes(content)))
        content[(start + end) // 2] ^= 8
        self.files.replace(PATH, bytes(content))
        return self

    def opened(self) -> Wheel:
        return Wheel.open(self.files, self.state, CONFIG, NOW)

    def after_a_cut(self, mode: Mode, rng: Random) -> Directory:
        steps = Steps()
        state = MemoryState(self.state.durable, steps.hit)
        return Directory(self.files.survivors(mode, rng, steps=steps), state)

    def faults(self) -> int:
        stored = self.state.load()
        slots = sum(not item.ok for item in verify_slots(self.files, lambda: stored))
        return slots + (not verify_state(stored).ok)


def append(wheel: Wheel, rows: list[tuple[int, str, bytes]]) -> None:
    wheel.append(batch(rows), NOW)
    while wheel.write_pending(0):
        pass


def values_of(wheel: Wheel) -> int:
    """How many rows there are in the slot, none of them twice."""
    rows = pa.Table.from_batches(rows_below(wheel._storage, SECOND, 1 << 40), ROW)
    offsets = rows.column("offset").to_pylist()
    assert len(set(offsets)) == len(offsets)
    return len(offsets)


@cache
def steps_of_a_repair() -> int:
    directory = Directory.with_three_blocks().damaged()
    before = directory.files.steps.count
    repair(directory.files, directory.state)
    return directory.files.steps.count - before


@pytest.mark.parametrize("mode", MODES)
def test_a_repair_cut_short_anywhere_can_be_done_again(mode: Mode) -> None:
    points = steps_of_a_repair()
    assert points > 8
    before = after = 0
    for point in range(1, points + 1):
        directory = Directory.with_three_blocks().damaged()
        damaged = directory.files.content(PATH)
        directory.files.steps.stop_at = directory.files.steps.count + point
        with pytest.raises(PowerCut):
            repair(directory.files, directory.state)
        directory = directory.after_a_cut(mode, Random(point))
        is_done = bool(directory.state.durable.losses)
        before, after = before + (not is_done), after + is_done
        assert directory.faults() == (0 if is_done else 1), point
        if point % 2:  # a node is started first
            wheel = directory.opened()
            if is_done:
                assert values_of(wheel) == 8
            else:
                with pytest.raises(Damaged):
                    values_of(wheel)
            wheel.close()
            assert directory.files.list("mended") == []
        repair(directory.files, directory.state)
        [loss] = directory.state.durable.losses
        assert (loss.second, loss.rows, loss.cancels) == (SECOND, 4, 0)
        assert directory.files.content(loss.kept) == damaged
        assert directory.faults() == 0
        wheel = directory.opened()
        assert values_of(wheel) == 8
        assert wheel.status().pending == 8 + 3
        wheel.close()
    assert before
    assert after


@pytest.mark.parametrize("mode", MODES)
def test_a_slot_made_anew_is_the_old_one_or_the_new_one(mode: Mode) -> None:
    """With more of the same second in the tail, and a spill behind it."""
    source = Directory.with_three_blocks().opened()
    whole = rows_below(source._storage, SECOND, source._storage.spilled)
    assert sum(block.num_rows for block in whole) == 12
    for point in range(1, 100):
        directory = Directory.with_three_blocks().damaged()
        wheel = directory.opened()
        append(wheel, [(SECOND * TICK_MS + 500, "t", b"in the tail")])
        storage = wheel._storage
        with pytest.raises(Damaged):
            values_of(wheel)
        assert list(wheel.damaged()) == [SECOND]
        directory.files.steps.stop_at = directory.files.steps.count + point
        try:
            storage.replace(SECOND, whole, StateUpdate(), Marks())
        except PowerCut:
            wheel = directory.after_a_cut(mode, Random(point)).opened()
            try:
                assert values_of(wheel) == 13
            except Damaged:
                wheel._storage.replace(SECOND, whole, StateUpdate(), Marks())
        else:
            directory.files.steps.stop_at = None
        assert not wheel.damaged()
        assert values_of(wheel) == 13
        wheel.spill(NOW, everything=True)
        assert values_of(wheel) == 13
        wheel.scrubber.turn(1 << 20)
        assert not wheel.damaged()
        if wheel._storage is storage:
            break
    else:
        pytest.fail("never done")
    assert point > 6


def test_rows_of_a_peer_are_taken_only_if_they_are_all() -> None:
    wheel = Directory.with_three_blocks().opened()
    storage = wheel._storage
    blocks = rows_below(storage, SECOND, storage.spilled)
    info, marks = storage.catalog[SECOND], Marks(Mark(NOW, 0, 100))
    upto, lost = storage.spilled, [Loss(SECOND, 4, 0)]
    SlotRows(SECOND, blocks).check(info, upto, marks)
    with pytest.raises(Damaged, match="verify --against"):
        SlotRows(SECOND, blocks[1:]).check(info, upto, marks)
    SlotRows(SECOND, blocks[1:], lost).check(info, upto, marks)
    without = replace(info, rows=info.rows - 4)
    for rows in (SlotRows(SECOND, blocks[1:], lost), SlotRows(SECOND, blocks)):
        rows.check(without, upto, marks, lost)
        with pytest.raises(Damaged, match="expected rows"):
            rows.check(without, upto, marks)
    delivered = Marks(Mark(SECOND * TICK_MS + 10, 0, 100))
    SlotRows(SECOND, blocks[1:]).check(info, upto, delivered)
    for wrong in (SlotRows(SECOND + 1, blocks), SlotRows(SECOND, blocks[::-1])):
        with pytest.raises(Damaged, match="found"):
            wrong.check(info, upto, delivered)
    with pytest.raises(Damaged, match="offsets below 8"):
        SlotRows(SECOND, blocks).check(info, 8, delivered)
    below = rows_below(storage, SECOND, 6)
    assert [times(block, "offset").tolist() for block in below] == [[0, 1, 2, 3], [4, 5]]
    files: Files = wheel._files
    assert files.list("damaged") == []


def with_one_value(value: bytes) -> Directory:
    steps = Steps()
    found = Directory(CrashFiles(steps=steps), MemoryState(step=steps.hit))
    wheel = found.opened()
    append(wheel, [(SECOND * TICK_MS, "t", value)])
    wheel.spill(NOW, everything=True)
    wheel.close()
    return found


@pytest.mark.parametrize("place", ["metadata", "body"])
def test_a_slot_file_that_somebody_sent_as_a_value_is_not_believed(place: str) -> None:
    other = Directory.with_three_blocks().files.content(PATH)
    directory = with_one_value(b"".join(other + bytes(1) for _ in range(8)))  # one is aligned
    content = bytearray(directory.files.content(PATH))
    content[{"metadata": len(schema_message()) + 5, "body": -20}[place]] ^= 1
    directory.files.replace(PATH, bytes(content))
    [found] = salvage(directory.files, directory.state.load())
    assert found.sound.num_rows == 0
    assert found.journal.num_rows == 1


def test_where_the_journal_knows_a_row_no_block_is_believed() -> None:
    directory = with_one_value(b"genuine")
    wheel = directory.opened()
    [block] = rows_below(wheel._storage, SECOND, 1 << 40)
    wheel.close()
    forged = block.set_column(
        ROW.names.index("value"), ROW.field("value"), pa.array([b"a forge"], pa.binary())
    )
    [data] = encode_blocks(forged, [0])
    parts = seal(data, len(schema_message()))
    directory.files.replace(PATH, schema_message() + b"".join(bytes(part) for part in parts))
    [(found, _)] = repair(directory.files, directory.state)
    assert found.rows().column("value").to_pylist() == [b"genuine"]


@pytest.mark.parametrize("mapped", [False, True])
def test_a_sector_that_cannot_be_read_is_damage(
    monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    if mapped:
        monkeypatch.setattr("slotwheel.reading.verify.slots._MAP_FROM_BYTES", 1)
    value = bytes(range(256)) * 60
    directory = with_one_value(value)
    wheel, content = directory.opened(), directory.files.content(PATH)
    info = wheel._storage.catalog[SECOND]
    pread = CrashHandle.pread

    def failing(handle: CrashHandle, count: int, offset: int) -> bytes:
        if handle._path == PATH and offset < 8192 and offset + count > 4096:
            raise OSError(errno.EIO, "Input/output error")
        return pread(handle, count, offset)

    monkeypatch.setattr(CrashHandle, "pread", failing)
    wheel.scrubber.turn(1 << 20)
    assert list(wheel.damaged()) == [SECOND]
    with pytest.raises(Damaged, match="cannot be read"):
        values_of(wheel)
    wheel.close()
    assert directory.faults() == 1
    rest = _bytes(directory.files, SECOND, info)
    assert rest == content[:4096] + bytes(4096) + content[8192:]
    [(found, _)] = repair(directory.files, directory.state)
    assert found.rows().column("value").to_pylist() == [value]


def test_the_scrubber_throws_out_no_open_file() -> None:
    wheel = Directory.with_three_blocks().opened()
    before = wheel.status().open_handles
    assert wheel.scrubber.turn(1 << 20).nbytes
    assert wheel.status().open_handles == before
    wheel.close()
