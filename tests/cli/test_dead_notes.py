"""What notes say of letters that were redriven, and what can stand among them."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.reading.letters.notes import Redriven, note_row, places_of
from slotwheel.wheel.errors import UnsupportedVersion
from slotwheel.wheel.schema import TIME

PLACE = st.tuples(
    st.integers(0, 3),
    st.integers(0, 1 << 62) | st.integers(0, 40),
    st.none() | st.integers(0, 40) | st.just(1_790_000_000_000),
)


def letters(places: list[tuple[int, int, int | None]]) -> pa.RecordBatch:
    columns = [[one[n] for one in places] for n in range(3)]
    types = (pa.int32(), pa.int64(), TIME)
    arrays = [pa.array(one, kind) for one, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, ["partition", "position", "buried"])


def note(places: list[tuple[int, int, int | None]], group: str = "g", turn: int = 17) -> bytes:
    row = note_row("t", group, turn, places_of(letters(places)))
    return bytes(row.column("value")[0].as_py())


@given(st.lists(st.lists(PLACE), max_size=4), st.lists(PLACE))
def test_notes_name_the_letters_and_no_others(
    noted: list[list[tuple[int, int, int | None]]], others: list[tuple[int, int, int | None]]
) -> None:
    redriven, both = Redriven(), [*others, *(one for each in noted for one in each)]
    random.Random(3).shuffle(both)
    for each in noted:
        redriven.add(note(each))
        redriven.has(letters(both))  # asked in between, it still takes more
    named = {one for each in noted for one in each}
    assert (redriven.count, redriven.others) == (len(named), 0)
    assert redriven.has(letters(both)).tolist() == [one in named for one in both]


def test_another_letter_at_the_same_place_was_not_redriven() -> None:
    """The topic was deleted and made anew, and its positions begin again."""
    redriven = Redriven()
    redriven.add(note([(0, 0, 1000), (0, 1, 1000)]))
    assert redriven.has(letters([(0, 0, 1000), (0, 1, 2000), (1, 1, 1000)])).tolist() == [
        *(True, False, False)
    ]


def test_the_group_is_that_of_the_first_note() -> None:
    redriven = Redriven()
    for group, turn in (("a", 2), ("b", 1)):
        redriven.add(note([], group, turn))
    assert (redriven.group, redriven.turns) == ("a", {1, 2})


def fields(**more: object) -> bytes:
    return json.dumps(
        {"slotwheel-redriven": 1, "group": "g", "turn": 1, "letters": []} | more
    ).encode()


WRONG_LETTERS: list[object] = [{}, "x", [1, 2, 3], [[1, 2]], [[1, 2, 3], [1]]]
WRONG_POSITIONS: list[object] = [None, "1", 1.5, 1 << 63, 1 << 64, []]
WRONG_LETTERS += [[[0, at, 1]] for at in WRONG_POSITIONS]


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"{", b"[]", b"7", b"null", b"\xff", b"[" * 100_000, b'"slotwheel-redriven"'),
        *(fields(**{"slotwheel-redriven": version}) for version in ("2", 0, True, 1.5)),
        *(fields(turn=turn) for turn in ("x", -1, 1 << 63, 1.0, True)),
        fields().replace(b'"turn": 1', b'"turn": 1e999'),
        *(fields(group=7), b'{"slotwheel-redriven":1}'),
        *(fields(letters=found) for found in WRONG_LETTERS),
    ],
)
def test_what_is_no_note_is_counted_and_names_nothing(value: bytes | None) -> None:
    redriven = Redriven()
    redriven.add(value)
    found = (redriven.others, redriven.count, redriven.turns, redriven.group)
    assert found == (1, 0, set(), None)


def test_a_note_of_a_newer_version_is_an_error() -> None:
    newer = json.dumps({"slotwheel-redriven": 2, "what": "ever"}).encode()
    with pytest.raises(UnsupportedVersion, match="got 2; expected version 1"):
        Redriven().add(newer)


def test_notes_take_memory_by_the_letter() -> None:
    far = np.random.default_rng(3).integers(0, 1 << 62, (20_000, 3))
    redriven = Redriven()
    redriven.add(bytes(note_row("t", "g", 1, far).column("value")[0].as_py()))
    assert redriven.count == 20_000
    assert redriven._sorted().nbytes == 24 * 20_000
