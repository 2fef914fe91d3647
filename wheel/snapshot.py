"""A whole data directory on its way to a peer that needs entries nobody's journal still has.

Theory: a snapshot is the state of one moment and the slot files up to their committed lengths, and
nothing else: the journal follows by ordinary shipping, from the entry behind the checkpoint. Slot
files only grow or are deleted, so the sender copies them while it goes on working, as long as its
cleaner is paused. The receiver fills ``incoming/`` beside its own files, and one commit makes it
true (``switch.py``).

    sender                                   receiver
    SnapshotSource(files, state.load())      sink = SnapshotSink(files, group)
      .header()  --------------------------->  sink.begin(); sink.header(blob)
      .chunks()  --------------------------->  sink.chunk(second, position, data)
                                               update = sink.finish()
                                               install(files, state, update)

Rules
- Damage does not travel: the sender checks each file's CRC while it reads, the receiver each one it
  has got. Whatever is not exactly what the header says is refused.
- Nothing is resumed. An interrupted ``incoming/`` was never anything, and ``begin`` empties it.
- At most one chunk is in memory, of 1 MiB.
- The marks in the checkpoint may be newer than its index: they are the committed ones. Whoever
  replays the journal behind it must not let older marks replace them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from crc32c import crc32c

from .errors import Damaged, InvalidConfiguration
from .files import Bytes, Files, Handle
from .slotfile import path_of
from .snapshot_header import SnapshotHeader, damaged
from .state import SlotInfo, Stored, Update
from .switch import INCOMING_SLOTS, clear_incoming, complete_switch, incoming_path

__all__ = ["SnapshotSink", "SnapshotSource", "complete_switch"]

CHUNK_BYTES_MAX = 1 << 20


class SnapshotSource:
    """Reads a snapshot out of a data directory. Slot files in it must not be deleted meanwhile."""

    def __init__(self, files: Files, stored: Stored) -> None:
        """``stored``: checkpoint, slots and producers of one moment, as ``StateStore.load`` gives
        them; the rest of it is not looked at."""
        self._files = files
        self._header = SnapshotHeader(stored.checkpoint, stored.slots, stored.producers)

    @property
    def index(self) -> int:
        """The last entry in it: shipping goes on behind that."""
        return self._header.checkpoint.index

    @property
    def epoch(self) -> int:
        """In which that entry was made."""
        return self._header.checkpoint.epoch

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks."""
        return self._header.nbytes

    def header(self) -> bytes:
        return self._header.encode()

    def chunks(self, bytes_max: int = CHUNK_BYTES_MAX) -> Iterator[tuple[int, int, bytes]]:
        """``(second, position, bytes)`` of all slot files, one file after the other.

        Errors: ``Damaged`` before the last chunk of a file that is not what it should be.
        """
        bytes_max = min(bytes_max, CHUNK_BYTES_MAX)
        for second, info in sorted(self._header.slots.items()):
            try:
                handle = self._files.open(path_of(second))
            except FileNotFoundError:
                raise Damaged(
                    path_of(second), 0, expected=f"{info.length} bytes", found="no such file"
                ) from None
            try:
                yield from _chunks(handle, second, info, bytes_max)
            finally:
                handle.close()


def _chunks(
    handle: Handle, second: int, info: SlotInfo, bytes_max: int
) -> Iterator[tuple[int, int, bytes]]:
    crc = position = 0
    while position < info.length:
        want = min(bytes_max, info.length - position)
        data = handle.pread(want, position)
        crc = crc32c(data, crc)
        end = position + len(data)
        if len(data) < want:
            raise Damaged(path_of(second), end, expected=f"{info.length} bytes", found="the end")
        if end == info.length and crc != info.crc:
            raise Damaged(
                path_of(second), 0, expected=f"CRC-32C {info.crc:08x}", found=f"{crc:08x}"
            )
        yield second, position, data
        position = end


@dataclass(slots=True)
class _Open:
    """The file that is being received."""

    second: int
    info: SlotInfo
    handle: Handle
    position: int = 0
    crc: int = 0


class SnapshotSink:
    """Receives a snapshot into ``incoming/``. Nothing it does is visible before the commit."""

    def __init__(self, files: Files, group: str, *, after_index: int = 0) -> None:
        """``group``: the only wheel group it takes. ``after_index``: what is committed here; a
        snapshot that ends there or before is refused, as it would take something back."""
        self._files = files
        self._group = group
        self._after_index = after_index
        self._header: SnapshotHeader | None = None
        self._left: dict[int, SlotInfo] = {}
        self._open: _Open | None = None
        self.received = 0
        """Bytes of chunks so far, out of ``expected``."""
        self.expected = 0

    def begin(self) -> None:
        """Empty ``incoming/`` and start anew. Never while a switch is not completed."""
        self.abort()
        self._files.make_directory(INCOMING_SLOTS)

    def header(self, data: bytes) -> SnapshotHeader:
        """What comes before the chunks.

        Errors: ``UnsupportedVersion``, ``Damaged``; ``InvalidConfiguration`` for another wheel
        group's; ``LookupError`` when it is older than what is here; ``OSError`` (no room).
        """
        header = SnapshotHeader.decode(data)
        checkpoint = header.checkpoint
        group = checkpoint.config.get("group")
        if group != self._group:
            raise InvalidConfiguration(
                "the snapshot is of another wheel group",
                got=group,
                limit=self._group,
                remedy="Give both nodes the same --group, or take one out of the other's peers",
            )
        if checkpoint.index <= self._after_index:
            raise LookupError(
                f"the snapshot ends at entry {checkpoint.index}, and {self._after_index} is"
                " committed here"
            )
        _check(header)
        if self._files.free_bytes() < header.nbytes:
            raise OSError(
                errno.ENOSPC, f"no room for a snapshot of {header.nbytes} bytes of slot files"
            )
        self._header = header
        self._left = dict(header.slots)
        self.received, self.expected = 0, header.nbytes
        return header

    def chunk(self, second: int, position: int, data: Bytes) -> None:
        """The next bytes of a slot file. Files come one after the other, each from its beginning.

        Errors: ``Damaged`` when it is not what must come next; ``OSError``.
        """
        assert self._header is not None, "a chunk before the header"
        path = incoming_path(second)
        if self._open is None:
            info = self._left.get(second)
            if info is None:
                raise damaged(position, "slot files of the header, once each", second, path)
            self._open = _Open(second, info, self._files.open(path, create=True))
        open_ = self._open
        if second != open_.second or position != open_.position:
            raise damaged(
                open_.position, f"byte {open_.position}", f"byte {position} of {path}", path
            )
        if position + len(data) > open_.info.length or not len(data):
            raise damaged(
                position, f"1 to {open_.info.length - position} bytes", f"{len(data)} bytes", path
            )
        open_.handle.pwrite([data], position)
        open_.crc = crc32c(data, open_.crc)
        open_.position += len(data)
        self.received += len(data)
        if open_.position == open_.info.length:
            self._end_file(open_, path)

    def _end_file(self, open_: _Open, path: str) -> None:
        size = open_.handle.size()
        if size != open_.info.length:
            raise damaged(size, f"{open_.info.length} bytes", f"{size} bytes", path)
        if open_.crc != open_.info.crc:
            raise damaged(0, f"CRC-32C {open_.info.crc:08x}", f"{open_.crc:08x}", path)
        open_.handle.close()
        self._open = None
        del self._left[open_.second]

    def finish(self) -> Update:
        """All is here and durable: what one commit makes true. Epoch, vote and store id stay.

        Errors: ``Damaged`` when something is missing; ``SyncFailed``.
        """
        assert self._header is not None, "an end before the header"
        if self._left:
            second = min(self._left)
            raise damaged(0, f"{len(self._left)} more slot files", "the end", incoming_path(second))
        self._files.sync_all()
        return Update(
            checkpoint=self._header.checkpoint,
            slots=self._header.slots,
            producers=self._header.producers,
            incoming=True,
            replace=True,
        )

    def abort(self) -> None:
        """Give up what has been received so far."""
        if self._open is not None:
            with suppress(OSError):
                self._open.handle.close()
        self._open = self._header = None
        self._left = {}
        self.received = self.expected = 0
        clear_incoming(self._files)


def _check(header: SnapshotHeader) -> None:
    """What must hold between the parts, whatever the CRC says."""
    for second, info in header.slots.items():
        if not info.length or not info.rows or info.cancels > info.rows:
            raise damaged(0, f"a slot file with rows for second {second}", info)
        if info.highest >= header.checkpoint.next_offset:
            raise damaged(
                0,
                f"offsets below {header.checkpoint.next_offset} in slot {second}",
                info.highest,
            )
