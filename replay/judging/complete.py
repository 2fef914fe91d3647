"""The due time from which on the given files hold every message, though old journals are gone.

Theory: a row that was accepted before the oldest segment rests in a slot file until it leaves, and
after that in the archive. So a proof needs no segment of forty days ago for a message that was sent
then and is due today: it needs the slot file. Of what is due from a time T on nothing is missing if

- no slot file that ends behind T was deleted without being archived. Each store remembers the
  latest end of those (``PeerFiles.deleted_floor_ms``);
- nothing else of the rows before the oldest segment is due at T or later. What left before it was
  spilled was in no slot file, so it is nowhere now. But the mark of that time covered it, and
  segments leave in their order: the mark at which the oldest segment was archived covers no row
  that is due later than ``File.kept_ms``. Of a segment that is not archived only the newest mark is
  known.

What the archive evicts is older than what it keeps, by the same two times: where the oldest segment
is still there, no slot file that ended later was evicted.

*Example.* A node was started with an archive at 12:00, and its oldest segment was archived at
12:20. A message of last month, due today at 14:00, stands in the slot file of its day. A proof of
what is due from 12:20 on judges it; one of all times has to leave open what was sent before 12:00.

Without a stored floor, in directories of before there was one, only the horizon bounds it: what is
due a horizon after the oldest segment's first row was accepted behind that row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...reading.files import JOURNAL, File, Layout
from ...wheel.mark import Marks
from ..facts.summary import FileSummary
from .journals import Pairs

CLOCKS_DIFFER_MS = 60_000
"""How far the clocks of two masters of a group may differ, ms."""


def complete_from(
    layout: Layout,
    summaries: Collection[FileSummary],
    unread: Pairs,
    marks: Sequence[Marks | None],
) -> int | None:
    """The due time, ms, from which on every message is in a journal or a slot file that was given;
    None: there is no such time. ``unread``: of ``journals.unread``, at least one range; ``marks``:
    the newest of each peer."""
    behind = unread[-1][1]
    every = [*_by_horizon(layout, summaries, behind), *_by_floors(layout, summaries, behind, marks)]
    return min(every, default=None)


def _by_horizon(layout: Layout, summaries: Collection[FileSummary], behind: int) -> Iterator[int]:
    if not layout.horizon_ms:
        return
    oldest = [summary for summary in summaries if summary.first_offset == behind]
    created = [summary.first_created_ms for summary in oldest if summary.first_created_ms >= 0]
    yield min(created, default=layout.made_ms) + layout.horizon_ms + CLOCKS_DIFFER_MS


def _by_floors(
    layout: Layout,
    summaries: Collection[FileSummary],
    behind: int,
    marks: Sequence[Marks | None],
) -> Iterator[int]:
    firsts = {summary.number: summary.first_offset for summary in summaries}
    for number, peer in enumerate(layout.peers):
        newest = marks[number]
        if peer.deleted_floor_ms is None or newest is None:
            continue
        files = [file for file in layout.of(JOURNAL) if file.peer == number]
        oldest = next((file for file in files if firsts.get(file.number, -1) >= behind), None)
        yield max(peer.deleted_floor_ms, _left_by(oldest, newest)) + 1


def _left_by(oldest: File | None, newest: Marks) -> int:
    """No row that had left before this segment was archived is due later than this, ms."""
    if oldest is not None and oldest.kept_ms >= 0:
        return oldest.kept_ms
    return max(mark.furthest_ms for mark in newest.every)
