"""Writes one segment: events in the order of ``at``, block by block, and its index.

Rules
- Both files are durable before they get their names, and the events get theirs last: a segment that
  is listed is whole, also after a power cut.
- All blocks of a segment have the same dictionaries, which stand before the first one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ...wheel.errors import SyncFailed
from ...wheel.files import OsFiles, regular
from ...wheel.rows import from_numpy
from ...wheel.schema import UInt64s, times
from ..events import STORED
from .hashing import MASKED, Entries, entries_of, mask_of
from .indexfile import HashColumn, index_parts
from .names import NEW_SUFFIX, SegmentName

BLOCK_ROWS = 4096
"""Rows of a block, which is decompressed for one event: that takes about a millisecond."""
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=False)


@dataclass(frozen=True, slots=True)
class SegmentAbout:
    """The header of a segment's index. ``hour``: when its events arrived, hours since the epoch;
    ``topic``: where they come from; ``positions``: the next position in each of its partitions;
    ``numbers``: ranges of each sender's numbers, both ends included; ``source``: the topic's
    ``TailRows.source``."""

    hour: int
    topic: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)
    numbers: Mapping[str, list[tuple[int, int]]] = field(default_factory=dict)
    source: str = ""


class SegmentMaker:
    """Use it as a context manager: a segment that is not finished is deleted."""

    def __init__(self, root: Path, name: SegmentName) -> None:
        self._root, self._name = root, name
        self._events = root / (name.events_file + NEW_SUFFIX)
        self._index = root / (name.index_file + NEW_SUFFIX)
        os.close(regular(self._events, os.O_WRONLY | os.O_CREAT))
        self._sink = pa.OSFile(str(self._events), "wb")
        self._writer = pa.ipc.new_file(self._sink, STORED, options=_WRITING)
        self._rows = 0
        self._begin = 0
        self._first_at: list[int] = []
        self._last_at: list[int] = []
        self._ends: list[int] = []
        self._row_ends: list[int] = []
        self._masks: dict[str, list[UInt64s]] = {name: [] for name in MASKED}

    def add(self, block: pa.RecordBatch) -> None:
        """Add up to ``BLOCK_ROWS`` events in the order of ``at``, none before the last block's."""
        if not block.num_rows:
            return
        self._writer.write_batch(block)
        at = times(block, "at")
        self._first_at.append(int(at[0]))
        self._last_at.append(int(at[-1]))
        self._rows += block.num_rows
        self._ends.append(self._sink.tell())
        self._row_ends.append(self._rows)
        for name, masks in self._masks.items():
            masks.append(mask_of(block.column(name)))

    def finish(self, header: SegmentAbout, columns: Mapping[str, HashColumn]) -> None:
        """Write the index, sync both files and name them. Errors: ``OSError``, ``SyncFailed``."""
        self._writer.close()
        self._sink.close()
        with pa.memory_map(str(self._events)) as mapped:
            content = memoryview(mapped.read_buffer())
            ends = [*self._ends, len(content)]
            starts = [0, *ends[:-1]]
            crcs = [crc32c(content[a:b]) for a, b in zip(starts, ends, strict=True)]
            del content
        arrays: dict[str, Any] = {
            "block.first_at": np.array(self._first_at, np.int64),
            "block.last_at": np.array(self._last_at, np.int64),
            "block.row_end": np.array(self._row_ends, np.uint32),
            "part.end": np.array(ends, np.int64),
            "part.crc": np.array(crcs, np.uint32),
        }
        for name, masks in self._masks.items():
            arrays[f"mask.{name}"] = np.concatenate([np.empty(0, np.uint64), *masks])
        for name, column in columns.items():
            arrays |= column.arrays(name)
        fields = asdict(header) | {"rows": self._rows, "positions": list(header.positions.items())}
        with open(self._index, "wb", opener=regular) as file:
            for part in index_parts(fields, arrays):
                file.write(part)
        for path in (self._index, self._events):
            _sync(path)
        self._index.rename(self._root / self._name.index_file)
        self._events.rename(self._root / self._name.events_file)
        files = OsFiles(self._root)
        files.sync_dir(".")
        files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sink.close()
        for path in (self._index, self._events):
            path.unlink(missing_ok=True)


def write_segment(root: Path, name: SegmentName, header: SegmentAbout, events: pa.Table) -> None:
    """Write events (schema ``STORED``, in any order) as a segment. Errors: ``OSError``."""
    rows = events.unify_dictionaries().combine_chunks()
    batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], STORED)
    order = np.argsort(times(batch, "at"), kind="stable")
    batch = batch.take(from_numpy(order, pa.int64()))
    with SegmentMaker(root, name) as maker:
        for start in range(0, batch.num_rows, BLOCK_ROWS):
            maker.add(batch.slice(start, BLOCK_ROWS))
        maker.finish(header, hash_columns(entries_of(batch, 0).items()))


def hash_columns(entries: Iterable[tuple[str, Entries]]) -> dict[str, HashColumn]:
    return {name: HashColumn.of(*hashed) for name, hashed in entries}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(handle)
    except OSError as error:
        raise SyncFailed(f"fdatasync of {path} failed: {error}") from error
    finally:
        os.close(handle)
