"""Writes embedded topics: finds the committed end, cuts what was never committed, appends blocks.

Steps of one append, in this order, after which "accepted" means durable. They are four calls, so
that a sink can do each for several topics together, and sync many files in one call (``sync_all``):

    block written -> block synced -> record written -> record synced, end moves

One sync of both would be enough for the writer, but not for readers in other processes, which take
what the index names: a consumer that commits position 10, whose row a power cut then takes back,
would never see the row that gets position 10 next.

A crash or an error (a full disk, say) before the last step leaves the old end, and the next append
overwrites the bytes behind it. Each step writes at a position of its own: appending to whatever is
there would put a block behind junk.

A new segment's index header and directory entries are synced with its first block, before its first
record is written, however long ago it was begun. So an index without a complete header belongs to a
segment that never had a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from ..errors import Damaged
from ..files import Files
from ..slots.handles import HandleCache
from .topicdamage import is_torn, set_aside
from .topicfile import (
    HEADER_BYTES,
    RECORD_BYTES,
    TOPICS_DIRECTORY,
    IndexHeader,
    IndexRecord,
    directory_of,
    first_position_of,
    index_path,
    is_current,
    parse_index,
    schema_of,
    segment_path,
)

log = logging.getLogger(__name__)

_READ_BYTES = 4 << 20
"""Recovery reads a segment in pieces of this size."""


@dataclass(frozen=True, slots=True)
class TopicEnd:
    """The end of a topic: ``first`` names its last segment, ``block`` is the last block of that,
    and its index has ``index_bytes``."""

    first: int
    block: IndexRecord
    index_bytes: int


@dataclass(frozen=True, slots=True)
class PendingAppend:
    """An append in progress; ``end`` is the topic's end when all steps are done. ``new``: it is the
    first block of its segment, whose header and directory entry may not be durable yet."""

    topic: str
    end: TopicEnd
    new: bool = False


def segments(files: Files, topic: str) -> list[int]:
    """The first positions of a topic's segments, ascending; empty if there is no such topic."""
    names = files.list(directory_of(topic))
    return sorted(first for name in names if (first := first_position_of(name)) is not None)


def check_blocks(files: Files, path: str, blocks: list[IndexRecord]) -> Iterator[IndexRecord]:
    """Read a stream and compare it with its index; yields each sound block.

    ``blocks[0]`` stands for the schema message. Errors: ``Damaged`` at the first damaged block.
    """
    with closing(files.open(path)) as handle:
        crc = at = 0
        for block in blocks:
            start = at
            while at < block.end:
                part = handle.pread(min(_READ_BYTES, block.end - at), at)
                if not part:
                    raise Damaged(
                        path, at, expected=f"{block.end} committed bytes", found="the end"
                    )
                crc = crc32c(part, crc)
                at += len(part)
            if block.rows and crc != block.crc:
                raise Damaged(path, start, expected=f"CRC-32C {block.crc:08x}", found=f"{crc:08x}")
            yield block


class TopicWriter:
    """Appends to the topics of one data directory. At most one thread a topic at a time."""

    def __init__(self, files: Files, handles: HandleCache, group: str, segment_bytes: int) -> None:
        self._files = files
        self._handles = handles
        self._group = group
        self._segment_bytes = segment_bytes
        self.damaged: dict[str, str] = {}
        """The errors of segments that were set aside, by path."""

    def recover(self, topic: str) -> TopicEnd | None:
        """Find the committed end of a topic, and cut a torn one; None if it has no segment. If the
        last segment is damaged, it is set aside and a new one begun.

        Errors: ``UnsupportedVersion``.
        """
        firsts = segments(self._files, topic)
        if not firsts:
            return None
        try:
            return self._recover(topic, firsts[-1])
        except Damaged as error:
            position = set_aside(self._files, topic, firsts[-1], error)
            self.damaged[segment_path(topic, firsts[-1])] = error.message
            return self._made(topic, position)

    def _recover(self, topic: str, first: int) -> TopicEnd:
        path = index_path(topic, first)
        with self._handles.use(path) as index:
            data = index.pread(index.size(), 0)
        if len(data) <= HEADER_BYTES:
            return self._unused(topic, first, data, path)
        header = IndexHeader.decode(data, path, first)
        data_path = segment_path(topic, first)
        try:
            with self._handles.use(data_path) as stream:
                message = stream.pread(header.schema_bytes, 0)
        except FileNotFoundError:
            raise Damaged(data_path, 0, expected="a stream", found="no such file") from None
        schema = header.check_schema(message, data_path)
        blocks, index_bytes = parse_index(data, path, header)
        if len(data) > index_bytes and not is_torn(data, index_bytes):
            raise Damaged(path, index_bytes, expected="a whole record", found="a broken one")
        for block in check_blocks(self._files, data_path, blocks):
            last = block
        self._cut(path, index_bytes)
        self._cut(data_path, last.end)
        if not is_current(schema):  # a block of another version would make the stream unreadable
            return self._made(topic, last.next_position)
        return TopicEnd(first, last, index_bytes)

    def write_block(
        self, topic: str, end: TopicEnd | None, rows: pa.RecordBatch, delivered_ms: int
    ) -> PendingAppend:
        """First step: write ``rows`` (schema ``TOPIC_SCHEMA``, positions from that of ``end`` on)
        as a block behind ``end``, not durable yet. After an error in any step the old end holds."""
        if end is None or (end.block.rows and end.block.end >= self._segment_bytes):
            end = self.begin(topic, 0 if end is None else end.block.next_position)
        payload = memoryview(rows.serialize())
        crc = crc32c(payload, end.block.crc)
        position, reached = end.block.next_position, end.block.end + len(payload)
        block = IndexRecord(position, reached, rows.num_rows, crc, delivered_ms)
        with self._handles.use(segment_path(topic, end.first)) as data:
            data.pwrite([payload], end.block.end)
        last = TopicEnd(end.first, block, end.index_bytes + RECORD_BYTES)
        return PendingAppend(topic, last, new=end.block.rows == 0)

    def sync_block(self, append: PendingAppend) -> None:
        """Second step: make the block durable."""
        if append.new:
            self._sync_new(append.topic, append.end.first)
        with self._handles.use(segment_path(append.topic, append.end.first)) as data:
            data.sync()

    def write_record(self, append: PendingAppend) -> None:
        """Third step: write the record, which commits the block."""
        with self._handles.use(index_path(append.topic, append.end.first)) as index:
            index.pwrite([append.end.block.encode()], append.end.index_bytes - RECORD_BYTES)

    def sync_record(self, append: PendingAppend) -> None:
        """Last step: make the record durable; ``append.end`` is now the topic's end."""
        with self._handles.use(index_path(append.topic, append.end.first)) as index:
            index.sync()

    def _sync_new(self, topic: str, first: int) -> None:
        """Make a new segment's header and its directory entries durable."""
        with self._handles.use(index_path(topic, first)) as index:
            index.sync()
        for parent in (directory_of(topic), TOPICS_DIRECTORY, ""):
            self._files.sync_dir(parent)

    def begin(self, topic: str, first: int = 0) -> TopicEnd:
        """Begin a segment whose first row has position ``first``; nothing of it is durable yet."""
        files = self._files
        directory = directory_of(topic)
        files.make_directory(directory)
        schema = bytes(schema_of(topic, self._group).serialize())
        header = IndexHeader(first, len(schema), crc32c(schema))
        with self._handles.use(segment_path(topic, first), create=True) as data:
            data.truncate(0)
            data.pwrite([schema], 0)  # synced together with the first block
        with self._handles.use(index_path(topic, first), create=True) as index:
            index.truncate(0)
            index.pwrite([header.encode()], 0)
        return TopicEnd(first, header.schema_record, HEADER_BYTES)

    def _unused(self, topic: str, first: int, header: bytes, path: str) -> TopicEnd:
        """Make the last segment again, which never had a row and may be incomplete."""
        with suppress(Damaged):
            IndexHeader.decode(header, path, first)  # a newer version is refused, not replaced
        return self._made(topic, first)

    def _made(self, topic: str, first: int) -> TopicEnd:
        end = self.begin(topic, first)
        self._sync_new(topic, first)
        return end

    def _cut(self, path: str, length: int) -> None:
        with self._handles.use(path) as handle:
            size = handle.size()
            if size > length:
                log.warning("%s: cut %d bytes that were never committed", path, size - length)
                handle.truncate(length)
                handle.sync()
