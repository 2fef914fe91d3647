"""Keeps events until they are sent, off the way of whoever has them.

    any thread --note--> waiting --0.1 s--> one thread: columns, an encoded batch, the target

Theory: to note events is to put what they are made of into a list; making columns of it, encoding
and sending are another thread's. So a sender or a consumer pays a microsecond, whatever becomes of
its events.

Rules
- Memory is bounded: what comes while ``events_max`` events wait is dropped, and counted. The count
  is an event of its own, as soon as there is room.
- Each event has a number, also one that is dropped: what is missing can be seen from the others.
- A batch is sent until the target has it, again if need be: whoever reads takes events with the
  same sender and number for one.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..client.message import clock_ms
from ..wheel.backoff import Backoff
from ..wheel.rows import from_numpy
from .events import BATCH_BYTES_MAX, EVENT, EventKind, EventSender, encode

_log = logging.getLogger("slotwheel.trace")

EVENTS_MAX = 100_000
_EVERY_S = 0.1
_BATCH_ROWS = 8_192
_BACKOFF_S, _BACKOFF_MAX_S = 0.1, 2.0

MakeEvents = Callable[[], pa.RecordBatch]
"""Makes events of what was noted: schema ``EVENT``; the numbers are filled in later."""


class TraceTarget(Protocol):
    """Where batches of events go, such as a topic. Belongs to one thread."""

    def send(self, value: bytes) -> None:
        """Send a batch, and wait until it is stored. Errors: any; it is sent again then."""

    def close(self) -> None: ...


class Recorder:
    """Sends events to ``target``. Thread-safe; one for each process. ``client``: what people call
    the program; ``tags``: what else they say of it."""

    def __init__(
        self,
        target: TraceTarget,
        *,
        client: str = "",
        tags: Mapping[str, str] | None = None,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self.client = client or f"{socket.gethostname()}-{os.getpid()}"
        self._sender = EventSender(
            secrets.token_hex(8), self.client, socket.gethostname(), dict(tags or {})
        )
        self._target = target
        self._events_max = events_max
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, MakeEvents]] = []
        self._count = 0
        """Events that wait, or are being sent."""
        self._next = 0
        self._unreported = 0
        """Events that were dropped since the last event that said so."""
        self.dropped = 0
        """Events that are missing for want of room, or as they could not be made."""
        self.sent = 0
        """Events that the target has."""
        self._closing = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="slotwheel-trace", daemon=True)
        self._thread.start()

    def note(self, count: int, make: MakeEvents) -> None:
        """Note ``count`` events, which ``make`` returns. Never waits, and never fails."""
        with self._lock:
            first = self._next
            self._next += count
            if self._count + count > self._events_max or self._closing.is_set():
                self._drop(count)
                return
            self._count += count
            self._waiting.append((first, count, make))

    @property
    def noted(self) -> int:
        """Events so far, with those that were dropped."""
        return self._next

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits, for so long at most, s; what is left then is dropped. May be called
        again."""
        with self._lock:
            if not self._closing.is_set():
                self._deadline = time.monotonic() + timeout_s
                self._closing.set()
        self._thread.join(timeout_s + 1.0)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._unreported += count

    # The thread

    def _run(self) -> None:
        while True:
            closing = self._closing.wait(_EVERY_S)
            with self._lock:
                waiting, self._waiting = self._waiting, []
            made = [one for one in map(self._made, waiting) if one is not None]
            made += self._report()
            if made:
                self._send(pa.concat_batches(made))
            if closing:
                break
        if self.dropped:
            _log.warning("slotwheel trace: %d events were dropped", self.dropped)
        self._target.close()

    def _made(self, noted: tuple[int, int, MakeEvents]) -> pa.RecordBatch | None:
        first, count, make = noted
        try:
            return _numbered(make(), first, count)
        except Exception:  # a defect of ours must not end the tracing of all else
            _log.exception("slotwheel trace: %d events could not be made", count)
            self._gone(count)
            return None

    def _report(self) -> list[pa.RecordBatch]:
        """The event that says how many were dropped."""
        with self._lock:
            count, self._unreported = self._unreported, 0
            if not count:
                return []
            first = self._next
            self._next += 1
            self._count += 1
        row = {"number": first, "at": clock_ms(), "kind": EventKind.DROPPED, "count": count}
        return [pa.RecordBatch.from_pylist([row], schema=EVENT)]

    def _send(self, events: pa.RecordBatch) -> None:
        for start in range(0, events.num_rows, _BATCH_ROWS):
            self._send_part(events.slice(start, _BATCH_ROWS))

    def _send_part(self, events: pa.RecordBatch) -> None:
        value = encode(self._sender, events)
        rows = events.num_rows
        if len(value) <= BATCH_BYTES_MAX:
            if self._stored(value):
                self._gone(rows, sent=True)
            else:
                self._gone(rows)
        elif rows > 1:
            self._send_part(events.slice(0, rows // 2))
            self._send_part(events.slice(rows // 2))
        else:  # its key or its error alone is too large
            self._gone(1)

    def _gone(self, count: int, *, sent: bool = False) -> None:
        """So many events do not wait any more."""
        with self._lock:
            self._count -= count
            if sent:
                self.sent += count
            else:
                self._drop(count)

    def _stored(self, value: bytes) -> bool:
        """Whether the target has it; false when it is time to end."""
        backoff = Backoff(_BACKOFF_S)
        while not (self._closing.is_set() and time.monotonic() > self._deadline):
            try:
                self._target.send(value)
            except Exception as error:
                pause_s = min(_BACKOFF_MAX_S, backoff.failed())
                _log.warning("slotwheel trace: not sent, next try in %.1f s: %s", pause_s, error)
                if self._closing.wait(pause_s):
                    time.sleep(min(pause_s, 0.05))
            else:
                return True
        return False


def _numbered(events: pa.RecordBatch, first: int, count: int) -> pa.RecordBatch:
    if events.num_rows != count:
        raise ValueError(f"{events.num_rows} events instead of {count}")
    numbers = from_numpy(np.arange(first, first + count, dtype=np.int64), pa.int64())
    return events.set_column(0, EVENT.field("number"), numbers)
