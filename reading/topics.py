"""Reading records that were delivered, and receipts: embedded topics, dumps, receipt files.

Rules
- Of an embedded topic the index is the truth: a block counts when its record is complete. Each
  block is checked by itself, as the records have the checksum before it and behind it.
- A dump or a receipts file is a plain Arrow IPC stream. A receipts file may end anywhere: its
  producer may have been killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from ..wheel.arrowclaims import plain_rows, plain_stream
from ..wheel.errors import Damaged, SlotwheelError, UnsupportedVersion
from ..wheel.files import mapped
from ..wheel.topics.topicfile import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    IndexHeader,
    IndexRecord,
    as_current,
    check_schema,
    parse_index,
)
from .events import Ended, Event, Gathered, RowsSeen, damage, problem_of
from .files import RECEIPTS, File
from .listing import opened
from .problems import INTEGRITY, Problem

DUMP_VERSION = "1"
RECEIPTS_VERSIONS = ("1", "2")
"""Version 1 has checks of 32 bits."""
_BEGIN = b"\xff\xff\xff\xff"  # of an Arrow IPC stream


def read_topic(file: File) -> Iterator[Event]:
    """Read one segment. Errors: ``OSError``, among them ``FileNotFoundError``."""
    path = Path(file.path)
    index_path = path.with_suffix(INDEX_SUFFIX)
    index = _read_index(index_path)
    if len(index) <= HEADER_BYTES:
        yield from _without_index(file, len(index))
        return
    try:
        header = IndexHeader.decode(index, str(index_path), file.first)
        blocks, _ = parse_index(index, str(index_path), header)
    except SlotwheelError as error:
        index_name = file.name.replace(SEGMENT_SUFFIX, INDEX_SUFFIX)
        yield problem_of(file, error, where=f" in {index_name}")
        yield Ended(file, damaged=True)
        return
    yield from topic_blocks(file, header, blocks, mapped(file.path))


def _read_index(path: Path) -> bytes:
    """All of an index; empty: there is none. Errors: ``OSError``."""
    try:
        with opened(path) as handle:
            return handle.pread(handle.size(), 0)
    except FileNotFoundError:
        return b""


def _without_index(file: File, nbytes: int) -> Iterator[Event]:
    """Read a segment without an index record: it was begun and never used, unless it has rows.
    Errors: ``FileNotFoundError``."""
    try:
        next(plain_stream(mapped(file.path))[1])
    except (pa.ArrowException, ValueError, EOFError, StopIteration):
        if file.end < 0:
            yield Ended(file, "never used")
            return
    name = file.name.replace(SEGMENT_SUFFIX, INDEX_SUFFIX)
    kind = "truncated" if nbytes else "missing"
    yield damage(file, kind, -1, f"an index of its rows, {name}", f"{nbytes} bytes")
    yield Ended(file, damaged=True)


def _behind(file: File, block: IndexRecord) -> Event:
    """Report that no segment begins behind ``block``, the last one."""
    first = block.next_position
    name = f"{file.name.rpartition('/')[0]}/{first:020d}{SEGMENT_SUFFIX}"
    text = f"expected it, with rows {first} to {file.end - 1}, found none"
    return Problem(INTEGRITY, "missing", text, file=name)


def topic_blocks(
    file: File, header: IndexHeader, blocks: list[IndexRecord], data: pa.Buffer
) -> Iterator[Event]:
    """Read blocks of a segment. The first of ``blocks`` stands for everything before the others."""
    try:
        schema = header.check_schema(bytes(data[: header.schema_bytes]), file.path)
    except SlotwheelError as error:
        yield problem_of(file, error)
        yield Ended(file, damaged=True)
        return
    rows = _gathered(file, schema)
    damaged = False
    for before, block in pairwise(blocks):
        if block.end > data.size:
            damaged = True
            yield from rows.flush()
            yield damage(file, "truncated", data.size, f"{blocks[-1].end} bytes", data.size)
            break
        try:
            batch = decode_block(data[before.end : block.end], schema, before, block, file.path)
        except Damaged as error:
            damaged = True
            yield from rows.flush()
            yield problem_of(file, error)
        else:
            yield from rows.add(batch)
    yield from rows.flush()
    if not damaged and blocks[-1].next_position < file.end:
        damaged = True
        yield _behind(file, blocks[-1])
    yield Ended(file, damaged=damaged)


def decode_block(
    payload: bytes | pa.Buffer,
    schema: pa.Schema,
    before: IndexRecord,
    block: IndexRecord,
    path: str,
) -> pa.RecordBatch:
    """Decode and check a block of an embedded topic, of any version; its rows have the columns of
    this version. ``before``: the record before its own one in the index. Errors: ``Damaged``."""
    at = before.end
    crc = crc32c(memoryview(payload), before.crc)
    if crc != block.crc:
        raise Damaged(path, at, expected=f"CRC-32C {block.crc:08x}", found=f"{crc:08x}")
    try:
        batch = plain_rows(pa.py_buffer(payload), schema)
        batch.validate(full=True)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise Damaged(path, at, expected="a record batch", found=str(error)[:200]) from None
    if batch.num_rows != block.rows:
        raise Damaged(path, at, expected=f"{block.rows} rows", found=batch.num_rows)
    return as_current(batch)


def read_stream(file: File) -> Iterator[Event]:
    """Read a dump or a receipts file. Errors: ``OSError``, among them ``FileNotFoundError``."""
    is_receipts = file.kind == RECEIPTS
    data = mapped(file.path)
    if data.size == 0:
        yield Ended(file, "empty")
        return
    rows: Gathered | None = None
    try:
        _check_begin(file, bytes(data[: len(_BEGIN)]))
        schema, batches = plain_stream(data)
        _check_stream(file, schema, is_receipts)
        rows = _gathered(file, schema)
        for batch in batches:
            batch.validate(full=True)
            yield from rows.add(as_current(batch) if _is_topic(schema) else batch)
        yield from rows.flush()
    except (Damaged, UnsupportedVersion) as error:
        yield problem_of(file, error)
        yield Ended(file, damaged=True)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        yield from rows.flush() if rows else ()
        if is_receipts:
            yield Ended(file, f"ends in the middle of a batch: {str(error)[:100]}")
        else:
            yield damage(file, "truncated", -1, "an Arrow IPC stream", str(error)[:200])
            yield Ended(file, damaged=True)
    else:
        yield Ended(file)


def _check_begin(file: File, head: bytes) -> None:
    """Check that a file is an Arrow stream, if a torn one: another file would pass as receipts
    without rows. Errors: ``Damaged``."""
    if not _BEGIN.startswith(head):
        wanted = f"a {file.kind} file: an Arrow IPC stream"
        raise Damaged(file.path, 0, expected=wanted, found=f"a file that begins with {head!r}")


def _is_topic(schema: pa.Schema) -> bool:
    return b"slotwheel.topic-schema" in (schema.metadata or {})


def _check_stream(file: File, schema: pa.Schema, is_receipts: bool) -> None:
    """Check the version of a dump or of receipts. Errors: ``Damaged``, ``UnsupportedVersion``."""
    metadata = schema.metadata or {}
    if not is_receipts and _is_topic(schema):
        check_schema(schema, file.path)
        return
    name, known = ("receipts", RECEIPTS_VERSIONS) if is_receipts else ("dump", (DUMP_VERSION,))
    version = metadata.get(f"slotwheel.{name}".encode())
    if version is None:
        wanted = f"a {name} file: metadata slotwheel.{name}"
        raise Damaged(file.path, 0, expected=wanted, found="none")
    if version.decode("ascii", "replace") not in known:
        raise UnsupportedVersion(
            f"{file.name}: unknown version of a {name} file",
            got=version.decode("ascii", "replace"),
            limit=", ".join(known),
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )


def _gathered(file: File, schema: pa.Schema) -> Gathered:
    metadata = schema.metadata or {}
    topic = metadata.get(b"slotwheel.topic", b"").decode()
    group = metadata.get(b"slotwheel.group", b"").decode()

    position = 0

    def events(batches: list[pa.RecordBatch]) -> Iterator[Event]:
        nonlocal position
        rows = pa.concat_batches(batches)
        yield RowsSeen(file, rows, position=position, topic=topic, group=group)
        position += rows.num_rows

    return Gathered(events)
