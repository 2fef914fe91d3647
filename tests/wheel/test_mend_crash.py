"""A repair, and a slot made anew from a peer, cut short at every step: what is found is the damaged
file or the new one, what is sound is there once, and what is lost is on record once.
"""

from __future__ import annotations

import errno
from contextlib import closing
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
from slotwheel.wheel.peers.heal import DamagedRange, Mending, losses_after
from slotwheel.wheel.peers.shares import rows_within
from slotwheel.wheel.schema import ROW, times
from slotwheel.wheel.slots.blocks import encode_blocks, seal, sound_blocks
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, path_of, slot_with
from slotwheel.wheel.slots.slotfile import schema_message
from slotwheel.wheel.slots.storage import Storage
from slotwheel.wheel.state import Loss, SlotInfo
from slotwheel.wheel.wheel import Wheel
from support.crashfs import MODES, CrashFiles, CrashHandle, Mode, PowerCut
from support.memstate import MemoryState
from support.mending import put_in_place
from support.steps import Steps
from support.wheels import batch

NOW = 1_800_000_000_000
SECOND = NOW // TICK_MS + 60
PATH = path_of(SECOND)
FAR_MS = NOW + 5 * DAY_S * TICK_MS
FAR_HOUR, FAR_DAY = (slot_with(FAR_MS // TICK_MS, width) for width in (HOUR_S, DAY_S))
CONFIG = WheelConfig(disk_reserve_bytes=0, segment_bytes=1_000, far_horizon_ms=60 * DAY_S * TICK_MS)


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
    rows = pa.Table.from_batches(list(rows_within(wheel._storage, SECOND, 1 << 40)), ROW)
    offsets = rows.column("offset").to_pylist()
    assert len(set(offsets)) == len(offsets)
    return len(offsets)


def of_three_widths(*, in_journal: bool = False) -> Directory:
    """A second with four rows in the file of its day, twice, four in that of its hour and two in
    its own. The journal has dropped all of them, or none."""
    steps = Steps()
    directory = Directory(CrashFiles(steps=steps), MemoryState(step=steps.hit))
    config = replace(CONFIG, segment_bytes=1 << 20 if in_journal else CONFIG.segment_bytes)
    wheel = Wheel.open(directory.files, directory.state, config, NOW)
    for ahead_s, count in ((5 * DAY_S, 4), (4 * DAY_S, 4), (DAY_S, 4), (60, 2)):
        append(wheel, [(FAR_MS + n, "t", b"%d" % ahead_s) for n in range(count)])
        wheel.spill(FAR_MS - ahead_s * TICK_MS, everything=True)
    for _ in range(0 if in_journal else 3):
        append(wheel, [(NOW + 90_000, "later", b"x" * 900)])
        wheel.spill(NOW, everything=True)
    wheel.close()
    for slot in (FAR_DAY, FAR_HOUR):  # the last block of each
        content = bytearray(directory.files.content(path_of(slot)))
        *_, (start, end) = sound_blocks(memoryview(bytes(content)))
        content[(start + end) // 2] ^= 8
        directory.files.replace(path_of(slot), bytes(content))
    return directory


def far_rows(wheel: Wheel) -> list[int]:
    """The offsets of the day's rows, wherever they are."""
    parts = rows_within(wheel._storage, FAR_DAY, 1 << 40)
    return sorted(int(at) for rows in parts for at in times(rows, "offset"))


def test_damaged_files_of_one_time_become_one_by_a_repair_cut_short_anywhere() -> None:
    whole = of_three_widths(in_journal=True)
    [(saved, kept)] = repair(whole.files, whole.state)
    assert (saved.slot, list(saved.files)) == (FAR_DAY, [FAR_DAY, FAR_HOUR])
    assert (saved.lost, len(kept), whole.faults()) == (0, 2, 0)
    assert far_rows(whole.opened()) == list(range(14)), "those of the sound file came once"
    for point in range(1, 100, 2):
        directory = of_three_widths()
        directory.files.steps.stop_at = directory.files.steps.count + point
        try:
            repair(directory.files, directory.state)
            done = True
        except PowerCut:
            done = False
        directory = directory.after_a_cut(MODES[point % 3], Random(point))
        if point % 4 == 1:
            directory.opened().close()
        repair(directory.files, directory.state)
        [loss] = directory.state.durable.losses
        assert (loss.slot, loss.rows) == (FAR_DAY, 8)
        assert directory.faults() == 0
        wheel = directory.opened()
        assert far_rows(wheel) == [0, 1, 2, 3, 12, 13]
        assert list(wheel._storage.catalog) == [NOW // TICK_MS + 90, FAR_MS // TICK_MS, FAR_DAY]
        wheel.close()
        if done:
            break
    assert point > 10


def test_damaged_files_of_one_time_made_anew_as_one_are_the_old_or_the_new_ones() -> None:
    sound = of_three_widths(in_journal=True)
    repair(sound.files, sound.state)
    wheel = sound.opened()
    whole = wheel._storage.read_blocks(FAR_DAY, wheel._storage.catalog[FAR_DAY])
    both = [FAR_DAY, FAR_HOUR]
    for point in range(1, 100):
        directory = of_three_widths()
        storage = directory.opened()._storage
        directory.files.steps.stop_at = directory.files.steps.count + point
        try:
            put_in_place(storage, FAR_DAY, whole, both)
            break
        except PowerCut:
            directory = directory.after_a_cut(MODES[point % 3], Random(point))
            wheel = directory.opened()
            storage = wheel._storage
            if FAR_HOUR in storage.catalog:
                with pytest.raises(Damaged):
                    far_rows(wheel)
                put_in_place(storage, FAR_DAY, whole, both)
            assert far_rows(wheel) == list(range(14))
            assert directory.files.list("mended") == []
            names = [path.removeprefix("slots/") for path in map(path_of, storage.catalog)]
            assert directory.files.list("slots") == sorted(names)
    assert point > 6


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
        assert (loss.slot, loss.rows, loss.cancels) == (SECOND, 4, 0)
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
    whole = list(rows_within(source._storage, SECOND, source._storage.spilled))
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
            put_in_place(storage, SECOND, whole)
        except PowerCut:
            wheel = directory.after_a_cut(mode, Random(point)).opened()
            try:
                assert values_of(wheel) == 13
            except Damaged:
                put_in_place(wheel._storage, SECOND, whole)
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


def test_rows_of_a_peer_are_taken_only_if_they_are_of_that_time_and_in_order() -> None:
    wheel = Directory.with_three_blocks().opened()
    storage = wheel._storage
    upto = storage.spilled
    blocks = storage.read_blocks(SECOND, storage.catalog[SECOND])
    damaged = DamagedRange(SECOND, upto, {SECOND: storage.catalog[SECOND]})
    for wrong, of in (
        (blocks, replace(damaged, slot=SECOND + 1)),
        (blocks[::-1], damaged),
        (blocks, replace(damaged, upto=8)),
    ):
        with pytest.raises(Damaged, match="verify --against"):
            mended(storage, of, wrong)
    assert mended(storage, damaged, blocks).rows == 12
    below = rows_within(storage, SECOND, 6)
    assert [times(block, "offset").tolist() for block in below] == [[0, 4, 1, 5, 2, 3]]
    files: Files = wheel._files
    assert files.list("damaged") == []


def mended(storage: Storage, damaged: DamagedRange, blocks: list[pa.RecordBatch]) -> SlotInfo:
    with closing(Mending(storage, storage._files, damaged)) as mending:
        for block in blocks:
            mending.add(block)
        return mending.staged.finish()


HOUR = slot_with(SECOND, HOUR_S)
DAY = slot_with(SECOND, DAY_S)
HAD = SlotInfo(1000, 10, 2, 99, 0)
OF_HOUR = DamagedRange(HOUR, 100, {HOUR: HAD})
OF_BOTH = DamagedRange(DAY, 100, {DAY: HAD, HOUR: HAD})


def have(rows: int, cancels: int = 2) -> SlotInfo:
    return replace(HAD, rows=rows, cancels=cancels)


@pytest.mark.parametrize(
    ("damaged", "made", "here", "there", "expected"),
    [
        (OF_HOUR, have(10), [], [], []),
        (OF_HOUR, have(9), [], [], "rows: at most 0 less than there were, and 0 more, found 1"),
        (OF_HOUR, have(11), [], [], "found 1 more"),
        (OF_HOUR, have(10, 1), [], [], "cancel rows: at most 0 less"),
        (OF_BOTH, have(20, 4), [], [], []),
        # The peer has lost rows, by a repair of the same slot, of one inside, of a wider one.
        (OF_HOUR, have(7), [], [Loss(HOUR, 3, 0, "there")], [Loss(HOUR, 3, 0)]),
        (OF_BOTH, have(18, 4), [], [Loss(SECOND, 2, 0, "there")], [Loss(SECOND, 2, 0)]),
        (OF_HOUR, have(9), [], [Loss(DAY, 5, 1, "there")], [Loss(HOUR, 1, 0)]),
        (OF_HOUR, have(7), [], [Loss(HOUR, 2, 0)], "rows: at most 2 less"),
        # Rows were lost here before: all are there again, or the peer lacks the same.
        (OF_HOUR, have(13), [Loss(HOUR, 3, 0, "here")], [], []),
        (OF_HOUR, have(10), [Loss(HOUR, 3, 0, "here")], [Loss(HOUR, 3, 0)], [Loss(HOUR, 3, 0)]),
        (OF_HOUR, have(10), [Loss(SECOND, 3, 0)], [], "rows: at most 0 less"),
        (OF_BOTH, have(23, 4), [Loss(SECOND, 3, 0)], [], []),
        (OF_HOUR, have(12, 3), [Loss(DAY, 5, 1, "kept")], [], [Loss(DAY, 3, 0, "kept")]),
        (OF_HOUR, have(15, 3), [Loss(DAY, 5, 1)], [], []),
        (OF_HOUR, have(16, 2), [Loss(DAY, 5, 1)], [], "and 5 more, found 6 more"),
        (OF_HOUR, have(10), [Loss(HOUR + HOUR_S, 3, 0)], [], [Loss(HOUR + HOUR_S, 3, 0)]),
    ],
)
def test_what_is_lost_is_what_neither_was_here_nor_is_there(
    damaged: DamagedRange,
    made: SlotInfo,
    here: list[Loss],
    there: list[Loss],
    expected: list[Loss] | str,
) -> None:
    if isinstance(expected, str):
        with pytest.raises(Damaged, match=expected):
            losses_after(damaged, made, here, there, reached=False)
    else:
        assert losses_after(damaged, made, here, there, reached=False) == expected


def test_once_delivery_has_come_to_a_slot_rows_that_left_may_be_missing() -> None:
    here = [Loss(HOUR, 3, 0, "here"), Loss(HOUR + HOUR_S, 1, 0)]
    after = losses_after(OF_HOUR, have(0, 0), here, [], reached=True)
    assert after == here[1:]
    there = [Loss(HOUR, 2, 0, "there", at_most=True)]
    after = losses_after(OF_HOUR, have(4), here, there, reached=True)
    assert after == [here[1], Loss(HOUR, 2, 0, at_most=True)]
    after = losses_after(OF_HOUR, have(4), here, [Loss(DAY, 7, 1)], reached=True)
    assert after == [here[1], Loss(HOUR, 7, 1, at_most=True)]


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
    [block] = rows_within(wheel._storage, SECOND, 1 << 40)
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
        monkeypatch.setattr("slotwheel.reading.verify.slots.MAP_FROM_BYTES", 1)
        monkeypatch.setattr("slotwheel.wheel.slots.slotfile.MAP_FROM_BYTES", 1)
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
