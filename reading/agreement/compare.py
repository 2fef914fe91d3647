"""The comparison of two peers: their journals (``journals.py``), their checkpoints, and every row
that is still to be delivered.

Theory: peers spill at moments of their own, so their slot files need not be equal; the rows in tail
and slot files *together* must be. One peer may lack a row of the other only if its own newest mark
covers it: then the row was delivered, and this peer has dropped it already. Rows behind the end of
one peer's log are not compared; a peer that is behind is not wrong.

Rules
- They spill at different times, so a row may lie in the file of its day at one peer, and in that of
  its hour or second at the other: compared are the rows of a second over all its files.
- Nothing is changed. Strip by strip (``reading/stretches.py``): some seconds' rows of both are in
  memory, and the rows that are in no slot file yet.
- Meant for peers at rest. Beside a running node, changes meanwhile may be reported as problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from ...wheel.config import TICK_MS
from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.ids import IdMint
from ...wheel.rows import no_rows, take_rows
from ...wheel.schema import Int64s, times
from ...wheel.slots.secondsums import SecondSums
from ...wheel.slots.slot import is_wide, path_of
from ...wheel.state import SlotInfo
from ..recordedblocks import WideFiles
from ..slots import slot_blocks
from ..stretches import STRIP_BYTES, files_of, load_of, stretches_of
from ..verify.slots import committed_bytes
from .journals import (
    PROBLEMS_MAX,
    Agreement,
    PeerDirectory,
    PeerJournal,
    compare_journals,
    key_of,
    progress,
)

__all__ = ["Agreement", "PeerDirectory", "compare"]


def compare(
    left: PeerDirectory, right: PeerDirectory, looked_at: Callable[[int, int], None] | None = None
) -> Agreement:
    """Compare two data directories of one group. ``looked_at``: called with the number of
    stretches that were compared, and that of all. Errors: ``OSError``."""
    agreement = Agreement()
    for peer in (left, right):
        if peer.stored.incoming:
            agreement.problem(
                f"{peer.name}: a switch to a snapshot is not completed; start the node once"
            )
    _same_group(left, right, agreement)
    if agreement.problems:
        return agreement
    left_log, right_log = PeerJournal(left), PeerJournal(right)
    for log in (left_log, right_log):
        log.ends = {peer.stored.checkpoint.index: -1 for peer in (left, right)}
    compare_journals(left_log, right_log, agreement)
    for ours, theirs in ((left_log, right_log), (right_log, left_log)):
        _check_checkpoint(ours, theirs, agreement)
    _Rows(left_log, right_log, agreement).compare(looked_at)
    return agreement


def _same_group(left: PeerDirectory, right: PeerDirectory, agreement: Agreement) -> None:
    ours, theirs = left.stored.checkpoint.config, right.stored.checkpoint.config
    if not ours or not theirs:
        return  # nothing spilled yet: the configuration is only in the journal, and compared there
    for name in ("group", "key"):
        if ours.get(name) != theirs.get(name):
            agreement.problem(
                f"not the same wheel group: {left.name} is of {ours.get('group')},"
                f" {right.name} of {theirs.get('group')}"
                + (", with different keys" if name == "key" else "")
            )
            return


def _check_checkpoint(ours: PeerJournal, theirs: PeerJournal, agreement: Agreement) -> None:
    checkpoint = ours.peer.stored.checkpoint
    name, other = ours.peer.name, theirs.peer.name
    if not checkpoint.index:
        return
    shared = not ours.parted or checkpoint.index < ours.parted
    epoch = theirs.epochs.epoch_at(checkpoint.index) if shared else None
    if epoch is not None and epoch != checkpoint.epoch:
        agreement.problem(
            f"the checkpoint of {name} ends with entry {checkpoint.index} of epoch"
            f" {checkpoint.epoch}, which {other} has of epoch {epoch}"
        )
    end = theirs.ends.get(checkpoint.index, -1) if shared else -1
    if end not in (-1, checkpoint.next_offset):
        agreement.problem(
            f"the checkpoint of {name} ends before offset {checkpoint.next_offset}, entry"
            f" {checkpoint.index} in the journal of {other} before {end}"
        )
    for log in (ours, theirs):
        if log.first_marks is None or log.last_marks is None:
            continue
        # A mark strictly between two marks of a journal must be in the journal.
        within = progress(log.first_marks) < progress(checkpoint.marks) < progress(log.last_marks)
        if within and key_of(checkpoint.marks) not in log.seen_marks:
            agreement.problem(
                f"the checkpoint of {name} has a mark that is not in the journal of"
                f" {log.peer.name}: {checkpoint.marks.main}"
            )


class _Side:
    """The rows of one peer, strip by strip."""

    def __init__(self, log: PeerJournal) -> None:
        self.log = log
        self.name = log.peer.name
        infos = log.peer.stored.slots
        self.slots = np.array(sorted(infos), np.int64)
        self._infos = infos
        self._wide = WideFiles(self._blocks)
        self.seconds = [np.unique(piece.due // TICK_MS) for piece in log.pieces]
        """Those of each piece's rows, ascending."""
        self._by_due = [np.argsort(piece.due, kind="stable") for piece in log.pieces]

    def load(self, stretch: range) -> SecondSums:
        """As of ``load_of``."""
        files = {slot: self._infos[slot].length for slot in files_of(self.slots, stretch)}
        return load_of(stretch, files, self._rows_of, STRIP_BYTES)

    def _rows_of(self, slot: int) -> SecondSums:
        return self._wide.blocks(slot, self._infos[slot]).rows

    def rows(self, seconds: range, next_offset: int) -> pa.RecordBatch:
        """The rows of these seconds below ``next_offset``, in offset order, with the ROW schema.

        Errors: ``Damaged``, ``UnsupportedVersion``.
        """
        parts = [no_rows()]
        for slot in files_of(self.slots, seconds):
            info = self._infos[slot]
            if is_wide(slot):
                parts += self._wide.blocks(slot, info).within(seconds)
            else:
                parts += self._blocks(slot, info)
        for piece, by_due in zip(self.log.pieces, self._by_due, strict=True):
            bounds = [seconds.start * TICK_MS, seconds.stop * TICK_MS]
            start, stop = np.searchsorted(piece.due, bounds, sorter=by_due)
            if start < stop:
                parts.append(piece.take(by_due[start:stop].astype(np.int64)))
        whole = pa.concat_batches(parts)
        offsets = times(whole, "offset")
        order = np.argsort(offsets, kind="stable")
        return take_rows(whole, order[offsets[order] < next_offset])

    def _blocks(self, slot: int, info: SlotInfo) -> list[pa.RecordBatch]:
        path = path_of(slot)
        data, _ = committed_bytes(self.log.peer.files, slot, info)
        if data.size < info.length:
            raise Damaged(path, data.size, expected=f"{info.length} bytes", found="the end")
        return [batch for _, batch in slot_blocks(data, path)]


def _all_but(indices: Int64s, count: int) -> Int64s:
    """The numbers below ``count`` that are not in ``indices``."""
    others = np.ones(count, dtype=np.bool_)
    others[indices] = False
    return np.flatnonzero(others)


class _Rows:
    """The rows of both peers below ``next_offset``."""

    def __init__(self, left: PeerJournal, right: PeerJournal, agreement: Agreement) -> None:
        self._agreement = agreement
        self._sides = _Side(left), _Side(right)
        agreement.next_offset = min(left.next_offset, right.next_offset)
        config = left.peer.stored.checkpoint.config or right.peer.stored.checkpoint.config
        self._mint = IdMint.of(config) if config else None

    def compare(self, looked_at: Callable[[int, int], None] | None) -> None:
        left, right = self._sides
        slots = np.unique(np.concatenate([left.slots, right.slots]))
        bounds = stretches_of(slots, [*left.seconds, *right.seconds])
        for done, stretch in enumerate(map(range, *(each.tolist() for each in bounds)), 1):
            for strip in self._strips(stretch):
                self._compare(strip)
                if len(self._agreement.problems) >= PROBLEMS_MAX:
                    text = f"stopped in second {strip.start}, after so many problems"
                    self._agreement.notes.append(text)
                    return
            if looked_at is not None:
                looked_at(done, len(bounds[0]))

    def _strips(self, stretch: range) -> Iterator[range]:
        """As many seconds as neither side has too much of, one strip after the other."""
        if len(stretch) == 1:
            yield stretch
            return
        loads = [side.load(stretch) for side in self._sides]
        while stretch:
            strip = min((load.strip(stretch, STRIP_BYTES) for load in loads), key=len)
            yield strip
            stretch = stretch[len(strip) :]

    def _compare(self, seconds: range) -> None:
        read: list[pa.RecordBatch] = []
        for side in self._sides:
            try:
                read.append(self._once(side, side.rows(seconds, self._agreement.next_offset)))
            except (Damaged, UnsupportedVersion) as error:
                self._agreement.problem(f"{side.name}: {error}")
        if len(read) < 2:
            return
        ours, theirs = read
        due = np.concatenate([times(rows, "due") for rows in read])
        self._agreement.slots += len(np.unique(due // TICK_MS))
        offsets, others = times(ours, "offset"), times(theirs, "offset")
        if not np.array_equal(offsets, others):
            _, at, in_theirs = np.intersect1d(
                offsets, others, assume_unique=True, return_indices=True
            )
            left, right = self._sides
            self._missing(left, right, take_rows(ours, _all_but(at, len(offsets))))
            self._missing(right, left, take_rows(theirs, _all_but(in_theirs, len(others))))
            ours, theirs = take_rows(ours, at), take_rows(theirs, in_theirs)
        self._equal(ours, theirs)

    def _once(self, side: _Side, rows: pa.RecordBatch) -> pa.RecordBatch:
        offsets = times(rows, "offset")
        first = np.ones(len(offsets), dtype=bool)
        first[1:] = offsets[1:] != offsets[:-1]
        if first.all():
            return rows
        again = int(np.flatnonzero(~first)[0])
        self._agreement.problem(f"{side.name} has row {self._id(rows, again)} twice")
        return take_rows(rows, np.flatnonzero(first))

    def _missing(self, side: _Side, other: _Side, rows: pa.RecordBatch) -> None:
        """Report rows that only ``side`` has, unless a mark of the other covers them."""
        uncovered = ~other.log.marks.all_covered(times(rows, "due"), times(rows, "offset"))
        lost = np.flatnonzero(uncovered)
        if len(lost):
            seconds = np.unique(times(rows, "due")[lost] // TICK_MS)
            when = "of that second" if len(seconds) == 1 else f"of {len(seconds)} seconds"
            more = f", and {len(lost) - 1} more {when}" if len(lost) > 1 else ""
            self._agreement.problem(
                f"{other.name} does not have row {self._id(rows, int(lost[0]))}, which {side.name}"
                f" has and no mark of {other.name} covers{more}"
            )

    def _equal(self, ours: pa.RecordBatch, theirs: pa.RecordBatch) -> None:
        if ours.equals(theirs):
            self._agreement.rows += ours.num_rows
            return
        for row in range(ours.num_rows):
            our_row, their_row = ours.slice(row, 1), theirs.slice(row, 1)
            if our_row.equals(their_row):
                self._agreement.rows += 1
                continue
            names = [name for name in our_row.schema.names if our_row[name] != their_row[name]]
            self._agreement.problem(f"row {self._id(ours, row)} differs in {', '.join(names)}")
            if len(self._agreement.problems) >= PROBLEMS_MAX:
                return

    def _id(self, rows: pa.RecordBatch, row: int) -> str:
        due, offset = int(times(rows, "due")[row]), int(times(rows, "offset")[row])
        if self._mint is None:
            return f"{offset}, due {due} ms"
        return str(self._mint.one(due, offset))
