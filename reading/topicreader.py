"""Reads embedded topics, also while a node in another process writes them.

A reader trusts the index alone: a block exists when its record is whole, and a record is written
only after its block is durable. So a reader never sees a row that a power cut could take back,
needs no lock, and knows by the index's length whether there is anything new.

Of a segment that was set aside as damaged (``wheel/topics/topicdamage.py``) the sound blocks
are read; the skipped positions are reported.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa

from ..wheel.errors import Damaged, InvalidMessage
from ..wheel.files import Files
from ..wheel.ids import id_texts
from ..wheel.schema import times
from ..wheel.topics.topicdamage import SoundBlocks, set_aside_segments
from ..wheel.topics.topicfile import (
    HEADER_BYTES,
    RECORD_BYTES,
    TOPICS_DIRECTORY,
    IndexHeader,
    IndexRecord,
    index_path,
    parse_index,
    segment_path,
)
from ..wheel.topics.topiclog import segments
from .topics import decode_block


def topics(files: Files) -> list[str]:
    """The embedded topics of a data directory, sorted."""
    return files.list(TOPICS_DIRECTORY)


class _Segment:
    """One open segment: its schema and the records seen so far."""

    set_aside = False

    def __init__(self, files: Files, topic: str, first: int) -> None:
        """Errors: ``FileNotFoundError``/``Damaged`` while its header is not written yet."""
        self.first = first
        self._index_path = index_path(topic, first)
        self.path = segment_path(topic, first)
        self._index = files.open(self._index_path)
        try:
            header = IndexHeader.decode(self._index.pread(HEADER_BYTES, 0), self._index_path, first)
            self._header = header
            self._data = files.open(self.path)
            try:
                message = self._data.pread(header.schema_bytes, 0)
                self.schema = header.check_schema(message, self.path)
            except BaseException:
                self._data.close()
                raise
        except BaseException:
            self._index.close()
            raise
        self.blocks = [header.schema_record]

    def refresh(self) -> None:
        """Read index records that were written since the last call."""
        size = self._index.size()
        known = HEADER_BYTES + (len(self.blocks) - 1) * RECORD_BYTES
        if size < known + RECORD_BYTES:
            return
        new = self._index.pread(size - known, known)
        # An incomplete record at the end is being written: it is read again next time.
        padded = bytes(HEADER_BYTES) + new
        last = self.blocks[-1]
        start = IndexHeader(last.next_position, last.end, last.crc)
        found, _ = parse_index(padded, self._index_path, start)
        self.blocks += found[1:]

    def read(self, number: int) -> pa.RecordBatch:
        """Block ``number`` (from 1), checked. Errors: ``Damaged``."""
        before, block = self.blocks[number - 1], self.blocks[number]
        payload = self._data.pread(block.end - before.end, before.end)
        if len(payload) < block.end - before.end:
            end = before.end + len(payload)
            expected = f"{block.end} committed bytes"
            raise Damaged(self.path, end, expected=expected, found="the end")
        return decode_block(payload, self.schema, before, block, self.path)

    def close(self) -> None:
        self._index.close()
        self._data.close()


class _SetAside:
    """A segment that was set aside as damaged, and does not grow any more."""

    set_aside = True

    def __init__(self, files: Files, topic: str, first: int) -> None:
        self.first = first
        self._sound = SoundBlocks(files, topic, first)
        self.blocks = self._sound.blocks

    def refresh(self) -> None: ...

    def read(self, number: int) -> pa.RecordBatch | None:
        """Block ``number`` (from 1); None when it is damaged."""
        return self._sound.read(number)

    def close(self) -> None: ...


class TopicReader:
    """Reads one topic from a position on. Not thread-safe.

    ``position``: anywhere in the topic; behind its end, nothing is read until the topic reaches it.
    ``on_damage``: called with the positions that are skipped as damaged.
    """

    def __init__(
        self,
        files: Files,
        topic: str,
        position: int = 0,
        on_damage: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files = files
        self.topic = topic
        self.position = position
        self._on_damage = on_damage
        self._segment: _Segment | _SetAside | None = None

    def read(self) -> pa.RecordBatch | None:
        """The next committed rows (at most one block); None if there are none now."""
        while True:
            segment = self._open()
            if segment is None:
                return None
            if self.position >= segment.blocks[-1].next_position:
                segment.refresh()
            number = _number_at(segment.blocks, self.position)
            if number < len(segment.blocks):
                block = segment.blocks[number]
                batch = segment.read(number)
                if batch is None:
                    self._pass_over(block.next_position)
                    continue
                if self.position > block.position:
                    batch = batch.slice(self.position - block.position)
                self.position = block.next_position
                return batch
            if not self._follows(segment):
                return None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows that are committed now."""
        while (batch := self.read()) is not None:
            yield batch

    def follow(self, wait: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """All rows, and later ones. ``wait``: called when there is nothing new; it waits a little
        and returns whether to go on."""
        while True:
            yield from self.batches()
            if not wait():
                return

    def seek(self, position: int) -> None:
        """Read on from there."""
        self.close()
        self.position = position

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _pass_over(self, position: int) -> None:
        self._on_damage(
            f"topic {self.topic}: positions {self.position} to {position - 1} are not to be had,"
            f" as {segment_path(self.topic, self._segment.first if self._segment else 0)} is"
            " damaged; what follows is sound"
        )
        self.position = position

    def _open(self) -> _Segment | _SetAside | None:
        """The open segment; if there is none, the one with ``position`` is opened."""
        if self._segment is None:
            found = segments(self._files, self.topic)
            at = bisect.bisect_right(found, self.position) - 1
            if at >= 0:
                self._segment = self._try_open(found[at])
        return self._segment

    def _follows(self, segment: _Segment | _SetAside) -> bool:
        """Open the segment behind this one; false if there is none."""
        found = segments(self._files, self.topic)
        end = segment.blocks[-1].next_position
        if segment.set_aside:  # rows read from it may reach further than its sound blocks
            end = min((first for first in found if first > segment.first), default=end)
        if end == segment.first or end not in found:
            return False
        following = self._try_open(end)
        if following is None:
            return False
        if self.position < end:
            self._pass_over(end)
        segment.close()
        self._segment = following
        return True

    def _try_open(self, first: int) -> _Segment | _SetAside | None:
        if first in set_aside_segments(self._files, self.topic):
            return _SetAside(self._files, self.topic, first)
        try:
            return _Segment(self._files, self.topic, first)
        except (Damaged, FileNotFoundError):
            # It is just being created: its index has no record yet. Otherwise the error is real.
            try:
                if _is_unused(self._files, self.topic, first):
                    return None
            except FileNotFoundError:
                return None
            raise


def _is_unused(files: Files, topic: str, first: int) -> bool:
    """Whether the index of a segment has no record. Errors: ``FileNotFoundError``."""
    with closing(files.open(index_path(topic, first))) as index:
        return index.size() <= HEADER_BYTES


def _number_at(blocks: list[IndexRecord], position: int) -> int:
    """The number of the block with ``position``; one past the last if there is none."""
    return bisect.bisect_right(blocks, position, key=lambda block: block.next_position)


def extent(files: Files, topic: str) -> tuple[int, int] | None:
    """The position of a topic's first row, and the one behind its last committed row; None: there
    is no such topic. Errors: ``Damaged``."""
    found = segments(files, topic)
    if not found:
        return None
    last = found[-1]
    if last in set_aside_segments(files, topic):
        return found[0], _SetAside(files, topic, last).blocks[-1].next_position
    if _is_unused(files, topic, last):
        return found[0], last
    with closing(_Segment(files, topic, last)) as segment:
        segment.refresh()
        return found[0], segment.blocks[-1].next_position


def walk(files: Files, topic: str) -> Iterator[tuple[str, IndexRecord]]:
    """Every committed block of a topic, with its segment's path, after a check of its bytes.

    For ``inspect``: yields what was decoded before it raises ``Damaged``.
    """
    expected: int | None = None
    for first in segments(files, topic):
        if expected is not None and first != expected:
            path = index_path(topic, first)
            raise Damaged(path, 0, expected=f"position {expected}", found=first)
        expected = first
        if _is_unused(files, topic, first):
            continue
        with closing(_Segment(files, topic, first)) as segment:
            segment.refresh()
            for number, block in enumerate(segment.blocks[1:], 1):
                segment.read(number)
                yield segment.path, block
                expected = block.next_position


def ids(batch: pa.RecordBatch) -> list[str]:
    """The message ids of rows read from a topic."""
    group = (batch.schema.metadata or {}).get(b"slotwheel.group", b"").decode()
    check = np.asarray(batch.column("check"))
    found: list[str] = id_texts(
        group, times(batch, "due"), times(batch, "offset"), check
    ).to_pylist()
    return found


def check_exists(files: Files, topic: str) -> None:
    """Errors: ``InvalidMessage``, with the topics that exist, when ``topic`` is not among them."""
    if not segments(files, topic):
        there = ", ".join(topics(files)[:10]) or "none"
        raise InvalidMessage(
            "no such embedded topic", got=repr(topic), remedy=f"Topics there are: {there}"
        )
