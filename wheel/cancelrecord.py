"""The record of what was cancelled in one second: the offsets of the messages, in few bytes.

    +--------+------------+----------+----------------------------------+
    | count  | incomplete | reserved | differences of the offsets, zlib |
    | u32    | u8         | 3 bytes  | i64 each                         |
    +--------+------------+----------+----------------------------------+

Who keeps records, and for how long: ``wheel/slots/cancelled.py``. Field by field: docs/formats.md,
"State".
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

from .errors import Damaged
from .schema import Int64s

_HEAD = struct.Struct(
    "<"
    "I"  # how many offsets
    "B"  # 1: others may have been cancelled, too
    "3x"  # reserved, zero
)
assert _HEAD.size == 8
_LEVEL = 1
COUNT_MAX = 1 << 24
"""Offsets of one record; where more are cancelled in one second, it is incomplete."""


@dataclass(frozen=True, slots=True)
class CancelRecord:
    """Cancels of a second. ``offsets``: ascending, of the messages. ``incomplete``: others of that
    second may have been cancelled, too."""

    offsets: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    incomplete: bool = False

    def with_more(self, offsets: Int64s | None) -> CancelRecord:
        """The record with further offsets; None: it is not known which ones."""
        if offsets is None:
            return CancelRecord(self.offsets, incomplete=True)
        every = np.union1d(self.offsets, offsets)
        return CancelRecord(every[:COUNT_MAX], self.incomplete or len(every) > COUNT_MAX)

    def encode(self) -> bytes:
        differences = np.diff(self.offsets, prepend=0).astype("<i8").tobytes()
        return _HEAD.pack(len(self.offsets), self.incomplete) + zlib.compress(differences, _LEVEL)

    @classmethod
    def decode(cls, data: bytes, where: str) -> CancelRecord:
        """Errors: ``Damaged``, which names ``where``."""
        try:
            count, incomplete = _HEAD.unpack_from(data)
            if count > COUNT_MAX:
                raise Damaged(where, 0, expected=f"at most {COUNT_MAX} offsets", found=count)
            unpacker = zlib.decompressobj()
            differences = unpacker.decompress(data[_HEAD.size :], 8 * count + 1)
            unpacker.decompress(unpacker.unconsumed_tail, 1)  # to the end of the stream
        except (struct.error, zlib.error) as error:
            raise Damaged(where, 0, expected="a record of cancels", found=str(error)) from None
        whole = unpacker.eof and not unpacker.unused_data and len(differences) == 8 * count
        if not whole or incomplete > 1:
            found = f"{len(differences)} bytes"
            raise Damaged(where, 0, expected=f"{count} cancelled offsets", found=found)
        offsets = np.cumsum(np.frombuffer(differences, "<i8"), dtype=np.int64)
        return cls(offsets, bool(incomplete))


def is_incomplete(record: bytes) -> bool:
    """True if an encoded record is incomplete."""
    return len(record) >= _HEAD.size and bool(_HEAD.unpack_from(record)[1])
