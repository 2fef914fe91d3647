"""The files of departures, byte for byte: what left, when, and how.

Theory: a file is a header and frames, appended one behind the other; a frame holds the rows that
left at one moment, column by column. A frame is written before the mark can pass its rows, and is
not synced: after a kill all of them are there, after a power cut the last ones may not be. So an
incomplete frame at the end is no damage, and a frame proves by its own CRC that it was written.

    departures/<first time, ms, 16 digits>.departures    +--------+---------+---------+- - - -+
                                                         | header | frame 1 | frame 2 | junk  |
                                                         +--------+---------+---------+- - - -+

A frame's own header has a CRC, too: a reader that looks for a due time skips most of them by it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from .errors import Damaged, UnsupportedVersion
from .files import Handle
from .rows import from_numpy
from .schema import TIME, Int64s, UInt64s, bounds

DEPARTURES_DIRECTORY = "departures"
SUFFIX = ".departures"
MAGIC = b"SWDEPART"
VERSION = 1


class How(IntEnum):
    """The way in which a message left; a number of the file format."""

    DELIVERED = 0
    """A sink accepted it."""
    DEAD = 1
    """No topic took it: a dead letter."""
    EXPIRED = 2
    """Its time was over: a dead letter."""
    CANCELLED = 3
    """The mark passed it; when it was cancelled is in its cancel."""
    UNCLEAR = 4
    """Under at-most-once the mark was moved first, and no clear answer followed."""


STATES = {
    How.DELIVERED: "delivered",
    How.DEAD: "dead",
    How.EXPIRED: "expired",
    How.CANCELLED: "cancelled",
    How.UNCLEAR: "unknown",
}
"""The state of a message that left in each way."""

DEPARTURES = pa.schema(
    [
        pa.field("due", TIME, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("created", TIME),
        pa.field("at", TIME, nullable=False),
        pa.field("state", pa.utf8(), nullable=False),
        pa.field("topic", pa.utf8()),
        pa.field("key_hash", pa.uint64(), nullable=False),
    ]
)
"""The rows of a decoded frame: which messages left at that time, and how (one of ``STATES``).
``key_hash``: ``digest.key_hashes``."""

# +-------+---------+----------+-----+
# | magic | version | reserved | crc |
# | 8s    | u16     | u16      | u32 |
# +-------+---------+----------+-----+
_HEADER = struct.Struct(
    "<"
    "8s"  # magic "SWDEPART"
    "H"  # version of this layout
    "H"  # reserved, zero
    "I"  # CRC-32C of the bytes before
)
# +------------+----------+-------+------+------+-----------+----------+------------+
# | header crc | body crc | bytes | rows | left | first due | last due | topics     |
# | u32        | u32      | u32   | u32  | i64  | i64       | i64      | u32        |
# +------------+----------+-------+------+------+-----------+----------+------------+
_FRAME = struct.Struct(
    "<"
    "I"  # CRC-32C of the bytes of this header behind this field
    "I"  # CRC-32C of the body
    "I"  # bytes of the body
    "I"  # rows
    "q"  # when they left, ms
    "q"  # the lowest due time among them, ms
    "q"  # the highest
    "I"  # how many of the body's bytes are the topics' names
)
assert _HEADER.size == 16
assert _FRAME.size == 44

HEADER_BYTES = _HEADER.size
FRAME_BYTES = _FRAME.size
_ROW_BYTES = 4 * 8 + 4 + 1
_READ_BYTES = 1 << 16
"""Bytes read at once to find headers in: many where chunks are small, one where they are large."""

_HEADER_TABLE = np.dtype(
    [
        ("body_crc", "<u4"),
        ("nbytes", "<u4"),
        ("rows", "<u4"),
        ("left_ms", "<i8"),
        ("due_from_ms", "<i8"),
        ("due_to_ms", "<i8"),
        ("name_bytes", "<u4"),
    ]
)
assert _HEADER_TABLE.itemsize == FRAME_BYTES - 4
_HEADER_FIELDS = list(_HEADER_TABLE.names or ())
FRAME_TABLE = np.dtype([("position", "<i8"), *_HEADER_TABLE.descr])
"""The fields of ``DepartureFrame``, in their order."""


def path_of(first_ms: int) -> str:
    return f"{DEPARTURES_DIRECTORY}/{first_ms:016d}{SUFFIX}"


def first_ms_of(name: str) -> int | None:
    """The time in a file's name; None if it is not such a name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 16 or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def file_header() -> bytes:
    begin = _HEADER.pack(MAGIC, VERSION, 0, 0)[:-4]
    return begin + crc32c(begin).to_bytes(4, "little")


def check_file_header(data: bytes, path: str) -> None:
    """Check what ``file_header`` made. Errors: ``Damaged``, ``UnsupportedVersion``."""
    if len(data) < HEADER_BYTES:
        raise Damaged(path, len(data), expected=f"{HEADER_BYTES} bytes", found=len(data))
    magic, version, reserved, crc = _HEADER.unpack_from(data)
    actual = crc32c(data[: HEADER_BYTES - 4])
    if magic != MAGIC:
        raise Damaged(path, 0, expected=f"magic {MAGIC!r}", found=repr(magic))
    if crc != actual:
        raise Damaged(path, 12, expected=f"CRC-32C {crc:08x}", found=f"{actual:08x}")
    if version != VERSION or reserved != 0:
        raise UnsupportedVersion(
            f"{path}: unknown version of a file of departures",
            got=version,
            limit=VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )


def encode(
    due: Int64s,
    offset: Int64s,
    created: Int64s,
    how: np.ndarray[tuple[int], np.dtype[np.uint8]],
    topic: pa.Array,
    key_hash: UInt64s,
    left_ms: int,
) -> bytes:
    """One frame of at least one row; columns of one length, ``topic`` utf8."""
    encoded = topic.dictionary_encode()
    names = "\n".join(encoded.dictionary.to_pylist()).encode()
    numbers = np.asarray(encoded.indices, dtype="<i4")
    columns = (due, offset, created, key_hash, numbers, how)  # each where its width divides
    body = b"".join((*(np.ascontiguousarray(column).data for column in columns), names))
    low, high = bounds(due)
    fields = (crc32c(body), len(body), len(due), left_ms, low, high, len(names))
    header = _FRAME.pack(0, *fields)[4:]
    return crc32c(header).to_bytes(4, "little") + header + body


@dataclass(frozen=True, slots=True)
class DepartureFrame:
    """The header of a frame. ``position``: of its body in the file."""

    position: int
    body_crc: int
    nbytes: int
    rows: int
    left_ms: int
    due_from_ms: int
    due_to_ms: int
    name_bytes: int

    @property
    def end(self) -> int:
        return self.position + self.nbytes

    def decode(self, body: bytes, path: str) -> pa.RecordBatch:
        """The rows, schema ``DEPARTURES``. Errors: ``Damaged``."""
        actual = crc32c(body)
        if len(body) != self.nbytes or actual != self.body_crc:
            expected = f"{self.nbytes} bytes, CRC-32C {self.body_crc:08x}"
            raise Damaged(
                path, self.position, expected=expected, found=f"{len(body)} bytes, {actual:08x}"
            )
        rows = self.rows
        wide = np.frombuffer(body, "<i8", 4 * rows).reshape(4, rows)
        numbers = np.frombuffer(body, "<i4", rows, 32 * rows)
        how = np.frombuffer(body, np.uint8, rows, 36 * rows)
        names = body[_ROW_BYTES * rows :].decode().split("\n")
        left = np.full(rows, self.left_ms, np.int64)
        columns = [
            from_numpy(wide[0], TIME),
            from_numpy(wide[1], pa.int64()),
            from_numpy(wide[2], TIME),
            from_numpy(left, TIME),
            pa.array(STATES.values(), pa.utf8()).take(from_numpy(how, pa.uint8())),
            pa.array(names, pa.utf8()).take(from_numpy(numbers, pa.int32())),
            from_numpy(wide[3].view(np.uint64), pa.uint64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=DEPARTURES)


def frames(handle: Handle, path: str, start: int = HEADER_BYTES) -> Iterator[DepartureFrame]:
    """The complete frames from ``start`` on, bodies unread. Errors: as of ``frame_tables``."""
    for table in frame_tables(handle, path, start):
        for fields in table.tolist():
            yield DepartureFrame(*fields)


def frame_tables(
    handle: Handle, path: str, start: int = HEADER_BYTES
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.void]]]:
    """The complete frames, some at a time, as arrays of ``FRAME_TABLE``, shape (frames,).
    ``start``: where a frame begins.

    Errors: ``Damaged`` where a header is not what was written: where the next one begins is
    unknown then. What is before it came already.
    """
    size = handle.size()
    while start + FRAME_BYTES <= size:
        data = handle.pread(min(_READ_BYTES, size - start), start)
        headers: list[bytes] = []
        positions: list[int] = []
        at, torn = 0, False
        damage: Damaged | None = None
        while at + FRAME_BYTES <= len(data):
            crc, _, nbytes, rows, _, _, _, name_bytes = _FRAME.unpack_from(data, at)
            header = data[at + 4 : at + FRAME_BYTES]
            actual = crc32c(header)
            if crc != actual or nbytes != name_bytes + _ROW_BYTES * rows:
                expected = f"CRC-32C {crc:08x}"
                damage = Damaged(path, start + at, expected=expected, found=f"{actual:08x}")
                break
            at += FRAME_BYTES
            if start + at + nbytes > size:
                torn = True  # it is being written, or was when the node was killed
                break
            headers.append(header)
            positions.append(start + at)
            at += nbytes
        if headers:
            table = np.empty(len(headers), FRAME_TABLE)
            table["position"] = positions
            table[_HEADER_FIELDS] = np.frombuffer(b"".join(headers), _HEADER_TABLE)
            yield table
        if damage is not None:
            raise damage
        if torn or not at:
            return
        start += at
