"""Blocks of slot files that the state has recorded: those of the catalog, and those in the archive.

Apart from ``slots.py``, which Spark's workers load: these need the state store's own library.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, mapped
from ..wheel.slots.archive import parse_archived_slot
from ..wheel.slots.slot import path_of
from ..wheel.slots.slotfile import MAP_FROM_BYTES, decode_blocks
from ..wheel.state import SlotInfo
from .listing import opened
from .slots import checksum


def committed_blocks(root: Path, second: int, info: SlotInfo) -> list[pa.RecordBatch]:
    """The blocks of a slot file up to the committed length, zero-copy, when their bytes are those
    that the catalog recorded: such as the node wrote them, which is not checked again.

    Errors: ``Damaged``, ``UnsupportedVersion``; ``FileNotFoundError``; another ``OSError``.
    """
    return _recorded_blocks(f"{root}/{path_of(second)}", info.length, info.crc)


def read_ahead(root: Path, second: int, info: SlotInfo) -> None:
    """Let the kernel read a slot file that is needed soon; nothing happens if it is not there."""
    with suppress(OSError), opened(f"{root}/{path_of(second)}") as handle:
        handle.advise(info.length)


def archived_blocks(root: Path, second: int) -> list[pa.RecordBatch]:
    """The blocks of all archived files of a slot that are such as they were archived."""
    found: list[pa.RecordBatch] = []
    for path in sorted((root / ARCHIVE_DIRECTORY).glob(f"*/{SLOT_DIRECTORY}/{second}.*")):
        with suppress(ValueError, OSError, Damaged, UnsupportedVersion):
            _, length, crc = parse_archived_slot(path.name)
            found += _recorded_blocks(str(path), length, crc)
    return found


def _recorded_blocks(path: str, length: int, recorded: int) -> list[pa.RecordBatch]:
    shown = "/".join(path.rsplit("/", 2)[1:])
    with opened(path) as handle:
        if length < MAP_FROM_BYTES:
            data = pa.py_buffer(handle.pread(length, 0))
        elif handle.size() < length:
            data = pa.py_buffer(b"")
        else:
            data = mapped(path).slice(0, length)
    if data.size < length:
        raise Damaged(shown, data.size, expected=f"{length} bytes", found="the end")
    crc = checksum(data)
    if crc != recorded:
        raise Damaged(shown, 0, expected=f"CRC-32C {recorded:08x}", found=f"{crc:08x}")
    return decode_blocks(data, shown, with_schema=True) if length else []
