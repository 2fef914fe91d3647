"""Slot files of a day, an hour and a second, made anew from a peer that spilled at other times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.peers import shares
from slotwheel.wheel.peers.heal import SlotRows
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots import mend
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, SECOND_S, begins_ms, slot_with
from support.damage import flip
from support.handpeer import NOW, Peer
from support.mending import find_damage, heal
from support.wheels import batch, master_of, next_chunk

DAY_MS, HOUR_MS = DAY_S * TICK_MS, HOUR_S * TICK_MS
CONFIG = WheelConfig(far_horizon_ms=60 * DAY_MS, disk_reserve_bytes=0)
BEGIN = NOW - NOW % DAY_MS
DUE = BEGIN + 5 * DAY_MS + 10 * HOUR_MS + 500
SECOND, HOUR, DAY = (slot_with(DUE // TICK_MS, width) for width in (SECOND_S, HOUR_S, DAY_S))
STEPS = [BEGIN, DUE - 3 * DAY_MS, DUE - 20 * HOUR_MS, DUE - 60_000]
"""Spills at these times put rows of that second into slots of a day, twice, an hour, a second."""


class Pair:
    """Two peers, of which one spills when it is told to, and the other at the end."""

    def __init__(self, path: Path) -> None:
        self.a, self.b = Peer(path, "a", CONFIG), Peer(path, "b", CONFIG)
        self.a.lead(1)
        self.number = 0

    def close(self) -> None:
        self.a.close()
        self.b.close()

    def send(self, now_ms: int) -> None:
        """Some rows of that second, of its hour, its day and of other days."""
        offsets = (0, 3, 700, 2 * HOUR_MS, -9 * HOUR_MS, DAY_MS, -DAY_MS)
        rows = [(DUE + after, "t", b"%d" % (self.number + n)) for n, after in enumerate(offsets)]
        self.number += len(offsets)
        self.a.wheel.append(batch(rows), now_ms)
        self.a.commit()
        self.a.ship(self.b)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    for number, now_ms in enumerate(STEPS):
        pair.send(now_ms)
        pair.a.wheel.spill(now_ms, everything=True)
        if number == 1:
            pair.b.wheel.spill(now_ms, everything=True)
    pair.b.wheel.spill(STEPS[2] + HOUR_MS, everything=True)
    pair.send(STEPS[3])  # in both tails
    yield pair
    pair.close()


def rows_of(peer: Peer, slot: int, upto: int = 1 << 40) -> list[dict[str, Any]]:
    """All rows of a slot's time, wherever they are, in the order of their offsets."""
    shared = shares.rows_within(peer.wheel._storage, slot, upto)
    rows = [row for block in shared for row in block.to_pylist()]
    return sorted(rows, key=lambda row: row["offset"])


def slots_of(peer: Peer) -> list[int]:
    return list(peer.wheel._storage.catalog)


@pytest.mark.parametrize(
    "slots",
    [[SECOND], [HOUR], [DAY], [HOUR, DAY], [SECOND, DAY], [SECOND, HOUR, DAY]],
)
def test_a_damaged_file_gets_what_no_other_of_its_time_has(pair: Pair, slots: list[int]) -> None:
    a, b = pair.a, pair.b
    assert {SECOND, HOUR, DAY} <= set(slots_of(a))
    assert SECOND not in slots_of(b), "they spilled at other times"
    before, files = rows_of(a, DAY), slots_of(a)
    info = dict(a.wheel._storage.catalog)
    assert len(before) == 25
    damaged = find_damage(a, *slots)
    assert (damaged.slot, sorted(damaged.files)) == (slots[-1], sorted(slots))
    assert heal(a, damaged, b.wheel.slot_rows(damaged.slot, damaged.upto))
    assert a.wheel.damaged() == {}
    assert rows_of(a, DAY) == before
    assert slots_of(a) == [slot for slot in files if slot not in slots[:-1]]
    healed = a.wheel._storage.catalog[damaged.slot]
    assert healed.rows == sum(info[slot].rows for slot in slots)
    a.reopen()
    assert rows_of(a, DAY, damaged.upto) == [row for row in before if row["offset"] < damaged.upto]


def test_what_a_peer_lacks_is_no_whole_file(pair: Pair) -> None:
    a, b = pair.a, pair.b
    damaged = find_damage(a, DAY)
    blocks = [block.slice(1) for block in b.wheel.slot_rows(DAY, damaged.upto).blocks]
    with pytest.raises(Damaged, match="rows: at most 0 less than there were"):
        heal(a, damaged, SlotRows(DAY, blocks))
    assert list(a.wheel.damaged()) == [DAY]
    assert heal(a, damaged, b.wheel.slot_rows(DAY, damaged.upto))


def test_a_second_damaged_file_is_mended_with_the_first_one(pair: Pair) -> None:
    """It is found when the first one is made anew: who knew nothing of it would give the day's file
    all rows of the hour's."""
    a, b = pair.a, pair.b
    damaged = find_damage(a, DAY)
    flip(a.path / f"slots/{begins_ms(HOUR) // TICK_MS}+3600.arrows")
    with pytest.raises(Damaged, match="is damaged"):
        heal(a, damaged, b.wheel.slot_rows(DAY, damaged.upto))
    [damaged] = a.wheel.damaged_ranges()
    assert sorted(damaged.files) == [HOUR, DAY]
    before = rows_of(b, DAY)
    assert heal(a, damaged, b.wheel.slot_rows(DAY, damaged.upto))
    assert rows_of(a, DAY) == before


def test_a_peer_may_have_deleted_what_has_left_of_a_day_that_is_under_way(tmp_path: Path) -> None:
    """Its files of seconds are gone, of which the one that asks had rows in the file of the day."""
    day_ms = BEGIN + 5 * DAY_MS
    pair = Pair(tmp_path)
    a, b = pair.a, pair.b
    for now_ms in (BEGIN, day_ms - 60_000):
        rows = [(day_ms + after, "t", b"") for after in (100, 1_200, 2_300, 20 * HOUR_MS)]
        a.wheel.append(batch(rows), now_ms)
        a.commit()
        a.ship(b)
        a.wheel.spill(now_ms, everything=True)
    b.wheel.spill(day_ms - 60_000, everything=True)
    assert len(delivered(a, day_ms + 1_500)) == 4
    a.mark(day_ms + 1_500)
    a.ship(b)
    b.wheel.clean(day_ms + 1_500)
    day = slot_with(day_ms // TICK_MS, DAY_S)
    assert len(rows_of(b, day)) == 6
    damaged = find_damage(a, day)
    assert heal(a, damaged, b.wheel.slot_rows(day, damaged.upto))
    assert len(rows_of(a, day)) == 6 + 1, "the file of the first second is there yet"
    assert delivered(a, day_ms + 2_500) == [b"", b""]
    pair.close()


def delivered(peer: Peer, now_ms: int) -> list[bytes]:
    values: list[bytes] = []
    while (chunk := next_chunk(peer.wheel, now_ms, peer.commit)) is not None:
        values += chunk.rows.column("value").to_pylist()
        master_of(peer.wheel).answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
    return values


def test_memory_is_that_of_a_share_however_large_a_day_is(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of the least size: each is a block of the new file, in the order of offsets."""
    monkeypatch.setattr(shares, "SHARE_BYTES", 150)
    a, b = pair.a, pair.b
    damaged = find_damage(a, DAY)
    before = rows_of(b, DAY)
    blocks = list(b.wheel.slot_rows(DAY, damaged.upto).blocks)
    assert len(blocks) > 4
    assert max(block.num_rows for block in blocks) <= 5
    offsets = [times(block, "offset") for block in blocks]
    assert all(low.max() < high.min() for low, high in pairwise(offsets))
    assert heal(a, damaged, SlotRows(DAY, blocks))
    assert len(a.wheel._storage.read_blocks(DAY, a.wheel._storage.catalog[DAY])) > 2
    assert rows_of(a, DAY) == before


@pytest.mark.parametrize("share_bytes", [1, 700, 5_000, 1 << 30])
def test_rows_of_one_file_are_cut_into_blocks_by_offset(
    monkeypatch: pytest.MonkeyPatch, share_bytes: int, pair: Pair
) -> None:
    monkeypatch.setattr(mend, "SHARE_BYTES", share_bytes)
    [rows] = shares.rows_within(pair.a.wheel._storage, DAY, 1 << 40)
    blocks = list(mend.in_shares(rows))
    assert sum(block.num_rows for block in blocks) == rows.num_rows
    assert (len(blocks) == 1) == (share_bytes >= rows.nbytes)
    highest = -1
    for block in blocks:
        offset, due = times(block, "offset"), times(block, "due")
        assert highest < offset.min()
        assert (np.lexsort((offset, due)) == np.arange(len(due))).all()
        highest = int(offset.max())
    assert_same(blocks, rows)


def assert_same(blocks: Sequence[pa.RecordBatch], rows: pa.RecordBatch) -> None:
    by_offset = lambda row: row["offset"]  # noqa: E731
    every = [row for block in blocks for row in block.to_pylist()]
    assert sorted(every, key=by_offset) == sorted(rows.to_pylist(), key=by_offset)
