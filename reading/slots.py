"""Reading a slot file: its checksum, its blocks, and their order.

Rules
- The checksum is compared first: no row of a file that does not match it is used. Where it is not
  known, all blocks are checked before the first of them is yielded.
- The file is mapped, so that a slot larger than memory costs address space.
- Small blocks are one event.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ..wheel.arrowclaims import plain_rows
from ..wheel.errors import Damaged, SlotwheelError, UnsupportedVersion
from ..wheel.files import Handle, mapped
from ..wheel.schema import ROW, Int64s, check_schema, times
from .events import Ended, Event, Gathered, RowsSeen, damage, problem_of
from .files import File

_CRC_BYTES = 16 << 20


def read_slot(file: File) -> Iterator[Event]:
    """Read a slot file. Errors: ``OSError``, among them ``FileNotFoundError``."""
    data = mapped(file.path)
    length = file.length if file.length >= 0 else data.size
    if data.size < length:
        yield damage(file, "truncated", data.size, f"{length} bytes", f"{data.size} bytes")
        yield Ended(file, damaged=True)
        return
    data = data.slice(0, length)
    if file.crc >= 0:
        crc = checksum(data)
        if crc != file.crc:
            yield damage(file, "damaged", 0, f"CRC-32C {file.crc:08x}", f"{crc:08x}")
            yield Ended(file, damaged=True)
            return
    yield from _blocks(file, data)


def checksum(data: pa.Buffer) -> int:
    """CRC-32C."""
    view, crc = memoryview(data), 0
    for at in range(0, len(view), _CRC_BYTES):
        crc = crc32c(view[at : at + _CRC_BYTES], crc)
    return crc


def _blocks(file: File, data: pa.Buffer) -> Iterator[Event]:
    if data.size == 0:
        yield Ended(file)
        return
    order = _Order(file)
    waiting = Gathered(order.events)
    try:
        if file.crc < 0:
            for _ in slot_blocks(data, file.path, ends_early=True):
                pass
        for _, block in slot_blocks(data, file.path, ends_early=file.crc < 0):
            yield from waiting.add(block)
    except (Damaged, UnsupportedVersion) as error:
        yield from waiting.flush()
        yield problem_of(file, error)
        yield Ended(file, damaged=True)
        return
    yield from waiting.flush()
    is_damaged = file.rows not in (-1, order.rows)
    if is_damaged:
        yield damage(file, "damaged", 0, f"{file.rows} rows", order.rows)
    yield Ended(file, damaged=is_damaged)


def slot_blocks(
    data: pa.Buffer, path: str, *, ends_early: bool = False
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each block of a slot file's bytes with its position, as of ``blocks_from``."""
    return blocks_from(pa.BufferReader(data), data.size, path, ends_early=ends_early)


def first_bytes(handle: Handle, size: int) -> pa.NativeFile:
    """The first ``size`` bytes of a file, of which only what is being read is in memory."""
    return pa.PythonFile(_FirstBytes(handle, size), mode="r")


class _FirstBytes(io.RawIOBase):
    def __init__(self, handle: Handle, size: int) -> None:
        self._handle = handle
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytes:
        rest = self._size - self._at
        data = self._handle.pread(rest if count < 0 else min(count, rest), self._at)
        self._at += len(data)
        return data


def blocks_from(
    source: pa.NativeFile, size: int, path: str, *, ends_early: bool = False
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each block in the ``size`` bytes of a slot file with its position, safe to compute with.
    ``ends_early``: how long the file is is not known, so zeros, which a power cut leaves behind,
    end it.

    Errors: ``Damaged`` with the position of the first bad block, after all blocks before it;
    ``UnsupportedVersion``.
    """
    position = 0
    try:
        schema = pa.ipc.read_schema(source)
        check_schema(schema, path)
        position = source.tell()
        messages = pa.ipc.MessageReader.open_stream(source)
        while position < size:
            batch = plain_rows(messages.read_next_message(), ROW)
            batch.validate(full=True)
            yield position, batch
            position = source.tell()
    # pyarrow raises an OSError for malformed bytes, too.
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise _not_a_block(path, position, str(error)) from None
    except StopIteration:
        if not ends_early:
            raise _not_a_block(path, position, "zeros or an end-of-stream marker") from None


def _not_a_block(path: str, position: int, found: str) -> SlotwheelError:
    what = "a schema message" if position == 0 else "a record batch"
    return Damaged(path, position, expected=what, found=found[:200])


class _Order:
    """Joins blocks, and checks their order."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._highest = -1
        self.rows = 0

    def events(self, blocks: list[pa.RecordBatch]) -> Iterator[Event]:
        rows = pa.concat_batches(blocks)
        self.rows += rows.num_rows
        sizes = np.array([block.num_rows for block in blocks])
        yield from self._check(rows, np.concatenate([[0], np.cumsum(sizes)[:-1]]))
        yield RowsSeen(self._file, rows)

    def _check(self, rows: pa.RecordBatch, starts: Int64s) -> Iterator[Event]:
        """Check the order: by (due, offset) in a block; a block's offsets above those before it."""
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
