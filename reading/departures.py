"""Reads what a node with ``--trace-retain`` keeps of messages that have left.

Theory: files are named by when they begin, and a message leaves at its due time or later. So a
question about an id begins at the file of its due time, and reads of its frames only those that by
their headers may have what was due then. What is not found may have left all the same: a power cut,
a full disk, a mark that moved before the answer. What is found is true.

Rules
- A node may be writing: an incomplete frame at the end of a file is none, and a file that is gone
  was too old.
- Damage is a problem and takes the rest of its file, or only its frame where just that is damaged.
- No answer depends on how much is kept: ``FRAMES_MAX`` frames are looked at for one question, and
  repeats are looked for up to ``_REPEATS_MS`` behind the first time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..wheel.departurefile import (
    DEPARTURES,
    DEPARTURES_DIRECTORY,
    HEADER_BYTES,
    DepartureFrame,
    check_file_header,
    first_ms_of,
    frames,
)
from ..wheel.digest import key_hashes
from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.files import OsHandle
from ..wheel.mark import RowKey
from ..wheel.rows import members
from ..wheel.schema import Int64s, times
from .departureframes import FrameTable, KnownFrames
from .listing import opened, sizes
from .problems import INTEGRITY, Problem

FRAMES_MAX = 1_000_000
BATCH_ROWS = 16_384
LIMIT = 1_000
PROBLEMS_MAX = 100
_REPEATS_MS = 60_000
_BEFORE, _AFTER = -1, 1 << 62


@dataclass(frozen=True, slots=True)
class Departure:
    """A message left. Times in ms since the epoch."""

    state: str
    """One of ``STATES``."""
    left_ms: int
    created_ms: int
    topic: str


@dataclass(frozen=True, slots=True)
class DepartureQuery:
    """A condition for departures; empty or None: any, but an empty ``key`` is a key. ``start_ms``,
    ``end_ms``: when they left, end exclusive. ``key``: its hash is compared."""

    topics: Collection[str] = ()
    key: bytes | None = None
    states: Collection[str] = ()
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(slots=True)
class DepartureReader:
    """Departures of a data directory. ``problems``: what could not be read so far, at most
    ``PROBLEMS_MAX``. It remembers where frames are, so a second question costs less. Not
    thread-safe."""

    root: Path
    problems: list[Problem] = field(default_factory=list)
    _remembered: KnownFrames = field(default_factory=KnownFrames, init=False, repr=False)

    def find(self, wanted: Collection[RowKey]) -> dict[RowKey, list[Departure]]:
        """The departures of messages by due time and offset, each in the order of time: more than
        one where it was repeated."""
        found: dict[RowKey, list[Departure]] = {}
        if not wanted:
            return found
        dues = np.unique(np.array([due for due, _ in wanted], np.int64))
        offsets = np.sort(np.array([offset for _, offset in wanted], np.int64))
        rest, last_ms = FRAMES_MAX, _AFTER
        files = self._files(int(dues[0]), _AFTER)
        for path, (first_ms, size) in files.items():
            if rest <= 0 or first_ms > last_ms:
                break
            table = self._known(path, size)[:rest]
            rest -= len(table)
            for frame, rows in self._holding(path, table, dues):
                if frame.left_ms > last_ms:
                    return found
                for at in np.flatnonzero(members(offsets, times(rows, "offset"))).tolist():
                    key = int(times(rows, "due")[at]), int(times(rows, "offset")[at])
                    if key in wanted:
                        found.setdefault(key, []).append(_departure(rows, at))
                if len(found) == len(wanted) and last_ms == _AFTER:
                    last_ms = frame.left_ms + _REPEATS_MS
        return found

    def batches(
        self, start_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All that left in that time, the end exclusive, schema ``DEPARTURES``, in the order in
        which it was written; in batches of about ``BATCH_ROWS`` rows."""
        start = _BEFORE if start_ms is None else start_ms
        end = _AFTER if end_ms is None else end_ms
        waiting: list[pa.RecordBatch] = []
        count = 0
        for path in self._files(start, end):
            for handle, frame in self._frames(path):
                if not start <= frame.left_ms < end:
                    continue
                waiting.append(self._rows(path, handle, frame))
                count += waiting[-1].num_rows
                if count >= BATCH_ROWS:
                    yield from _joined(waiting)
                    waiting, count = [], 0
        yield from _joined(waiting)

    def search(self, query: DepartureQuery, *, limit: int = LIMIT) -> pa.Table:
        """The first matches in the order in which they left, at most ``limit``; schema
        ``DEPARTURES``."""
        matches: list[pa.RecordBatch] = []
        count = 0
        for batch in self.batches(query.start_ms, query.end_ms):
            rows = batch.filter(_matches(query, batch)).slice(0, limit - count)
            matches.append(rows)
            count += rows.num_rows
            if count >= limit:
                break
        return pa.Table.from_batches(matches, DEPARTURES)

    def _files(self, start_ms: int, end_ms: int) -> dict[Path, tuple[int, int]]:
        """The files that may hold what left in that time, in their order: when each begins, and how
        many bytes it has."""
        folder = self.root / DEPARTURES_DIRECTORY
        every = sizes(folder)
        firsts = sorted((first, name) for name in every if (first := first_ms_of(name)) is not None)
        self._remembered.forget_all_but([folder / name for _, name in firsts])
        return {
            folder / name: (first, every[name])
            for (first, name), (following, _) in pairwise([*firsts, (_AFTER, "")])
            if first < end_ms and following > start_ms
        }

    def _known(self, path: Path, size: int) -> FrameTable:
        """The frames of a file, as far as they can be read."""
        try:
            self._remembered.grow(path, size, _shown(path))
        except FileNotFoundError:
            pass
        except (Damaged, UnsupportedVersion, OSError) as error:
            self._problem(_shown(path), error)
        return self._remembered.known(path)

    def _holding(
        self, path: Path, table: FrameTable, dues: Int64s
    ) -> Iterator[tuple[DepartureFrame, pa.RecordBatch]]:
        """The frames that may have rows of one of these due times (sorted), with their rows."""
        first = np.searchsorted(dues, table["due_from_ms"])
        low = np.append(dues, _AFTER)[first]
        holding = np.flatnonzero(low <= table["due_to_ms"])
        if not len(holding):
            return
        try:
            with opened(path) as handle:
                for fields in table[holding].tolist():
                    frame = DepartureFrame(*fields)
                    yield frame, self._rows(path, handle, frame)
        except FileNotFoundError:
            return
        except OSError as error:
            self._problem(_shown(path), error)

    def _frames(self, path: Path) -> Iterator[tuple[OsHandle, DepartureFrame]]:
        shown = _shown(path)
        try:
            with opened(path) as handle:
                if handle.size() < HEADER_BYTES:
                    return  # it has just been made
                check_file_header(handle.pread(HEADER_BYTES, 0), shown)
                for frame in frames(handle, shown):
                    yield handle, frame
        except FileNotFoundError:
            return
        except (Damaged, UnsupportedVersion, OSError) as error:
            self._problem(shown, error)

    def _rows(self, path: Path, handle: OsHandle, frame: DepartureFrame) -> pa.RecordBatch:
        """The rows of a frame; none where they are damaged."""
        try:
            return frame.decode(handle.pread(frame.nbytes, frame.position), _shown(path))
        except (Damaged, OSError) as error:
            self._problem(_shown(path), error)
            return pa.RecordBatch.from_pylist([], schema=DEPARTURES)

    def _problem(self, shown: str, error: Exception) -> None:
        text, position = str(error), -1
        if isinstance(error, Damaged):
            text, position = f"expected {error.expected}, found {error.found}", error.position
        problem = Problem(INTEGRITY, "damaged", text, file=shown, position=position)
        if problem not in self.problems and len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def _shown(path: Path) -> str:
    return f"{DEPARTURES_DIRECTORY}/{path.name}"


def _departure(rows: pa.RecordBatch, at: int) -> Departure:
    return Departure(
        rows.column("state")[at].as_py(),
        int(times(rows, "at")[at]),
        int(times(rows, "created")[at]),
        rows.column("topic")[at].as_py(),
    )


def _matches(query: DepartureQuery, rows: pa.RecordBatch) -> pa.Array:
    keep = np.ones(rows.num_rows, np.bool_)
    for name, wanted in (("topic", query.topics), ("state", query.states)):
        if wanted:
            keep &= np.asarray(pc.is_in(rows.column(name), pa.array(list(wanted), pa.utf8())))
    if query.key is not None:
        keep &= np.asarray(rows.column("key_hash")) == key_hashes(
            pa.array([query.key], pa.binary())
        )
    return pa.array(keep)


def _joined(waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Many small batches as one."""
    if not waiting:
        return []
    found: list[pa.RecordBatch] = pa.Table.from_batches(waiting).combine_chunks().to_batches()
    return found
