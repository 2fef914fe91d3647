"""Keeps what the node's own files forget: which rows left, when, and how.

Theory: once the mark has passed a row, its slot file is deleted, and only counters are left of it.
So each chunk's answers are appended to a file (``wheel/departurefile.py``) before the wheel gets
them: a row that a mark covers is in the file. A chunk is one write of columns that are in memory
anyway. It is not synced: a power cut costs no message, only an answer, which becomes *unknown*.

Rules
- No failure here stops delivery: a full disk must not make messages late for the sake of a record
  about them. Rows that could not be kept are counted, and the reason is reported.
- A row that leaves twice, because a kill came before its mark, is in the file twice.
- A cancelled row is written when the mark is about to pass it, once, though its chunk may come
  again: otherwise a chunk that fails ten times would show ten cancels.
- Nothing is written once the disk has less free than its reserve, which the journal needs.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pyarrow as pa

from ..wheel import compute as pc
from ..wheel.config import MIB
from ..wheel.departurefile import (
    DEPARTURES_DIRECTORY,
    How,
    encode,
    file_header,
    first_ms_of,
    path_of,
)
from ..wheel.digest import key_hashes
from ..wheel.due.chunk import Chunk
from ..wheel.files import Files, Handle
from ..wheel.schema import Int64s, times
from .handover import BatchOutcome
from .ports import DeliveryEvents

log = logging.getLogger(__name__)

FILE_MS = 3_600_000
FILE_BYTES = 32 * MIB
"""A file is small, as a reader walks through it from its begin."""
_FREE_EVERY_S = 1.0
_AGAIN_S = 1.0
_NONE = np.empty(0, np.int64)
_KEPT = ["due", "offset", "created", "topic", "key"]


class DepartureKeeper:
    """Ignores departures, for a node without ``--trace-retain``. One hand calls it at a time."""

    def withdrawn(self, chunk: Chunk, now_ms: int) -> None:
        """Called before a chunk is delivered, whose mark will pass the cancelled rows in it."""

    def answered(self, chunk: Chunk, outcome: BatchOutcome, now_ms: int) -> None:
        """Called when a sink has answered for a chunk, before the wheel gets the answers."""

    def held(self, topic: str, chunk: Chunk) -> None:
        """Called when the sink holds a topic of a chunk of the main line back: the topic's own line
        reads the cancelled rows of that chunk again."""

    def clean(self, now_ms: int) -> int:  # noqa: ARG002
        """Delete files whose time is over. Returns how many. Errors: ``OSError``."""
        return 0

    def close(self) -> None:
        """Close the file; later departures go into a new one."""


class KeptDepartures(DepartureKeeper):
    """Keeps departures in files of an hour each; ``withdrawn`` and ``answered`` never raise.

    A file is deleted ``retain_ms`` after its hour. ``reserve_bytes`` stay free on the disk.
    ``events`` gets how many rows could not be kept, and why."""

    def __init__(self, files: Files, retain_ms: int, reserve_bytes: int, events: DeliveryEvents):
        self._files = files
        self._retain_ms = retain_ms
        self._reserve_bytes = reserve_bytes
        self._events = events
        self._lock = threading.Lock()  # guards the open file: its handle, name and end
        self._handle: Handle | None = None
        self._first_ms = -1
        self._end = 0
        self._free_at_s = self._again_at_s = 0.0
        self._withdrawn: dict[str | None, Int64s] = {}
        """Offsets of the cancelled rows of each line's last chunk."""
        self._comes_again: dict[str | None, Int64s] = {}
        """Offsets of cancelled rows that are kept, and that the line of their topic will read."""

    def withdrawn(self, chunk: Chunk, now_ms: int) -> None:
        if not len(chunk.withdrawn):
            self._withdrawn.pop(chunk.topic, None)
            return
        rows = chunk.cancelled
        offset = times(rows, "offset")
        again = self._comes_again.pop(chunk.topic, _NONE)
        known = np.concatenate([again, self._withdrawn.get(chunk.topic, _NONE)])
        new = np.flatnonzero(~np.isin(offset, known))
        if len(new):
            self._keep(rows, new, np.full(len(new), How.CANCELLED, np.uint8), now_ms)
        self._withdrawn[chunk.topic] = offset
        if len(later := np.setdiff1d(again, offset)):
            self._comes_again[chunk.topic] = later

    def held(self, topic: str, chunk: Chunk) -> None:
        if chunk.topic is None and len(chunk.withdrawn):
            rows = chunk.cancelled
            offset = times(rows, "offset")[np.asarray(pc.equal(rows.column("topic"), topic))]
            if len(offset):
                self._comes_again[topic] = offset

    def answered(self, chunk: Chunk, outcome: BatchOutcome, now_ms: int) -> None:
        left = np.flatnonzero(outcome.answered)
        if len(left):
            self._keep(chunk.rows, left, how_they_left(outcome)[left], now_ms)

    def clean(self, now_ms: int) -> int:
        deleted = 0
        with self._lock:
            for name in self._files.list(DEPARTURES_DIRECTORY):
                first = first_ms_of(name)
                if first is None or first == self._first_ms:
                    continue
                if first + FILE_MS + self._retain_ms < now_ms:
                    self._files.unlink(f"{DEPARTURES_DIRECTORY}/{name}")
                    deleted += 1
        return deleted

    def close(self) -> None:
        with self._lock:
            self._close()

    def _keep(
        self,
        rows: pa.RecordBatch,
        left: Int64s,
        how: np.ndarray[tuple[int], np.dtype[np.uint8]],
        now_ms: int,
    ) -> None:
        try:
            if len(left) < rows.num_rows:
                rows = rows.select(_KEPT).take(pa.array(left))
            due, offset, created = (times(rows, name) for name in _KEPT[:3])
            hashes = key_hashes(rows.column("key"))
            frame = encode(due, offset, created, how, rows.column("topic"), hashes, now_ms)
            with self._lock:
                failure = self._append(frame, now_ms)
        except Exception as error:
            log.debug("departures could not be kept", exc_info=error)
            failure = f"{type(error).__name__}: {error}"
        if failure:
            self._events.not_kept(len(left), failure)

    def _append(self, frame: bytes, now_ms: int) -> str:
        """Append a frame. Returns why it was not, or an empty text. Errors: ``OSError``."""
        now_s = time.monotonic()
        if now_s < self._again_at_s:
            return "the last write failed"
        if now_s >= self._free_at_s:
            if self._files.free_bytes() < self._reserve_bytes:
                return "the disk has no more free than its reserve"
            self._free_at_s = now_s + _FREE_EVERY_S
        try:
            if self._end >= FILE_BYTES or now_ms - self._first_ms >= FILE_MS:
                self._close()
            if self._handle is None:
                self._open(now_ms)
            assert self._handle is not None
            self._end += self._handle.pwrite([frame], self._end)
        except BaseException:
            self._again_at_s = now_s + _AGAIN_S
            self._close()  # a reader stops at a torn frame: later ones need another file
            raise
        return ""

    def _open(self, now_ms: int) -> None:
        self._files.make_directory(DEPARTURES_DIRECTORY)
        file_times = (first_ms_of(name) for name in self._files.list(DEPARTURES_DIRECTORY))
        last_ms = max((first for first in file_times if first is not None), default=-1)
        self._first_ms = max(now_ms, last_ms + 1)  # names stay in order when the clock steps back
        self._handle = self._files.open(path_of(self._first_ms), create=True)
        self._end = self._handle.pwrite([file_header()], 0)

    def _close(self) -> None:
        handle, self._handle, self._first_ms = self._handle, None, -1
        if handle is not None:
            handle.close()


def how_they_left(outcome: BatchOutcome) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A ``How`` for each row of the batch, shape (rows,); it means something where ``answered``."""
    if outcome.accepted.all():
        return np.full(len(outcome.accepted), How.DELIVERED, np.uint8)
    how = np.full(len(outcome.answered), How.DEAD, np.uint8)
    how[outcome.outdated] = How.EXPIRED
    how[outcome.unknown] = How.UNCLEAR
    how[outcome.accepted] = How.DELIVERED
    return how
