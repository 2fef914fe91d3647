"""Wide slot files read in strips, held against the rows that were written to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.schema import ROW, Int64s
from slotwheel.wheel.slots import blockindex, slotfile, strips
from slotwheel.wheel.slots.slot import HOUR_S, path_of, slot_with
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.slots.spill import block_of
from slotwheel.wheel.slots.strips import WideSlots
from slotwheel.wheel.state import SlotInfo
from support.crashfs import CrashFiles
from support.damage import flipped
from support.wheels import keys_of, rows_at

BEGIN = 500_000 * HOUR_S
SLOT = slot_with(BEGIN, HOUR_S)
Key = tuple[int, int]


def due(second: int, ms: int = 0) -> int:
    """The time of a second of the hour, in ms."""
    return (BEGIN + second) * TICK_MS + ms


@dataclass
class World:
    """The file of an hour that grows. ``infos``: its record before and behind each block."""

    strip_bytes: int
    blocks: list[list[Key]] = field(default_factory=list)
    infos: list[SlotInfo] = field(default_factory=list)
    cancels: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = CrashFiles()
        self.slot_files = SlotFiles(self.files, 2)
        self.wide = WideSlots(self.slot_files, self.strip_bytes)

    def append(self, rows: list[Key]) -> None:
        rows = sorted(rows)
        block = block_of(SLOT, rows_at(rows, cancels=self.cancels, pad=20))
        before = self.infos[-1] if self.infos else None
        self.infos.append(self.slot_files.append(block, before))
        self.slot_files.committed([SLOT])
        self.blocks.append(rows)

    def rows(self, second: int, upto: int | None = None, behind: int = -1) -> list[Key]:
        """The rows of a second as of the block ``upto``, without those up to ``behind``."""
        info = self.infos[-1 if upto is None else upto]
        known = None if behind < 0 else self.infos[behind]
        batches = self.wide.rows(SLOT, info, BEGIN + second, known)
        for batch in batches:
            assert batch.schema == ROW
            assert keys_of(batch) == sorted(keys_of(batch))
        return sorted(key for batch in batches for key in keys_of(batch))

    def written(self, second: int, upto: int | None = None, behind: int = -1) -> list[Key]:
        blocks = self.blocks[behind + 1 : None if upto is None else upto + 1]
        return sorted(
            row for block in blocks for row in block if row[0] // TICK_MS == BEGIN + second
        )


few_seconds = st.sampled_from([0, 1, 2, 3, 5, 300, 3599])
block = st.lists(st.tuples(few_seconds, st.sampled_from([0, 0, 1, 999])), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), block),
        st.tuples(st.just("rows"), st.tuples(few_seconds, st.integers(-9, 9), st.integers(-9, 9))),
        st.tuples(st.just("ahead"), st.tuples(few_seconds, st.integers(0, 400))),
        st.tuples(st.just("forget"), st.none()),
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150)
@given(
    block,
    steps,
    st.sampled_from([1, 300, 900, 1 << 20]),
    st.sampled_from([1, 1 << 20]),
    st.sampled_from([1000, 5000, 1 << 20]),
    st.sampled_from([0, 64]),
)
def test_a_strip_has_what_its_file_has(
    first: list[Key],
    steps: list[tuple[str, Any]],
    strip_bytes: int,
    map_from: int,
    read_bytes: int,
    behind: int,
) -> None:
    """Whatever was read before, however large strips are, blocks mapped or not, as of any length
    that the file has had."""
    world = World(strip_bytes)
    offset = 0

    def append(rows: list[Key]) -> None:
        nonlocal offset
        world.append([(due(second, ms), offset + n) for n, (second, ms) in enumerate(rows)])
        offset += len(rows)

    with (
        patch.object(blockindex, "MAP_FROM_BYTES", map_from),
        patch.object(strips, "MAP_FROM_BYTES", map_from),
        patch.object(slotfile, "_READ_BYTES", read_bytes),
        patch.object(slotfile, "_MAP_BYTES", read_bytes),
        patch.object(strips, "_BEHIND_MAX", behind),
    ):
        append(first)
        for what, detail in steps:
            if what == "append":
                append(detail)
            elif what == "rows":
                second, upto, known = detail
                upto = len(world.infos) - 1 if upto < 0 else min(upto, len(world.infos) - 1)
                known = max(-1, min(known, upto))
                assert world.rows(second, upto, known) == world.written(second, upto, known)
            elif what == "ahead":
                at, more = detail
                for _ in range(50):
                    if not world.wide.read_ahead(
                        SLOT, world.infos[-1], BEGIN + at, BEGIN + at + more
                    ):
                        break
                else:
                    raise AssertionError("there is always more to read ahead")
            else:
                world.wide.forget(SLOT)
        with_rows = sorted({due // TICK_MS for block in world.blocks for due, _ in block})
        world.wide.read_ahead(SLOT, world.infos[-1], BEGIN, BEGIN)
        for second in [*range(8), 299, 300, 301, 3599]:
            assert world.rows(second) == world.written(second)
            after = [at for at in with_rows if at >= BEGIN + second]
            assert world.wide.next_second(SLOT, world.infos[-1], BEGIN + second) == (
                after[0] if after else None
            )
        in_memory = [strip.nbytes for strip in world.wide._strips.values()]
        assert sum(in_memory) <= max(4 * strip_bytes, *in_memory)


def in_seconds(seconds: range, first_offset: int = 0) -> list[Key]:
    return [(due(second), first_offset + n) for n, second in enumerate(seconds)]


def reads(world: World) -> list[int]:
    """The blocks that are read from now on, each by its place in the file."""
    places: list[int] = []
    read_at = world.slot_files.read_at

    def counting(slot: int, starts: Int64s, stops: Int64s, map_from: int) -> object:
        ends = [info.length for info in world.infos]
        places.extend(ends.index(stop) for stop in stops.tolist())
        return read_at(slot, starts, stops, map_from)

    world.slot_files.read_at = counting  # type: ignore[method-assign, assignment]
    return places


def test_a_block_is_read_once_for_all_seconds_of_a_strip() -> None:
    world = World(1 << 20)
    for number in range(3):
        world.append(in_seconds(range(100), number * 100))
    places = reads(world)
    for second in range(200):
        assert world.rows(second) == world.written(second)
    assert sorted(places) == sorted([0, 1, 2] * 2), "for the index, and for the strip"


def test_the_next_strip_is_read_before_its_time() -> None:
    world = World(2_000)
    world.append(in_seconds(range(100)))
    ahead = 0
    for second in range(100):
        while world.wide.read_ahead(SLOT, world.infos[-1], BEGIN + second, BEGIN + second + 10):
            ahead += 1
        places = reads(world)
        assert world.rows(second) == world.written(second)
        assert places == [], "delivery waits for no file"
    assert ahead > 3


def test_a_second_larger_than_a_strip_is_not_copied() -> None:
    world = World(50_000)
    for number in range(4):
        rows = in_seconds(range(10), number * 1000)
        world.append([*rows, *((due(4), number * 1000 + n) for n in range(10, 900))])
    assert [world.rows(second) for second in range(10)] == [
        world.written(second) for second in range(10)
    ]
    large = world.wide._strips[SLOT, BEGIN + 4]
    assert (large.seconds, len(large.batches)) == (range(BEGIN + 4, BEGIN + 5), 4)
    assert large.nbytes < 50_000
    world.wide.next_second(SLOT, world.infos[-1], BEGIN + 4 + 60)
    assert (SLOT, BEGIN + 4) in world.wide._strips
    world.wide.next_second(SLOT, world.infos[-1], BEGIN + 4 + 61)
    assert (SLOT, BEGIN + 4) not in world.wide._strips, "it is not mapped for the rest of the hour"
    assert world.wide._strips[SLOT, BEGIN + 5].seconds.stop == BEGIN + HOUR_S


def test_questions_about_single_rows_read_the_blocks_that_can_have_them() -> None:
    world = World(1 << 20)
    world.cancels = {300: 3}
    for first in (0, 100, 200):
        world.append(in_seconds(range(first, first + 100), first))
    world.append([(due(3), 300)])
    info = world.infos[-1]
    places = reads(world)
    list(world.wide.select(SLOT, info, lambda index: index.cancels > 0))
    del places[:4]  # of the index
    assert places == [3]
    offsets = np.array([150, 250], np.int64)
    list(world.wide.select(SLOT, info, lambda index: index.with_any_of(offsets)))
    list(world.wide.select(SLOT, info, lambda index: index.within(199, 200)))
    list(world.wide.select(SLOT, info, lambda index: index.with_rows_of(BEGIN + 3)))
    list(world.wide.select(SLOT, world.infos[2], lambda index: index.with_rows_of(BEGIN + 3)))
    assert places == [3, 1, 2, 1, 2, 0, 3, 0]
    assert not world.wide._strips


def test_indexes_of_other_files_are_dropped_and_not_those_that_delivery_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strips, "_INDEX_BYTES_MAX", 1)
    world = World(1 << 20)
    world.append(in_seconds(range(10)))
    info = world.infos[-1]
    assert world.rows(0) == world.written(0)
    others = [slot_with(BEGIN + number * HOUR_S, HOUR_S) for number in (1, 2)]
    for other in others:
        rows = rows_at([((BEGIN + (other - SLOT)) * TICK_MS, 1)])
        other_info = world.slot_files.append(block_of(other, rows), None)
        assert list(world.wide.select(other, other_info, lambda index: index.cancels == 0))
    assert [*world.wide._indexes._opened] == [SLOT, others[-1]]
    assert world.wide.next_second(SLOT, info, BEGIN + 20) is None


@pytest.mark.parametrize("map_from", [1, 1 << 20])
def test_a_changed_byte_is_seen_whenever_a_file_is_opened(
    monkeypatch: pytest.MonkeyPatch, map_from: int
) -> None:
    monkeypatch.setattr(blockindex, "MAP_FROM_BYTES", map_from)
    world = World(1 << 20)
    for first in (0, 10):
        world.append(in_seconds(range(10), first))
    path, info = path_of(SLOT), world.infos[-1]
    content = world.files.content(path)
    for bit in range(0, len(content) * 8, 37):
        world.files.replace(path, flipped(content, bit))
        world.wide.forget(SLOT)
        with pytest.raises(Damaged, match=r"\+3600"):
            world.rows(3)
    for length in range(0, len(content), 61):
        world.files.replace(path, content[:length])
        with pytest.raises(Damaged, match=r"\+3600"):
            world.rows(3)
    world.files.replace(path, content)
    assert world.rows(3, len(world.infos) - 1) == world.written(3)
    assert info == world.infos[-1]


def test_a_byte_that_changes_after_the_file_was_opened_is_seen_by_the_next_strip() -> None:
    world = World(8_000)
    world.append(in_seconds(range(60)))
    world.append(in_seconds(range(60, 120), 60))
    assert world.rows(0) == world.written(0)
    path = path_of(SLOT)
    content = world.files.content(path)
    world.files.replace(path, flipped(content, len(content) * 8 - 1000))
    assert world.rows(59) == world.written(59), "it was in memory"
    with pytest.raises(Damaged, match="checksum"):
        world.rows(110)
    world.files.replace(path, content)
    assert world.rows(110) == world.written(110)


def test_what_was_read_of_a_file_that_is_replaced_meanwhile_is_not_kept() -> None:
    """A strip of the old file would hide what the new one has."""
    world = World(1 << 20)
    world.append(in_seconds(range(10)))
    read_at = world.slot_files.read_at

    def replaced_meanwhile(*arguments: Any) -> object:
        world.wide.forget(SLOT)
        return read_at(*arguments)

    world.slot_files.read_at = replaced_meanwhile  # type: ignore[method-assign, assignment]
    assert world.rows(0) == world.written(0)
    assert not world.wide._strips
    assert not world.wide._indexes._opened


def test_a_file_that_was_made_anew_has_what_came_behind_a_length_of_the_old_one() -> None:
    """Its blocks are others, at other positions: what is new to a reader is told by offsets."""
    world = World(1 << 20)
    world.append([(due(3), n) for n in range(10)])
    known = world.infos[-1]
    world.append([(due(3), n) for n in range(10, 20)])
    assert world.rows(3) == world.written(3)
    world.wide.forget(SLOT)
    world.slot_files.remove(SLOT)
    every = world.written(3)
    world.blocks, world.infos = [], []
    world.append(every)
    batches = world.wide.rows(SLOT, world.infos[-1], BEGIN + 3, known)
    assert [key for batch in batches for key in keys_of(batch)] == every[10:]
