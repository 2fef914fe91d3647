"""Reading a slot while it grows, spills and is cut into windows; and finding late rows.

The storage here is a list of rows, a line between file and tail that a spill moves, and nothing
else: what a cursor hands out must be the sorted rows, whatever moves in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel.due.reader import SlotCursor, late_rows
from slotwheel.wheel.due.runs import OFFSET_END
from slotwheel.wheel.ids import IdMint
from slotwheel.wheel.mark import Mark, RowKey
from slotwheel.wheel.slots.storage import ReadPoint, Storage
from slotwheel.wheel.state import SlotInfo
from slotwheel.wheel.tail.tail import Piece
from support.wheels import keys_of, piece_at, rows_at

MINT = IdMint("test", bytes(range(16)))
SECOND = 2
START, END = 2000, 3000


@dataclass
class FakeStorage:
    """``blocks``: what is in slot files, by second; a SlotInfo's length counts its blocks."""

    pieces: list[Piece] = field(default_factory=list)
    spilled: int = 0
    blocks: dict[int, list[list[RowKey]]] = field(default_factory=dict)
    cancels: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0
    reads: int = 0
    meanwhile: Callable[[], None] | None = None
    """What another thread does while blocks are read the next time."""

    def commit(self, due: list[int]) -> None:
        self.pieces.append(piece_at(self.next_offset, due, cancels=self.cancels))
        self.next_offset += len(due)

    def spill(self, count: int) -> None:
        """The first ``count`` pieces go to slot files."""
        moved, self.pieces = self.pieces[:count], self.pieces[count:]
        rows = [
            (due, offset)
            for piece in moved
            for offset, due in enumerate(piece.due.tolist(), piece.base_offset)
        ]
        for second in sorted({due // 1000 for due, _ in rows}):
            block = sorted(row for row in rows if row[0] // 1000 == second)
            self.blocks.setdefault(second, []).append(block)
        if moved:
            self.spilled = moved[-1].next_offset

    def every(self) -> list[RowKey]:
        stored = [row for group in self.blocks.values() for block in group for row in block]
        return stored + [
            (due, offset)
            for piece in self.pieces
            for offset, due in enumerate(piece.due.tolist(), piece.base_offset)
        ]

    def read_point(self, second: int) -> ReadPoint:
        found = self.blocks.get(second)
        info = None
        if found:
            highest = max(offset for block in found for _, offset in block)
            info = SlotInfo(len(found), sum(map(len, found)), 0, highest, 0)
        return ReadPoint({} if info is None else {second: info}, self.spilled, tuple(self.pieces))

    @property
    def catalog(self) -> dict[int, SlotInfo]:
        return {second: self.read_point(second).files[second] for second in self.blocks}

    def read_second(
        self,
        second: int,
        files: Mapping[int, SlotInfo],
        known: Mapping[int, SlotInfo] | None = None,
    ) -> list[pa.RecordBatch]:
        if second not in files:
            return []
        return self.read_blocks(second, files[second], (known or {}).get(second))

    def read_blocks(
        self, second: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        self.reads += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        found = self.blocks[second][known.length if known else 0 : info.length]
        return [rows_at(block, cancels=self.cancels) for block in found]

    def late_blocks(self, second: int, first: int, last: int, upto_ms: int) -> list[pa.RecordBatch]:
        return self.read_blocks(second, self.read_point(second).files[second])

    def late_slots(self, last_second: int, offset: int) -> list[int]:
        return [
            second
            for second, found in sorted(self.blocks.items())
            if second <= last_second and max(o for block in found for _, o in block) >= offset
        ]


dues = st.lists(st.integers(START - 3, END + 2).map(lambda ms: ms), min_size=1, max_size=8)
near = st.lists(st.sampled_from([1999, 2000, 2001, 2002, 2500, 2999, 3000]), min_size=1, max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.one_of(dues, near)),
        st.tuples(st.just("spill"), st.integers(0, 3)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.just(("read ahead", None)),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(steps, st.sampled_from([1, 150, 600, 1 << 30]), st.sampled_from([1, 300, 1 << 30]))
def test_a_slot_that_grows_and_spills_while_it_drains(
    shape: list[tuple[str, object]], window_bytes: int, chunk_bytes: int
) -> None:
    """Rows appended to the slot that is read, or moved to its file meanwhile, are not lost."""
    storage = FakeStorage()
    cursor = SlotCursor(cast(Storage, storage), SECOND, window_bytes, MINT)
    after: RowKey = (START - 1, OFFSET_END)
    upto = -1
    cursor.load(after, upto)
    given_out: list[RowKey] = []

    def read(rows_max: int) -> bool:
        nonlocal after, upto
        upto = storage.next_offset - 1
        cursor.refresh(after, upto)
        rows = keys_of(cursor.peek(after, (END - 1, OFFSET_END), rows_max, chunk_bytes))
        expected = sorted(key for key in storage.every() if START <= key[0] < END and key > after)
        assert rows == expected[: len(rows)]
        assert bool(rows) == bool(expected)
        assert len(rows) <= rows_max
        given_out.extend(rows)
        if rows:
            after = rows[-1]
        return bool(rows)

    for what, detail in shape:
        if what == "commit":
            assert isinstance(detail, list)
            storage.commit(detail)
        elif what == "spill":
            assert isinstance(detail, int)
            storage.spill(detail)
        elif what == "read ahead":
            cursor.read_ahead()
        else:
            assert isinstance(detail, int)
            read(detail)
    while read(1000):
        pass
    assert len(given_out) == len(set(given_out))
    assert cursor.next_due(after) is None


@given(
    st.lists(near, min_size=1, max_size=4),
    st.integers(0, 4),
    st.sampled_from([1, 300, 1 << 30]),
    st.data(),
)
def test_a_row_beyond_what_the_mark_may_pass_is_not_read(
    entries: list[list[int]], spilled: int, window_bytes: int, data: st.DataObject
) -> None:
    """A row above ``upto`` that left by due time would be covered by no mark, and come twice."""
    storage = FakeStorage()
    for due in entries:
        storage.commit(due)
    storage.spill(spilled)
    upto = data.draw(st.integers(-1, storage.next_offset - 1))
    cursor = SlotCursor(cast(Storage, storage), SECOND, window_bytes, MINT)
    after: RowKey = (START - 1, OFFSET_END)
    cursor.load(after, upto)
    found: list[RowKey] = []
    while rows := keys_of(cursor.peek(after, (END, 0), 3, 1 << 30)):
        found += rows
        after = rows[-1]
    assert found == sorted(
        key for key in storage.every() if START <= key[0] < END and key[1] <= upto
    )


def test_the_file_is_read_again_only_for_its_new_blocks() -> None:
    storage = FakeStorage()
    storage.commit([2000, 2001])
    storage.spill(1)
    cursor = SlotCursor(cast(Storage, storage), SECOND, 1 << 30, MINT)
    after: RowKey = (START - 1, OFFSET_END)
    cursor.load(after, 1)
    assert storage.reads == 1
    cursor.refresh(after, 1)
    assert storage.reads == 1
    storage.commit([2002])
    cursor.refresh(after, 2)
    assert storage.reads == 1, "it is in the tail"
    storage.commit([2003])
    storage.spill(2)
    cursor.refresh(after, 3)
    assert storage.reads == 2
    rows = cursor.peek(after, (END, 0), 10, 1 << 30)
    assert keys_of(rows) == [(2000, 0), (2001, 1), (2002, 2), (2003, 3)]


def test_a_window_that_was_read_ahead_is_not_read_again() -> None:
    storage = FakeStorage(cancels={2: 0})
    storage.commit([2000, 2001, 2002])
    storage.spill(1)
    cursor = SlotCursor(cast(Storage, storage), SECOND, 1, MINT)
    after: RowKey = (START - 1, OFFSET_END)
    assert not cursor.read_ahead(), "its first window is on its way"
    cursor.load(after, 2)
    assert cursor.read_ahead()
    assert not cursor.read_ahead()
    assert storage.reads == 2
    assert keys_of(cursor.peek(after, (END, 0), 10, 1 << 30)) == [(2000, 0)]
    assert keys_of(cursor.peek((2000, 0), (END, 0), 10, 1 << 30)) == [(2001, 1)]
    assert storage.reads == 2
    assert cursor.cancelled == {0}


def test_a_window_that_was_needed_before_it_was_ready_is_left() -> None:
    storage = FakeStorage()
    storage.commit([2000, 2001, 2002, 2003])
    storage.spill(1)
    cursor = SlotCursor(cast(Storage, storage), SECOND, 1, MINT)
    cursor.load((START - 1, OFFSET_END), 3)
    found: list[RowKey] = []

    def deliver() -> None:
        after = found[-1] if found else (START - 1, OFFSET_END)
        found.extend(keys_of(cursor.peek(after, (END, 0), 10, 1 << 30)))

    deliver()
    storage.meanwhile = deliver
    assert cursor.read_ahead()
    deliver()
    assert cursor.read_ahead(), "the one that came too late is in the way of none"
    deliver()
    assert found == [(2000, 0), (2001, 1), (2002, 2), (2003, 3)]


def test_cancels_in_the_file_are_seen() -> None:
    storage = FakeStorage(cancels={1: 0, 3: 2})
    storage.commit([2000, 2000])
    storage.spill(1)
    cursor = SlotCursor(cast(Storage, storage), SECOND, 1 << 30, MINT)
    after: RowKey = (START - 1, OFFSET_END)
    cursor.load(after, 1)
    assert cursor.cancelled == {0}
    storage.commit([2000, 2000])
    storage.spill(1)
    cursor.refresh(after, 3)
    assert cursor.cancelled == {0, 2}


marks = st.builds(
    Mark, st.sampled_from([-1, 1999, 2000, 2500, 3000, 9000]), st.integers(-1, 30), st.just(-1)
)


@settings(max_examples=200)
@given(
    st.lists(near, min_size=1, max_size=5),
    st.integers(0, 5),
    marks,
    st.integers(1, 4),
    st.sampled_from([1, 200, 1 << 30]),
    st.data(),
)
def test_late_rows_leave_once_each_in_offset_order(
    entries: list[list[int]],
    spilled: int,
    mark: Mark,
    rows_max: int,
    bytes_max: int,
    data: st.DataObject,
) -> None:
    storage = FakeStorage()
    for due in entries:
        storage.commit(due)
    storage.spill(spilled)
    upto = data.draw(st.integers(-1, storage.next_offset - 1))
    first = mark = Mark(mark.c, mark.r, data.draw(st.integers(-1, upto)))
    found: list[int] = []
    for _ in range(100):
        rows, _, reached = late_rows(cast(Storage, storage), mark, upto, rows_max, bytes_max)
        assert rows.num_rows <= rows_max
        assert reached > mark.L or upto <= mark.L, "no progress"
        offsets = [offset for _, offset in keys_of(rows)]
        assert all(mark.L < offset <= reached for offset in offsets)
        found += offsets
        mark = Mark(mark.c, mark.r, max(reached, mark.L))
        if upto <= mark.L:
            break
    assert max(upto, first.L) == mark.L
    assert found == sorted(
        offset
        for due, offset in storage.every()
        if first.L < offset <= upto and (due, offset) <= (first.c, first.r)
    )


@dataclass
class SeveralFiles(FakeStorage):
    """The rows of a second in files of several widths, which one was made anew from a peer's rows:
    their offsets interleave."""

    files: list[list[RowKey]] = field(default_factory=list)

    def read_point(self, second: int) -> ReadPoint:
        infos = {
            slot: SlotInfo(len(rows), len(rows), 0, max(offset for _, offset in rows), 0)
            for slot, rows in enumerate(self.files)
            if rows
        }
        return ReadPoint(infos, self.spilled, ())

    def read_second(
        self,
        second: int,
        files: Mapping[int, SlotInfo],
        known: Mapping[int, SlotInfo] | None = None,
    ) -> list[pa.RecordBatch]:
        if known is not None:
            return []
        return [rows_at(sorted(self.files[slot]), topics=2) for slot in files]


@given(
    st.lists(st.tuples(near, st.integers(0, 2)), min_size=1, max_size=12),
    st.sampled_from([1, 150, 600, 1 << 30]),
    st.sampled_from([1, 3, 1000]),
    st.booleans(),
)
def test_a_second_whose_files_have_interleaved_offsets_leaves_in_order(
    entries: list[tuple[list[int], int]], window_bytes: int, rows_max: int, ahead: bool
) -> None:
    storage = SeveralFiles(files=[[], [], []])
    for due, slot in entries:
        inside = [at for at in due if START <= at < END]
        storage.files[slot] += [(at, storage.spilled + n) for n, at in enumerate(inside)]
        storage.spilled += len(inside)
    cursor = SlotCursor(cast(Storage, storage), SECOND, window_bytes, MINT)
    after: RowKey = (START - 1, OFFSET_END)
    cursor.load(after, storage.spilled - 1)
    given_out: list[RowKey] = []
    while rows := keys_of(cursor.peek(after, (END, 0), rows_max, 1 << 30)):
        assert after < rows[0]
        given_out += rows
        after = rows[-1]
        if ahead:
            cursor.read_ahead()
    assert given_out == sorted(key for rows in storage.files for key in rows)
