"""Damaged segments of embedded topics: set aside by a file beside them, and read as far as they
are sound.

    topics/<topic>/<first position, 20 digits>.damaged    the error, as text

Theory: the rows of a damaged segment were delivered long ago, so they are no reason for a node to
stand still. Its files stay and are never written to again; a small file beside them marks the
segment, and as long as that exists, the damage is reported. The topic goes on in a new segment,
behind every position that the damaged one may have used.

Rules
- The small file is durable before the new segment is begun: otherwise a crash between the two would
  leave a damaged segment in the middle of a topic, which nothing reports.
- Blocks of such a segment are compared with their checksums before they are read.
"""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
from crc32c import crc32c

from ..arrowclaims import plain_rows
from ..errors import Damaged, SlotwheelError
from ..files import Files
from .topicfile import (
    DAMAGED_SUFFIX,
    HEADER_BYTES,
    RECORD_BYTES,
    TOPICS_DIRECTORY,
    IndexHeader,
    IndexRecord,
    as_current,
    check_schema,
    directory_of,
    index_path,
    segment_path,
)

_SECTOR_BYTES = 512


def damaged_path(topic: str, first: int) -> str:
    return f"{directory_of(topic)}/{first:020d}{DAMAGED_SUFFIX}"


def set_aside_segments(files: Files, topic: str) -> set[int]:
    """The first positions of a topic's segments that were set aside."""
    stems = (
        name.removesuffix(DAMAGED_SUFFIX)
        for name in files.list(directory_of(topic))
        if name.endswith(DAMAGED_SUFFIX)
    )
    return {int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit()}


def damaged_segments(files: Files) -> dict[str, str]:
    """The errors of all topics' segments that were set aside, by path."""
    errors = {}
    for topic in files.list(TOPICS_DIRECTORY):
        for first in sorted(set_aside_segments(files, topic)):
            text = _whole(files, damaged_path(topic, first)).decode("utf-8", "replace")
            errors[segment_path(topic, first)] = text.strip()
    return errors


def set_aside(files: Files, topic: str, first: int, error: Damaged) -> int:
    """Mark a segment as damaged. Returns the position at which the topic goes on, above all that
    the segment may have used."""
    path = damaged_path(topic, first)
    with closing(files.open(path, create=True)) as handle:
        handle.truncate(0)
        handle.pwrite([error.message.encode() + b"\n"], 0)
        handle.sync()
    files.sync_dir(directory_of(topic))
    last = records(files, topic, first)[-1:] or [IndexRecord(first, 0, 0, 0, 0)]
    # Bytes without an index record: a row takes at least one.
    unknown = max(0, len(_whole(files, segment_path(topic, first))) - last[0].end)
    return max(last[0].next_position + unknown, first + 1)


def is_torn(data: bytes, at: int) -> bool:
    """Returns True when the broken record at byte ``at`` of an index may be a torn end: a power cut
    leaves too few bytes, or zeros in place of a sector that was not written."""
    record = data[at : at + RECORD_BYTES]
    if len(record) < RECORD_BYTES:
        return True
    border = -at % _SECTOR_BYTES
    parts = [part for part in (record[:border], record[border:]) if part]
    return any(not any(part) for part in parts)


class SoundBlocks:
    """The blocks of a segment, also of one that was set aside, as far as they are sound.

    ``schema`` is None when nothing can be read. ``blocks`` has the complete records; ``blocks[0]``
    stands for the schema message.
    """

    def __init__(self, files: Files, topic: str, first: int) -> None:
        self._data = _whole(files, segment_path(topic, first))
        self.blocks = [IndexRecord(first, 0, 0, 0, 0)]
        self.schema: pa.Schema | None = None
        source = pa.BufferReader(self._data)
        try:
            schema = pa.ipc.read_schema(source)
            check_schema(schema, segment_path(topic, first))
        except (SlotwheelError, pa.ArrowException, ValueError, EOFError, OSError):
            return
        end = source.tell()
        crc = crc32c(self._data[:end])
        self.blocks = [IndexRecord(first, end, 0, crc, 0), *records(files, topic, first)]
        # Checksums run on from the schema, so the header or a block's record proves it.
        try:
            header = IndexHeader.decode(_whole(files, index_path(topic, first)), "", first)
            known = header.schema_crc == crc
        except SlotwheelError:
            known = len(self.blocks) > 1 and self._is_sound(1)
        if known:
            self.schema = schema

    def _is_sound(self, number: int) -> bool:
        before, block = self.blocks[number - 1], self.blocks[number]
        payload = self._data[before.end : block.end]
        return block.follows(before) and crc32c(payload, before.crc) == block.crc

    def read(self, number: int) -> pa.RecordBatch | None:
        """Block ``number`` (from 1); None when it is damaged."""
        if self.schema is None or not self._is_sound(number):
            return None
        payload = self._data[self.blocks[number - 1].end : self.blocks[number].end]
        return as_current(plain_rows(pa.py_buffer(payload), self.schema))


def records(files: Files, topic: str, first: int) -> list[IndexRecord]:
    """The complete records of an index in ascending position; broken ones between are left out."""
    data = memoryview(_whole(files, index_path(topic, first)))
    whole: list[IndexRecord] = []
    for at in range(HEADER_BYTES, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        block = IndexRecord.decode(data[at : at + RECORD_BYTES])
        if block is not None and block.position >= (whole[-1].next_position if whole else first):
            whole.append(block)
    return whole


def _whole(files: Files, path: str) -> bytes:
    """All bytes of a file; empty if it does not exist."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return b""
    with closing(handle):
        return handle.pread(handle.size(), 0)
