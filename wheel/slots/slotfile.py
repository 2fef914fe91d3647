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
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ..arrowclaims import plain_rows, plain_stream
from ..errors import Damaged
from ..files import SLOT_DIRECTORY, Files, Handle, checksum, read_shares
from ..schema import ROW, Int64s, check_schema
from ..state import SlotInfo
from .blocks import is_sound, message_end, seal
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
_READ_BYTES = 4 << 20
"""Wide files are read in parts of about this size: none is in memory whole."""
_MAP_BYTES = 32 << 20
"""About so many bytes of blocks have one map of their file: one for each block would take address
space by the square of the file, and one for all would keep each page that was read of it."""
_HEAD_BYTES_MAX = 64 << 10
"""The metadata of a block takes less than a kilobyte; with more, what is read is no block."""


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

    def block_spans(
        self, slot: int, info: SlotInfo, known: SlotInfo | None = None
    ) -> tuple[Int64s, Int64s]:
        """The positions at which the blocks up to ``info.length`` begin and end, shape (blocks,)
        both; with ``known`` only of those behind it. All bytes are checked, and a few megabytes of
        them are in memory at a time.

        Errors: as of ``read``.
        """
        path = path_of(slot)
        start = known.length if known is not None else 0
        walk = _Walk(path, start)
        position, crc = start, known.crc if known is not None else 0
        beginning = b""
        with self.handles.use(path) as handle, unreadable_is_damage(path, start):
            for data in read_shares(handle, start, info.length):
                beginning = beginning or data
                crc = crc32c(data, crc)
                walk.over(data, position)
                position += len(data)
        if position < info.length:
            raise damaged(path, position, f"{info.length} bytes", "the end")
        if crc != info.crc:
            raise damaged(path, start, f"CRC-32C {info.crc:08x}", f"{crc:08x}")
        if start == 0:
            _check_beginning(beginning, path)
        if walk.position != info.length:
            raise damaged(path, walk.position, "the end of a block", f"{info.length} bytes")
        borders = np.array([start, *walk.ends], np.int64)
        first = 1 if start == 0 else 0  # behind the schema
        return borders[first:-1], borders[first + 1 :]

    def read_at(
        self, slot: int, starts: Int64s, stops: Int64s, map_from: int
    ) -> Iterator[list[pa.RecordBatch]]:
        """The blocks at these ascending positions, as lists of some megabytes. A block of
        ``map_from`` bytes comes alone, zero-copy from a map of the file, which lasts as long as the
        block does; others are read, and checked again by their seals.

        Errors: ``Damaged``, ``FileNotFoundError``.
        """
        path = path_of(slot)
        sizes = stops - starts
        large = sizes >= map_from
        sums = np.cumsum(sizes)
        at, count = 0, len(starts)
        data, mapped = None, 0
        while at < count:
            if large[at]:
                if data is None or mapped > _MAP_BYTES:
                    data, mapped = self._files.map(path, int(stops[-1])), 0
                yield [_block_at(data, path, int(starts[at]), int(stops[at]))]
                mapped += int(sizes[at])
                at += 1
                continue
            before = int(sums[at - 1]) if at else 0
            end = max(at + 1, int(sums.searchsorted(before + _READ_BYTES, side="right")))
            end = min([end, count, *(np.flatnonzero(large[at:end])[:1] + at).tolist()])
            yield self._read_blocks(path, starts[at:end], stops[at:end])
            at = end

    def _read_blocks(self, path: str, starts: Int64s, stops: Int64s) -> list[pa.RecordBatch]:
        """Small blocks, each checked by its seal. Those that stand one behind the other are read at
        once, and all are decoded in one call: one by one they take five times as long."""
        apart = np.flatnonzero(starts[1:] != stops[:-1])
        runs = zip(
            starts[np.concatenate([[0], apart + 1])].tolist(),
            stops[np.append(apart, len(stops) - 1)].tolist(),
            strict=True,
        )
        with self.handles.use(path) as handle, unreadable_is_damage(path, int(starts[0])):
            parts = [handle.pread(stop - start, start) for start, stop in runs]
        data = b"".join([schema_message(), *parts])
        view, at = memoryview(data), len(schema_message())
        for start, size in zip(starts.tolist(), (stops - starts).tolist(), strict=True):
            if len(view) < at + size or not is_sound(view[at : at + size], start):
                raise damaged(path, start, "a block with its checksum", "other bytes")
            at += size
        blocks: list[pa.RecordBatch] = (
            pa.ipc.open_stream(pa.py_buffer(data)).read_all().to_batches()
        )
        return blocks

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


def checked_bytes(
    handle: Handle, length: int, map_file: Callable[[int], pa.Buffer]
) -> tuple[pa.Buffer, int]:
    """The first ``length`` bytes of a file, or fewer if it has fewer, and their CRC-32C. A large
    file is mapped, by its length in bytes. Errors: ``OSError``."""
    length = min(length, handle.size())
    if length < MAP_FROM_BYTES:
        data = pa.py_buffer(handle.pread(length, 0))
        return data, crc32c(memoryview(data))
    size, crc = checksum(handle, 0, length)
    return map_file(size), crc


def _block_at(data: pa.Buffer, path: str, start: int, stop: int) -> pa.RecordBatch:
    """The block at a position of a file's bytes, zero-copy. Errors: ``Damaged``."""
    if data.size < stop:
        raise damaged(path, start, f"{stop} bytes", "the end")
    (block,) = decode_blocks(data.slice(start, stop - start), path, with_schema=False)
    return block


def _check_beginning(data: bytes, path: str) -> None:
    """Check the schema at the beginning of a file. Errors: ``Damaged``, ``UnsupportedVersion``."""
    if not data.startswith(schema_message()):
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(data))
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            raise damaged(path, 0, "an Arrow IPC stream", str(error)[:200]) from None
        check_schema(schema, path)


class _Walk:
    """Finds where the messages of a file end, in the parts of it that are given one after the
    other. Of a message only the metadata has to be in a part."""

    def __init__(self, path: str, start: int) -> None:
        self.position = start
        """The end of the last message, or where the next one begins."""
        self.ends: list[int] = []
        self._path = path
        self._rest = b""
        """The beginning of a message whose metadata a part has cut."""

    def over(self, data: bytes, base: int) -> None:
        """Go on through the bytes at position ``base``. Errors: ``Damaged``."""
        base -= len(self._rest)
        view = memoryview(self._rest + data)
        self._rest = b""
        while self.position < base + len(view):
            at = self.position - base
            try:
                end = base + message_end(view, at)
            except (struct.error, AssertionError, OverflowError) as error:
                if isinstance(error, struct.error) and len(view) - at < _HEAD_BYTES_MAX:
                    self._rest = bytes(view[at:])
                    return
                end = -1
            if end <= self.position:
                raise damaged(self._path, self.position, "an Arrow IPC message", "other bytes")
            self.ends.append(end)
            self.position = end


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
