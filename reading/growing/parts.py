"""Reading the part of a journal, or of a topic, between two positions of a stream.

Theory: the end of a part was found earlier; until it is read a node may have dropped a segment, or
used its file for another one. So a segment's name, its header and its store are checked when it is
opened, each entry by its checksum and index; and entries that are gone are reported as a gap.

Rules
- Entries are expected in the order of their indexes. Any other order is a problem.
- A batch that Spark repeats gets the same rows, unless they were dropped in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ...wheel.errors import SlotwheelError
from ...wheel.files import mapped
from ...wheel.topics.topicfile import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    TOPICS_DIRECTORY,
    IndexHeader,
    IndexRecord,
)
from ..events import Ended, Event, RowsSeen, damage
from ..files import JOURNAL, TOPIC, File
from ..journal import Span, read_journal
from ..listing import journal_segments, opened, segment_file, topic_segments
from ..problems import INTEGRITY, Problem
from ..topics import topic_blocks
from .positions import JournalAt, TopicAt
from .topics import index_records


@dataclass(frozen=True, slots=True)
class JournalPart:
    """A peer's journal from ``start`` (None: its begin) to ``end``."""

    peer: int
    name: str
    root: str
    start: JournalAt | None
    end: JournalAt
    archive: bool = True


@dataclass(frozen=True, slots=True)
class TopicPart:
    """An embedded topic of a peer from ``start`` (None: its begin) to ``end``."""

    peer: int
    name: str
    root: str
    topic: str
    start: TopicAt | None
    end: TopicAt


Part = JournalPart | TopicPart


def read_part(part: Part) -> Iterator[Event]:
    """Read a part; the last event is ``Ended``."""
    yield from _journal(part) if isinstance(part, JournalPart) else _topic(part)


def gap(file: File, text: str) -> Problem:
    return Problem(INTEGRITY, "gap", text, file=file.name)


def _journal(part: JournalPart) -> Iterator[Event]:
    root = Path(part.root)
    whole = File(part.peer, JOURNAL, "", f"{part.name}/journal", 0, part.peer)
    end, damaged = part.end, False
    at = part.start
    if end.note and (part.start is None or end.note != part.start.note):
        damaged = True
        yield gap(whole, end.note)
    if at is None or end.restarts != (part.start.restarts if part.start else 0):
        segment = end.begun or end.segment
        at = JournalAt(segment, index=segment, store=end.store)
    while (at.segment, at.position) < (end.segment, end.position):
        path = segment_file(root, at.segment, archive=part.archive)
        last = at
        if path is not None:
            for event in _segment(part, at, path):
                if isinstance(event, Ended):
                    damaged |= event.damaged
                    if event.last_index >= 0:
                        last = replace(at, index=event.last_index + 1, epoch=event.last_epoch)
                else:
                    yield event
        if at.segment == end.segment and path is not None and path.exists():
            break
        firsts = journal_segments(root, archive=part.archive)
        later = [first for first in firsts if at.segment < first <= end.segment]
        # Without a later one the end itself was dropped: the next part begins behind it.
        following = min(later, default=end.index)
        if following > last.index:
            damaged = True
            text = f"entries {last.index} to {following - 1} were dropped before they were read"
            yield gap(whole, text)
        if not later:
            break
        at = JournalAt(following, index=following, epoch=last.epoch, store=at.store)
    yield Ended(whole, damaged=damaged)


def _segment(part: JournalPart, at: JournalAt, path: Path) -> Iterator[Event]:
    """Read one segment; the last event is ``Ended``, also when it was dropped meanwhile."""
    is_last = at.segment == part.end.segment
    name = f"{part.name}/{path.relative_to(part.root)}"
    file = File(
        part.peer,
        JOURNAL,
        str(path),
        name,
        0,
        part.peer,
        archived=path.parents[1] != Path(part.root),
        first=at.segment,
        is_last=False,
    )
    stop = part.end.position if is_last else -1
    span = Span(at.position, stop, at.index or -1, at.epoch, part.end.store)
    seen = -1, -1
    try:
        for event in read_journal(file, span):
            if isinstance(event, Problem) and not path.exists():
                break  # its file is used for another segment: the rest is a gap
            if isinstance(event, RowsSeen) and len(event.rows):
                assert not isinstance(event.index, int)
                assert not isinstance(event.epoch, int)
                seen = int(event.index[-1]), int(event.epoch[-1])
            yield event
            if isinstance(event, Ended):
                return
    except FileNotFoundError:
        pass
    except OSError as error:
        yield damage(file, "damaged", -1, "a readable file", error)
    yield Ended(file, damaged=True, last_index=seen[0], last_epoch=seen[1])


def _topic(part: TopicPart) -> Iterator[Event]:
    folder = Path(part.root) / TOPICS_DIRECTORY / part.topic
    whole = File(
        part.peer,
        TOPIC,
        "",
        f"{part.name}/{TOPICS_DIRECTORY}/{part.topic}",
        0,
        part.peer,
        topic=part.topic,
    )
    end, damaged = part.end, False
    if end.note and (part.start is None or end.note != part.start.note):
        damaged = True
        yield gap(whole, end.note)
    firsts = topic_segments(folder)
    start = part.start or TopicAt(firsts[0] if firsts else end.segment)
    for first in firsts:
        if not start.segment <= first <= end.segment:
            continue
        begin = start.at if first == start.segment else HEADER_BYTES
        stop = end.at if first == end.segment else -1
        if begin == stop:
            continue
        for event in _records(part, folder, first, begin, stop):
            if isinstance(event, Ended):
                damaged |= event.damaged
            else:
                yield event
    yield Ended(whole, damaged=damaged)


def _records(part: TopicPart, folder: Path, first: int, begin: int, stop: int) -> Iterator[Event]:
    """Read those blocks of a segment whose index records are at bytes ``begin`` to ``stop``."""
    index_path = folder / f"{first:020d}{INDEX_SUFFIX}"
    data_path = folder / f"{first:020d}{SEGMENT_SUFFIX}"
    file = File(
        part.peer,
        TOPIC,
        str(data_path),
        f"{part.name}/{TOPICS_DIRECTORY}/{part.topic}/{data_path.name}",
        0,
        part.peer,
        first=first,
        topic=part.topic,
    )
    try:
        with opened(index_path) as handle:
            stop = handle.size() if stop < 0 else stop
            _, blocks = index_records(handle, begin, stop)
            header = IndexHeader.decode(handle.pread(HEADER_BYTES, 0), str(index_path), first)
        if begin == HEADER_BYTES:
            blocks.insert(0, header.schema_record)
        data = mapped(data_path)
        for run in _runs(blocks):
            yield from topic_blocks(file, header, run, data)
    except OSError as error:
        yield damage(file, "missing", -1, "a readable topic", error)
    except SlotwheelError as error:
        yield damage(file, "damaged", begin, "a whole index", error)
    else:
        if None not in blocks:
            yield Ended(file)
            return
        yield damage(file, "damaged", begin, "whole records in the index", "a broken one")
    yield Ended(file, damaged=True)


def _runs(blocks: list[IndexRecord | None]) -> Iterator[list[IndexRecord]]:
    """Runs of consecutive blocks, each run with the record before it."""
    run: list[IndexRecord] = []
    for before, block in pairwise(blocks):
        if before is None or block is None or not block.follows(before):
            if run:
                yield run
            run = []
            continue
        if not run:
            run.append(before)
        run.append(block)
    if run:
        yield run
