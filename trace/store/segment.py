"""One segment, opened for reading: a part of a store that never changes.

Both files are mapped, not held open, so that a reader of thousands of segments needs no
descriptors, and one that is deleted meanwhile can be read to its end. What is read is checked
against the index first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from ...wheel.errors import Damaged
from ...wheel.files import mapped
from ...wheel.schema import Int64s, Mask
from ..events import ID, STORED
from .hashing import MASK_WORDS, may_have
from .indexfile import PAGE_ROWS, REMEDY, HashColumn, read_index
from .names import SegmentName

WHOLE_ROWS = 1 << 16
"""From so many rows of one hash on, a segment is looked through block by block."""


class StoreSegment:
    """The events of a segment, mapped. Errors on construction: ``FileNotFoundError``, ``Damaged``,
    ``UnsupportedVersion``."""

    def __init__(self, root: Path, name: SegmentName) -> None:
        self.name = name
        self.path = str(root / name.events_file)
        self._index_path = str(root / name.index_file)
        index = read_index(root / name.index_file)
        self._data = mapped(self.path)
        self._arrays = index.arrays
        self._index = index
        self.hour = int(index.about["hour"])
        self.topic = str(index.about["topic"])
        self.source = str(index.about.get("source", ""))
        self.positions = {int(part): int(next_) for part, next_ in index.about["positions"]}
        self.numbers: dict[str, list[tuple[int, int]]] = {
            sender: [(first, last) for first, last in ranges]
            for sender, ranges in index.about["numbers"].items()
        }
        self.rows = int(index.about["rows"])
        self.first_at: Int64s = index.arrays["block.first_at"]
        self.last_at: Int64s = index.arrays["block.last_at"]
        """The first and the last ``at`` of each block, ms, shape (blocks,)."""
        self._row_ends = index.arrays["block.row_end"].astype(np.int64)
        self._ends = index.arrays["part.end"]
        self._crcs = index.arrays["part.crc"]
        if len(self._data) != self._ends[-1]:
            raise self._damaged(len(self._data), f"{self._ends[-1]} bytes", len(self._data))
        self._sound: set[int] = set()
        self._check(len(self.first_at))  # the footer
        self._readers: dict[tuple[str, ...], pa.ipc.RecordBatchFileReader] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of its events."""
        return len(self._data)

    @property
    def blocks(self) -> int:
        return len(self.first_at)

    def rows_of(self, block: int) -> int:
        return int(self._row_ends[block] - self.start_of(block))

    def start_of(self, block: int) -> int:
        """The number of a block's first row."""
        return int(self._row_ends[block - 1]) if block else 0

    def whole_column(self, name: str) -> HashColumn:
        """A hash column, checked; ``name``: one of ``HASHED``. Errors: ``Damaged``."""
        column = self._index.column(name)
        column.check(self._index_path, 0, len(column.firsts))
        return column

    def find(self, name: str, hashed: int) -> dict[int, Int64s] | None:
        """The rows that may have a hash, by block, numbered within it; None: there are too many.
        Errors: ``Damaged``."""
        column = self._index.column(name)
        begin, end = column.range_of(hashed)
        if (end - begin) * PAGE_ROWS > WHOLE_ROWS:
            return None
        rows = column.find(hashed, self._index_path).astype(np.int64)
        rows = np.unique(rows)
        numbers = np.searchsorted(self._row_ends, rows, "right")
        return {
            int(block): rows[numbers == block] - self.start_of(int(block))
            for block in np.unique(numbers)
        }

    def blocks_with(self, name: str, value: str) -> Mask:
        """True for blocks that may have a value in a column, one of ``MASKED``; shape
        (blocks,)."""
        return may_have(self._arrays[f"mask.{name}"].reshape(-1, MASK_WORDS), value)

    def read(self, block: int, columns: tuple[str, ...] = tuple(STORED.names)) -> pa.RecordBatch:
        """A block, or some of its columns in their order. Errors: ``Damaged``."""
        self._check(block)
        reader = self._readers.get(columns)
        if reader is None:
            self._check(0)  # the dictionaries stand before the first block
            numbers = [STORED.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=numbers, use_threads=False)
            reader = self._readers[columns] = pa.ipc.open_file(self._data, options=options)
        batch = _as_current(reader.get_batch(block))
        return batch if batch.schema.names == list(columns) else batch.select(list(columns))

    def _check(self, part: int) -> None:
        """Compare a block, or the footer behind the last one, with its checksum, once."""
        if part in self._sound:
            return
        start = int(self._ends[part - 1]) if part else 0
        if crc32c(memoryview(self._data)[start : int(self._ends[part])]) != self._crcs[part]:
            raise self._damaged(start, "a block as it was written", "another checksum")
        self._sound.add(part)

    def _damaged(self, position: int, expected: object, found: object) -> Damaged:
        return Damaged(self.path, position, expected=expected, found=found, remedy=REMEDY)


def _as_current(events: pa.RecordBatch) -> pa.RecordBatch:
    """Events of a segment of any version with the ids of this version."""
    for place, field in enumerate(events.schema):
        if STORED.field(field.name).type == ID != field.type:
            events = events.set_column(place, field.with_type(ID), events.column(place).cast(ID))
    return events
