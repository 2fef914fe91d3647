"""Which offsets the journals hold, which they lack, and whether somebody is to blame for that.

Theory: offsets are dense. So between what two entries hold nothing is missing if the second begins
where the first one ends; else either a file is damaged, or rows were taken out, or a segment is not
there. The first two are problems of a file, and told by whoever finds them. The last may be by
right: a node keeps segments as long as it was told to, and a peer that takes a snapshot lacks what
was before. What was accepted there nobody can know then, unless another peer's journal holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ...reading.events import GONE, damage
from ...reading.files import File, PeerFiles
from ...reading.problems import INTEGRITY, Problem
from ...wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ...wheel.mark import Marks
from ...wheel.schema import Int64s
from ..facts.summary import FileSummary

Pairs = list[list[int]]
"""Bases and ends of offsets, ascending and apart."""
_LAST = np.iinfo(np.int64).max


@dataclass(slots=True)
class JournalSeen:
    """One peer's journal, as far as it was read."""

    held: Pairs = field(default_factory=list)
    missing: Pairs = field(default_factory=list)
    """What may be missing between these, before them or behind them."""
    blamed: Pairs = field(default_factory=list)
    """Of that, where a problem says why."""
    problems: list[Problem] = field(default_factory=list)
    """Rows that are missing between two segments."""
    marks: str = ""
    """The newest marks, hex; empty: none."""
    marks_index: int = -1
    proven: int = 0
    """Offsets below were committed."""
    next_offset: int = -1
    """Where its last entry ends; -1: it has none that could be read."""

    @property
    def is_whole(self) -> bool:
        """Nothing may be missing behind its end."""
        return self.next_offset >= 0 and not (self.missing and self.missing[-1][1] == _LAST)


def journal_seen(peer: PeerFiles, files: Iterable[tuple[File, FileSummary | None]]) -> JournalSeen:
    """The segments of a peer, in their order."""
    seen = JournalSeen()
    reached = -1
    before: FileSummary | None = None
    damaged = False
    for file, summary in files:
        if summary is None or not summary.entries:
            damaged = damaged or summary is None or summary.damaged
            # A node that ran dropped it meanwhile; or it was begun, and nothing stands in it yet.
            is_gone = summary is not None and summary.note.startswith(GONE)
            reached = max(reached, peer.checkpoint_index if is_gone else file.first - 1)
            continue
        reached = summary.last_index
        if summary.marks and summary.marks_index > seen.marks_index:
            seen.marks, seen.marks_index = summary.marks, summary.marks_index
        seen.proven = max(seen.proven, summary.max_l + 1)
        follows = before is not None and before.last_index == summary.first_index - 1
        if follows and not damaged and 0 <= seen.next_offset < summary.first_offset:
            expected = f"offset {seen.next_offset}, where the segment before ends"
            seen.problems.append(damage(file, "gap", -1, expected, summary.first_offset))
            damaged = True
        for base, end in summary.offsets:
            _extend(seen, base, end, blamed=damaged or summary.damaged)
            damaged = True  # what is missing inside a file was told by its reader
        damaged = summary.damaged
        seen.next_offset = max(seen.next_offset, summary.next_offset)
        before = summary
    if not damaged and max(reached, 0) < peer.checkpoint_index:
        seen.problems.append(_newest_missing(peer, reached))
        damaged = True
    if damaged:
        behind = [seen.held[-1][1] if seen.held else 0, _LAST]
        seen.missing.append(behind)
        seen.blamed.append(behind)
    return seen


def _newest_missing(peer: PeerFiles, reached: int) -> Problem:
    found = f"the end after {reached}" if reached > 0 else "none"
    text = (
        f"expected entries up to index {peer.checkpoint_index}, where the checkpoint is, found"
        f" {found}: the newest segment is missing, or the last one was cut where an entry ends."
        " Give a copy that has it"
    )
    return Problem(INTEGRITY, "missing", text, file=f"{peer.name}/{JOURNAL_DIRECTORY}")


def _extend(seen: JournalSeen, base: int, end: int, *, blamed: bool) -> None:
    """The next range. ``blamed``: what lies before it, if anything, is missing by a fault."""
    before = seen.held[-1][1] if seen.held else 0
    if base <= before and seen.held:
        seen.held[-1][1] = max(before, end)
        return
    if base > before and (seen.held or blamed):
        seen.missing.append([before, base])
        if blamed:
            seen.blamed.append([before, base])
    seen.held.append([base, end])


def unread(journals: Sequence[JournalSeen], end: int) -> Pairs:
    """Offsets below ``end`` that no journal holds, and nobody is blamed for."""
    known = (pair for seen in journals for pair in (*seen.held, *seen.blamed))
    return [[base, stop] for base, stop in _between(_joined(known), end) if base < stop]


def _joined(pairs: Iterable[Sequence[int]]) -> Iterator[tuple[int, int]]:
    base, end = 0, 0
    for first, last in sorted(map(tuple, pairs)):
        if first > end:
            yield base, end
            base = first
        end = max(end, last)
    yield base, end


def _between(pairs: Iterable[tuple[int, int]], end: int) -> Iterator[tuple[int, int]]:
    for (_, before), (after, _) in pairwise([*pairs, (end, end)]):
        yield before, min(after, end)


def as_ranges(pairs: Pairs) -> Int64s:
    """Shape (2, n)."""
    return np.array(pairs, np.int64).reshape(-1, 2).T.copy()


def newest_marks(seen: JournalSeen, checkpoint: str, index: int) -> Marks | None:
    """Those of the journal, or those of a checkpoint (hex; empty: none) at ``index``."""
    newer = seen.marks if seen.marks_index > index or not checkpoint else checkpoint
    return Marks.decode(bytes.fromhex(newer)) if newer else None
