"""The journal's file format: segments, and the frame around each entry.

    journal/00000000000000000001.journal     named by the index of its first entry

    +----------------+-------+-------------------+-----+-------+--------------+-----+----
    | segment header | frame | entry             | pad | frame | entry        | pad | ...
    | 64 bytes       | 24    | 64 + payload      | 0-7 | 24    | 64 + payload | 0-7 |
    +----------------+-------+-------------------+-----+-------+--------------+-----+----
                     ^ always a multiple of 8     zeros  ^ again a multiple of 8

Theory: a frame holds what *this peer* knew when it wrote the entry: how long the entry is, and up
to which index the journal was durable. A later frame is therefore a witness: an entry it calls
durable cannot be a torn write, so if it cannot be read it is damage. To be worth something as a
witness a frame must not be forgeable by content, so its CRC starts from the segment's header (which
holds the random store id) and its own position: a copy of a frame in a payload, in another file or
at another place is not a frame.

Overwriting costs the disk much less than growing: a file that grows has a new size to be synced
with each write. So a file that was a segment before may become one again, and small writes are
followed by zeros for those to come. What lies behind the end does not count: frames of an earlier
life began from another header, and its indexes are lower than any that can follow; zeros are no
frames. So that this end can be told from a torn one, an end mark stands there: a frame of an entry
of no length.

Rules
- Starts are multiples of 8: the first fields of a frame or an entry never straddle a disk sector.
- A segment is created only when all before it is durable, and takes entries only when its header
  and its name are durable, or a power cut could take a file with entries that were acknowledged.
- A closed segment ends with its last entry: what its file holds behind it is cut first.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from crc32c import crc32c

from ..errors import Damaged, UnsupportedVersion
from .entry import HEADER_BYTES

DIRECTORY = "journal"
SEGMENT_VERSION = 1
SEGMENT_MAGIC = b"SWJOURNL"
FRAME_MAGIC = b"SWFR"
ALIGNMENT = 8
STORE_ID_BYTES = 16

#  0          8         10         12     16            24              32
#  +----------+---------+----------+------+-------------+---------------+
#  | magic    | version | reserved | crc  | first index | durable index |
#  | SWJOURNL | u16     | u16 = 0  | u32  | u64         | u64           |
#  +----------+---------+----------+------+-------------+---------------+
#  32           40                            56            64
#  +------------+-----------------------------+-------------+
#  | last epoch | store id                    | flags       |
#  | u64        | 16 bytes                    | u64         |
#  +------------+-----------------------------+-------------+
SEGMENT = struct.Struct(
    "<"
    "8s"  # magic: "SWJOURNL"
    "H"  # version of this layout, and of the frames in the file
    "H"  # reserved, zero
    "I"  # CRC-32C of bytes 16..64
    "Q"  # first index: the index of the first entry
    "Q"  # durable index when the segment was created: first index - 1
    "Q"  # last epoch: the epoch of the entry before the first; 0 if there was none
    "16s"  # store id of the data directory
    "Q"  # flags: 1 if there may be an end mark behind its entries, and anything behind that
)
SEGMENT_BYTES = SEGMENT.size
assert SEGMENT_BYTES == 64

#  0       4      8              12         16              24
#  +-------+------+--------------+----------+---------------+
#  | magic | crc  | entry length | reserved | durable index |
#  | SWFR  | u32  | u32          | u32 = 0  | u64           |
#  +-------+------+--------------+----------+---------------+
FRAME = struct.Struct(
    "<"
    "4s"  # magic: "SWFR"
    "I"  # CRC-32C of: segment header, position of the frame (u64), bytes 8..24
    "I"  # entry length in bytes: header and payload, without the padding; 0: the end mark
    "I"  # reserved, zero
    "Q"  # durable index: up to where this peer's journal was durable when it wrote the frame
)
FRAME_BYTES = FRAME.size
assert FRAME_BYTES == 24
_FRAME_CHECKED = struct.Struct("<QIIQ")  # the position, then bytes 8..24

PADDING = tuple(bytes(-n % ALIGNMENT) for n in range(ALIGNMENT))
"""``PADDING[length % 8]`` are the zeros after an entry of that length."""

_MARKED = 1
_NAME = re.compile(r"^[0-9]{20}\.journal$")
_SPARE_NAME = re.compile(r"^[0-9]{20}\.spare$")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment."""

    first_index: int
    last_epoch: int
    store_id: bytes
    marked: bool = False
    """Until it is closed an end mark may stand behind its entries, and anything behind that."""

    @property
    def durable_index(self) -> int:
        """Index of the last entry that was durable when the segment was created."""
        return self.first_index - 1

    def encode(self) -> bytes:
        assert len(self.store_id) == STORE_ID_BYTES
        checked = struct.pack(
            "<QQQ16sQ",
            self.first_index,
            self.durable_index,
            self.last_epoch,
            self.store_id,
            _MARKED if self.marked else 0,
        )
        return struct.pack("<8sHHI", SEGMENT_MAGIC, SEGMENT_VERSION, 0, crc32c(checked)) + checked

    @property
    def seed(self) -> int:
        """The value that the CRC of every frame in the segment starts from."""
        return int(crc32c(self.encode()))

    @classmethod
    def decode(cls, data: bytes, path: str) -> SegmentHeader:
        """Parse a header. Errors: ``Damaged``; ``UnsupportedVersion`` when only that is unknown."""
        if len(data) < SEGMENT_BYTES:
            raise Damaged(
                path,
                len(data),
                expected=f"a segment header of {SEGMENT_BYTES} bytes",
                found=f"{len(data)} bytes",
            )
        magic, version, reserved, crc, first, durable, epoch, store_id, flags = SEGMENT.unpack_from(
            data
        )
        if magic != SEGMENT_MAGIC:
            raise Damaged(path, 0, expected=f"segment magic {SEGMENT_MAGIC!r}", found=repr(magic))
        if version != SEGMENT_VERSION:
            raise UnsupportedVersion(
                f"{path}: unknown version of the journal segment",
                got=version,
                limit=SEGMENT_VERSION,
                remedy="Use the slotwheel version that wrote it, or a newer one",
            )
        actual = crc32c(data[16:SEGMENT_BYTES])
        if actual != crc:
            raise Damaged(path, 12, expected=f"header CRC-32C {crc:08x}", found=f"{actual:08x}")
        if reserved:
            raise Damaged(path, 10, expected="reserved field zero", found=reserved)
        if flags & ~_MARKED:
            raise Damaged(path, 56, expected=f"flags {_MARKED} or none", found=flags)
        if first == 0 or durable != first - 1:
            raise Damaged(path, 24, expected=f"durable index {first - 1}", found=durable)
        return cls(first, epoch, store_id, flags == _MARKED)


def encode_frame(seed: int, position: int, entry_length: int, durable: int) -> bytes:
    """The frame of an entry that begins at ``position`` of a segment whose seed is ``seed``."""
    crc = crc32c(_FRAME_CHECKED.pack(position, entry_length, 0, durable), seed)
    return FRAME.pack(FRAME_MAGIC, crc, entry_length, 0, durable)


def end_mark(seed: int, position: int) -> bytes:
    """The frame without an entry that stands behind a segment's last one, until the next write."""
    return encode_frame(seed, position, 0, 0)


def decode_frame(
    data: bytes, seed: int, path: str, position: int, entry_bytes_max: int
) -> tuple[int, int]:
    """``(entry length, durable index)`` of the frame that ``data`` begins with.

    Errors: ``Damaged``, also when the length is out of bounds, so that it is safe to allocate.
    """
    if len(data) < FRAME_BYTES:
        raise Damaged(
            path, position, expected=f"a frame of {FRAME_BYTES} bytes", found=f"{len(data)} bytes"
        )
    magic, crc, length, reserved, durable = FRAME.unpack_from(data)
    if magic != FRAME_MAGIC:
        raise Damaged(path, position, expected=f"frame magic {FRAME_MAGIC!r}", found=repr(magic))
    actual = crc32c(_FRAME_CHECKED.pack(position, length, reserved, durable), seed)
    if actual != crc:
        raise Damaged(path, position, expected=f"frame CRC-32C {crc:08x}", found=f"{actual:08x}")
    if reserved:
        raise Damaged(path, position, expected="reserved field zero", found=reserved)
    if not HEADER_BYTES <= length <= entry_bytes_max:
        raise Damaged(
            path,
            position,
            expected=f"an entry of {HEADER_BYTES} to {entry_bytes_max} bytes",
            found=f"{length} bytes",
        )
    return length, durable


def padded(entry_length: int) -> int:
    """Bytes that an entry takes in a segment, with its padding and without its frame."""
    return entry_length + -entry_length % ALIGNMENT


def segment_name(first_index: int) -> str:
    return f"{first_index:020d}.journal"


def segment_path(first_index: int) -> str:
    return f"{DIRECTORY}/{segment_name(first_index)}"


def is_segment_name(name: str) -> bool:
    return _NAME.match(name) is not None


def spare_path(first_index: int) -> str:
    """The name of a file that is no segment any more, and waits to become another one."""
    return f"{DIRECTORY}/{first_index:020d}.spare"


def is_spare_name(name: str) -> bool:
    return _SPARE_NAME.match(name) is not None


def index_of(path: str) -> int:
    """The first index that a segment's name gives."""
    return int(path.rsplit("/", 1)[-1].split(".", 1)[0])
