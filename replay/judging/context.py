"""What every task must know to judge a message: made once, from the layout and the summaries.

Theory: facts say what was seen of a message; the context says where it would have been seen. Was
its offset read from a peer's journal, or is it missing there because a file is damaged? Had the
peer spilled it? Does the newest mark cover it? Small, whatever the number of messages: ranges,
not rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ...reading.files import DUMP, JOURNAL, NO_PEER, SLOT, TOPIC, File, Layout, due_within
from ...reading.problems import Problem
from ...wheel.mark import Marks
from ...wheel.schema import Int64s, Mask
from ..facts.behind import Behind, behind
from ..facts.chunks import OrderChunk
from ..facts.making import GroupTerms
from ..facts.summary import FileSummary
from .journals import JournalSeen, as_ranges, journal_seen, newest_marks, unread
from .reach import TopicCoverage, reach


@dataclass(frozen=True, slots=True)
class Options:
    """``interval_ms``: of a time bucket. ``late_ms``: what is late, None: nothing. Due times that
    are judged: ``start_ms`` inclusive, ``end_ms`` exclusive, None: no limit."""

    interval_ms: int = 10_000
    late_ms: int | None = None
    exactly_once: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    problems_max: int = 1_000

    def judges(self, due: Int64s) -> Mask:
        """Which due times lie in the time that is judged."""
        return due_within(due, self.start_ms, self.end_ms)


@dataclass(frozen=True)
class PeerView:
    """One peer, as far as it can be known. Ranges: int64, shape (2, n): bases and ends, ascending
    and apart."""

    name: str
    spilled: int
    marks: Marks | None
    journal: Int64s
    """Offsets that its journal must hold if anybody's does."""
    missing: Int64s
    """Offsets that damage may have taken from its journal."""
    proven: int
    """Offsets below were committed."""
    damaged_seconds: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """Whose slot files cannot be read, or were taken away meanwhile; ascending."""

    def has_journal(self, offset: Int64s) -> Mask:
        return within(self.journal, offset)

    def may_miss(self, offset: Int64s) -> Mask:
        return within(self.missing, offset)

    def damaged_slot(self, second: Int64s) -> Mask:
        return np.isin(second, self.damaged_seconds)


@dataclass(frozen=True)
class Context:
    """Everything but the facts. Picklable."""

    terms: GroupTerms
    options: Options
    peers: Sequence[PeerView]
    marks: Marks | None
    """The newest mark of all."""
    made_ms: int
    topics: Mapping[int, str]
    damaged_topics: frozenset[int] | None = frozenset()
    """CRCs of topics of which records may be missing; None: any."""
    is_group: bool = False
    """The directories belong to a group of several peers, so that entries may be uncommitted."""
    strange_files: frozenset[int] = frozenset()
    """Numbers of files of another run: no fact of them counts."""
    reach: TopicCoverage = field(default_factory=TopicCoverage)
    behind: Sequence[Behind] = ()
    """Where a topic's messages stand behind later ones; most often nowhere."""
    unread: Int64s = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    """Offsets that no journal holds, as far as no problem explains it. Shape (2, n)."""
    log_end: int | None = None
    """Everything that was committed before ``made_ms`` has a lower offset; None: not known."""
    problems: Sequence[Problem] = ()
    """What the journals show, one beside the other."""

    @cached_property
    def cancels_missing(self) -> int:
        """Offsets below this may have been cancelled by entries that nobody's journal has: the
        highest end of what is missing in all of them. 0: nothing is."""
        missing = [peer.missing for peer in self.peers]
        ends = {int(end) for ranges in missing for end in ranges[1]}
        return max((end for end in ends if self._is_missing(end - 1)), default=0)

    def _is_missing(self, offset: int) -> bool:
        """Whether damage may have taken it from each journal that goes so far, and from one."""
        at = np.array([offset])
        held = any(peer.has_journal(at)[0] for peer in self.peers)
        taken = [bool(peer.may_miss(at)[0]) for peer in self.peers]
        # Where one journal ends as it should, nothing is behind its end.
        is_open = offset == np.iinfo(np.int64).max - 1
        return not held and (all(taken) if is_open else any(taken))

    @property
    def needed(self) -> int:
        """On how many of the given peers an entry stands that is known to be committed by that."""
        return len(self.peers) // 2 + 1 if self.is_group and len(self.peers) > 1 else 1

    def topic_name(self, crc: int) -> str:
        return self.topics.get(crc, f"topic {crc:08x}")


def within(ranges: Int64s, offset: Int64s) -> Mask:
    """Which offsets lie in one of the ranges."""
    if not ranges.shape[1]:
        return np.zeros(len(offset), np.bool_)
    at = np.searchsorted(ranges[0], offset, side="right") - 1
    found: Mask = (at >= 0) & (offset < ranges[1][np.maximum(at, 0)])
    return found


def covered(
    marks: Marks | None, due: Int64s, offset: Int64s, topic: npt.NDArray[np.uint32]
) -> Mask:
    """What a mark claims to be done with: by the copy of a topic that is held back, else by the
    main mark."""
    if marks is None:
        return np.zeros(len(due), np.bool_)
    claimed = marks.main.covered(due, offset)
    for name, copy in marks.copies.items():
        held = topic == crc32c(name.encode())
        claimed[held] = copy.mark.covered(due[held], offset[held])
    return claimed


def make_context(
    layout: Layout,
    summaries: Iterable[FileSummary],
    terms: GroupTerms,
    options: Options,
    chunks: Iterable[OrderChunk] = (),
    elsewhere: Collection[str] | None = None,
) -> Context:
    """``elsewhere``: topics that were read in Kafka; None: it was not asked."""
    by_number: dict[int, FileSummary] = {}
    others: list[FileSummary] = []
    for summary in summaries:
        if summary.number < len(layout.files):
            by_number[summary.number] = summary
        else:
            others.append(summary)
    topics: dict[int, str] = {}
    for summary in (*by_number.values(), *others):
        topics |= summary.topics
    numbers = range(len(layout.peers))
    journals = [
        journal_seen(layout.peers[number], _segments(layout, number, by_number))
        for number in numbers
    ]
    peers = [_peer(layout, number, by_number, journals[number]) for number in numbers]
    group = max(layout.group_size, *(one.peers for one in by_number.values()), 0)
    upto = max(0, *(view.proven for view in peers), *(seen.next_offset for seen in journals))
    known = [view.marks for view in peers if view.marks is not None]
    return Context(
        terms,
        options,
        peers,
        max(known, key=progress, default=None),
        layout.made_ms,
        topics,
        _damaged_topics(layout, by_number),
        any(peer.is_replica for peer in layout.peers),
        frozenset(summary.number for summary in by_number.values() if summary.is_strange),
        reach(layout, by_number, elsewhere),
        behind(chunks),
        as_ranges(unread(journals, upto)),
        _log_end(journals, upto, group),
        [problem for seen in journals for problem in seen.problems],
    )


def _segments(
    layout: Layout, number: int, summaries: Mapping[int, FileSummary]
) -> Iterator[tuple[File, FileSummary | None]]:
    for file in layout.files:
        if file.peer == number and file.kind == JOURNAL:
            yield file, summaries.get(file.number)


def progress(marks: Marks) -> tuple[int, ...]:
    """By which the newest of several peers' marks is found: within an epoch none of it shrinks, and
    what has left of topics that are held back moves no main mark."""
    main = marks.main
    return marks.epoch, main.c, main.r, main.L, marks.delivered + marks.dead


def _peer(
    layout: Layout, number: int, summaries: Mapping[int, FileSummary], journal: JournalSeen
) -> PeerView:
    peer = layout.peers[number]
    damaged = [second for owner, second in layout.missing_slots if owner == number]
    for file in layout.files:
        if file.peer != number or file.kind != SLOT or file.archived:
            continue
        summary = summaries.get(file.number)
        if summary is None or summary.damaged or summary.gone:
            damaged.append(file.second)
    return PeerView(
        peer.name,
        peer.spilled,
        newest_marks(journal, peer.checkpoint_marks, peer.checkpoint_index),
        as_ranges(journal.held),
        as_ranges(journal.missing),
        max(peer.spilled, journal.proven),
        np.array(sorted(damaged), np.int64),
    )


def _log_end(journals: Sequence[JournalSeen], upto: int, group: int) -> int | None:
    """Where all that was committed before the journals were read ends: they are whole, and of more
    than half of the group; and nothing else, such as a mark, speaks of what is behind their end."""
    if not journals or not all(seen.is_whole for seen in journals) or 2 * len(journals) <= group:
        return None
    end = max(seen.next_offset for seen in journals)
    return end if end >= upto else None


def _damaged_topics(layout: Layout, summaries: Mapping[int, FileSummary]) -> frozenset[int] | None:
    found = set()
    for file in layout.files:
        if file.kind not in (TOPIC, DUMP):
            continue
        summary = summaries.get(file.number)
        if summary is not None and not summary.damaged:
            continue
        if not file.topic or file.peer == NO_PEER or file.topic == layout.dead_letter_topic:
            return None
        found.add(crc32c(file.topic.encode()))
    return frozenset(found)
