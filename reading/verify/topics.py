"""Verifies embedded topics: every segment's index and stream, byte by byte and row by row.

Theory: ``topicreader.walk`` raises at the first fault, as a reader must. A verifier goes on with
the next segment, so that one damaged file does not hide another. Leftovers of a crash (a torn
record, bytes behind the last complete one, a segment that never had a row) are notes.

Rules: nothing is changed; memory is bounded by one block; no kernel gets a block before
``validate(full=True)`` has passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import Files
from ...wheel.findings import CheckedFile, noted
from ...wheel.schema import times
from ...wheel.topics.topicdamage import damaged_path, is_torn, set_aside_segments
from ...wheel.topics.topicfile import (
    DAMAGED_SUFFIX,
    HEADER_BYTES,
    RECORD_BYTES,
    SEGMENT_SUFFIX,
    TOPICS_DIRECTORY,
    IndexHeader,
    IndexRecord,
    directory_of,
    first_position_of,
    index_path,
    parse_index,
    segment_path,
)
from ...wheel.topics.topiclog import segments
from ..topics import decode_block


def verify_topics(files: Files) -> Iterator[CheckedFile]:
    """Check every segment of each topic, and note each file that belongs to none."""
    for topic in files.list(TOPICS_DIRECTORY):
        try:
            firsts = segments(files, topic)
        except NotADirectoryError:
            yield noted("topic", directory_of(topic), "a topic's directory")
            continue
        except OSError as error:
            item = CheckedFile("topic", directory_of(topic))
            item.error(error)
            yield item
            continue
        if not firsts:
            yield noted("topic", directory_of(topic), "a segment", "none: it was never used")
        expected: int | None = 0
        aside = set_aside_segments(files, topic)
        for first in firsts:
            item = CheckedFile("topic", segment_path(topic, first))
            if expected is not None:
                item.expect(0, "position", expected, first)
            try:
                expected = _segment(files, item, topic, first, is_last=first == firsts[-1])
            except OSError as error:
                item.error(error)
                expected = None
            if first in aside:
                expected = None
                found = "a mark: it was set aside as damaged, and the topic went on in a new one"
                item.note(0, f"no {damaged_path(topic, first)}", found)
            yield item
        yield from _unknown(files, topic)


def _unknown(files: Files, topic: str) -> Iterator[CheckedFile]:
    """Note unknown files. They are listed again, as a running node may have begun a segment."""
    names = files.list(directory_of(topic))
    known = {first for name in names if (first := first_position_of(name)) is not None}
    suffixes = (SEGMENT_SUFFIX, DAMAGED_SUFFIX)
    wanted = {f"{first:020d}{suffix}" for first in known for suffix in suffixes}
    for name in names:
        if first_position_of(name) is None and name not in wanted:
            path = f"{directory_of(topic)}/{name}"
            found = "an unknown file, never committed"
            yield noted("topic", path, "a segment and its index", found)


def _segment(
    files: Files, item: CheckedFile, topic: str, first: int, *, is_last: bool
) -> int | None:
    """Check one segment. Returns the position at which the next one begins; None: not known."""
    path = index_path(topic, first)
    data = _whole(files, path)
    if is_last and len(data) <= HEADER_BYTES:
        item.note(0, "a row", "none: never used, begun anew when a node writes to the topic")
        return None
    try:
        header = IndexHeader.decode(data, path, first)
        blocks, index_bytes = parse_index(data, path, header)
    except (Damaged, UnsupportedVersion) as error:
        item.error(error)
        return None
    if len(data) > index_bytes:
        text = f"{len(data) - index_bytes} bytes of a torn record in {path}, never acknowledged"
        if not is_torn(data, index_bytes) or (
            not is_last and len(data) - index_bytes >= RECORD_BYTES
        ):
            item.fault(index_bytes, "whole records up to the next segment", text)
        else:
            item.note(index_bytes, "the end of the index", text)
    _stream(files, item, header, blocks)
    return blocks[-1].next_position


def _stream(
    files: Files, item: CheckedFile, header: IndexHeader, blocks: list[IndexRecord]
) -> None:
    try:
        handle = files.open(item.path)
    except FileNotFoundError:
        item.fault(0, f"{blocks[-1].end} bytes", "no such file")
        return
    try:
        size = handle.size()
        if size > blocks[-1].end:
            # Beside a running node: a block whose record is not written yet.
            item.note(
                blocks[-1].end,
                "the end of the stream",
                f"{size - blocks[-1].end} bytes of junk, never committed",
            )
        schema = header.check_schema(handle.pread(header.schema_bytes, 0), item.path)
        for before, block in pairwise(blocks):
            payload = handle.pread(block.end - before.end, before.end)
            if len(payload) < block.end - before.end:
                item.fault(size, f"{blocks[-1].end} committed bytes", f"{size} bytes")
                break
            try:
                batch = decode_block(payload, schema, before, block, item.path)
                _check_positions(item, batch, before.end, block)
            except Damaged as error:
                item.error(error)
            item.rows += block.rows
            item.nbytes = block.end
    except (Damaged, UnsupportedVersion) as error:
        item.error(error)
    finally:
        handle.close()


def _check_positions(item: CheckedFile, batch: pa.RecordBatch, at: int, block: IndexRecord) -> None:
    position = times(batch, "position")
    if not np.array_equal(position, np.arange(block.position, block.next_position)):
        found = f"{position[0]} to {position[-1]}"
        item.fault(at, f"positions {block.position} to {block.next_position - 1}", found)


def _whole(files: Files, path: str) -> bytes:
    with closing(files.open(path)) as handle:
        return handle.pread(handle.size(), 0)
