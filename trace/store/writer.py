"""Makes the store of what the trace topic has.

Rules
- Events and the positions behind them become durable by one rename. Who opens the store after a
  kill reads on from ``positions``, and every event is in it once; from its begin, where another
  ``source`` goes by the topic's name.
- Of events with one sender and one number the first is kept.
- A merge runs beside all else, in a thread of its own, one at a time; a flush waits for none. It
  knows nothing but whole segments and makes another one of them, which counts from its rename on.
  While it runs nothing is deleted, so what it reads is there, and what it makes is not too old.
- Memory is bounded: by ``FLUSH_ROWS`` and ``FLUSH_BYTES`` of what waits, and by what one merge
  needs (``merging``).
- One writer a directory; any number of readers, which it does not know.
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
    """Since the writer was opened. ``missing``: by the gaps in the numbers of its senders."""

    stored: int = 0
    twice: int = 0
    missing: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Events by the reason; of ``not-events`` and ``unknown-version`` whole batches."""


class StoreWriter:
    """``topic``: where the events come from; a store is of one topic. ``retain_ms``: how long after
    their arrival events are kept; None: for good.

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
        """Of the next record of each partition of ``source``."""
        self.source = ""
        """As of ``TailRows``; empty: not known, as in stores of earlier versions."""
        self._numbers = SenderNumbers()
        self._known: list[KnownSegment] = []
        self._merger = ThreadPoolExecutor(1, "trace-merge")
        self._merging: tuple[list[KnownSegment], Future[KnownSegment]] | None = None
        """Of what one is made, and when it is there."""
        self._left_alone: set[SegmentName] = set()
        """Damaged ones."""
        self._next = 0
        self._rows: list[pa.RecordBatch] = []
        self._added: dict[str, list[Int64s]] = {}
        self.waiting_rows = self.waiting_bytes = 0
        """Of what is not stored yet."""
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
        """Whether as much waits as may."""
        return self.waiting_rows >= FLUSH_ROWS or self.waiting_bytes >= FLUSH_BYTES

    def go_on(self, source: str) -> None:
        """Events that are added from now on come from this source."""
        if source and self.source not in ("", source):
            self.positions = {}
        self.source = source or self.source

    def add(self, partition: int, next_position: int, value: bytes | None) -> None:
        """One record of the topic. Never fails: what is not to be stored is counted."""
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
            sender: union(one for some in added for one in ranges_of(some))
            for sender, added in self._added.items()
        }
        hour = now_ms // HOUR_MS
        name = SegmentName(self._next, self._next)
        about = SegmentAbout(hour, self._topic, dict(self.positions), numbers, self.source)
        write_segment(self._root, name, about, pa.Table.from_batches(self._rows, STORED))
        self._known.append(KnownSegment(name, hour, self.waiting_rows))
        self._next += 1
        self.counts.stored += self.waiting_rows
        self._rows, self._added = [], {}
        self.waiting_rows = self.waiting_bytes = 0

    def tidy(self, now_ms: int, *, wait: bool = False) -> bool:
        """Delete what is too old, and have what there is to merge merged, once; whether there may
        be more to do. ``wait``: until that merge has ended.

        Errors: ``OSError``, ``SyncFailed``, also of the merge before; the writer cannot be used
        then."""
        self._end_merge(wait=wait)
        if self._merging is not None:
            return True
        self._delete_old(now_ms)
        sound = [one for one in self._known if one.name not in self._left_alone]
        wanted = what_to_merge(sound, now_ms // HOUR_MS, self._merged_rows_max)
        if not wanted:
            return False
        names = [one.name for one in wanted]
        self._merging = wanted, self._merger.submit(merge, self._root, names)
        self._end_merge(wait=wait)
        return True

    def _end_merge(self, *, wait: bool) -> None:
        """Put what a merge has made in the place of what it was made of."""
        if self._merging is None:
            return
        wanted, made = self._merging
        if not wait and not made.done():
            return
        self._merging = None
        names = [one.name for one in wanted]
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
        """Waits for a merge. What was not flushed is read again."""
        self._merger.shutdown()
        self._lock.release()

    def _clean(self) -> None:
        """Delete what a killed writer has left."""
        there = [path.name for path in self._root.iterdir()]
        names = segment_names(there)
        wanted = set(list_segments(self._root))
        self._delete([name for name in names if name not in wanted])
        kept = {name.index_file for name in wanted}
        for name in there:
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
        old = [one for one in self._known if (one.hour + 1) * HOUR_MS <= end]
        if old:
            last = old[-1].name
            self._known = [one for one in self._known if one.name > last]
            self._delete([name for name in list_segments(self._root) if name <= last])

    def _delete(self, names: list[SegmentName]) -> None:
        """The events first: without them the segment is not there."""
        for name in names:
            (self._root / name.events_file).unlink(missing_ok=True)
            (self._root / name.index_file).unlink(missing_ok=True)
