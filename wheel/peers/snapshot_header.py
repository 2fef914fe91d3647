"""The beginning of a snapshot: all of the sender's state that the receiver adopts.

    +------+------------+---------------+-----+-----------+--------+-----+--------+---------+-----+
    | head | checkpoint | slot 1        | ... | producer 1| sent 1 | ... | losses | cancels | ... |
    | 40   | JSON       | number + 36 B |     | 16        | 40     |     | JSON   | 16      |     |
    +------+------------+---------------+-----+-----------+--------+-----+--------+---------+-----+
    | schedules | name 1 and record 1  | ... |
    | 8         | 8 + their lengths    |     |
    +-----------+----------------------+-----+

Theory: the same records as in the state store, in one piece with a CRC. The catalog in it has the
length and CRC of each slot file that follows, so these need no format of their own. Epoch, vote and
store id are not in it: they are each peer's own.

Rules
- One CRC-32C over everything behind it. Records that do not fit each other although it does were
  written wrongly, and are refused.
- Slots, producers and schedules ascend, so a state has exactly one encoding.

Field by field: docs/formats.md, "Snapshot".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from crc32c import crc32c

from ..cancelrecord import CancelRecord
from ..config import TICK_MS
from ..errors import Damaged, UnsupportedVersion
from ..names import ANSWER_BYTES
from ..schedules import decode_schedule
from ..state import (
    SENT_BYTES,
    SLOT_BYTES,
    Checkpoint,
    Loss,
    ProducerEntry,
    SlotInfo,
    decode_checkpoint,
    decode_losses,
    decode_sent,
    decode_slot,
    encode_checkpoint,
    encode_losses,
    encode_sent,
    encode_slot,
)

MAGIC = b"SWSNAPSH"
VERSION = 3
"""The newest version, of a state with names or schedules: who does not know it would let two
messages have the same, or fire nothing. Without both it is version 2, which ends behind the
cancels. A header of version 1 ends behind the losses."""
_VERSION_BEFORE = 2
WHERE = "snapshot"
"""Stands for the path in errors."""

#  0          8         10         12     16       24      28          32           36         40
#  +----------+---------+----------+------+--------+-------+-----------+------------+----------+
#  | magic    | version | reserved | crc  | length | slots | producers | checkpoint | losses   |
#  | SWSNAPSH | u16     | u16 = 0  | u32  | u64    | u32   | u32       | u32        | u32      |
#  +----------+---------+----------+------+--------+-------+-----------+------------+----------+
_HEAD = struct.Struct(
    "<"
    "8s"  # magic: "SWSNAPSH"
    "H"  # version of this layout
    "H"  # reserved, zero
    "I"  # CRC-32C of everything after this field
    "Q"  # length of everything in bytes, this head too
    "I"  # slots: how many slot files there are
    "I"  # producers: how many of them follow the slots
    "I"  # checkpoint: length of its JSON in bytes
    "I"  # losses: length of their JSON in bytes; 0: none
)
_CHECKED = struct.Struct("<QIIII")
_LEAD = struct.Struct("<8sHHI")  # what this head and that of a request begin with
_SLOT = struct.Struct("<q")  # a slot's number, before its record
# +-------------+------+-------+
# | producer id | sent | named |
# | u64         | u32  | u32   |
# +-------------+------+-------+
_PRODUCER = struct.Struct(
    "<"
    "Q"  # producer id
    "I"  # how many records of its entries follow
    "I"  # how many answers about names are in them; 0 in version 2
)
# +-------+---------+----------+
# | floor | records | reserved |
# | i64   | u32     | u32 = 0  |
# +-------+---------+----------+
_CANCELLED = struct.Struct(
    "<"
    "q"  # due time, ms, up to which it is not known what was cancelled; -1: it is known of all
    "I"  # how many records of cancels follow
    "I"  # reserved, zero
)
_RECORD = struct.Struct("<qI")  # second and length of a record of cancels, before its bytes
_SCHEDULES = struct.Struct("<Q")  # how many schedules follow; only in version 3
_SCHEDULE = struct.Struct("<II")  # length of a schedule's name and of its record, before both
assert _HEAD.size == 40
assert _LEAD.size + _CHECKED.size == _HEAD.size
assert _PRODUCER.size == 16

_REMEDY = "Nothing was changed here. It is fetched again; if that fails too, verify the sender"


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The sender's state, which the receiver adopts."""

    checkpoint: Checkpoint
    slots: Mapping[int, SlotInfo]
    producers: Mapping[int, Sequence[ProducerEntry]]
    losses: Sequence[Loss] = ()
    """Rows that repairs gave up on the sender, so that they are missing in its slot files."""
    cancelled: Mapping[int, bytes] = field(default_factory=dict)
    """Records of what was cancelled in seconds that have left (``cancelrecord``)."""
    cancelled_floor: int = -1
    """Up to this due time, ms, it is not known what was cancelled."""
    schedules: Mapping[str, bytes] = field(default_factory=dict)
    """Records of schedules (``schedules.py``), by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of all slot files together."""
        return sum(info.length for info in self.slots.values())

    @property
    def _is_of_newest(self) -> bool:
        """True if a message had a name, as far as this state tells, or there are schedules."""
        records = (entry for sent in self.producers.values() for entry in sent)
        named = self.checkpoint.named or any(entry.named for entry in records)
        return named or bool(self.schedules)

    def encode(self) -> bytes:
        checkpoint = encode_checkpoint(self.checkpoint)
        losses = encode_losses(self.losses) if self.losses else b""
        parts = [checkpoint]
        for slot, info in sorted(self.slots.items()):
            parts += (_SLOT.pack(slot), encode_slot(info))
        for producer, sent in sorted(self.producers.items()):
            named = sum(len(entry.named) for entry in sent)
            parts += (_PRODUCER.pack(producer, len(sent), named), encode_sent(sent))
        parts += (losses, _CANCELLED.pack(self.cancelled_floor, len(self.cancelled), 0))
        for second, record in sorted(self.cancelled.items()):
            parts += (_RECORD.pack(second, len(record)), record)
        if self._is_of_newest:
            parts.append(_SCHEDULES.pack(len(self.schedules)))
            for name, record in sorted(self.schedules.items()):
                key = name.encode()
                parts += (_SCHEDULE.pack(len(key), len(record)), key, record)
        body = b"".join(parts)
        head = _CHECKED.pack(
            _HEAD.size + len(body),
            len(self.slots),
            len(self.producers),
            len(checkpoint),
            len(losses),
        )
        return with_lead(MAGIC, VERSION if self._is_of_newest else _VERSION_BEFORE, head + body)

    @classmethod
    def decode(cls, data: bytes) -> SnapshotHeader:
        """Parse a header. Errors: ``Damaged``; ``UnsupportedVersion`` when only that is unknown."""
        version = check_lead(data, MAGIC, VERSION, _HEAD.size, WHERE)
        *_, length, slots, producers, checkpoint, losses = _HEAD.unpack_from(data)
        if length != len(data):
            raise damaged(_LEAD.size, f"{length} bytes", f"{len(data)} bytes")
        header = _Body(data, version).header(slots, producers, checkpoint, losses)
        if version == VERSION and not header._is_of_newest:
            expected = f"version {_VERSION_BEFORE} of a state without names and schedules"
            raise damaged(8, expected, version)
        if version > 1:
            return header
        # Cancels that it has deleted were accepted before its checkpoint: due within a horizon.
        marks = header.checkpoint.marks
        horizon_ms = int(header.checkpoint.config.get("slots", 0)) * TICK_MS
        return replace(header, cancelled_floor=max(marks.main.c, marks.reach) + horizon_ms)


class _Body:
    """Reads the records one by one; none may reach beyond the end."""

    def __init__(self, data: bytes, version: int) -> None:
        self._data = memoryview(data)
        self._version = version
        self._at = _HEAD.size

    def header(self, slots: int, producers: int, checkpoint: int, losses: int) -> SnapshotHeader:
        header = SnapshotHeader(
            decode_checkpoint(bytes(self._read(checkpoint)), WHERE),
            dict(self._slot() for _ in range(self._at_most(slots, _SLOT.size + SLOT_BYTES))),
            dict(self._producer() for _ in range(self._at_most(producers, _PRODUCER.size))),
            tuple(decode_losses(bytes(self._read(losses)) or b"[]", WHERE)),
        )
        records = 0
        if self._version > 1:
            floor_ms, records, reserved = _CANCELLED.unpack(self._read(_CANCELLED.size))
            if reserved:
                raise damaged(self._at - 4, "reserved field zero", reserved)
            count = self._at_most(records, _RECORD.size)
            cancelled = dict(self._record() for _ in range(count))
            header = replace(header, cancelled=cancelled, cancelled_floor=floor_ms)
        scheduled = 0
        if self._version == VERSION:
            (scheduled,) = _SCHEDULES.unpack(self._read(_SCHEDULES.size))
            count = self._at_most(scheduled, _SCHEDULE.size)
            header = replace(header, schedules=dict(self._schedule() for _ in range(count)))
        if self._at != len(self._data):
            raise damaged(self._at, "the end", f"{len(self._data) - self._at} bytes more")
        counted: list[tuple[str, list[Any], int]] = [
            ("slots", list(header.slots), slots),
            ("producers", list(header.producers), producers),
            ("seconds with cancels", list(header.cancelled), records),
            ("schedules", list(header.schedules), scheduled),
        ]
        for what, keys, count in counted:
            if len(keys) != count or any(key >= following for key, following in pairwise(keys)):
                raise damaged(_HEAD.size, f"{count} ascending {what}", "others")
        return header

    def _at_most(self, count: int, record_bytes: int) -> int:
        left = len(self._data) - self._at
        if count * record_bytes > left:
            raise damaged(self._at, f"{count} records", f"{left} bytes")
        return count

    def _read(self, length: int) -> memoryview:
        part = self._data[self._at : self._at + length]
        if len(part) != length:
            raise damaged(self._at, f"{length} bytes", f"{len(part)} bytes")
        self._at += length
        return part

    def _slot(self) -> tuple[int, SlotInfo]:
        (slot,) = _SLOT.unpack(self._read(_SLOT.size))
        return slot, decode_slot(self._read(SLOT_BYTES))

    def _record(self) -> tuple[int, bytes]:
        second, length = _RECORD.unpack(self._read(_RECORD.size))
        record = bytes(self._read(length))
        CancelRecord.decode(record, WHERE)
        return second, record

    def _schedule(self) -> tuple[str, bytes]:
        at = self._at
        length, size = _SCHEDULE.unpack(self._read(_SCHEDULE.size))
        try:
            name = bytes(self._read(length)).decode()
        except UnicodeDecodeError as error:
            raise damaged(at, "the name of a schedule", str(error)) from None
        record = bytes(self._read(size))
        decode_schedule(record, WHERE)
        return name, record

    def _producer(self) -> tuple[int, list[ProducerEntry]]:
        producer, sent, named = _PRODUCER.unpack(self._read(_PRODUCER.size))
        if named and self._version < VERSION:
            raise damaged(self._at - 4, "reserved field zero", named)
        at = self._at
        try:
            records = decode_sent(self._read(sent * SENT_BYTES + named * ANSWER_BYTES))
        except (struct.error, ValueError) as error:
            raise damaged(at, f"{sent} records of a producer", str(error)) from None
        if len(records) != sent:
            raise damaged(at, f"{sent} records of a producer", str(len(records)))
        return producer, records


def with_lead(magic: bytes, version: int, checked: bytes) -> bytes:
    """``checked`` with magic, version and its CRC before it."""
    return _LEAD.pack(magic, version, 0, crc32c(checked)) + checked


def check_lead(data: bytes, magic: bytes, newest: int, head_bytes: int, where: str) -> int:
    """Check what ``with_lead`` made; returns the version. Errors: ``Damaged``;
    ``UnsupportedVersion`` when only that is unknown."""
    if len(data) < head_bytes:
        raise damaged(len(data), f"a head of {head_bytes} bytes", f"{len(data)} bytes", where)
    actual_magic, version, reserved, crc = _LEAD.unpack_from(data)
    if actual_magic != magic:
        raise damaged(0, f"magic {magic!r}", repr(actual_magic), where)
    if not 1 <= version <= newest:
        raise UnsupportedVersion(
            f"unknown version of the {where}",
            got=version,
            limit=newest,
            remedy="Run the same slotwheel version on all peers",
        )
    actual = crc32c(memoryview(data)[_LEAD.size :])
    if actual != crc:
        raise damaged(12, f"CRC-32C {crc:08x}", f"{actual:08x}", where)
    if reserved:
        raise damaged(10, "reserved field zero", reserved, where)
    return int(version)


def damaged(position: int, expected: object, found: object, path: str = WHERE) -> Damaged:
    """The error for a snapshot that does not fit the sender's state."""
    return Damaged(path, position, expected=expected, found=found, remedy=_REMEDY)
