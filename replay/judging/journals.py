"""The offsets that journals hold, those that they lack, and the faults that explain it.

Theory: offsets are dense. If an entry ends with offset 9 and the next one begins with 12, offsets
10 and 11 are missing: a file is damaged, or rows were removed, or a segment is missing. The first
two are problems of a file, and reported by its reader. The last may be no fault: a node deletes
segments by its configuration, and a peer that fetched a snapshot lacks what was before. What was
accepted there cannot be known then, unless another peer's journal holds it.
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
"""Ranges of offsets, ``[base, end]`` with the end excluded, ascending and apart."""
_LAST = np.iinfo(np.int64).max


@dataclass(slots=True)
class JournalSeen:
    """One peer's journal, as far as it was read."""

    held: Pairs = field(default_factory=list)
    missing: Pairs = field(default_factory=list)
    """Offsets that may be missing between ``held``, before it or behind it."""
    blamed: Pairs = field(default_factory=list)
    """The part of ``missing`` that a problem explains."""
    problems: list[Problem] = field(default_factory=list)
    """Missing rows between two segments, as problems."""
    marks: str = ""
    """The newest marks, hex; empty: none."""
    marks_index: int = -1
    proven: int = 0
    """Lower offsets were committed."""
    next_offset: int = -1
    """One behind the last offset of its last entry; -1: no entry could be read."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing behind its end."""
        return self.next_offset >= 0 and not (self.missing and self.missing[-1][1] == _LAST)


def journal_seen(peer: PeerFiles, files: Iterable[tuple[File, FileSummary | None]]) -> JournalSeen:
    """The offsets that the segments of a peer, in their order, hold and lack."""
    seen = JournalSeen()
    reached = -1
    before: FileSummary | None = None
    damaged = False
    for file, summary in files:
        if summary is None or not summary.entries:
            damaged = damaged or summary is None or summary.damaged
            # A running node dropped it meanwhile; or it was made, and has no entry yet.
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
            damaged = True  # what is missing inside a file was reported by its reader
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
    end = f"the end after {reached}" if reached > 0 else "none"
    text = (
        f"expected entries up to index {peer.checkpoint_index}, where the checkpoint is, found"
        f" {end}: the newest segment is missing, or the last one was cut where an entry ends."
        " Give a copy that has it"
    )
    return Problem(INTEGRITY, "missing", text, file=f"{peer.name}/{JOURNAL_DIRECTORY}")


def _extend(seen: JournalSeen, base: int, end: int, *, blamed: bool) -> None:
    """Add the next range. ``blamed``: offsets missing before it are missing by a fault."""
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
    """Ranges of offsets below ``end`` that no journal holds and no problem explains."""
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
    """Pairs as an array of shape (2, n)."""
    return np.array(pairs, np.int64).reshape(-1, 2).T.copy()


def newest_marks(seen: JournalSeen, checkpoint: str, index: int) -> Marks | None:
    """The marks of the journal, or of the checkpoint (hex; empty: none) at ``index`` if newer."""
    newer = seen.marks if seen.marks_index > index or not checkpoint else checkpoint
    return Marks.decode(bytes.fromhex(newer)) if newer else None
