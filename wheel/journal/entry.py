"""The journal entry: the unit of the write path, the same bytes on every peer.

Theory: an entry is a fixed header and an opaque payload (a record batch, a mark, a configuration).
One CRC-32C covers all that follows it, so an entry vouches for itself wherever it lies: in a
journal, on the wire, in a peer's journal. What a peer knows locally stands in a frame around it
(``segment.py``), never inside.

Most entries hold the rows of one caller. Rows of several, which came in one turn, share an entry of
version 2: its payload ends with a table of its *parts*, which says whose rows are whose. Without
it, the rows of a caller who sends them again after a crash would be stored twice.

*Example.* A sends 3 rows with sequence 7, B sends 2 with sequence 4, and both share the entry with
base offset 100. When B repeats its sequence 4, the parts say that its rows are those of offsets 103
and 104.

An entry of version 3 says more about its rows than the rows do, in *notes* before the table: what
became of messages that had the names of some (``wheel/named.py``), and which runs of which
schedules they are (``wheel/schedules.py``). A program that knows nothing of
that refuses the entry, so it cannot become master and let two messages have one name, or fire a run
twice. So an entry that changes schedules is of version 3, too.

Rules
- Every bit is covered by the CRC or compared by value; there is no bit whose change goes unseen.
- Zero is no kind, so a run of zeros is never an entry.
- The payload is never copied here: encoding returns parts, decoding returns a view.
- An entry's CRC is computed once, by who makes it; an entry that was decoded keeps its header, so
  that a peer writes and ships the bytes it received.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Self

from crc32c import crc32c

from ..errors import Damaged, UnsupportedVersion
from ..files import Bytes

MAGIC = b"SWEN"
ENTRY_VERSION = 1
PARTS_VERSION = 2
"""The version of an entry with a table of parts. A reader that knows version 1 alone refuses it."""
NOTES_VERSION = 3
"""The version of an entry with notes, and a table of at least one part."""


class EntryKind(IntEnum):
    """The meaning of an entry's payload. 0 is never valid."""

    ROWS = 1
    """One Arrow IPC record-batch message."""
    MARK = 2
    """The marks of delivery (``mark.py``)."""
    CONFIG = 3
    """A configuration of the wheel group."""
    SCHEDULES = 4
    """Changes of schedules (``wheel/schedules.py``), always of version 3."""


#  0       4         6          8      12     13      14         16        20      24
#  +-------+---------+----------+------+------+-------+----------+---------+-------+
#  | magic | version | reserved | crc  | kind | flags | reserved | payload | count |
#  | SWEN  | u16     | u16 = 0  | u32  | u8   | u8    | u16 = 0  | u32     | u32   |
#  +-------+---------+----------+------+------+-------+----------+---------+-------+
#  24              32              40              48              56              64
#  +---------------+---------------+---------------+---------------+---------------+---------+
#  | epoch         | index         | base offset   | producer      | sequence      | payload |
#  | u64           | u64           | i64           | u64           | i64           | bytes   |
#  +---------------+---------------+---------------+---------------+---------------+---------+
HEADER = struct.Struct(
    "<"
    "4s"  # magic: "SWEN"
    "H"  # version: 1, or 2: the payload ends with a table of parts; 3: there are notes before it
    "H"  # reserved, zero
    "I"  # CRC-32C of everything after this field: bytes 12..64, then the payload
    "B"  # kind: 1 rows, 2 mark, 3 configuration, 4 schedules; 0 is invalid
    "B"  # flags: none defined yet; kept as they are
    "H"  # reserved, zero
    "I"  # payload length in bytes
    "I"  # count: rows in the payload; 0 for an entry of another kind
    "Q"  # epoch in which a master made the entry
    "Q"  # index: the entry's number in the log
    "q"  # base offset: the offset of the first row; of the next row, if there are none
    "Q"  # producer id; 0 = none
    "q"  # producer's sequence; -1 = none
)
# The same fields as two halves, split where the CRC's coverage begins.
_CHECKED = struct.Struct("<BBHIIQQqQq")
_LEAD = struct.Struct("<4sHHI")
_RELEASE_FROM_BYTES = 1 << 20
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 64
#  0          8          16     20     24
#  +----------+----------+------+------+-----+-------+-------+
#  | producer | sequence | rows | zero | ... | count | magic |
#  | u64      | i64      | u32  | u32  |     | u32   | SWPT  |
#  +----------+----------+------+------+-----+-------+-------+
_PART = struct.Struct("<QqII")
_TABLE_END = struct.Struct("<I4s")
_TABLE_MAGIC = b"SWPT"
#  0      4        8     8 + length       8       12      16
#  +------+--------+-------+-----+--------+-------+-------+
#  | kind | length | bytes | ... | length | zero  | magic |
#  | u32  | u32    |       |     | of all | u32   | SWNT  |
#  +------+--------+-------+-----+--------+-------+-------+
_NOTE = struct.Struct("<II")
_NOTES_END = struct.Struct("<II4s")
_NOTES_MAGIC = b"SWNT"
assert _PART.size == 24
assert _TABLE_END.size == 8
assert _LEAD.size == 12
assert _LEAD.size + _CHECKED.size == HEADER_BYTES

_KINDS = {int(kind): kind for kind in EntryKind}


class NoteKind(IntEnum):
    """What a note says. An unknown kind is refused."""

    NAMES = 1
    """What became of the messages that had the names of some rows before (``wheel/named.py``)."""
    RUNS = 2
    """Which runs of which schedules its first rows are (``wheel/schedules.py``)."""


Notes = Mapping[NoteKind, bytes]


class EntryPart(NamedTuple):
    """The next ``rows`` rows of an entry came from this producer. ``producer`` 0: from a caller
    without an id, whose repeats are not recognized."""

    producer: int
    sequence: int
    rows: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the log. ``payload`` is any bytes-like object; a decoded entry's is a view."""

    kind: EntryKind
    epoch: int
    index: int
    base_offset: int
    count: int
    producer: int
    sequence: int
    payload: Bytes
    flags: int = 0
    version: int = ENTRY_VERSION
    # Not an argument, so that ``replace`` makes an entry without it.
    _header: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def _has_table(self) -> bool:
        return self.version != ENTRY_VERSION and self.kind is not EntryKind.SCHEDULES

    @property
    def parts(self) -> Sequence[EntryPart]:
        """The callers' shares of the rows, in row order; empty for an entry without rows."""
        if self._has_table:
            return _parts_in(_split(self.payload)[1])
        return (EntryPart(self.producer, self.sequence, self.count),) if self.count else ()

    @property
    def notes(self) -> Notes:
        """What is noted of its rows; mostly nothing."""
        if self.version != NOTES_VERSION or not self._has_table:
            return {}
        return _split_notes(_split(self.payload)[0])[1]

    @property
    def batch(self) -> Bytes:
        """The payload without notes and the table of parts."""
        if not self._has_table:
            return self.payload
        batch = _split(self.payload)[0]
        return batch if self.version == PARTS_VERSION else _split_notes(batch)[0]

    @property
    def ends_like_a_later_version(self) -> bool:
        """True if the batch ends as a table or notes do, which the version says are not there."""
        magic = {ENTRY_VERSION: _TABLE_MAGIC, PARTS_VERSION: _NOTES_MAGIC}.get(self.version)
        return magic is not None and bytes(memoryview(self.batch)[-len(magic) :]) == magic

    def encode(self) -> list[Bytes]:
        """The shipped part: ``[header of 64 bytes, payload]``, the payload not copied.

        The header is made once; the payload must not change after that.
        """
        payload = _flat(self.payload)
        header = self._header
        if header is None:
            header = self._make_header(payload)
            object.__setattr__(self, "_header", header)  # two threads would set the same
        return [header, payload]

    def _make_header(self, payload: Bytes) -> bytes:
        checked = _CHECKED.pack(
            self.kind,
            self.flags,
            0,
            len(payload),
            self.count,
            self.epoch,
            self.index,
            self.base_offset,
            self.producer,
            self.sequence,
        )
        # A usual batch takes 10 us: less than winning the interpreter back in a busy node.
        release = int(len(payload) > _RELEASE_FROM_BYTES)
        crc = crc32c(payload, crc32c(checked), gil_release_mode=release)
        return _LEAD.pack(MAGIC, self.version, 0, crc) + checked


def decode_entry(buffer: Bytes, where: str, position: int) -> Entry:
    """The entry that fills ``buffer`` exactly; its payload is a view into it.

    ``where`` and ``position`` (of the entry's first byte) only serve the error's text.

    Errors: ``Damaged``; ``UnsupportedVersion`` when the magic is right and the version unknown.
    """
    view = memoryview(buffer)
    if len(view) < HEADER_BYTES:
        raise Damaged(
            where,
            position,
            expected=f"an entry header of {HEADER_BYTES} bytes",
            found=f"{len(view)} bytes",
        )
    (
        magic,
        version,
        reserved,
        crc,
        kind,
        flags,
        reserved_too,
        length,
        count,
        epoch,
        index,
        base_offset,
        producer,
        sequence,
    ) = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise Damaged(where, position, expected=f"entry magic {MAGIC!r}", found=repr(magic))
    if version == 0:  # a torn write: the magic got to the disk, and zeros stand behind it
        raise Damaged(where, position + 4, expected="an entry version", found=0)
    if version > NOTES_VERSION:
        raise UnsupportedVersion(
            f"{where}: unknown version of the entry at byte {position}",
            got=version,
            limit=NOTES_VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )
    if reserved or reserved_too:
        raise Damaged(
            where, position, expected="reserved fields zero", found=f"{reserved}, {reserved_too}"
        )
    if length != len(view) - HEADER_BYTES:
        raise Damaged(
            where,
            position,
            expected=f"a payload of {len(view) - HEADER_BYTES} bytes",
            found=f"length {length}",
        )
    release = int(length > _RELEASE_FROM_BYTES)
    actual = crc32c(view[_LEAD.size :], gil_release_mode=release)
    if actual != crc:
        raise Damaged(where, position, expected=f"entry CRC-32C {crc:08x}", found=f"{actual:08x}")
    known = _KINDS.get(kind)
    if known is None:
        raise Damaged(where, position, expected=f"kind {sorted(_KINDS)}", found=f"kind {kind}")
    entry = Entry(
        known,
        epoch,
        index,
        base_offset,
        count,
        producer,
        sequence,
        view[HEADER_BYTES:],
        flags,
        version,
    )
    if known is EntryKind.SCHEDULES:
        _check_schedules(entry, where, position)
    elif version != ENTRY_VERSION:
        _check_parts(entry, where, position)
    object.__setattr__(entry, "_header", bytes(view[:HEADER_BYTES]))
    return entry


class EntryHead(NamedTuple):
    """What an entry's header says of its rows. Nothing vouches for it before the entry is decoded,
    so it serves to choose entries and for nothing else."""

    version: int
    kind: int
    base_offset: int
    rows: int

    @classmethod
    def of(cls, data: Bytes) -> Self:
        """``data``: begins with a header, of ``HEADER_BYTES``."""
        _, version, _, _, kind, _, _, _, count, _, _, base_offset, _, _ = HEADER.unpack_from(data)
        return cls(version, kind, base_offset, count)


def with_parts(batch: Bytes, parts: Sequence[EntryPart], notes: Notes | None = None) -> bytes:
    """The payload of an entry of several callers: the batch of all rows, and the table. With
    ``notes``: that of an entry with notes."""
    noted = [] if notes is None else [_encode_notes(notes)]
    table = [_PART.pack(producer, sequence, rows, 0) for producer, sequence, rows in parts]
    return b"".join([batch, *noted, *table, _TABLE_END.pack(len(parts), _TABLE_MAGIC)])


def _encode_notes(notes: Notes) -> bytes:
    packed = b"".join([_NOTE.pack(kind, len(note)) + note for kind, note in sorted(notes.items())])
    return packed + _NOTES_END.pack(len(packed), 0, _NOTES_MAGIC)


def _split(payload: Bytes) -> tuple[memoryview, memoryview]:
    """What stands before the table, and its rows. Errors: ``ValueError`` when there is none."""
    view = memoryview(payload)
    end = len(view) - _TABLE_END.size
    if end < 0:
        raise ValueError(f"{len(view)} bytes")
    count, magic = _TABLE_END.unpack_from(view, end)
    begin = end - count * _PART.size
    if magic != _TABLE_MAGIC or begin < 0:
        raise ValueError(f"{count} parts, {magic!r}")
    return view[:begin], view[begin:end]


def _parts_in(table: memoryview) -> list[EntryPart]:
    rows = _PART.iter_unpack(table)
    return [EntryPart(producer, sequence, count) for producer, sequence, count, _ in rows]


def _split_notes(view: memoryview) -> tuple[memoryview, dict[NoteKind, bytes]]:
    """A batch and its notes. Errors: ``ValueError``."""
    end = len(view) - _NOTES_END.size
    if end < 0:
        raise ValueError(f"{len(view)} bytes before the parts")
    length, _, magic = _NOTES_END.unpack_from(view, end)
    begin = end - length
    if magic != _NOTES_MAGIC or begin < 0:
        raise ValueError(f"{length} bytes of notes, {magic!r}")
    notes: dict[NoteKind, bytes] = {}
    at = begin
    while at < end:
        if at + _NOTE.size > end:
            raise ValueError(f"a note of {end - at} bytes")
        kind, size = _NOTE.unpack_from(view, at)
        at += _NOTE.size + size
        if at > end:
            raise ValueError(f"a note of {size} bytes at the end of {length}")
        notes[NoteKind(kind)] = bytes(view[at - size : at])
    return view[:begin], notes


def _check_schedules(entry: Entry, where: str, position: int) -> None:
    """Errors: ``Damaged`` unless it is of the version by which older programs refuse it."""
    if (entry.version, entry.count, entry.producer, entry.sequence) != (NOTES_VERSION, 0, 0, -1):
        raise Damaged(
            where,
            position,
            expected=f"changes of schedules in version {NOTES_VERSION}, without rows",
            found=f"version {entry.version}, {entry.count} rows of producer {entry.producer:x}",
        )


def _check_parts(entry: Entry, where: str, position: int) -> None:
    """Check what stands behind the batch. Errors: ``Damaged`` unless it is as ``with_parts`` makes
    it."""
    noted = entry.version == NOTES_VERSION
    try:
        batch, table = _split(entry.payload)
        parts = _parts_in(table)
        notes: Notes | None = None
        if noted:
            batch, notes = _split_notes(batch)
        rows = [part.rows for part in parts]
        if len(parts) < (1 if noted else 2) or min(rows) < 1 or sum(rows) != entry.count:
            raise ValueError(f"{len(parts)} parts of {sum(rows)} rows")
        # As bytes: a view of signed bytes never equals unsigned ones from 128 on.
        behind = bytes(memoryview(entry.payload)[len(batch) :])
        if with_parts(b"", parts, notes) != behind:
            raise ValueError("reserved bytes that are not zero")
        if entry.kind is not EntryKind.ROWS or (entry.producer, entry.sequence) != (0, -1):
            raise ValueError(f"{entry.kind.name} of producer {entry.producer:x}")
    except ValueError as error:
        expected = f"{entry.count} rows of several callers, and a table of their parts"
        if noted:
            expected = f"{entry.count} rows, notes, and a table of their parts"
        raise Damaged(where, position, expected=expected, found=str(error)) from None


def _flat(payload: Bytes) -> Bytes:
    """The payload as a buffer of unsigned bytes, so that ``len`` counts bytes."""
    if isinstance(payload, bytes):
        return payload
    view = memoryview(payload)
    if view.nbytes == 0:  # an empty view cannot be cast
        return b""
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
