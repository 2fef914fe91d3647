"""Reading what was delivered, and what producers hold: embedded topics, dumps, receipts.

Rules
- Of an embedded topic the index is the truth: a block counts when its record is whole. Each block
  is checked by itself, as the records name the checksum before it and behind it.
- A dump or a receipts file is a plain Arrow IPC stream. A receipts file may end anywhere: its
  producer may have been killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from ..delivery.embedded.topicfile import (
    HEADER_BYTES,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    IndexHeader,
    IndexRecord,
    check_schema,
    parse_index,
)
from ..wheel.errors import Damaged, SlotwheelError, UnsupportedVersion
from .events import BYTES_MAX, ROWS_MAX, Ended, Event, RowsSeen, damage
from .files import RECEIPTS, File
from .problems import INTEGRITY, Problem

DUMP_VERSION = "1"
RECEIPTS_VERSION = "1"
_BEGIN = b"\xff\xff\xff\xff"  # of an Arrow IPC stream


def read_topic(file: File) -> Iterator[Event]:
    """One segment. Errors: ``OSError``, among them ``FileNotFoundError``."""
    path = Path(file.path)
    index_path = path.with_suffix(INDEX_SUFFIX)
    index = index_path.read_bytes() if index_path.exists() else b""
    if len(index) <= HEADER_BYTES:
        yield from _without_index(file, len(index))
        return
    try:
        header = IndexHeader.decode(index, str(index_path), file.first)
        blocks, _ = parse_index(index, str(index_path), header)
    except SlotwheelError as error:
        yield _problem(file, error, file.name.replace(SEGMENT_SUFFIX, INDEX_SUFFIX))
        yield Ended(file, damaged=True)
        return
    with pa.memory_map(file.path) as source:
        yield from topic_blocks(file, header, blocks, source.read_buffer())


def _without_index(file: File, nbytes: int) -> Iterator[Event]:
    """An index without a record is that of a segment that was begun, unless rows stand in it.
    Errors: ``FileNotFoundError``."""
    try:
        with pa.memory_map(file.path) as source:
            pa.ipc.open_stream(source).read_next_batch()
    except (pa.ArrowException, ValueError, EOFError, StopIteration):
        if file.end < 0:
            yield Ended(file, "never used")
            return
    name = file.name.replace(SEGMENT_SUFFIX, INDEX_SUFFIX)
    kind = "truncated" if nbytes else "missing"
    yield damage(file, kind, -1, f"an index of its rows, {name}", f"{nbytes} bytes")
    yield Ended(file, damaged=True)


def _behind(file: File, block: IndexRecord) -> Event:
    """``block``: the last one, behind which another segment should begin."""
    first = block.next_position
    name = f"{file.name.rpartition('/')[0]}/{first:020d}{SEGMENT_SUFFIX}"
    text = f"expected it, with rows {first} to {file.end - 1}, found none"
    return Problem(INTEGRITY, "missing", text, file=name)


def topic_blocks(
    file: File, header: IndexHeader, blocks: list[IndexRecord], data: pa.Buffer
) -> Iterator[Event]:
    """``blocks``: the first one stands for what lies before the others."""
    try:
        schema = header.check_schema(bytes(data[: header.schema_bytes]), file.path)
    except SlotwheelError as error:
        yield _problem(file, error)
        yield Ended(file, damaged=True)
        return
    rows = _Gathered(file)
    rows.of(schema)
    damaged = False
    for before, block in pairwise(blocks):
        if block.end > data.size:
            damaged = True
            yield from rows.leave()
            yield damage(file, "truncated", data.size, f"{blocks[-1].end} bytes", data.size)
            break
        payload = data[before.end : block.end]
        crc = crc32c(memoryview(payload), before.crc)
        try:
            if crc != block.crc:
                raise Damaged(
                    file.path, before.end, expected=f"CRC-32C {block.crc:08x}", found=f"{crc:08x}"
                )
            batch = pa.ipc.read_record_batch(payload, schema)
            batch.validate(full=True)
            if batch.num_rows != block.rows:
                raise Damaged(
                    file.path, before.end, expected=f"{block.rows} rows", found=batch.num_rows
                )
        except Damaged as error:
            damaged = True
            yield from rows.leave()
            yield _problem(file, error)
        except (pa.ArrowException, ValueError, EOFError, OSError) as error:
            damaged = True
            yield from rows.leave()
            yield damage(file, "damaged", before.end, "a record batch", str(error)[:200])
        else:
            yield from rows.add(batch)
    yield from rows.leave()
    if not damaged and blocks[-1].next_position < file.end:
        damaged = True
        yield _behind(file, blocks[-1])
    yield Ended(file, damaged=damaged)


def read_stream(file: File) -> Iterator[Event]:
    """A dump or a receipts file. Errors: ``OSError``, among them ``FileNotFoundError``."""
    is_receipts = file.kind == RECEIPTS
    with pa.memory_map(file.path) as source:
        if source.size() == 0:
            yield Ended(file, "empty")
            return
        rows = _Gathered(file)
        try:
            _check_begin(file, source.read(len(_BEGIN)))
            source.seek(0)
            reader = pa.ipc.open_stream(source)
            _check_stream(file, reader.schema, is_receipts)
            rows.of(reader.schema)
            for batch in reader:
                batch.validate(full=True)
                yield from rows.add(batch)
            yield from rows.leave()
        except (Damaged, UnsupportedVersion) as error:
            yield _problem(file, error)
            yield Ended(file, damaged=True)
        except (pa.ArrowException, ValueError, EOFError, OSError) as error:
            yield from rows.leave()
            if is_receipts:
                yield Ended(file, f"ends in the middle of a batch: {str(error)[:100]}")
            else:
                yield damage(file, "truncated", -1, "an Arrow IPC stream", str(error)[:200])
                yield Ended(file, damaged=True)
        else:
            yield Ended(file)


def _check_begin(file: File, head: bytes) -> None:
    """What is no Arrow stream is no torn one either: it would pass as receipts that promise none.
    Errors: ``Damaged``."""
    if not _BEGIN.startswith(head):
        wanted = f"a {file.kind} file: an Arrow IPC stream"
        raise Damaged(file.path, 0, expected=wanted, found=f"a file that begins with {head!r}")


def _check_stream(file: File, schema: pa.Schema, is_receipts: bool) -> None:
    """Errors: ``Damaged``, ``UnsupportedVersion``."""
    metadata = schema.metadata or {}
    if not is_receipts and b"slotwheel.topic-schema" in metadata:
        check_schema(schema, file.path)
        return
    name, known = ("receipts", RECEIPTS_VERSION) if is_receipts else ("dump", DUMP_VERSION)
    version = metadata.get(f"slotwheel.{name}".encode())
    if version is None:
        wanted = f"a {name} file: metadata slotwheel.{name}"
        raise Damaged(file.path, 0, expected=wanted, found="none")
    if version.decode("ascii", "replace") != known:
        raise UnsupportedVersion(
            f"{file.name}: unknown version of a {name} file",
            got=version.decode("ascii", "replace"),
            limit=known,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )


class _Gathered:
    """Batches of one schema that wait to be handed on together."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._topic = self._group = ""
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._nbytes = self._number = 0

    def of(self, schema: pa.Schema) -> None:
        metadata = schema.metadata or {}
        self._topic = metadata.get(b"slotwheel.topic", b"").decode()
        self._group = metadata.get(b"slotwheel.group", b"").decode()

    def add(self, batch: pa.RecordBatch) -> Iterator[Event]:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes
        if self._rows >= ROWS_MAX or self._nbytes >= BYTES_MAX:
            yield from self.leave()

    def leave(self) -> Iterator[Event]:
        if not self._rows:
            return
        rows = pa.concat_batches(self._waiting)
        number, self._number = self._number, self._number + self._rows
        self._waiting, self._rows, self._nbytes = [], 0, 0
        yield RowsSeen(self._file, rows, position=number, topic=self._topic, group=self._group)


def _problem(file: File, error: SlotwheelError, index_name: str = "") -> Event:
    """``index_name``: of the index, when it is that which is damaged."""
    if isinstance(error, Damaged):
        where = f" in {index_name}" if index_name else ""
        return damage(file, "damaged", error.position, f"{error.expected}{where}", error.found)
    return damage(file, "damaged", 0, "a known version", error)
