"""The file in which a node keeps what is pending by prefix, so that a start need not count it.

Theory: the counts are a function of the log, so the file is only a copy of what could be counted
from the slot files again. It is written behind each spill, when all that it lacks is in the journal
and so in the tail after a restart. A file that is not there, is torn, or is of other prefixes or of
another directory is nothing, and the slot files are read once more.

    +-------+---------+-----+-----+----------+--------+-------+-------+
    | magic | version | pad | crc | store id | offset | cells | ends  |   then names, cells, ends
    | 4     | u16     | u16 | u32 | 16       | i64    | u32   | u32   |
    +-------+---------+-----+-----+----------+--------+-------+-------+
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
from crc32c import crc32c

from ..wheel.files import regular
from .pendingtable import SavedCounts

FILE_NAME = "pending.counts"
_MAGIC, _VERSION = b"SWPC", 1
_HEAD = struct.Struct(
    "<"
    "4s"  # magic
    "H"  # version of this layout
    "2x"
    "I"  # CRC-32C of all that follows
)
_BODY = struct.Struct(
    "<"
    "16s"  # the directory's store id
    "q"  # offset: all rows below it are counted
    "I"  # bytes of the prefixes' names, UTF-8, each with a line feed behind it
    "I"  # cells, of four i64 each: place of the prefix, slot, rows, bytes
    "I"  # ends, of two i64 each: slot, offset behind its rows
    "4x"
)
assert _HEAD.size == 12
assert _BODY.size == 40


def write_counts(
    directory: Path, store_id: bytes, patterns: tuple[str, ...], saved: SavedCounts
) -> None:
    """Replace the file. It is not synced: after a power cut it may be missing. Errors:
    ``OSError``, and the old one stays."""
    names = _names(patterns)
    head = _BODY.pack(store_id, saved.offset, len(names), len(saved.cells), len(saved.ends))
    body = b"".join((head, names, saved.cells.tobytes(), saved.ends.tobytes()))
    new = directory / f"{FILE_NAME}.new"
    try:
        new.write_bytes(_HEAD.pack(_MAGIC, _VERSION, crc32c(body)) + body)
        new.replace(directory / FILE_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def read_counts(directory: Path, store_id: bytes, patterns: tuple[str, ...]) -> SavedCounts | None:
    """What the file has for this directory and these prefixes; None: nothing that can be used."""
    try:
        with open(directory / FILE_NAME, "rb", opener=regular) as file:
            data = file.read()
    except OSError:
        return None
    if len(data) < _HEAD.size + _BODY.size:
        return None
    magic, version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if (magic, version, crc) != (_MAGIC, _VERSION, crc32c(body)):
        return None
    store, offset, names_bytes, cells, ends = _BODY.unpack_from(body)
    at = _BODY.size + names_bytes
    numbers = np.frombuffer(body[at:], np.int64) if (len(body) - at) % 8 == 0 else None
    if (
        store != store_id
        or bytes(body[_BODY.size : at]) != _names(patterns)
        or numbers is None
        or len(numbers) != 4 * cells + 2 * ends
    ):
        return None
    return SavedCounts(
        offset, numbers[: 4 * cells].reshape(-1, 4), numbers[4 * cells :].reshape(-1, 2)
    )


def _names(patterns: tuple[str, ...]) -> bytes:
    return "".join(f"{pattern}\n" for pattern in patterns).encode()
