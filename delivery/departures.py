"""Keeps what the node's own files forget: which rows left, when, and how.

Theory: once the mark has passed a row, its slot file is deleted, and only counters are left of it.
So each chunk's answers are appended to a file (``wheel/departurefile.py``) before the wheel gets
them: what a mark covers is there. A chunk is one write of columns that are in memory anyway; it is
not synced, as a power cut costs no more than an answer: *unknown*.

Rules
- Nothing here stops delivery. Rows that could not be kept are counted, and the reason is reported.
- Rows that a kill repeats are there twice: so often they left.
- A cancelled row is there when the mark is about to pass it; once, however often its chunk comes.
- Before the disk has less than its reserve free, nothing more is kept.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pyarrow as pa

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
"""Small, as a reader walks through a file from its begin."""
_FREE_EVERY_S = 1.0
_AGAIN_S = 1.0
_NONE = np.empty(0, np.int64)
_KEPT = ["due", "offset", "created", "topic", "key"]


class DepartureKeeper:
    """Ignores what leaves: a node without ``--trace-retain``. Called by one hand at a time."""

    def withdrawn(self, chunk: Chunk, now_ms: int) -> None:
        """A chunk is about to be delivered, and its mark to pass the cancelled rows in it."""

    def answered(self, chunk: Chunk, outcome: BatchOutcome, now_ms: int) -> None:
        """A sink has answered for a chunk; the wheel does not know yet."""

    def clean(self, now_ms: int) -> int:  # noqa: ARG002
        """Delete what is older than it has to be; how many files. Errors: ``OSError``."""
        return 0

    def close(self) -> None:
        """Close the file; what comes later goes into a new one."""


class KeptDepartures(DepartureKeeper):
    """Keeps them in files of an hour each. Never raises. ``reserve_bytes``: what has to stay free
    on the disk; ``events``: gets how many rows could not be kept, and why."""

    def __init__(self, files: Files, retain_ms: int, reserve_bytes: int, events: DeliveryEvents):
        self._files = files
        self._retain_ms = retain_ms
        self._reserve_bytes = reserve_bytes
        self._events = events
        self._lock = threading.Lock()  # guards the file that is written, and which one that is
        self._handle: Handle | None = None
        self._first_ms = -1
        self._end = 0
        self._free_at_s = self._again_at_s = 0.0
        self._withdrawn: dict[str | None, Int64s] = {}
        """Offsets of the cancelled rows of each line's last chunk."""

    def withdrawn(self, chunk: Chunk, now_ms: int) -> None:
        if not len(chunk.withdrawn):
            self._withdrawn.pop(chunk.topic, None)
            return
        rows = chunk.cancelled
        offset = times(rows, "offset")
        new = np.flatnonzero(~np.isin(offset, self._withdrawn.get(chunk.topic, _NONE)))
        if len(new):
            self._keep(rows, new, np.full(len(new), How.CANCELLED, np.uint8), now_ms)
        self._withdrawn[chunk.topic] = offset

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
                why_not = self._append(frame, now_ms)
        except Exception as error:
            log.debug("departures could not be kept", exc_info=error)
            why_not = f"{type(error).__name__}: {error}"
        if why_not:
            self._events.not_kept(len(left), why_not)

    def _append(self, frame: bytes, now_ms: int) -> str:
        """Append a frame; why it was not, else an empty text. Errors: ``OSError``."""
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
            self._close()  # behind a part of a frame nothing more can be found
            raise
        return ""

    def _open(self, now_ms: int) -> None:
        self._files.make_directory(DEPARTURES_DIRECTORY)
        there = (first_ms_of(name) for name in self._files.list(DEPARTURES_DIRECTORY))
        last_ms = max((first for first in there if first is not None), default=-1)
        self._first_ms = max(now_ms, last_ms + 1)  # in the order in which they are written
        self._handle = self._files.open(path_of(self._first_ms), create=True)
        self._end = self._handle.pwrite([file_header()], 0)

    def _close(self) -> None:
        handle, self._handle, self._first_ms = self._handle, None, -1
        if handle is not None:
            handle.close()


def how_they_left(outcome: BatchOutcome) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A ``How`` for each row that is answered, shape (rows,)."""
    if outcome.accepted.all():
        return np.full(len(outcome.accepted), How.DELIVERED, np.uint8)
    how = np.full(len(outcome.answered), How.DEAD, np.uint8)
    how[outcome.outdated] = How.EXPIRED
    how[outcome.unknown] = How.UNCLEAR
    how[outcome.accepted] = How.DELIVERED
    return how
