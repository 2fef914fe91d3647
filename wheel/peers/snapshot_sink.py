"""Receives a snapshot into ``incoming/``, beside the files in use (theory: ``snapshot.py``).

Rules
- Nothing it does is visible before the commit.
- What an attempt leaves stays for the next one, also in another process. It is read byte by byte,
  and counts only if its length and checksum are those in this snapshot's header.
- In ``incoming/`` there is never more than one snapshot: what the newest header does not name, or
  names shorter, is removed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from crc32c import crc32c

from ..errors import InvalidConfiguration
from ..files import Bytes, Files, Handle
from ..slots.slot import is_slot, slot_of_name, stem_of
from ..state import SlotInfo, StateUpdate
from ..switch import INCOMING_SLOTS, incoming_path, removing_incoming
from .snapshot import CHUNK_BYTES_MAX
from .snapshot_header import SnapshotHeader, damaged
from .snapshot_request import HeldSlot, SnapshotRequest


@dataclass(slots=True)
class _Open:
    """The file that is being received."""

    slot: int
    info: SlotInfo
    handle: Handle
    begin: int
    """The position at which this attempt goes on."""
    position: int
    crc: int


class SnapshotSink:
    def __init__(self, files: Files, group: str, *, after_index: int = 0) -> None:
        """``group``: the only wheel group that is accepted. ``after_index``: what is committed
        here; a snapshot that ends there or before is refused, as it would undo commits."""
        self._files = files
        self._group = group
        self._after_index = after_index
        self._header: SnapshotHeader | None = None
        self._held: dict[int, HeldSlot] = {}
        self._left: dict[int, SlotInfo] = {}
        self._open: _Open | None = None
        self.received = 0
        """Bytes received so far, out of ``expected``; with those of earlier attempts."""
        self.expected = 0

    def begin(self, step: Callable[[], object] = lambda: None) -> SnapshotRequest:
        """Read what earlier attempts left; returns the request. Not while a switch is incomplete.

        ``step`` is called before each mebibyte that is read, and may raise to end it.
        """
        self.close()
        slots = (slot_of_name(name) for name in self._files.list(INCOMING_SLOTS))
        self._held = {
            slot: self._look_at(incoming_path(slot), step) for slot in slots if slot is not None
        }
        return SnapshotRequest(self._held)

    def _look_at(self, path: str, step: Callable[[], object]) -> HeldSlot:
        length = crc = 0
        with closing(self._files.open(path)) as handle:
            step()
            while data := handle.pread(CHUNK_BYTES_MAX, length):
                length, crc = length + len(data), crc32c(data, crc)
                step()
        return HeldSlot(length, crc)

    def header(self, data: bytes) -> SnapshotHeader:
        """Accept the header, which comes before the chunks.

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
        self._keep_what_fits(header)
        missing = self.expected - self.received
        if self._files.free_bytes() < missing:
            raise OSError(errno.ENOSPC, f"no room for {missing} bytes of a snapshot's slot files")
        self._files.make_directory(INCOMING_SLOTS)
        self._header = header
        return header

    def _keep_what_fits(self, header: SnapshotHeader) -> None:
        self._left = dict(header.slots)
        for slot, held in list(self._held.items()):
            info = header.slots.get(slot)
            if info is not None and held == HeldSlot(info.length, info.crc):
                del self._left[slot]
            elif info is None or held.length >= info.length:
                self._files.unlink(incoming_path(slot))
                del self._held[slot]
        self.received = sum(held.length for held in self._held.values())
        self.expected = header.nbytes

    def chunk(self, slot: int, position: int, data: Bytes) -> None:
        """Accept the next bytes of a slot file. Files come one after the other, each from where its
        part here ends or from its beginning. One that was continued may begin once more.

        Errors: ``Damaged`` when it is not what must come next; ``OSError``.
        """
        assert self._header is not None, "a chunk before the header"
        path = incoming_path(slot)
        open_ = self._open
        if open_ is None:
            open_ = self._begin_file(slot, position, path)
        elif slot == open_.slot and position == 0 < open_.begin:
            self.received -= open_.position
            open_.handle.truncate(0)
            open_.begin = open_.position = open_.crc = 0
        if slot != open_.slot or position != open_.position:
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

    def _begin_file(self, slot: int, position: int, path: str) -> _Open:
        info = self._left.get(slot)
        if info is None:
            raise damaged(position, "slot files of the header, once each", slot, path)
        held = self._held.get(slot, HeldSlot())
        if position == 0:
            self.received -= held.length
            held = HeldSlot()
        handle = self._files.open(path, create=True)
        self._open = _Open(slot, info, handle, held.length, held.length, held.crc)
        handle.truncate(held.length)
        return self._open

    def _end_file(self, open_: _Open, path: str) -> None:
        size = open_.handle.size()
        if size != open_.info.length:
            raise damaged(size, f"{open_.info.length} bytes", f"{size} bytes", path)
        if open_.crc != open_.info.crc:
            raise damaged(0, f"CRC-32C {open_.info.crc:08x}", f"{open_.crc:08x}", path)
        open_.handle.close()
        self._open = None
        del self._left[open_.slot]

    def finish(self) -> StateUpdate:
        """Make all durable; returns the update to commit. Epoch, vote and store id stay.

        Errors: ``Damaged`` when something is missing; ``SyncFailed``.
        """
        assert self._header is not None, "an end before the header"
        if self._left:
            slot = min(self._left)
            raise damaged(0, f"{len(self._left)} more slot files", "the end", incoming_path(slot))
        self._files.sync_all()
        return StateUpdate(
            checkpoint=self._header.checkpoint,
            slots=self._header.slots,
            producers=self._header.producers,
            losses=self._header.losses,
            cancelled=self._header.cancelled,
            schedules=self._header.schedules,
            cancelled_floor=self._header.cancelled_floor,
            # What the sender has deleted, and what had left before it was spilled, is not in it.
            deleted_floor=max(mark.furthest_ms for mark in self._header.checkpoint.marks.every),
            incoming=True,
            replace=True,
        )

    def close(self) -> None:
        """End the attempt; what has come in stays for another one."""
        if self._open is not None:
            with suppress(OSError):
                self._open.handle.close()
        self._open = self._header = None
        self._held, self._left = {}, {}
        self.received = self.expected = 0

    def discard(self) -> Iterator[None]:
        """Remove what was received, one file a step."""
        self.close()
        yield from removing_incoming(self._files)


def _check(header: SnapshotHeader) -> None:
    """Check that the parts of a header fit each other, although its CRC is right."""
    for slot in (*header.slots, *(loss.slot for loss in header.losses)):
        if not is_slot(slot):
            raise damaged(0, "the numbers of slots", slot)
    for slot, info in header.slots.items():
        if not info.length or not info.rows or info.cancels > info.rows:
            raise damaged(0, f"a slot file with rows for slot {stem_of(slot)}", info)
        if info.highest >= header.checkpoint.next_offset:
            raise damaged(
                0,
                f"offsets below {header.checkpoint.next_offset} in slot {stem_of(slot)}",
                info.highest,
            )
