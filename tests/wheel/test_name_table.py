"""The table of names at a spill: what goes into a run, what stays in memory, what is let go of."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.named import table
from slotwheel.wheel.named.table import NameTable
from slotwheel.wheel.names import NamePlace, key_of, place_of
from slotwheel.wheel.schema import Int64s, Mask, UInt64s


def none_left(due: Int64s, _: Int64s) -> Mask:
    return np.zeros(len(due), np.bool_)


def names_of(numbers: range, offset: int = 0) -> dict[bytes, NamePlace]:
    return {key_of(b"t", b"%d" % n): place_of(1000 + n, offset + n) for n in numbers}


def test_names_are_spilled_in_shares_and_all_are_found_at_their_newest_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_ITEMS", 3)
    monkeypatch.setattr(table, "_LAYER_NAMES", 4)
    names = NameTable(OsFiles(tmp_path))
    keys = list(names_of(range(20)))
    names.committed(names_of(range(12)), None)
    for upto, in_runs in ((7, 7), (112, 12)):
        names.freeze()
        names.committed(names_of(range(10, 20), offset=100), None)
        change = names.spill(upto, none_left)
        assert change is not None
        names.change(change)
        change.release()
        assert not any(layer.names for layer in change.moved)
        assert sum(run.info.names for run in names.runs) == in_runs
        places = names.places(keys, names.stored(keys))
        assert places == {**names_of(range(10)), **names_of(range(10, 20), offset=100)}


def test_a_run_that_was_checked_is_in_memory_only_where_somebody_looked(tmp_path: Path) -> None:
    """Of ten million names that are 320 MB, which a node does not have to have."""
    files, count = OsFiles(tmp_path), 100_000
    names = NameTable(files)
    names.committed(names_of(range(count)), None)
    names.freeze()
    change = names.spill(count, none_left)
    names.change(change)
    assert change.record is not None
    again = NameTable(files)
    again.open(change.record)
    (run,) = again.runs
    assert _resident_bytes(run.places.first) < run.info.length / 10
    keys = list(names_of(range(count)))
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
