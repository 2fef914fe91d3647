"""The table of names at a spill: what goes into a run, what stays in memory, what is let go of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.named import table
from slotwheel.wheel.named.table import NameTable
from slotwheel.wheel.names import NamePlace, key_of, place_of
from slotwheel.wheel.schema import Int64s, Mask


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
