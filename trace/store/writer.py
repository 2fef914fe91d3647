"""Writes the store from the records of the trace topic.

Rules
- Events and the positions behind them become durable by one rename. A writer that opens the store
  after a kill reads on from ``positions``, and every event is in it once. A topic that was made
  anew under its old name has another ``source``, and is read from its begin.
- Of events with one sender and one number the first is kept.
- One merge at a time runs in a thread of its own, and no flush waits for it. It reads whole
  segments and makes another one, which counts from its rename on. While it runs nothing is deleted,
  so what it reads is there, and what it makes is not too old.
- Memory is bounded: by ``FLUSH_ROWS`` and ``FLUSH_BYTES`` of what waits, and by one merge.
- A directory has one writer, and any number of readers, which it does not know.
- Segments are deleted from the oldest one on, so that a gap is always a loss.
"""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from ...wheel.errors import (
    Damaged,
    DirectoryInUse,
    InvalidConfiguration,
    InvalidMessage,
    SlotwheelError,
    UnsupportedVersion,
)
from ...wheel.files import DirectoryLock
from ...wheel.schema import Int64s, times
from ..batches import decode
from ..events import STORED, with_sender
from .checks import checked
from .making import SegmentAbout, write_segment
from .merging import ROWS_MAX, KnownSegment, merge, what_to_merge
from .names import (
    EVENTS_SUFFIX,
    INDEX_SUFFIX,
    NEW_SUFFIX,
    SegmentName,
    list_segments,
    segment_names,
)
from .numbers import SenderNumbers, ranges_of, union
from .segment import StoreSegment

FLUSH_ROWS, FLUSH_BYTES = 1 << 17, 64 << 20
HOUR_MS = 3_600_000
log = logging.getLogger("slotwheel.trace")


@dataclass(slots=True)
class StoreCounts:
    """Numbers of events since the writer was opened. ``missing``: gaps in senders' numbers."""

    stored: int = 0
    twice: int = 0
    missing: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Events by reason; of ``not-events`` and ``unknown-version`` whole batches."""


class StoreWriter:
    """Writes one directory. ``topic``: where all its events come from. ``retain_ms``: how long
    after their arrival events are kept; None: for good.

    Errors on construction: ``DirectoryInUse``, ``InvalidConfiguration`` for another topic's store,
    ``OSError``."""

    def __init__(
        self,
        root: Path | str,
        topic: str,
        *,
        retain_ms: int | None = None,
        merged_rows_max: int = ROWS_MAX,
    ) -> None:
        self._root = Path(root)
        self._topic = topic
        self._retain_ms = retain_ms
        self._merged_rows_max = merged_rows_max
        self.counts = StoreCounts()
        self.positions: dict[int, int] = {}
        """The next position in each partition of ``source``."""
        self.source = ""
        """``TailRows.source``; empty: not known, as in stores of earlier versions."""
        self._numbers = SenderNumbers()
        self._known: list[KnownSegment] = []
        self._merger = ThreadPoolExecutor(1, "trace-merge")
        self._merging: tuple[list[KnownSegment], Future[KnownSegment]] | None = None
        """The segments that are being merged, and the one that they become."""
        self._left_alone: set[SegmentName] = set()
        """Segments that are not merged, as one of them is damaged."""
        self._next = 0
        self._rows: list[pa.RecordBatch] = []
        self._added: dict[str, list[Int64s]] = {}
        self.waiting_rows = self.waiting_bytes = 0
        try:
            self._lock = DirectoryLock(self._root)
        except DirectoryInUse as error:
            raise DirectoryInUse(
                "another gateway writes this trace store",
                got=error.got,
                remedy="Stop it, or give this one a directory of its own",
            ) from None
        try:
            self._clean()
            self._recover()
        except BaseException:
            self._lock.release()
            raise

    @property
    def full(self) -> bool:
        """True if as much waits as may: it is time to ``flush``."""
        return self.waiting_rows >= FLUSH_ROWS or self.waiting_bytes >= FLUSH_BYTES

    def go_on(self, source: str) -> None:
        """Events that are added from now on come from this source."""
        if source and self.source not in ("", source):
            self.positions = {}
        self.source = source or self.source

    def add(self, partition: int, next_position: int, value: bytes | None) -> None:
        """Add one record of the topic. Never fails: events that are not stored are counted."""
        self.positions[partition] = next_position
        try:
            sender, events = decode(value or b"")
        except (InvalidMessage, UnsupportedVersion) as error:
            known = isinstance(error, UnsupportedVersion)
            self.counts.refused["unknown-version" if known else "not-events"] += 1
            return
        taken, refused = checked(events)
        self.counts.refused += refused
        if not taken.all():
            events = events.filter(pa.array(taken))
        numbers = times(events, "number")
        new = self._numbers.add(sender.name, numbers)
        self.counts.missing = self._numbers.missing
        self.counts.twice += len(new) - int(new.sum())
        if not new.any():
            return
        if not new.all():
            events, numbers = events.filter(pa.array(new)), numbers[new]
        self._added.setdefault(sender.name, []).append(numbers)
        self._rows.append(with_sender(sender, events))
        self.waiting_rows += events.num_rows
        self.waiting_bytes += events.nbytes

    def flush(self, now_ms: int) -> None:
        """Store what waits. Errors: ``OSError``, ``SyncFailed``; the writer cannot be used then."""
        if not self._rows:
            return
        numbers = {
            sender: union(number_range for numbers in added for number_range in ranges_of(numbers))
            for sender, added in self._added.items()
        }
        hour = now_ms // HOUR_MS
        name = SegmentName(self._next, self._next)
        header = SegmentAbout(hour, self._topic, dict(self.positions), numbers, self.source)
        write_segment(self._root, name, header, pa.Table.from_batches(self._rows, STORED))
        self._known.append(KnownSegment(name, hour, self.waiting_rows))
        self._next += 1
        self.counts.stored += self.waiting_rows
        self._rows, self._added = [], {}
        self.waiting_rows = self.waiting_bytes = 0

    def tidy(self, now_ms: int, *, wait: bool = False) -> bool:
        """Delete what is too old, and begin one merge. Returns true if there may be more to do.
        ``wait``: until the merge has ended. Errors: ``OSError``, ``SyncFailed``, also of the merge
        before; the writer cannot be used then."""
        self._end_merge(wait=wait)
        if self._merging is not None:
            return True
        self._delete_old(now_ms)
        sound = [segment for segment in self._known if segment.name not in self._left_alone]
        wanted = what_to_merge(sound, now_ms // HOUR_MS, self._merged_rows_max)
        if not wanted:
            return False
        names = [segment.name for segment in wanted]
        self._merging = wanted, self._merger.submit(merge, self._root, names)
        self._end_merge(wait=wait)
        return True

    def _end_merge(self, *, wait: bool) -> None:
        """Put the merged segment in the place of its parts, if the merge has ended."""
        if self._merging is None:
            return
        wanted, made = self._merging
        if not wait and not made.done():
            return
        self._merging = None
        names = [segment.name for segment in wanted]
        try:
            merged = made.result()
        except (Damaged, UnsupportedVersion) as error:
            log.warning("trace segments %s to %s stay apart: %s", names[0], names[-1], error)
            self._left_alone |= set(names)
            return
        begin = self._known.index(wanted[0])
        self._known[begin : begin + len(wanted)] = [merged]
        self._delete(names)

    def close(self) -> None:
        """Wait for a running merge. Events that were not flushed are read again from the topic."""
        self._merger.shutdown()
        self._lock.release()

    def _clean(self) -> None:
        files = [path.name for path in self._root.iterdir()]
        names = segment_names(files)
        wanted = set(list_segments(self._root))
        self._delete([name for name in names if name not in wanted])
        kept = {name.index_file for name in wanted}
        for name in files:
            if name.endswith((EVENTS_SUFFIX + NEW_SUFFIX, INDEX_SUFFIX + NEW_SUFFIX)) or (
                name.endswith(INDEX_SUFFIX) and name not in kept
            ):
                (self._root / name).unlink(missing_ok=True)

    def _recover(self) -> None:
        for name in list_segments(self._root):
            self._next = name.last + 1
            try:
                segment = StoreSegment(self._root, name)
            except (SlotwheelError, FileNotFoundError) as error:
                log.warning("trace segment %s cannot be read: %s", name, error)
                continue
            if segment.topic != self._topic:
                raise InvalidConfiguration(
                    "a trace store of another topic",
                    got=f"{self._root} of {segment.topic}",
                    limit=self._topic,
                    remedy="Give it another directory, or that --trace-topic",
                )
            self._known.append(KnownSegment(name, segment.hour, segment.rows))
            self.positions, self.source = dict(segment.positions), segment.source
            for sender, ranges in segment.numbers.items():
                self._numbers.remember(sender, ranges)
        self.counts.missing = self._numbers.missing

    def _delete_old(self, now_ms: int) -> None:
        if self._retain_ms is None:
            return
        end = now_ms - self._retain_ms
        old = [segment for segment in self._known if (segment.hour + 1) * HOUR_MS <= end]
        if old:
            last = old[-1].name
            self._known = [segment for segment in self._known if segment.name > last]
            self._delete([name for name in list_segments(self._root) if name <= last])

    def _delete(self, names: list[SegmentName]) -> None:
        """Delete the events first: without that file the segment does not exist."""
        for name in names:
            (self._root / name.events_file).unlink(missing_ok=True)
            (self._root / name.index_file).unlink(missing_ok=True)
