"""A whole data directory on its way to a peer that needs entries which no journal has any more.

Theory: a snapshot is the state of one moment and the slot files up to their committed lengths, and
nothing else. ``replication/rules/shipper.py`` decides when a peer needs one, and
``replication/snapshots/transfer.py`` sends it. The journal follows by ordinary shipping, from the
entry behind the checkpoint. Slot files only grow or are deleted, so the sender copies them while it
goes on working, as long as its cleaner is paused. The receiver fills ``incoming/`` beside its own
files (``snapshot_sink.py``), and one commit makes it true (``switch.py``).

    receiver                                 sender
    sink = SnapshotSink(files, group)
    request = sink.begin()  ---------------> SnapshotSource(files, state.load(), request)
    sink.header(blob)  <---------------------  .header()
    sink.chunk(slot, position, data)  <------  .chunks()
    update = sink.finish()
    wheel.install(update)

A link may break, and the next attempt is for a later moment. So the receiver asks with what it has
already, and gets the rest of each file. The part it has belongs to the very same file if the
checksum, continued over the rest, is the one in the catalog. If it is not, the file is sent from
its beginning.

Rules
- Damage does not travel: the sender checks the CRC of what it reads, the receiver that of each file
  it received. A file that differs from the header in length or CRC is refused.
- At most one chunk is in memory, of 1 MiB, however large a file is.
- The marks in the checkpoint may be newer than its index: they are the committed ones. Older marks
  in the journal behind it must not replace them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from crc32c import crc32c

from ..errors import Damaged
from ..files import Files, Handle
from ..slots.slot import path_of
from ..state import SlotInfo, StoredState
from .snapshot_header import SnapshotHeader
from .snapshot_request import HeldSlot, SnapshotRequest

CHUNK_BYTES_MAX = 1 << 20

FilePart = tuple[int, int, bytes]
"""``(slot, position, bytes)`` of a slot file."""


class SnapshotSource:
    """Reads a snapshot out of a data directory. Slot files in it must not be deleted meanwhile."""

    def __init__(
        self, files: Files, stored: StoredState, request: SnapshotRequest | None = None
    ) -> None:
        """``stored``: checkpoint, slots, producers, losses, records of cancels and schedules of one
        moment, as ``StateStore.load`` gives them; the rest of it is not used."""
        self._files = files
        self._held = (request or SnapshotRequest()).held
        losses = tuple(replace(loss, kept="") for loss in stored.losses)
        self._header = SnapshotHeader(
            stored.checkpoint,
            stored.slots,
            stored.producers,
            losses,
            stored.cancelled,
            -1 if stored.cancelled_floor is None else stored.cancelled_floor,
            stored.schedules,
        )

    @property
    def index(self) -> int:
        """The last entry in it: shipping goes on behind that."""
        return self._header.checkpoint.index

    @property
    def epoch(self) -> int:
        """The epoch in which that entry was made."""
        return self._header.checkpoint.epoch

    @property
    def nbytes(self) -> int:
        """Bytes of all its files, whether the receiver has them already or not."""
        return self._header.nbytes

    def header(self) -> bytes:
        return self._header.encode()

    def chunks(self, bytes_max: int = CHUNK_BYTES_MAX) -> Iterator[FilePart]:
        """The bytes that the receiver lacks, one file after the other: each from where its part
        ends, or from position 0; and from 0 again, if its part turns out to be of another file.

        Errors: ``Damaged`` before the last chunk of a file that is not what it should be.
        """
        bytes_max = min(bytes_max, CHUNK_BYTES_MAX)
        for slot, info in sorted(self._header.slots.items()):
            held = self._held.get(slot, HeldSlot())
            if held != HeldSlot(info.length, info.crc):
                yield from self._file(slot, info, held, bytes_max)

    def _file(
        self, slot: int, info: SlotInfo, held: HeldSlot, bytes_max: int
    ) -> Iterator[FilePart]:
        path = path_of(slot)
        try:
            handle = self._files.open(path)
        except FileNotFoundError:
            raise Damaged(path, 0, expected=f"{info.length} bytes", found="no such file") from None
        with closing(handle):
            begins = [held, HeldSlot()] if 0 < held.length < info.length else [HeldSlot()]
            for begin in begins:
                crc = yield from _chunks(handle, slot, info, begin, bytes_max)
                if crc == info.crc:
                    return
        raise Damaged(path, 0, expected=f"CRC-32C {info.crc:08x}", found=f"{crc:08x}")


def _chunks(
    handle: Handle, slot: int, info: SlotInfo, begin: HeldSlot, bytes_max: int
) -> Generator[FilePart, None, int]:
    """The chunks behind ``begin``, without the last if the CRC is wrong; returns the file's CRC."""
    position, crc = begin.length, begin.crc
    while position < info.length:
        want = min(bytes_max, info.length - position)
        data = handle.pread(want, position)
        crc = crc32c(data, crc)
        end = position + len(data)
        if len(data) < want:
            raise Damaged(path_of(slot), end, expected=f"{info.length} bytes", found="the end")
        if end < info.length or crc == info.crc:
            yield slot, position, data
        position = end
    return crc
