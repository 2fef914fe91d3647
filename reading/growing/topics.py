"""How far embedded topics reach now, beside a node that writes them.

Rules
- Only the index is read: a block exists when its record is complete. An incomplete record is
  ignored, unless a complete one follows; then the reader of the part reports it.
- A node deletes no embedded topic, but ``slotwheel dead purge`` does. One that is shorter than
  before, or gone, is reported once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...wheel.files import Handle
from ...wheel.topics.topicfile import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    RECORD_BYTES,
    TOPICS_DIRECTORY,
    IndexRecord,
)
from ..listing import opened, topic_segments
from .journal import UNLIMITED
from .positions import TopicAt


def look_at_topic(
    root: Path, topic: str, at: TopicAt | None, *, nbytes: int = UNLIMITED
) -> tuple[TopicAt | None, bool]:
    """How far an embedded topic reaches from ``at`` on, as ``look_at_journal`` for a journal."""
    folder = root / TOPICS_DIRECTORY / topic
    firsts = topic_segments(folder)
    if at is None:
        if not firsts:
            return None, True
        at = TopicAt(firsts[0], position=firsts[0])
    while True:
        at, left = _records(folder, at, nbytes)
        if nbytes != UNLIMITED:
            nbytes = left
        if nbytes <= 0:
            return at, False
        later = [first for first in firsts if first > at.segment]
        if not later:
            return at, True
        note = at.note
        if later[0] != at.position:
            note = f"positions {at.position} to {later[0] - 1} are missing"
        at = TopicAt(later[0], position=later[0], note=note)


def was_deleted(root: Path, topic: str, at: TopicAt) -> bool:
    """Whether the topic in which ``at`` is was deleted: its index is gone, or ends before that."""
    path = root / TOPICS_DIRECTORY / topic / f"{at.segment:020d}{INDEX_SUFFIX}"
    try:
        return path.stat().st_size < at.at
    except FileNotFoundError:
        return True


def _records(folder: Path, at: TopicAt, nbytes: int) -> tuple[TopicAt, int]:
    """The position behind an index's complete records, and how many bytes may still be passed."""
    path = folder / f"{at.segment:020d}{INDEX_SUFFIX}"
    try:
        with opened(path) as handle:
            size = handle.size()
            if size < at.at and at.at > HEADER_BYTES:
                return replace(at, note=f"{path.name} is shorter than it was"), nbytes
            before, blocks = index_records(handle, at.at, size)
    except FileNotFoundError:
        return replace(at, note=f"{path.name} is not there any more"), nbytes
    except OSError as error:
        return replace(at, note=f"{path.name} cannot be read: {error.strerror}"), nbytes
    end = -1
    for number, block in enumerate(blocks):
        start = before + number * RECORD_BYTES
        if block is None:  # torn, unless a complete one follows: then the part's reader reports it
            continue
        if start >= at.at:
            if nbytes <= 0:
                break
            nbytes -= block.end - end if end >= 0 else 0
            at = replace(at, at=start + RECORD_BYTES, position=block.next_position)
        end = block.end
    return at, nbytes


def index_records(handle: Handle, begin: int, stop: int) -> tuple[int, list[IndexRecord | None]]:
    """The records of an index up to the byte ``stop``, with the one before ``begin``, if there is
    one, and the byte of the first of them; None for an incomplete one."""
    start = max(begin - RECORD_BYTES, HEADER_BYTES)
    data = handle.pread(stop - start, start) if stop > start else b""
    places = range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES)
    return start, [IndexRecord.decode(data[at : at + RECORD_BYTES]) for at in places]


def delivered_from(root: Path, topic: str, ms: int) -> TopicAt | None:
    """The first block of a topic that was delivered at that time, in ms, or later."""
    return _first_block(root, topic, lambda block: block.delivered_ms >= ms)


def block_at(root: Path, topic: str, position: int) -> TopicAt | None:
    """The block with that position, or the first one behind it; ``position`` of what is returned
    is the one that was asked for, which may be in the middle of the block."""
    at = _first_block(root, topic, lambda block: block.next_position > position)
    return None if at is None else replace(at, position=position)


def _first_block(root: Path, topic: str, wanted: Callable[[IndexRecord], bool]) -> TopicAt | None:
    folder = root / TOPICS_DIRECTORY / topic
    for segment in topic_segments(folder):
        with suppress(OSError), opened(folder / f"{segment:020d}{INDEX_SUFFIX}") as index:
            _, blocks = index_records(index, HEADER_BYTES, index.size())
            for number, block in enumerate(blocks):
                if block is not None and wanted(block):
                    at = HEADER_BYTES + number * RECORD_BYTES
                    return TopicAt(segment, at, block.position)
    return None
