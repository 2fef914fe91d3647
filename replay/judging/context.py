"""The context of judging: what every task needs to judge a message. Made once, from the layout and
the summaries.

Theory: a fact says that a message was seen; the context says where it would have been seen. Was its
offset read from a peer's journal, or is it missing there because a file is damaged? Had the peer
spilled it? Does the newest mark cover it? The context is small, whatever the number of messages:
ranges, not rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ...account.limits import GRACE_MS, INTERVAL_MS, LATE_MS, AccountLimits
from ...reading.files import DUMP, JOURNAL, NO_PEER, SLOT, TOPIC, File, Layout, due_within
from ...reading.problems import Problem
from ...wheel.mark import Marks
from ...wheel.schema import Int64s, Mask
from ..facts.behind import Behind, behind
from ..facts.chunks import OrderChunk
from ..facts.making import GroupTerms
from ..facts.summary import FileSummary
from .complete import complete_from
from .entries import LogSeen
from .journals import JournalSeen, Pairs, as_ranges, journal_seen, newest_marks, unread
from .reach import TopicCoverage, group_size, reach


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a proof. ``interval_ms``: width of a time bucket. ``late_ms``: lateness that fails
    the proof; None: none does, and all boundaries are judged by ``LATE_MS``. ``exactly_once``: a
    message that arrived several times fails the proof, also one whose acceptance no journal shows.
    ``start_ms`` (inclusive), ``end_ms`` (exclusive): due times that are judged; None: no limit.
    ``grace_ms``: so long after it could have passed a boundary a message is waited for."""

    interval_ms: int = INTERVAL_MS
    late_ms: int | None = None
    exactly_once: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    problems_max: int = 1_000
    grace_ms: int = GRACE_MS

    @property
    def limits(self) -> AccountLimits:
        late_ms = LATE_MS if self.late_ms is None else self.late_ms
        return AccountLimits(self.interval_ms, self.grace_ms, late_ms)

    def judges(self, due: Int64s) -> Mask:
        """True for due times, ms, that lie in the time that is judged; shape of ``due``."""
        return due_within(due, self.start_ms, self.end_ms)


class SlotSpan(NamedTuple):
    """A slot file's name, and ``File.due_ms``."""

    name: str
    due_ms: tuple[int, int]


@dataclass(frozen=True)
class PeerView:
    """One peer, as its files show it. Ranges: int64, shape (2, n): bases and ends, ascending,
    apart."""

    name: str
    spilled: int
    marks: Marks | None
    journal: Int64s
    """Offsets that its journal must hold if any peer's does."""
    missing: Int64s
    """Offsets that damage may have taken from its journal."""
    proven: int
    """Lower offsets were committed."""
    damaged: Int64s = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    """Due times, ms, of slots whose files cannot be read, or were removed meanwhile."""

    def has_journal(self, offset: Int64s) -> Mask:
        return within(self.journal, offset)

    def may_miss(self, offset: Int64s) -> Mask:
        return within(self.missing, offset)

    def may_be_damaged(self, due: Int64s) -> Mask:
        """True for due times, ms, that lie in a slot whose file cannot be read; shape of ``due``.
        In which of its files a second's message was is not known: that of its hour may have had it,
        so a message whose second has a sound file is not lost for sure."""
        return within(self.damaged, due)

    def with_damaged(self, spans: Iterable[tuple[int, int]]) -> Self:
        """The view with further slots whose files count for nothing, by ``File.due_ms``."""
        known = zip(*self.damaged.tolist(), strict=True)
        return replace(self, damaged=joined_spans([*known, *spans]))


@dataclass(frozen=True)
class Context:
    """The data that judging needs besides the facts. Picklable."""

    terms: GroupTerms
    options: Options
    peers: Sequence[PeerView]
    marks: Marks | None
    """The newest mark of all peers."""
    made_ms: int
    topics: Mapping[int, str]
    damaged_topics: frozenset[int] | None = frozenset()
    """CRCs of topics whose records may be missing; None: those of any topic may be."""
    is_group: bool = False
    """The directories are of a group of several peers, so entries may be uncommitted."""
    strange_files: frozenset[int] = frozenset()
    """Numbers of files of another run, whose facts do not count."""
    reach: TopicCoverage = field(default_factory=TopicCoverage)
    behind: Sequence[Behind] = ()
    """Chunks of topics with messages behind later ones; most often none."""
    unread: Int64s = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    """Offsets that no journal holds, and no problem explains. Shape (2, n)."""
    complete_ms: int | None = None
    """What is due from here on is in a journal or a slot file, also if its offset is in ``unread``;
    None: that is known of no time (``complete.complete_from``)."""
    slot_files: Mapping[int, SlotSpan] = field(default_factory=dict)
    """Slot files by their numbers."""
    older: Sequence[str] = ()
    """Reasons why embedded topics may be older copies; empty: they are not."""
    log: LogSeen = field(default_factory=LogSeen)
    """The entries of all journals."""
    log_end: int | None = None
    """Everything that was committed before ``made_ms`` has a lower offset; None: not known."""
    problems: Sequence[Problem] = ()
    """Problems that the journals show when they are compared."""

    @cached_property
    def cancels_missing(self) -> int:
        """Offsets below this may have been cancelled by entries that no journal has: the highest
        end of the ranges that are missing in all of them. 0: there is none."""
        missing = [peer.missing for peer in self.peers]
        ends = {int(end) for ranges in missing for end in ranges[1]}
        return max((end for end in ends if self._is_missing(end - 1)), default=0)

    def _is_missing(self, offset: int) -> bool:
        """True if damage may have taken an offset from every journal that reaches so far."""
        at = np.array([offset])
        held = any(peer.has_journal(at)[0] for peer in self.peers)
        taken = [bool(peer.may_miss(at)[0]) for peer in self.peers]
        # If one journal ends properly, there is nothing behind its end.
        is_open = offset == np.iinfo(np.int64).max - 1
        return not held and (all(taken) if is_open else any(taken))

    @property
    def needed(self) -> int:
        """The number of given journals that must hold an entry to prove that it is committed."""
        return len(self.peers) // 2 + 1 if self.is_group and len(self.peers) > 1 else 1

    def holds_all(self, due: Int64s) -> Mask:
        """True for due times, ms, of which every accepted row was given; shape of ``due``."""
        if self.complete_ms is None:
            return np.zeros(len(due), np.bool_)
        return due >= self.complete_ms

    def topic_name(self, crc: int) -> str:
        return self.topics.get(crc, f"topic {crc:08x}")


def within(ranges: Int64s, offset: Int64s) -> Mask:
    """True for offsets that lie in one of the ranges; shape of ``offset``."""
    if not ranges.shape[1]:
        return np.zeros(len(offset), np.bool_)
    at = np.searchsorted(ranges[0], offset, side="right") - 1
    inside: Mask = (at >= 0) & (offset < ranges[1][np.maximum(at, 0)])
    return inside


def joined_spans(spans: Iterable[tuple[int, int]]) -> Int64s:
    """Ranges ``(begin, end)`` in any order, which may overlap, as ranges for ``within``."""
    joined: Pairs = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return as_ranges(joined)


def covered(
    marks: Marks | None, due: Int64s, offset: Int64s, topic: npt.NDArray[np.uint32]
) -> Mask:
    """True for messages that a mark covers, shape (rows,): if their topic is held back by its copy
    of the mark, else by the main one."""
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
    kafka_topics: Collection[str] | None = None,
) -> Context:
    """The context of a proof. ``kafka_topics``: those that were read in Kafka; None: no Kafka."""
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
    group = group_size(layout, by_number.values())
    older = [why for number in numbers if (why := _older(layout, number, by_number))]
    upto = max(0, *(view.proven for view in peers), *(seen.next_offset for seen in journals))
    known = [view.marks for view in peers if view.marks is not None]
    missing = unread(journals, upto)
    newest = [view.marks for view in peers]
    return Context(
        terms=terms,
        options=options,
        peers=peers,
        marks=max(known, key=progress, default=None),
        made_ms=layout.made_ms,
        topics=topics,
        damaged_topics=_damaged_topics(layout, by_number, older),
        is_group=any(peer.is_replica for peer in layout.peers),
        strange_files=frozenset(
            summary.number for summary in by_number.values() if summary.is_strange
        ),
        reach=reach(layout, by_number, kafka_topics),
        behind=behind(chunks),
        unread=as_ranges(missing),
        complete_ms=complete_from(layout, by_number.values(), missing, newest) if missing else None,
        slot_files={file.number: SlotSpan(file.name, file.due_ms) for file in layout.of(SLOT)},
        older=older,
        log=LogSeen.of(by_number.values()),
        log_end=_log_end(journals, upto, group),
        problems=[problem for seen in journals for problem in seen.problems],
    )


def _segments(
    layout: Layout, number: int, summaries: Mapping[int, FileSummary]
) -> Iterator[tuple[File, FileSummary | None]]:
    for file in layout.files:
        if file.peer == number and file.kind == JOURNAL:
            yield file, summaries.get(file.number)


def progress(marks: Marks) -> tuple[int, ...]:
    """The key that orders marks: the newest of several peers has the largest. Within an epoch no
    part shrinks but when the mark is set back. The counters are in it because delivery to topics
    that are held back moves no main mark."""
    main = marks.main
    answered = marks.delivered + marks.dead + marks.expired
    return marks.epoch, marks.resets, main.c, main.r, main.L, answered


def _peer(
    layout: Layout, number: int, summaries: Mapping[int, FileSummary], journal: JournalSeen
) -> PeerView:
    peer = layout.peers[number]
    damaged = [span for owner, span in layout.missing_slots if owner == number]
    for file in layout.files:
        if file.peer != number or file.kind != SLOT or file.archived:
            continue
        summary = summaries.get(file.number)
        if summary is None or summary.damaged or summary.gone:
            damaged.append(file.due_ms)
    return PeerView(
        peer.name,
        peer.spilled,
        newest_marks(journal, peer.checkpoint_marks, peer.checkpoint_index),
        as_ranges(journal.held),
        as_ranges(journal.missing),
        max(peer.spilled, journal.proven),
        joined_spans(damaged),
    )


def _log_end(journals: Sequence[JournalSeen], upto: int, group: int) -> int | None:
    """One behind the last offset that was committed before the journals were read. None: not known,
    as a journal is damaged, or half of the group or more was not given, or a mark is further."""
    if not journals or not all(seen.is_whole for seen in journals) or 2 * len(journals) <= group:
        return None
    end = max(seen.next_offset for seen in journals)
    return end if end >= upto else None


def _older(layout: Layout, number: int, summaries: Mapping[int, FileSummary]) -> str:
    """Why a peer's directory, and so its embedded topics, may be an older copy: it lacks entries
    that this peer itself has made as the master. Empty: it is none."""
    peer = layout.peers[number]
    ends: dict[int, int] = {}
    for file in layout.of(JOURNAL):
        summary = summaries.get(file.number)
        if summary is not None and (file.peer == number or summary.last_epoch == peer.led_epoch):
            ends[file.peer] = max(ends.get(file.peer, 0), summary.last_index)
    behind = max(ends.values(), default=0) - ends.get(number, 0)
    if peer.older or peer.led_epoch < 0 or behind <= 0:
        return peer.older
    return f"{peer.name} lacks {behind} entries that it made as the master"


def _damaged_topics(
    layout: Layout, summaries: Mapping[int, FileSummary], older: Sequence[str]
) -> frozenset[int] | None:
    crcs = set()
    if older and layout.of(TOPIC):
        return None
    for file in layout.files:
        if file.kind not in (TOPIC, DUMP):
            continue
        summary = summaries.get(file.number)
        if summary is not None and not summary.damaged:
            continue
        if not file.topic or file.peer == NO_PEER or file.topic == layout.dead_letter_topic:
            return None
        crcs.add(crc32c(file.topic.encode()))
    return frozenset(crcs)
