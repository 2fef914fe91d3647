"""Slot files: ``slots/<slot>.arrows``, each a plain Arrow IPC stream.

Theory: a slot file is a schema message followed by record-batch messages (*blocks*), without an
end-of-stream marker, so that it can grow. It is only appended to or deleted whole. Anyone can open
it with pyarrow or Polars. Each block is sorted by ``(due, offset)``, and the blocks of a file hold
ascending, disjoint ranges of offsets, because each spill writes the next range.

    +--------+---------+---------+-- - - - -+
    | schema | block 1 | block 2 |   junk   |
    +--------+---------+---------+-- - - - -+
    0                            length     end of file
                                 (catalog)

What lies beyond the catalog's length was never written: a reader does not look there, and the next
append cuts it off first. The catalog also holds a running CRC-32C, which readers check.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from functools import cache

import pyarrow as pa
from crc32c import crc32c

from ..arrowclaims import plain_rows, plain_stream
from ..errors import Damaged
from ..files import SLOT_DIRECTORY, Files, Handle
from ..schema import ROW, check_schema
from ..state import SlotInfo
from .blocks import seal
from .handles import HandleCache
from .slot import path_of, slot_of_name
from .spill import Block

NOTHING = SlotInfo(0, 0, 0, -1, 0)
"""The record of a slot file before its first block."""
_REMEDY = (
    "With peers it is made anew from their rows. Alone, restore the file from a backup, or stop the"
    " node and see what 'slotwheel repair' says"
)
MAP_FROM_BYTES = 32 << 20
"""Larger files are mapped instead of read: they cost address space, not memory."""
MAP_FROM_MIN_BYTES = 4 << 20
"""Where little memory may be used, files from this size on are mapped."""
SHARE_BYTES = 256 << 10
"""A large block is written in parts of this size."""


@cache
def schema_message() -> bytes:
    """The beginning of a slot file. Made when it is first needed: a node chooses Arrow's allocator
    (``node/memory.py``) after it has imported this module."""
    return bytes(ROW.serialize())


class SlotFiles:
    """Reads, appends to and deletes slot files. Knows bytes, not what they mean."""

    def __init__(
        self, files: Files, open_handles_max: int, map_from_bytes: int = MAP_FROM_BYTES
    ) -> None:
        self.map_from_bytes = map_from_bytes
        """Files from this size on are mapped."""
        self._files = files
        self.handles = HandleCache(files, open_handles_max)
        self._uncommitted: set[int] = set()
        """Slots appended to since the last commit: if that fails, junk lies behind their ends."""
        files.make_directory(SLOT_DIRECTORY)
        files.sync_dir(".")  # or a power cut takes the directory with all that a spill synced

    def append(self, block: Block, info: SlotInfo | None) -> SlotInfo:
        """Write a block behind the committed length; returns the record for the catalog.

        Not durable and not committed when it returns.
        """
        slot, info = block.slot, info or NOTHING
        created = info.length == 0
        # Not through the cache: a spill opens each of thousands of files once, and would only throw
        # out those that are being read. Few calls, as each may have to wait for the interpreter.
        try:
            handle = self._files.open(path_of(slot), create=created)
        except FileNotFoundError:  # damage, which readers report; no reason to stop the spill
            handle = self._files.open(path_of(slot), create=True)
        with contextlib.closing(handle):
            if (created or slot in self._uncommitted) and handle.size() > info.length:
                handle.truncate(info.length)
            self._uncommitted.add(slot)
            return write_block(handle, info, block)

    def committed(self, slots: Iterable[int]) -> None:
        """Note that the catalog has the appends to these slots: no junk lies behind their ends."""
        self._uncommitted.difference_update(slots)

    def sync(self, slot: int) -> None:
        with self.handles.use(path_of(slot)) as handle:
            handle.sync()

    def read(
        self, slot: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> list[pa.RecordBatch]:
        """The blocks of a slot up to ``info.length``, or only those behind ``known.length``.

        Errors: ``Damaged`` when the bytes are not those the catalog recorded,
        ``UnsupportedVersion`` for a schema of another version.
        """
        path = path_of(slot)
        start = known.length if known is not None else 0
        if info.length == start:
            return []
        if info.length >= self.map_from_bytes:
            data = self._files.map(path, info.length).slice(start)
        else:
            with self.handles.use(path) as handle, unreadable_is_damage(path, start):
                data = pa.py_buffer(handle.pread(info.length - start, start))
        if data.size != info.length - start:
            raise damaged(path, start + data.size, f"{info.length} bytes", "the end")
        crc = crc32c(memoryview(data), known.crc if known is not None else 0)
        if crc != info.crc:
            raise damaged(path, start, f"CRC-32C {info.crc:08x}", f"{crc:08x}")
        return decode_blocks(data, path, with_schema=start == 0)

    def pread(self, slot: int, count: int, at: int) -> bytes:
        """Some bytes of a slot file, not through the cached handles, which are for readers of rows.

        Errors: ``Damaged`` when the disk cannot read them; ``OSError``.
        """
        path = path_of(slot)
        with (
            contextlib.closing(self._files.open(path)) as handle,
            unreadable_is_damage(path, at),
        ):
            return handle.pread(count, at)

    def remove(self, slot: int) -> None:
        """Delete the file; one that is already gone is fine (a crash may have come between)."""
        path = path_of(slot)
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(path)
        # Only now: a reader could have opened the doomed file again in between, and the next spill
        # to this slot would write into a file without a name.
        self.handles.forget(path)

    def slots(self) -> list[int]:
        """The slots of all slot files in the directory."""
        slots = (slot_of_name(name) for name in self._files.list(SLOT_DIRECTORY))
        return [slot for slot in slots if slot is not None]

    def cut(self, slot: int, info: SlotInfo) -> int:
        """Cut a file to its committed length at open; returns the number of bytes cut.

        Errors: ``Damaged`` when the file is missing or too short.
        """
        path = path_of(slot)
        try:
            handle = self._files.open(path)
        except FileNotFoundError:
            raise missing(slot, info) from None
        with contextlib.closing(handle):
            size = handle.size()
            if size < info.length:
                raise damaged(path, size, f"{info.length} bytes", f"{size} bytes")
            if size > info.length:
                handle.truncate(info.length)
            return size - info.length

    def close(self) -> None:
        self.handles.close()


def write_block(handle: Handle, info: SlotInfo, block: Block) -> SlotInfo:
    """Write a block at ``info.length``, in a new file after the schema; returns the catalog's
    record; does not sync.

    A large block goes in shares, of which the disk has at most two at once: another file's sync
    waits for all that the disk was given.
    """
    before = b"" if info.length else schema_message()
    rows, behind = seal(block.data, info.length or len(schema_message()))
    crc = info.crc
    for part in (before, rows, behind):
        crc = crc32c(part, crc)
    end = info.length
    while len(rows) > SHARE_BYTES:
        end += handle.pwrite([before, rows[:SHARE_BYTES]], end)
        handle.write_back()
        before, rows = b"", rows[SHARE_BYTES:]
    end += handle.pwrite([before, rows, behind], end)
    return SlotInfo(
        end,
        info.rows + block.rows,
        info.cancels + block.cancels,
        max(info.highest, block.highest),
        crc,
    )


@contextlib.contextmanager
def unreadable_is_damage(path: str, at: int) -> Iterator[None]:
    """Raise ``Damaged`` for a sector that the disk cannot read any more (``EIO``)."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise damaged(path, at, "its bytes", "cannot be read from the disk") from error


def missing(slot: int, info: SlotInfo) -> Damaged:
    """The error for a slot file that is not there."""
    return damaged(path_of(slot), 0, f"{info.length} bytes", "no such file")


def damaged(path: str, position: int, expected: str, found: str) -> Damaged:
    """The error for a slot file that is not what was written."""
    return Damaged(path, position, expected=expected, found=found, remedy=_REMEDY)


def decode_blocks(data: pa.Buffer, path: str, *, with_schema: bool) -> list[pa.RecordBatch]:
    """The record batches in ``data``, zero-copy. Errors: ``Damaged``, ``UnsupportedVersion``."""
    try:
        if with_schema:
            schema, plain = plain_stream(data)
            check_schema(schema, path)
            return list(plain)
        batches: list[pa.RecordBatch] = []
        messages = pa.ipc.MessageReader.open_stream(data)
        while True:
            try:
                message = messages.read_next_message()
            except StopIteration:
                return batches
            batches.append(plain_rows(message, ROW))
    except (pa.ArrowException, ValueError, EOFError, StopIteration) as error:
        raise damaged(path, 0, "an Arrow IPC stream", str(error)[:200]) from None
