"""The name of a message: a key of the caller's own, by which it is cancelled or replaced.

Theory: without names, who wants to cancel an order's time-out has to keep our id of it. A name
stands for at most one pending message of its topic, so ``order-17`` is enough. It is a header of
the message, and not a column: the ways in need no other form for it, it is delivered with the
message, and rows without it cost one look at the names of their headers.

Rules
- A name is 1 to 200 bytes of UTF-8, without control characters. It belongs to its topic: the same
  name in another topic is another one.
- ``IF_EXISTS_HEADER`` says what happens if a message of that name is pending: see ``IfExists``.
- Tables know a name by its *key*: 16 bytes of a hash of topic and name. Two names of one key would
  have to be searched for in 2^64 tries, and a name of somebody else's key in 2^128.

What is decided about them is in ``due/namer.py``, where they are kept in ``named/``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from .answers import Before, NamedAnswer
from .arrowbytes import PlainRow
from .errors import InvalidMessage
from .files import Bytes
from .rows import header_values, taken
from .schema import FEW_ROWS, Int64s, UInt64s, bounds, distinct, lengths
from .texts import is_utf8, shown_text

NAME_HEADER = "slotwheel-name"
IF_EXISTS_HEADER = "slotwheel-if-exists"
NAME_BYTES_MAX = 200
KEY_BYTES = 16
_NAME, _IF_EXISTS = NAME_HEADER.encode(), IF_EXISTS_HEADER.encode()
_BLANK, _DELETE = 0x20, 0x7F
_CONTROL = "[\x00-\x1f\x7f-\x9f]"
_TOPICS_MAX = 4096
_HALVES = struct.Struct(">QQ")
assert _HALVES.size == KEY_BYTES
# +-----+--------+-----+--------+
# | row | before | due | offset |
# | u32 | u8 + 3 | i64 | i64    |
# +-----+--------+-----+--------+
_ANSWER = struct.Struct(
    "<"
    "I"  # the row's position among the rows of its caller, or of the entry in a note
    "B3x"  # what became of the message that had the name: its place in ``Before``
    "q"  # that message's due time, ms
    "q"  # its offset
)
ANSWER_BYTES = _ANSWER.size
assert ANSWER_BYTES == 24
_BEFORE = tuple(Before)
_CODES = {before: code for code, before in enumerate(_BEFORE)}


NamePlace = int
"""Due time (ms) and offset of the message that has a name, as one number: half a million names are
in memory before they are spilled, and two numbers would take three times as much."""
_OFFSET_BITS = 63
_OFFSET = (1 << _OFFSET_BITS) - 1


class IfExists(StrEnum):
    """What happens to a message whose name another pending one has."""

    REPLACE = "replace"
    """The other one is cancelled, and this one is stored, in one step."""
    KEEP = "keep"
    """The other one stays, and this one never leaves."""
    REFUSE = "refuse"
    """This one is refused."""


_MODES = {mode.encode(): mode for mode in IfExists}


class NameKeys(list[bytes]):
    """Keys of names. A few are looked up one by one, many as numbers, all at once."""

    @cached_property
    def halves(self) -> tuple[UInt64s, UInt64s]:
        """The first and the second 8 bytes of each key as numbers, which have the order of the
        bytes; shape (keys,) each."""
        numbers = np.frombuffer(b"".join(self), ">u8").reshape(-1, 2)
        return numbers[:, 0].astype(np.uint64), numbers[:, 1].astype(np.uint64)

    _pairs: Sequence[tuple[int, int]] = ()

    @property
    def pairs(self) -> Sequence[tuple[int, int]]:
        """As ``halves``, in pairs of Python's own numbers; kept as well, without the lock that
        ``cached_property`` takes: for one key that costs more than all else here."""
        if len(self._pairs) != len(self):
            self._pairs = [*map(_HALVES.unpack, self)]
        return self._pairs

    @property
    def differ(self) -> bool:
        """True if no key comes twice. Of many, two keys of one first half are taken for one key."""
        if len(self) <= FEW_ROWS:
            return len(set(self)) == len(self)
        first = np.sort(self.halves[0])
        return not (first[1:] == first[:-1]).any()


class NamedRows(NamedTuple):
    """The rows of a batch that have names, at least one. ``rows``: their positions, ascending;
    ``keys``: of their topics and names."""

    rows: Sequence[int] | Int64s
    topics: Sequence[bytes]
    keys: NameKeys
    modes: Sequence[IfExists]


@dataclass(frozen=True, slots=True)
class TakenNames:
    """Names that the rows of an entry take, and the due times (ms) and offsets of these rows, which
    ascend. Of a name that several of them take the last one has it."""

    keys: NameKeys = field(default_factory=NameKeys)
    due: Sequence[int] | Int64s = ()
    offset: Sequence[int] | Int64s = ()

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, named: NamedRows, due: Sequence[int] | Int64s, base_offset: int) -> TakenNames:
        """All named rows of a batch take their names. ``due``: of all its rows, ms; the first one
        has ``base_offset``."""
        if isinstance(due, np.ndarray):
            rows = np.asarray(named.rows, np.int64)
            return cls(named.keys, due[rows], base_offset + rows)
        offsets = [base_offset + row for row in named.rows]
        return cls(named.keys, [due[row] for row in named.rows], offsets)

    def without(self, offsets: Int64s) -> TakenNames:
        """Without those of the rows at some offsets."""
        stay = np.flatnonzero(~np.isin(np.asarray(self.offset, np.int64), offsets))
        if len(stay) == len(self):
            return self
        keys = NameKeys([self.keys[at] for at in stay.tolist()])
        return TakenNames(keys, np.asarray(self.due)[stay], np.asarray(self.offset)[stay])

    @classmethod
    def at(cls, places: Mapping[bytes, NamePlace]) -> TakenNames:
        """Each name at its place."""
        by_offset = sorted((*due_and_offset(place)[::-1], key) for key, place in places.items())
        if not by_offset:
            return cls()
        offset, due, keys = zip(*by_offset, strict=True)
        return cls(NameKeys(keys), due, offset)


def key_of(topic: bytes, name: bytes) -> bytes:
    """The key of a name in its topic, ``KEY_BYTES`` bytes."""
    return keys_of([topic], [name])[0]


def keys_of(topics: Sequence[bytes], names: Sequence[bytes]) -> NameKeys:
    """The key of each name in its topic."""
    keys = NameKeys()
    last: bytes | None = None
    for topic, name in zip(topics, names, strict=True):
        if topic != last:
            begun, last = _hash_of(topic), topic
        hashed = begun.copy()
        hashed.update(name)
        keys.append(hashed.digest())
    return keys


@lru_cache(_TOPICS_MAX)
def _hash_of(topic: bytes) -> blake2b:
    """What the keys of all names of a topic begin with. It is copied and never changed."""
    return blake2b(topic + b"\0", digest_size=KEY_BYTES)


def place_of(due: int, offset: int) -> NamePlace:
    return due << _OFFSET_BITS | offset


def due_and_offset(place: NamePlace) -> tuple[int, int]:
    return place >> _OFFSET_BITS, place & _OFFSET


def check_name(name: str) -> None:
    """Raise ``InvalidMessage`` unless ``name`` may be a message's name."""
    if not is_utf8(name):
        raise _unusable("the name is not text", repr(name[:80]))
    fault = _fault_of(name.encode())
    if fault is not None:
        raise fault


def named_rows(batch: pa.RecordBatch) -> NamedRows | None:
    """The named rows of a batch that was checked; None: it has none."""
    given, chosen = _given(batch.column("headers"))
    if given is None:
        return None
    rows, values = given
    of_rows = taken(batch.column("topic"), rows)
    topics = [topic.encode() for topic in distinct(of_rows)] * len(rows)
    if len(topics) > len(rows):  # mostly there is one
        topics = of_rows.cast(pa.binary()).to_pylist()
    keys = keys_of(topics, values.to_pylist())
    modes = [IfExists.REPLACE] * len(rows)
    if chosen is not None:
        places = np.searchsorted(rows, chosen[0]).tolist()
        for place, mode in zip(places, chosen[1].to_pylist(), strict=True):
            modes[place] = _MODES[mode]
    return NamedRows(rows, topics, keys, modes)


_Given = tuple[Int64s, pa.Array] | None


def _given(headers: pa.Array) -> tuple[_Given, _Given]:
    """As of ``header_values``: the names, and what is to happen if they exist."""
    names = header_values(headers, NAME_HEADER)
    if names is not None and len(names[0]) == len(headers.flatten()):
        return names, None  # there are no other headers
    return names, header_values(headers, IF_EXISTS_HEADER)


def named_plain(rows: Sequence[PlainRow]) -> NamedRows | None:
    """The named rows among plain rows that were checked; None: there are none."""
    at: list[int] = []
    topics: list[bytes] = []
    names: list[bytes] = []
    modes: list[IfExists] = []
    for number, (_, topic, _, _, _, headers) in enumerate(rows):
        name, mode = None, IfExists.REPLACE
        for header, value in headers:
            if header == _NAME:
                name = value
            elif header == _IF_EXISTS and value:
                mode = _MODES[value]
        if name is not None:
            at.append(number)
            topics.append(topic)
            names.append(name)
            modes.append(mode)
    return NamedRows(at, topics, keys_of(topics, names), modes) if at else None


def encode_named(answers: Sequence[NamedAnswer]) -> bytes:
    """What became of messages that had names, as it stands in notes and in the state."""
    return b"".join(
        _ANSWER.pack(row, _CODES[before], due, offset) for row, before, due, offset in answers
    )


def decode_named(data: Bytes) -> list[NamedAnswer]:
    """Errors: ``ValueError``."""
    try:
        fields = [*_ANSWER.iter_unpack(data)]
        return [NamedAnswer(row, _BEFORE[code], due, at) for row, code, due, at in fields]
    except (struct.error, IndexError) as error:
        raise ValueError(f"what became of names: {error}") from None


def bad_plain_name(headers: Sequence[tuple[bytes, bytes | None]]) -> bool:
    """True unless a row's headers surely say a name as they should, or none at all."""
    if len(headers) == 1 and headers[0][0] == _NAME:
        return _fault_of(headers[0][1]) is not None
    names = [value for name, value in headers if name == _NAME]
    modes = [value for name, value in headers if name == _IF_EXISTS]
    if len(names) != 1 or len(modes) > len(names):
        return bool(names or modes)
    return _fault_of(names[0]) is not None or any(mode not in _MODES for mode in modes)


def bad_names(headers: pa.Array) -> dict[int, InvalidMessage]:
    """The rows of a headers column whose name is unusable, with their errors; mostly none."""
    bad: dict[int, InvalidMessage] = {}
    named: Int64s = np.empty(0, np.int64)
    given, chosen = _given(headers)
    if given is not None:
        named, names = given
        if not _are_good(names):
            faults = map(_fault_of, names.to_pylist())
            bad = {row: fault for row, fault in zip(named.tolist(), faults, strict=True) if fault}
    if chosen is not None:
        for row, mode in zip(chosen[0].tolist(), chosen[1].to_pylist(), strict=True):
            if mode not in _MODES:
                bad[row] = _bad_mode(mode)
        for row in np.setdiff1d(chosen[0], named).tolist():
            bad[row] = _without_name()
    for rows in (named, named[:0] if chosen is None else chosen[0]):
        for row in rows[1:][rows[1:] == rows[:-1]].tolist():
            bad[row] = _unusable("header twice", "two", "Send it once", limit="one")
    return bad


def _are_good(names: pa.Array) -> bool:
    """True if all of them may be names."""
    shortest, longest = bounds(lengths(names))
    if names.null_count or shortest < 1 or longest > NAME_BYTES_MAX:
        return False
    _, ends, data = names.buffers()
    places = np.frombuffer(ends, np.int32, len(names) + 1, 4 * names.offset)
    first, last = int(places[0]), int(places[-1])
    signs = np.frombuffer(data, np.uint8, last - first, first)
    if int(signs.min()) >= _BLANK and int(signs.max()) < _DELETE:
        return True
    return not any(map(_fault_of, names.to_pylist()))


def _fault_of(name: bytes | None) -> InvalidMessage | None:
    if not name:
        return _unusable("no name", "null" if name is None else "nothing")
    if len(name) > NAME_BYTES_MAX:
        return _unusable("the name is too long", f"{len(name)} bytes")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return _unusable("the name is not text", repr(name[:80]))
    if not text.isprintable() and re.search(_CONTROL, text):
        return _unusable("control characters in the name", shown_text(text[:80]))
    return None


def _unusable(what: str, got: str, remedy: str = "", limit: str = "") -> InvalidMessage:
    return InvalidMessage(
        f"{NAME_HEADER}: {what}",
        got=got,
        limit=limit or f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters",
        remedy=remedy or "Give a name such as order-17, or none",
    )


def _bad_mode(mode: bytes | None) -> InvalidMessage:
    return InvalidMessage(
        f"{IF_EXISTS_HEADER}: unknown",
        got="null" if mode is None else repr(mode[:80]),
        limit=", ".join(IfExists),
        remedy="Leave it out to replace the message that has the name",
    )


def _without_name() -> InvalidMessage:
    return InvalidMessage(
        f"{IF_EXISTS_HEADER} without a name",
        got="no name",
        limit=f"a header {NAME_HEADER} beside it",
        remedy="Give the message a name, or leave it out",
    )
