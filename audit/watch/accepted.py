"""Reads what a wheel has accepted and cancelled from its files, beside a node that writes them.

Theory: every row that is due later than a moment ahead is in a slot, where slot files and journal
can be read together (``reading/search/view.py``). So a second is read once, shortly before its
time, with all that is in its files, also in that of its hour and its day; and what comes for it
after that is read from the journal, as it comes. Each row is counted once: in a file if its offset
is below that of the second's read point, else from the journal.

Rules
- The journal is read before the read point is taken: what a slot does not have then is still to
  come in the journal.
- A cancel has no topic. It is that of its target, which is in a file of the same second.
- A second that is read too late, when some of it may have left, gets a hint, and so does everything
  of the journal that cannot be read: what was not counted as accepted would be called lost behind
  the client, and repeated in its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...account.vocabulary import Boundary, Tier
from ...reading.events import RowsSeen
from ...reading.growing.journal import entry_at, look_at_journal
from ...reading.growing.parts import JournalPart, read_part
from ...reading.growing.positions import JournalAt
from ...reading.problems import Problem
from ...reading.search.pending import PendingReader
from ...reading.search.view import View
from ...wheel.config import TICK_MS
from ...wheel.rows import take_rows
from ...wheel.schema import ROW, Int64s, times
from ..ledger import AuditLedger

LEAD_S = 5
"""A slot is read so many seconds before its time."""
_KEPT_S = 60
"""For so many seconds after its time the topics of a slot's messages are kept: a cancel that comes
later has no topic of its own."""
_BYTES_MAX = 64 << 20
"""Bytes of the journal that are read at a time."""
_COLUMNS = pa.schema([ROW.field(name) for name in ("offset", "due", "created", "topic", "cancels")])
"""The columns of a row that are summed."""
_NO_ROWS = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in _COLUMNS], schema=_COLUMNS
)


@dataclass(slots=True)
class _Read:
    """A slot that was read: from ``next_offset`` on its rows are counted from the journal;
    ``offsets`` and ``topics`` are those of its messages, for cancels."""

    next_offset: int
    offsets: list[Int64s]
    topics: list[pa.Array]


class AcceptedTier:
    """Reads one data directory. Not thread-safe, and LMDB opens a store once a process."""

    def __init__(self, root: Path) -> None:
        """Errors: as of ``PendingReader``."""
        self._reader = PendingReader(root)
        self.root = self._reader.root
        self._view = self._reader.view()
        self._journal: JournalAt | None = entry_at(self.root, self._view.point.index + 1)
        self._slots: dict[int, _Read] = {}
        self._behind = 0
        """The first second whose slot is still to be read."""
        self._oldest = 0
        self._restarts = self._journal.restarts if self._journal is not None else 0

    @property
    def wheel(self) -> str:
        """The group in the ids of this wheel."""
        return self._view.mint.group

    def close(self) -> None:
        self._reader.close()

    def begin(self, from_ms: int) -> None:
        """Audit the slots from ``from_ms`` on."""
        self._behind = self._oldest = from_ms // TICK_MS

    def step(self, ledger: AuditLedger, now_ms: int) -> View:
        """Read what is new in the journal, and the slots whose time comes. Returns the view that
        was taken between the two. Errors: ``Damaged``, ``UnsupportedVersion``, ``OSError``: the
        state cannot be read."""
        self._read_journal(ledger, now_ms)
        self._view = view = self._reader.view()
        end = now_ms // TICK_MS + LEAD_S
        while self._behind < end:
            self._read_slot(ledger, self._behind, now_ms)
            self._behind += 1
        kept = end - LEAD_S - _KEPT_S
        self._slots = {second: read for second, read in self._slots.items() if second >= kept}
        return view

    def _read_slot(self, ledger: AuditLedger, second: int, now_ms: int) -> None:
        seconds = range(second, second + 1)
        view, batches, problem = self._reader.rows_of(self._view, seconds)
        self._view = view
        self._slots[second] = _Read(view.point.next_offset, [], [])
        for text in [
            str(trouble.text) for trouble in (problem, *view.problems) if trouble is not None
        ]:
            self._hint(ledger, f"the wheel's files: {text}", second)
        if not view.is_untouched(seconds):
            self._hint(ledger, "its slot was read late: some of it may have left before", second)
        rows = _summed_columns(batches)
        if rows.num_rows:
            self._add(ledger, second, rows, now_ms)

    def _read_journal(self, ledger: AuditLedger, now_ms: int) -> None:
        at_end = False
        while not at_end:
            start = self._journal
            end, at_end = look_at_journal(self.root, start, archive=True, nbytes=_BYTES_MAX)
            if end is None or end == start:
                return
            part = JournalPart(0, self.root.name, str(self.root), start, end, archive=True)
            again = end.restarts != self._restarts
            for event in read_part(part):
                if isinstance(event, RowsSeen) and not again:
                    self._add_late(ledger, event.rows, now_ms)
                elif isinstance(event, Problem):
                    self._hint(ledger, f"the wheel's journal: {event.text}", None)
            if again:  # which of its entries were counted before is not known
                self._hint(ledger, f"the wheel's journal: {end.note}", None)
            self._journal, self._restarts = end, end.restarts

    def _add_late(self, ledger: AuditLedger, rows: pa.RecordBatch, now_ms: int) -> None:
        """Add rows of the journal whose slots were read already. The others wait for their slot."""
        seconds, offset = times(rows, "due") // TICK_MS, times(rows, "offset")
        for second in np.unique(seconds[seconds < self._behind]).tolist():
            read = self._slots.get(second)
            late = seconds == second
            if read is None:
                if second < self._oldest:
                    continue
                read = self._slots[second] = _Read(0, [], [])
            late &= offset >= read.next_offset
            if late.any():
                taken = _summed_columns([take_rows(rows, np.flatnonzero(late))])
                self._add(ledger, second, taken, now_ms)

    def _add(self, ledger: AuditLedger, second: int, rows: pa.RecordBatch, now_ms: int) -> None:
        is_cancel = np.asarray(rows.column("cancels").is_valid())
        messages = take_rows(rows, np.flatnonzero(~is_cancel)) if is_cancel.any() else rows
        topic, due, offset = (
            messages.column("topic"),
            times(messages, "due"),
            times(messages, "offset"),
        )
        created = times(messages, "created")
        ledger.see(Tier.ACCEPTED, topic, due, offset, now_ms, created=created)
        read = self._slots[second]
        read.offsets.append(np.array(offset))
        read.topics.append(topic)
        if not is_cancel.any():
            return
        targets = np.asarray(rows.column("cancels").drop_null(), np.int64)
        due_of = times(rows, "due")[is_cancel]
        known = np.concatenate(read.offsets)
        order = np.argsort(known)
        at = np.searchsorted(known[order], targets)
        is_known = at < len(known)
        is_known[is_known] = known[order][at[is_known]] == targets[is_known]
        if not is_known.all():
            self._hint(ledger, "a message was cancelled of which the topic is not known", second)
        topics = pa.chunked_array(read.topics).combine_chunks().take(pa.array(order[at[is_known]]))
        ledger.see(Tier.CANCELLED, topics, due_of[is_known], targets[is_known], now_ms)

    def _hint(self, ledger: AuditLedger, text: str, second: int | None) -> None:
        boundaries: Iterable[Boundary] = (Boundary.CLIENT_WHEEL, Boundary.WHEEL_TOPIC)
        from_ms = ledger.from_ms if second is None else second * TICK_MS
        until_ms = (self._behind + 1 if second is None else second + 1) * TICK_MS
        ledger.hints.add(text, boundaries, from_ms, until_ms)


def _summed_columns(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of all batches, with ``_COLUMNS`` alone."""
    return pa.concat_batches([_NO_ROWS, *(batch.select(_COLUMNS.names) for batch in batches)])
