"""The table of names at a spill: what goes into a run, what stays in memory, what is let go of."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.named import table
from slotwheel.wheel.named.layer import NameLayer
from slotwheel.wheel.named.runs import DIRECTORY, HeldNames, KeyFilter, NameRun, write_run
from slotwheel.wheel.named.table import NameTable
from slotwheel.wheel.names import (
    NameKeys,
    NamePlace,
    TakenNames,
    key_of,
    place_of,
)
from slotwheel.wheel.schema import Int64s, Mask, UInt64s


def none_left(due: Int64s, _: Int64s) -> Mask:
    return np.zeros(len(due), np.bool_)


def pair(key: bytes) -> tuple[int, int]:
    return NameKeys([key]).pairs[0]


def names_of(numbers: range, offset: int = 0) -> dict[bytes, NamePlace]:
    return {key_of(b"t", b"%d" % n): place_of(1000 + n, offset + n) for n in numbers}


def test_names_are_spilled_and_all_are_found_at_their_newest_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_LAYER_NAMES", range(4, 9))
    names = NameTable(OsFiles(tmp_path))
    keys = NameKeys(names_of(range(20)))
    for few in range(0, 12, 3):
        names.take(TakenNames.at(names_of(range(few, few + 3))))
    for upto, in_runs in ((7, 7), (112, 12)):
        names.freeze()
        names.take(TakenNames.at(names_of(range(10, 20), offset=100)))
        names.change(names.spill(upto, none_left))
        assert sum(run.info.names for run in names.runs) == in_runs
        expected = {**names_of(range(10)), **names_of(range(10, 20), offset=100)}
        assert names.places(keys, names.stored(keys)) == expected
        for key in keys:
            its = NameKeys([key])
            assert names.places(its, names.stored(its)) == {key: expected[key]}


def test_what_is_withdrawn_while_a_spill_works_does_not_come_back(tmp_path: Path) -> None:
    """A spill that began before would else bring names back that another master's rows have."""
    names = NameTable(OsFiles(tmp_path))
    names.take(TakenNames.at(names_of(range(30))))
    names.freeze()
    change = names.spill(10, none_left)
    names.withdraw(20)
    names.take(TakenNames.at(names_of(range(25, 35), offset=1000)))
    names.change(change)
    keys = NameKeys(names_of(range(40)))
    assert names.places(keys, names.stored(keys)) == {
        **names_of(range(20)),
        **names_of(range(25, 35), offset=1000),
    }
    names.withdraw(0)
    assert names.places(keys, names.stored(keys)) == names_of(range(10))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_layer_has_the_newest_row_of_each_key(data: st.DataObject) -> None:
    """However many rows come at once, and also where keys want the same slots."""
    low = st.integers(0, 6)
    key = st.builds(lambda *numbers: struct.pack(">IIQ", *numbers), low, low, low)
    layer, rows = NameLayer(256), list[tuple[bytes, int, int]]()
    for keys in data.draw(st.lists(st.lists(key, max_size=30), max_size=8)):
        entry = [(name, 7 * at, at) for at, name in enumerate(keys, len(rows))]
        names, due, offset = zip(*entry, strict=True) if entry else ((), (), ())
        layer.take(TakenNames(NameKeys(names), due, offset))
        rows += entry
    every = NameKeys({*(name for name, _, _ in rows), b"no row has this."})
    for cut in (len(rows), data.draw(st.integers(0, len(rows)))):
        newest = {name: (due, offset) for name, due, offset in rows[:cut]}
        below = {name: layer.place(*pair(name), cut) for name in every}
        assert {name: place for name, place in below.items() if place is not None} == newest
        layer.cut(cut)
        assert layer.names == len(newest)
        positions, *columns = (column.tolist() for column in layer.find(every))
        places = zip(*columns, strict=True)
        assert {every[at]: place for at, place in zip(positions, places, strict=True)} == newest
        assert {name: place for name in every if (place := layer.place(*pair(name)))} == newest


def test_a_run_that_was_checked_is_in_memory_only_where_somebody_looked(tmp_path: Path) -> None:
    """Of ten million names that are 320 MB, which a node does not have to have."""
    files, count = OsFiles(tmp_path), 100_000
    names = NameTable(files)
    names.take(TakenNames.at(names_of(range(count))))
    names.freeze()
    change = names.spill(count, none_left)
    names.change(change)
    assert change.record is not None
    again = NameTable(files)
    again.open(change.record)
    (run,) = again.runs
    assert _resident_bytes(run.places.first) < run.info.length / 10
    keys = NameKeys(names_of(range(count)))
    assert again.places(keys, again.stored(keys)) == names_of(range(count))
    assert _resident_bytes(run.places.first) > run.info.length / 2


def _resident_bytes(column: UInt64s) -> int:
    """Bytes in memory of the mapping that has a column."""
    address, inside = column.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(mapping[1], 16) <= address < int(mapping[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the column is in no mapping")


def test_a_run_finds_its_keys_and_no_others(tmp_path: Path) -> None:
    """Also where several keys begin alike, and after it was opened again."""
    files, halves = OsFiles(tmp_path), np.random.default_rng(4).integers(0, 1 << 63, (3000, 2))
    halves[:500, 0] = halves[500:1000, 0] = halves[1000:1500, 0]
    keys = NameKeys(struct.pack(">QQ", *half) for half in halves.tolist())
    has, lacks = NameKeys(keys[1::2]), NameKeys(keys[::2])
    names = HeldNames.of(has, range(1500), range(7, 1507))
    (tmp_path / DIRECTORY).mkdir()
    shares = [names.at(slice(0, 600)), names.at(slice(600, None))]
    written = write_run(files, 1, 2000, shares, np.array([9], np.int64))
    assert written is not None
    for run in (written, NameRun.open(files, written.info)):
        at = run.find(*has.halves)
        assert run.places.offset[at].tolist() == list(range(7, 1507))
        assert (run.find(*lacks.halves) == -1).all()
        assert [run.place(*pair(key)) for key in has[:9]] == [
            (number, number + 7) for number in range(9)
        ]
        assert not any(run.place(*pair(key)) for key in lacks)


def test_of_most_keys_that_a_run_has_not_it_says_so_without_looking() -> None:
    first, other = np.sort(np.random.default_rng(5).integers(0, 1 << 64, (2, 10_000), np.uint64))
    keys = KeyFilter(len(first))
    for start in range(0, len(first), 3000):
        keys.add(first[start : start + 3000])
    assert len(keys.may_have(first)) == len(first)
    asked = keys.may_have(other).tolist()
    assert len(asked) < len(other) / 6
    assert asked == [at for at, half in enumerate(other.tolist()) if keys.may_have_one(half)]
