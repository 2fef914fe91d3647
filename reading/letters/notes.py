"""Notes: records of the dead letters that were redriven, in a topic beside that of the letters.

Theory: letters are redriven in batches, and each batch has a row more than letters: a note that
names them. The wheel stores a batch whole or not at all, and delivers the note to the notes' topic
as it delivers any message. So a letter was redriven exactly if a note names it, and nothing else
has to be remembered, whenever a redrive is killed.

A note names a letter by its place and the time since when it is there. So a letter at the same
place in a topic that was made anew under the same name is not taken for it.

A note is due at 0, long ago: rows that are late leave in the order in which they were stored,
whatever any clock says. ``redrive.py`` tells how a redrive gets to know all notes before its own.

    {"slotwheel-redriven": 1, "group": "g", "turn": 1876951040000012345,
     "letters": [[0, 4999, 1790000000000], [3, 17, 1790000000250]]}
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...wheel.errors import UnsupportedVersion
from ...wheel.rows import from_columns
from ...wheel.schema import Int64s, Mask

DUE_MS = 0
VERSION = 1
LETTERS_MAX = 5_000
"""The most letters in a note, which is below 250 KB then."""
_VERSION_KEY = "slotwheel-redriven"

Places = Int64s
"""Partition, position, and the time, ms, since when a letter is there (-1: unknown); shape
(rows, 3)."""


def places_of(letters: pa.RecordBatch) -> Places:
    """The places of letters, by their columns ``partition``, ``position`` and ``buried``."""
    buried = pc.fill_null(letters.column("buried").cast(pa.int64()), -1)
    columns = (letters.column("partition"), letters.column("position"), buried)
    return np.stack([np.asarray(column, np.int64) for column in columns], axis=1)


NOTHING: Places = np.empty((0, 3), np.int64)


def note_row(topic: str, group: str, turn: int, letters: Places = NOTHING) -> pa.RecordBatch:
    """The note about letters, as a row for the wheel (schema ``INPUT``), for partition 0."""
    fields = {_VERSION_KEY: VERSION, "group": group, "turn": turn, "letters": letters.tolist()}
    text = json.dumps(fields, separators=(",", ":")).encode()
    return from_columns([DUE_MS], [topic], [0], [None], [text], [()])


class Redriven:
    """The letters that notes name. ``turns``: the turns of the notes; ``group``: the wheel group of
    the first note; ``others``: the number of the topic's records that are no notes;
    ``some_deleted``: the topic's oldest records are deleted."""

    def __init__(self) -> None:
        self._names = _names(NOTHING)
        self._new: list[npt.NDArray[np.bytes_]] = []
        self.turns: set[int] = set()
        self.group: str | None = None
        self.others = 0
        self.some_deleted = False

    def add(self, value: bytes | None) -> None:
        """Add a record of the notes' topic. Errors: ``UnsupportedVersion``."""
        note = _parse(value)
        if note is None:
            self.others += 1
            return
        group, turn, letters = note
        self.group = group if self.group is None else self.group
        self.turns.add(turn)
        self._new.append(_names(letters))

    @property
    def count(self) -> int:
        return len(self._sorted())

    def has(self, letters: pa.RecordBatch) -> Mask:
        """A mask of the letters that were redriven, shape (rows,). Columns: as of ``places_of``."""
        known, names = self._sorted(), _names(places_of(letters))
        if not len(known):
            return np.zeros(len(names), np.bool_)
        at = np.searchsorted(known, names)
        redriven: Mask = known[np.minimum(at, len(known) - 1)] == names
        return redriven

    def _sorted(self) -> npt.NDArray[np.bytes_]:
        if self._new:
            self._names = np.unique(np.concatenate([self._names, *self._new]))
            self._new.clear()
        return self._names


def _names(places: Places) -> npt.NDArray[np.bytes_]:
    """Places as bytes, which can be sorted and compared."""
    return np.ascontiguousarray(places, ">i8").view("S24").reshape(len(places))


def _parse(value: bytes | None) -> tuple[str, int, Places] | None:
    """A note's group, turn and letters; None if it is no note. Errors: ``UnsupportedVersion``."""
    try:
        fields = json.loads(value or b"")
        version = fields[_VERSION_KEY]
        if type(version) is int and version > VERSION:
            raise UnsupportedVersion(
                "notes of a newer version, so nobody knows what was redriven",
                got=version,
                limit=f"version {VERSION}",
                remedy="Use the version of slotwheel that redrove before, or a newer one",
            )
        group, turn, letters = (fields[name] for name in ("group", "turn", "letters"))
        places = np.array(letters) if letters else NOTHING
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    known = type(version) is int and version == VERSION and type(group) is str
    known &= type(turn) is int and 0 <= turn < 1 << 63
    known &= type(letters) is list and places.dtype == np.int64 and places.shape[1:] == (3,)
    return (group, turn, places) if known else None
