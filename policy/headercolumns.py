"""Headers of many rows at once: which ones slotwheel added, their values, and the message's own.

Theory: a list column is a flat column and a border for each row. A header is named by its place in
the flat column, so "the last header of each row, if its name is X" is an index and a comparison for
all rows together. Names are compared as numbers: there are few of them.

Headers that slotwheel adds stand behind the message's own headers, in this order
(``delivery/kafka/records.py``, ``delivery/deadletters.py``):

    own ... | stage reason error topic [partition] ... | id due created
              a dead letter's                            a Kafka record's
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..wheel.schema import Int64s, Mask
from .deadletters import EXPIRED
from .headers import CREATED_HEADER, DUE_HEADER, ID_HEADER
from .lettercolumns import sink_letters


class HeaderColumn:
    """A headers column from which headers are removed. ``starts``, ``ends``: the places of each
    row's first header and behind its last one in the flat column, shape (rows,); ``ends`` moves
    when the last headers of a row are removed."""

    def __init__(self, column: pa.Array) -> None:
        counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0), dtype=np.int64)
        self._flat = column.flatten()
        self._borders: Int64s = np.concatenate([[0], np.cumsum(counts)])
        self.starts: Int64s = self._borders[:-1]
        self.ends: Int64s = self._borders[1:].copy()
        self._kept = np.ones(len(self._flat), np.bool_)
        names = self._flat.field(0).dictionary_encode() if len(self._flat) else None
        self._names = names.dictionary.to_pylist() if names is not None else []
        self._codes: Int64s = np.asarray(names.indices if names is not None else [], dtype=np.int64)

    def of_name(self, name: str) -> Mask:
        """Which headers have that name; shape (headers,)."""
        if name not in self._names:
            return np.zeros(len(self._codes), np.bool_)
        found: Mask = self._codes == self._names.index(name)
        return found

    def last_places(self, name: str) -> Int64s:
        """The place of each row's last header of that name; -1 where there is none."""
        places = np.flatnonzero(self.of_name(name))
        row = np.searchsorted(self.ends, places, side="right")
        at = np.full(len(self.ends), -1, np.int64)
        at[row] = places
        return at

    def last_values(self, name: str, since: Int64s | None = None) -> pa.Array:
        """The value of each row's last header of that name, binary; null where there is none.
        ``since``: the place of each row from which on it counts."""
        at = self.last_places(name)
        return self._flat.field(1).take(pa.array(at, mask=at < (0 if since is None else since)))

    def values(self, places: Int64s) -> pa.Array:
        return self._flat.field(1).take(pa.array(places))

    @property
    def flat(self) -> pa.Array:
        """All headers, also those that were removed."""
        return self._flat

    def remove(self, places: Int64s) -> None:
        self._kept[places] = False

    def cut(self, rows: Int64s, first: Int64s) -> None:
        """Remove the headers of these rows from a place on, one for each."""
        counts = self.ends[rows] - first
        steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        self.remove(np.repeat(first, counts) + steps)
        self.ends[rows] = first

    def left(self) -> pa.Array | None:
        """The column without the headers that were removed; None if no header is left."""
        if not self._kept.any():
            return None
        running = np.concatenate([[0], np.cumsum(self._kept)])
        flat = self._flat if self._kept.all() else self._flat.filter(pa.array(self._kept))
        return pa.ListArray.from_arrays(pa.array(running[self._borders].astype(np.int32)), flat)


@dataclass(frozen=True, slots=True)
class IdHeaders:
    """The three headers of a Kafka record, for the ``rows`` that have them."""

    rows: Int64s
    id: pa.Array
    due: Int64s
    created: Int64s


def split_identity(headers: HeaderColumn) -> IdHeaders:
    """Remove id, due and created where the three stand one behind the other, and return them. Only
    the last such three of a row count: the message's own headers may have any name."""
    found = headers.of_name(ID_HEADER)
    found[-2:] = False
    found[:-2] &= headers.of_name(DUE_HEADER)[1:-1] & headers.of_name(CREATED_HEADER)[2:]
    places = np.flatnonzero(found)
    row = np.searchsorted(headers.ends, places, side="right")
    whole = places + 2 < headers.ends[row]
    places, row = places[whole], row[whole]
    last = np.ones(len(row), np.bool_)
    last[:-1] = row[1:] != row[:-1]
    places, row = places[last], row[last]
    headers.remove(np.concatenate([places, places + 1, places + 2]))
    headers.ends[row] = places
    due, created = decimals(headers.values(places + 1)), decimals(headers.values(places + 2))
    return IdHeaders(row, headers.values(places), due, created)


@dataclass(frozen=True, slots=True)
class DeadLetterHeaders:
    """The dead letters among the rows: the topic of each before it died, the ``partition`` that was
    asked for (-1: none), and whether it had expired."""

    rows: Int64s
    topic: pa.Array
    partition: Int64s
    expired: Mask


def split_dead_letter(headers: HeaderColumn, rows: Int64s) -> DeadLetterHeaders:
    """Remove the headers that were added to dead letters, and return them. They are the last ones
    once ``split_identity`` has removed its own. ``rows``: those to look at."""
    dead = sink_letters(headers.flat, headers.starts, headers.ends, rows)
    partition = np.full(len(dead.rows), -1, np.int64)
    asked = np.asarray(dead.partition.is_valid())
    partition[asked] = decimals(dead.partition.filter(pa.array(asked)))
    headers.cut(dead.rows, dead.first)
    expired = np.asarray(pc.fill_null(pc.equal(dead.reason, EXPIRED.encode()), False))
    return DeadLetterHeaders(dead.rows, texts(dead.topic), partition, expired)


def decimals(values: pa.Array) -> Int64s:
    """A binary column's decimal numbers; -1 where a value is not one."""
    try:
        numbers = values.cast(pa.utf8()).cast(pa.int64())
    except pa.ArrowInvalid:
        return np.array(
            [_decimal(value) for value in values.cast(pa.binary()).to_pylist()], np.int64
        )
    return np.asarray(pc.fill_null(numbers, -1), dtype=np.int64)


def _decimal(value: bytes | None) -> int:
    # As in the cast: a number of more than 64 bits is none; 19 digits may fit.
    if value is None or not value.isdigit() or len(value) > 19:
        return -1
    number = int(value)
    return number if number < 1 << 63 else -1


def texts(values: pa.Array) -> pa.Array:
    """A binary column as text; bytes that are not UTF-8 are replaced."""
    try:
        return values.cast(pa.utf8())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in values.to_pylist()
            ],
            pa.utf8(),
        )
