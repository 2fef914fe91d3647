"""Reading a slot file for a proof: its checksum, its blocks, and their order.

Rules
- The checksum comes first: of a file that does not match it, no row is believed. Where it is not
  known, all blocks are looked at before the first of them is handed on.
- The file is mapped, so that a slot larger than memory costs address space.
- Small blocks are handed on together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ..wheel.schema import ROW, SCHEMA_VERSION, Int64s, times
from .events import BYTES_MAX, ROWS_MAX, Ended, Event, RowsSeen, damage
from .files import File

_CRC_BYTES = 16 << 20


def read_slot(file: File) -> Iterator[Event]:
    """Errors: ``OSError``, among them ``FileNotFoundError``."""
    with pa.memory_map(file.path) as source:
        size = source.size()
        length = file.length if file.length >= 0 else size
        if size < length:
            yield damage(file, "truncated", size, f"{length} bytes", f"{size} bytes")
            yield Ended(file, damaged=True)
            return
        data = source.read_buffer(length)
        if file.crc >= 0:
            crc = _checksum(data)
            if crc != file.crc:
                yield damage(file, "damaged", 0, f"CRC-32C {file.crc:08x}", f"{crc:08x}")
                yield Ended(file, damaged=True)
                return
        yield from _blocks(file, data)


def _checksum(data: pa.Buffer) -> int:
    view, crc = memoryview(data), 0
    for at in range(0, len(view), _CRC_BYTES):
        crc = crc32c(view[at : at + _CRC_BYTES], crc)
    return crc


def _blocks(file: File, data: pa.Buffer) -> Iterator[Event]:
    if data.size == 0:
        yield Ended(file)
        return
    blocks = _Blocks(file)
    try:
        reader = pa.ipc.open_stream(data)
        version = (reader.schema.metadata or {}).get(b"slotwheel.schema", b"none")
        known = version == str(SCHEMA_VERSION).encode()
        if not known or not reader.schema.equals(ROW, check_metadata=False):
            found = version.decode("ascii", "replace")
            yield damage(file, "damaged", 0, f"schema version {SCHEMA_VERSION}", found)
            yield Ended(file, damaged=True)
            return
        if file.crc < 0:
            for block in reader:
                block.validate(full=True)
            reader = pa.ipc.open_stream(data)
        for block in reader:
            block.validate(full=True)
            yield from blocks.add(block)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        yield from blocks.leave()
        yield damage(file, "damaged", 0, "an Arrow IPC stream", str(error)[:200])
        yield Ended(file, damaged=True)
        return
    yield from blocks.leave()
    if file.rows not in (-1, blocks.rows):
        yield damage(file, "damaged", 0, f"{file.rows} rows", blocks.rows)
        yield Ended(file, damaged=True)
        return
    yield Ended(file)


class _Blocks:
    """Blocks that wait to be handed on together, and whether they are in order."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0
        self._highest = -1
        self.rows = 0

    def add(self, block: pa.RecordBatch) -> Iterator[Event]:
        self._waiting.append(block)
        self._rows += block.num_rows
        self._nbytes += block.nbytes
        if self._rows >= ROWS_MAX or self._nbytes >= BYTES_MAX:
            yield from self.leave()

    def leave(self) -> Iterator[Event]:
        if not self._rows:
            return
        rows = pa.concat_batches(self._waiting)
        sizes = np.array([block.num_rows for block in self._waiting if block.num_rows])
        self._waiting, self._rows, self._nbytes = [], 0, 0
        self.rows += rows.num_rows
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        yield from self._order(rows, starts)
        yield RowsSeen(self._file, rows)

    def _order(self, rows: pa.RecordBatch, starts: Int64s) -> Iterator[Event]:
        """Inside a block by (due, offset); each block's offsets above those of the one before."""
        due, offset = times(rows, "due"), times(rows, "offset")
        bad = (due[1:] < due[:-1]) | ((due[1:] == due[:-1]) & (offset[1:] < offset[:-1]))
        bad[starts[1:] - 1] = False
        for at in np.flatnonzero(bad)[:1].tolist():
            yield damage(
                self._file,
                "unsorted",
                -1,
                f"rows by due and offset behind due {due[at]}, offset {offset[at]}",
                f"due {due[at + 1]}, offset {offset[at + 1]}",
            )
        lowest = np.minimum.reduceat(offset, starts)
        highest = np.maximum.reduceat(offset, starts)
        before = np.concatenate([[self._highest], np.maximum.accumulate(highest)[:-1]])
        before = np.maximum(before, self._highest)
        for at in np.flatnonzero(lowest < before)[:1].tolist():
            yield damage(
                self._file,
                "unsorted",
                -1,
                f"a block of offsets above {before[at]}",
                f"offset {lowest[at]}",
            )
        self._highest = max(self._highest, int(highest.max()))
