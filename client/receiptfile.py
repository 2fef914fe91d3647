"""A producer's receipts as an Arrow file, out of the wheel's reach.

Theory: a proof of delivery begins with the accepted messages, and the best witness of them is not
the wheel but the sender. So each stored message has a row: its id's parts, its topic, and a digest
of its content (``wheel/digest.py``) in place of the content. A message that was refused or given up
has none. docs/formats.md has the columns.

    reader's thread --put--> waiting --64 Ki rows, 100 ms, or a flush--> one write, one IPC batch

Rules
- The file must be new: receipts of another run are never overwritten, nor mixed in.
- ``put`` never waits for the disk. The queue is bounded by the sender's buffer: the bytes of a
  receipt count there until they are written.
- Nothing is synced. A killed process loses at most the last 100 ms; a power cut may take more.
- A disk's error costs receipts, not messages: it is logged once, nothing more is written, as a gap
  in the middle could not be noticed, and ``flush`` and ``close`` raise it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..wheel.errors import InvalidConfiguration
from ..wheel.rows import from_numpy
from ..wheel.schema import CHECK, TIME, Int64s, UInt64s

_log = logging.getLogger("slotwheel.client")

RECEIPTS_VERSION = 2
"""Version 1 has checks of 32 bits (``wheel/ids.py``)."""
BATCH_ROWS = 1 << 16
LINGER_S = 0.1
ROW_BYTES = 96
"""An estimate of the memory of a waiting receipt, bytes."""

RECEIPTS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("due", TIME, nullable=False),
        CHECK,
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("digest", pa.uint64(), nullable=False),
        pa.field("sent", TIME, nullable=False),
        pa.field("received", TIME, nullable=False),
        pa.field("group", pa.utf8(), nullable=False),
    ],
    metadata={b"slotwheel.receipts": str(RECEIPTS_VERSION).encode()},
)
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class BatchReceipts:
    """The receipts of one batch. ``due``, ``check``, ``topic``, ``digest``: shape (rows,)."""

    group: str
    base_offset: int
    due: Int64s
    check: UInt64s
    topic: pa.Array
    digest: UInt64s
    sent_ms: int
    received_ms: int

    @property
    def rows(self) -> int:
        return len(self.due)

    @property
    def nbytes(self) -> int:
        return self.rows * ROW_BYTES


class ReceiptFile:
    """The file at ``path``. Thread-safe. Writes nothing before ``start``.

    Errors: ``InvalidConfiguration`` when there is a file already; ``OSError``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags, 0o600)
        except FileExistsError:
            raise InvalidConfiguration(
                "the receipts file is there already",
                got=self.path,
                remedy="Name a new file for each client; none is written over or added to",
            ) from None
        self._changed = threading.Condition()
        self._waiting: deque[BatchReceipts] = deque()
        self._rows = 0
        self._write_at = 0.0
        self._hurried = False
        self._writing = False
        self._closed = False
        self._error: OSError | None = None
        self._on_written: Callable[[int], None] = lambda _nbytes: None
        self._thread = threading.Thread(target=self._run, name="slotwheel-receipts", daemon=True)
        try:
            self._write(bytes(RECEIPTS.serialize()))
        except OSError:
            os.close(self._fd)
            raise

    def start(self, on_written: Callable[[int], None]) -> None:
        """Start the writer. Its thread calls ``on_written`` with the ``nbytes`` of receipts that
        were written, or given up."""
        self._on_written = on_written
        self._thread.start()

    def put(self, promised: BatchReceipts) -> bool:
        """Queue receipts, of at least one row. Returns False when they are dropped, after an error
        or ``close``: ``on_written`` is not called for them then."""
        with self._changed:
            if self._error is not None or self._closed:
                return False
            if not self._waiting:
                self._write_at = time.monotonic() + LINGER_S
            before, self._rows = self._rows, self._rows + promised.rows
            self._waiting.append(promised)
            if not before or before < BATCH_ROWS <= self._rows:
                self._changed.notify_all()
            return True

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until queued receipts are written. Errors: ``TimeoutError``; ``OSError``: some are
        missing in the file."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            if not self._changed.wait_for(self._is_idle, timeout_s):
                raise TimeoutError(f"{self.path}: not all receipts were written in {timeout_s} s")
            self._check()

    def close(self, timeout_s: float | None = None) -> None:
        """Write queued receipts, and end the file. Errors: as of ``flush``. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.path}: not all receipts were written in {timeout_s} s")
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise OSError(
                self._error.errno, f"receipts are missing: {self._error.strerror}", self.path
            )

    def _is_idle(self) -> bool:
        return not self._waiting and not self._writing

    # The writer's thread

    def _run(self) -> None:
        while (batch := self._next_group()) is not None:
            failure: OSError | None = None
            try:
                self._write(bytes(to_batch(batch).serialize()))
            except OSError as error:
                failure = error
            except Exception as error:  # a bug, or memory: reported like the disk's error
                _log.exception("slotwheel client: receipts cannot be written")
                failure = OSError(0, repr(error))
            self._written(batch, failure)
        if self._error is None:
            try:
                self._write(_END_OF_STREAM)
            except OSError as error:
                self._written([], error)
        os.close(self._fd)

    def _next_group(self) -> list[BatchReceipts] | None:
        """The receipts to be written next; None when the file has to be ended."""
        with self._changed:
            while True:
                left_s = self._write_at - time.monotonic()
                hurried = self._hurried or self._closed or self._rows >= BATCH_ROWS
                if self._waiting and (hurried or left_s <= 0):
                    break
                if not self._waiting:
                    self._hurried = False
                    if self._closed:
                        return None
                self._changed.wait(left_s if self._waiting else None)
            batch: list[BatchReceipts] = []
            rows = 0
            while self._waiting and (not batch or rows + self._waiting[0].rows <= BATCH_ROWS):
                batch.append(self._waiting.popleft())
                rows += batch[-1].rows
            self._rows -= rows
            self._writing = True
            return batch

    def _written(self, batch: list[BatchReceipts], failure: OSError | None) -> None:
        nbytes = sum(promised.nbytes for promised in batch)
        with self._changed:
            self._writing = False
            if failure is not None:
                self._error = failure
                nbytes += sum(promised.nbytes for promised in self._waiting)
                self._waiting.clear()
                self._rows = 0
                _log.error(
                    "slotwheel client: no more receipts are written to %s: %s", self.path, failure
                )
            self._changed.notify_all()
        self._on_written(nbytes)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def to_batch(parts: list[BatchReceipts]) -> pa.RecordBatch:
    """The rows of several receipts in their order, schema ``RECEIPTS``."""
    counts = [part.rows for part in parts]
    offset = np.concatenate([np.arange(p.base_offset, p.base_offset + p.rows) for p in parts])

    def each(values: list[int]) -> npt.NDArray[np.int64]:
        return np.repeat(np.array(values, np.int64), counts)

    groups = [pa.repeat(pa.scalar(part.group, pa.utf8()), part.rows) for part in parts]
    columns = [
        from_numpy(offset.astype(np.int64), pa.int64()),
        from_numpy(np.concatenate([part.due for part in parts]), TIME),
        from_numpy(np.concatenate([part.check for part in parts]), pa.uint64()),
        pa.concat_arrays([part.topic for part in parts]),
        from_numpy(np.concatenate([part.digest for part in parts]), pa.uint64()),
        from_numpy(each([part.sent_ms for part in parts]), TIME),
        from_numpy(each([part.received_ms for part in parts]), TIME),
        pa.concat_arrays(groups),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECEIPTS)
