"""A peer's request for a snapshot, with a list of what it has of one already.

    +------+--------+--------+-----+
    | head | file 1 | file 2 | ... |
    | 24   | 20     |        |     |
    +------+--------+--------+-----+

Theory: slot files only grow or are deleted whole. So what came in before a link broke is mostly the
beginning of what would be sent now, and a length and a checksum of it are enough to find out. The
receiver does not rely on that: each whole file has to have the length and the checksum in the
snapshot's header.

Rules
- One CRC-32C over everything behind it. Slots ascend, so a request has exactly one encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .snapshot_header import check_lead, damaged, with_lead

MAGIC = b"SWSNPREQ"
WHERE = "snapshot request"
VERSION = 1

#  0          8         10         12    16      20         24
#  +----------+---------+----------+-----+-------+----------+
#  | magic    | version | reserved | crc | files | reserved |
#  | SWSNPREQ | u16     | u16 = 0  | u32 | u32   | u32 = 0  |
#  +----------+---------+----------+-----+-------+----------+
_HEAD = struct.Struct(
    "<"
    "8s"  # magic: "SWSNPREQ"
    "H"  # version of this layout
    "H"  # reserved, zero
    "I"  # CRC-32C of everything after this field
    "I"  # files: how many records follow
    "I"  # reserved, zero
)
# +--------+--------+-----+
# | slot   | length | crc |
# | i64    | u64    | u32 |
# +--------+--------+-----+
_FILE = struct.Struct(
    "<"
    "q"  # a slot's number
    "Q"  # bytes of its file that are there, from its beginning; 0 for none
    "I"  # CRC-32C of them
)
assert _HEAD.size == 24
assert _FILE.size == 20


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """The part of a slot file that the peer has: its length from the beginning, and its CRC-32C."""

    length: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A peer's request. ``held``: the part of each slot file that it has, by slot."""

    held: Mapping[int, HeldSlot] = field(default_factory=dict)

    def encode(self) -> bytes:
        held = sorted(self.held.items())
        tail = struct.pack("<II", len(held), 0)
        tail += b"".join(_FILE.pack(slot, part.length, part.crc) for slot, part in held)
        return with_lead(MAGIC, VERSION, tail)

    @classmethod
    def decode(cls, data: bytes) -> SnapshotRequest:
        """Parse a request. Errors: ``Damaged``; ``UnsupportedVersion`` if only that is unknown."""
        check_lead(data, MAGIC, VERSION, _HEAD.size, WHERE)
        *_, files, reserved = _HEAD.unpack_from(data)
        if reserved:
            raise damaged(20, "reserved field zero", reserved, WHERE)
        records = memoryview(data)[_HEAD.size :]
        if len(records) != files * _FILE.size:
            raise damaged(16, f"{files} files", f"{len(records)} bytes of them", WHERE)
        held = [(slot, HeldSlot(*part)) for slot, *part in _FILE.iter_unpack(records)]
        if any(slot >= following for (slot, _), (following, _) in pairwise(held)):
            raise damaged(_HEAD.size, "ascending slots", "others", WHERE)
        return cls(dict(held))
