"""The archive: what the marks cover, kept for a proof instead of deleted.

    archive/<day>/slots/<slot>.<length>.<crc32c>.arrows
    archive/<day>/journal/<first index>.journal

Theory: keeping costs no copy, and no record of what was kept. A slot file gets a second name, in
the archive, before its row leaves the catalog, and loses the first one after that. A crash in
between leaves it with both names; the slot lives on then, and the second name is removed at open.
It is recognized by its length and its checksum, which are those of the catalog's row. A segment is
renamed: the journal does without it from that moment on.

Rules
- The archive is second to the wheel. What cannot be kept (a full disk) is deleted as without an
  archive, and counted as missed. Appends are refused only when there is nothing left here to evict.
- The oldest goes first: a slot file is as old as the last second of its slot, a segment as its last
  write, or as the mark when it was archived if that is later. So nothing that had left before a
  segment was archived is due later than the segment's time of modification, which a proof uses to
  say what may be missing before the oldest one (``replay/judging/complete.py``).
- ``<day>`` (UTC) is the day of archiving. It only keeps the folders small.
- One thread keeps and evicts. Eviction is not made durable: it would be done again.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from ..config import TICK_MS, WheelConfig
from ..files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, Files
from ..journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..journal.segment import is_segment_name
from ..state import SlotInfo
from .slot import SUFFIX, ends_ms, path_of, slot_of_stem, stem_of

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SLOT = re.compile(r"([^.]+)\.(\d+)\.([0-9a-f]{8})" + re.escape(SUFFIX))
_EVICTED_MAX = 1024
"""Files that one call evicts at most, as the wheel's own cleaning waits for it."""

_Kept = tuple[int, int, str]
"""(its time in ms, bytes, path)"""


def archived_slot_name(slot: int, info: SlotInfo) -> str:
    return f"{stem_of(slot)}.{info.length}.{info.crc:08x}{SUFFIX}"


def parse_archived_slot(name: str) -> tuple[int, int, int]:
    """Slot, length in bytes and CRC-32C of an archived slot file. Errors: ``ValueError``."""
    fields = _SLOT.fullmatch(name)
    slot = None if fields is None else slot_of_stem(fields[1])
    if fields is None or slot is None:
        raise ValueError(name)
    return slot, int(fields[2]), int(fields[3], 16)


class Archive:
    """The archive of one data directory. Without a limit in ``config`` it keeps nothing more, and
    does not touch what an earlier process has kept."""

    def __init__(self, files: Files, config: WheelConfig) -> None:
        self._files = files
        self._retain_ms = config.retain_ms
        self._retain_bytes = config.retain_bytes
        self._free_wanted = config.disk_reserve_bytes + 2 * config.segment_bytes
        self._days: dict[str, int] = {}  # bytes by day
        self._front: str | None = None
        self._queue: deque[_Kept] = deque()  # of the day in front, oldest first
        self._made = ""  # the day whose folders are there, durably
        self.bytes = 0
        self.missed = 0
        """Files that should have been kept and could not be."""
        self.missed_why = ""
        """The error of the last of them."""

    @property
    def keeps(self) -> bool:
        return bool(self._retain_ms or self._retain_bytes)

    def recover(self, catalog: Mapping[int, SlotInfo]) -> list[str]:
        """List the archive; remove second names of living slots, and return a line for each."""
        mended: list[str] = []
        for day in self._names(ARCHIVE_DIRECTORY):
            if _DAY.fullmatch(day) is None:
                continue
            mended += self._unlink_living(f"{ARCHIVE_DIRECTORY}/{day}/{SLOT_DIRECTORY}", catalog)
            if self.keeps:
                self._count(day)
        return mended

    def _names(self, directory: str) -> list[str]:
        """The names in a folder; none when it cannot be read, or a file stands in its place: such a
        file is not the archive's, and no reason for the wheel to stop."""
        try:
            return self._files.list(directory)
        except OSError:
            return []

    def _unlink_living(self, directory: str, catalog: Mapping[int, SlotInfo]) -> list[str]:
        mended = []
        for name in self._names(directory):
            with contextlib.suppress(ValueError):
                slot, length, crc = parse_archived_slot(name)
                info = catalog.get(slot)
                if info is not None and (info.length, info.crc) == (length, crc):
                    self._files.unlink(f"{directory}/{name}")
                    mended.append(
                        f"{stem_of(slot)}: taken back from the archive, as it was not deleted"
                    )
        if mended:
            # Now, before the slot grows: afterwards nobody could tell that it is the same.
            self._files.sync_dir(directory)
        return mended

    # -- keeping ---------------------------------------------------------------------------------

    def keep_slots(self, slots: Mapping[int, SlotInfo], now_ms: int) -> list[str]:
        """Give slot files their second names, durably; returns these names, for ``unlink_kept``.

        Errors: ``SyncFailed``.
        """
        if not self.keeps or not slots:
            return []
        kept: list[str] = []
        day = self._day(now_ms)
        directory = f"{ARCHIVE_DIRECTORY}/{day}/{SLOT_DIRECTORY}"
        try:
            self._make(day)
            for slot, info in slots.items():
                path = f"{directory}/{archived_slot_name(slot, info)}"
                self._link(path_of(slot), path, info.length)
                kept.append(path)
                self._add(day, (ends_ms(slot) - TICK_MS, info.length, path))
        except OSError as error:
            self._miss(len(slots) - len(kept), error)
        try:
            if kept:
                self._files.sync_dir(directory)
        except OSError as error:  # what is not durable here is not kept
            self.unlink_kept(kept)
            self._miss(len(kept), error)
            return []
        return kept

    def _miss(self, count: int, error: OSError) -> None:
        self.missed += count
        self.missed_why = str(error)
        self._made = ""

    def unlink_kept(self, kept: list[str]) -> None:
        """Remove second names: the slots are not deleted after all. Errors: ``SyncFailed``."""
        for path in kept:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
        for directory in {path.rpartition("/")[0] for path in kept}:
            # Now, before a slot grows: see ``recover``.
            with contextlib.suppress(OSError):
                self._files.sync_dir(directory)
        self._front, self._queue = None, deque()
        for day in {path.split("/")[1] for path in kept}:
            self._count(day)

    def keep_segment(self, path: str, nbytes: int, now_ms: int, left_ms: int) -> bool:
        """Move a closed segment here; false if it could not be. ``left_ms``: no row that has left
        is due later. The caller syncs the journal's directory.

        Errors: ``SyncFailed``.
        """
        day = self._day(now_ms)
        directory = f"{ARCHIVE_DIRECTORY}/{day}/{JOURNAL_DIRECTORY}"
        target = f"{directory}/{path.rpartition('/')[2]}"
        try:
            written_ms = max(self._files.modified_ms(path), left_ms)
            with contextlib.closing(self._files.open(path)) as handle:
                self._files.set_modified(path, written_ms)
                handle.sync()  # before the new name is: an archived segment has the right time
            self._make(day)
            self._files.rename(path, target)
        except OSError as error:
            self._miss(1, error)
            return False
        # First the new name, then, by the caller, the end of the old one. If it cannot be, the
        # segment is here all the same: the journal has to do without it.
        with contextlib.suppress(OSError):
            self._files.sync_dir(directory)
        self._add(day, (written_ms, nbytes, target))
        return True

    def _link(self, source: str, target: str, length: int) -> None:
        with contextlib.closing(self._files.open(source)) as handle:
            if handle.size() > length:  # of an append that was never committed
                handle.truncate(length)
            handle.sync()  # such a cut, here or at open; nothing else waits
        # An earlier try may have left one that could not be taken back.
        with contextlib.suppress(FileExistsError):
            self._files.link(source, target)

    def _make(self, day: str) -> None:
        """The folders of a day, whose names are durable before anything is put there."""
        folder = f"{ARCHIVE_DIRECTORY}/{day}"
        if self._made == day and len(self._names(folder)) > 1:  # nobody has deleted them since
            return
        for part in (SLOT_DIRECTORY, JOURNAL_DIRECTORY):
            self._files.make_directory(f"{folder}/{part}")
        for directory in (folder, ARCHIVE_DIRECTORY, "."):
            self._files.sync_dir(directory)
        self._made = day

    def _add(self, day: str, kept: _Kept) -> None:
        self._days[day] = self._days.get(day, 0) + kept[1]
        self.bytes += kept[1]
        if self._front is not None and day < self._front:
            self._front, self._queue = None, deque()  # the clock was set back
        elif day == self._front:
            self._queue.append(kept)

    def _count(self, day: str) -> None:
        kept_bytes = sum(nbytes for _, nbytes, _ in self._listed(day))
        self.bytes += kept_bytes - self._days.get(day, 0)
        self._days[day] = kept_bytes

    @staticmethod
    def _day(now_ms: int) -> str:
        return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d")

    # -- evicting --------------------------------------------------------------------------------

    def trim(self, now_ms: int) -> int:
        """Evict files beyond the limits, the oldest first; returns how many."""
        if not self.keeps or not self._days:
            return 0
        wanted = max(0, self._free_wanted - self._files.free_bytes())
        oldest_ms = now_ms - self._retain_ms if self._retain_ms else None
        most = self._retain_bytes or self.bytes
        if self.bytes > most:
            self._forget_deleted()
        evicted = 0
        while evicted < _EVICTED_MAX and (kept := self._oldest()) is not None:
            time_ms, nbytes, path = kept
            is_old = oldest_ms is not None and time_ms < oldest_ms
            if not is_old and self.bytes <= most and wanted <= 0:
                break
            try:
                self._files.unlink(path)
            except FileNotFoundError:
                pass  # somebody has tidied up
            except OSError:
                break
            assert self._front is not None
            self._queue.popleft()
            self._days[self._front] -= nbytes
            self.bytes -= nbytes
            wanted -= nbytes
            evicted += 1
        return evicted

    def _forget_deleted(self) -> None:
        """Forget days that an operator deleted, or older files would have to go for their bytes."""
        try:
            days = self._files.list(ARCHIVE_DIRECTORY)
        except OSError:
            return
        for day in self._days.keys() - set(days):
            self.bytes -= self._days.pop(day)
            if day == self._front:
                self._front, self._queue = None, deque()

    def _oldest(self) -> _Kept | None:
        while not self._queue:
            if self._front is not None:
                self._remove_day(self._front)
                self._front = None
            if not self._days:
                return None
            self._front = min(self._days)
            self._queue = deque(sorted(self._listed(self._front)))
        return self._queue[0]

    def _remove_day(self, day: str) -> None:
        self.bytes -= self._days.pop(day)
        if self._made == day:
            self._made = ""
        folder = f"{ARCHIVE_DIRECTORY}/{day}"
        with contextlib.suppress(OSError):  # something foreign is in it
            self._files.remove_directory(f"{folder}/{SLOT_DIRECTORY}")
            self._files.remove_directory(f"{folder}/{JOURNAL_DIRECTORY}")
            self._files.remove_directory(folder)

    def _listed(self, day: str) -> Iterator[_Kept]:
        folder = f"{ARCHIVE_DIRECTORY}/{day}"
        for name in self._names(f"{folder}/{SLOT_DIRECTORY}"):
            with contextlib.suppress(ValueError):
                slot, length, _ = parse_archived_slot(name)
                yield ends_ms(slot) - TICK_MS, length, f"{folder}/{SLOT_DIRECTORY}/{name}"
        for name in filter(is_segment_name, self._names(f"{folder}/{JOURNAL_DIRECTORY}")):
            path = f"{folder}/{JOURNAL_DIRECTORY}/{name}"
            with contextlib.suppress(OSError):
                with contextlib.closing(self._files.open(path)) as handle:
                    nbytes = handle.size()
                yield self._files.modified_ms(path), nbytes, path
