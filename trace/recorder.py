"""Keeps events until they are sent, off the way of whoever has them.

    any thread --note--> waiting --0.1 s--> one thread: columns, an encoded batch, the target

Theory: to note events is to put what they are made of into a list; making columns of it, encoding
and sending are another thread's. So a sender or a consumer pays a microsecond, whatever becomes of
its events; and single ones become columns together.

Rules
- Memory is bounded: what comes while ``events_max`` events wait is dropped, and counted. The count
  is an event of its own, as soon as there is room.
- Events are numbered as they leave, and what was dropped has numbers, too: what is missing can be
  seen from the others.
- Whoever reads takes events with the same sender and number for one.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from ..client.message import clock_ms
from ..policy.headers import ERROR_CHARACTERS
from ..wheel.rows import from_numpy
from .events import BATCH_BYTES_MAX, EVENT, EventKind, EventSender, encode
from .making import RecordEvents, ShipmentEvents, TracedRecord, make_dropped, make_records
from .sending import BatchSender, TraceTarget

_log = logging.getLogger("slotwheel.trace")

EVENTS_MAX = 100_000
_EVERY_S = 0.1
_BATCH_ROWS = 8_192

Noted = ShipmentEvents | RecordEvents


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
        self._events_max = events_max
        self._lock = threading.Lock()
        self._waiting: list[Noted] = []
        self._count = 0
        """Events that wait, or are being sent."""
        self._next = 0
        """The number of the next event that leaves."""
        self._unreported = 0
        """Events that were dropped since the last event that said so."""
        self.noted = 0
        """Events so far, with those that were dropped."""
        self.dropped = 0
        """Events that are missing for want of room, or as they could not be made."""
        self.sent = 0
        """Events that the target has."""
        self._ended = False
        """Whether the last events were taken; what comes behind them is dropped."""
        self._sending = BatchSender(target, self._work, every_s=_EVERY_S, name="slotwheel-trace")

    def note(self, events: Noted) -> None:
        """Never waits, and never fails."""
        with self._lock:
            self.noted += events.count
            if self._count + events.count > self._events_max or self._ended:
                self._drop(events.count)
            else:
                self._count += events.count
                self._waiting.append(events)

    def note_records(
        self,
        kind: EventKind,
        group: str | None,
        records: Sequence[TracedRecord],
        took_us: Sequence[int] | None = None,
        error: str | None = None,
    ) -> None:
        """Note what ended just now with each of these records. ``took_us``: of each."""
        if records:
            text = None if error is None else error[:ERROR_CHARACTERS]
            self.note(RecordEvents(kind, clock_ms(), group, records, took_us, text))

    def look(self, *, last: bool) -> None:
        """Called about ten times a second by the recorder's thread, which may note more; and the
        ``last`` time when it is closed."""

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits, for so long at most, s; what is left then is dropped. May be called
        again."""
        self._sending.close(timeout_s)

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._unreported += count

    # The thread

    def _work(self, last: bool) -> None:
        self.look(last=last)
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._ended = last
        made = [self._numbered(one) for one in self._made(waiting)]
        made += self._report()
        if made:
            self._send(pa.concat_batches(made))
        if last and self.dropped:
            _log.warning("slotwheel trace: %d events were dropped", self.dropped)

    def _made(self, waiting: Sequence[Noted]) -> Iterator[pa.RecordBatch]:
        """All of them as events, in their order; those of single records together."""
        for kind, noted in groupby(waiting, type):
            if kind is RecordEvents:
                yield from self._tried(list(noted))
            else:
                for one in noted:
                    yield from self._tried([one])

    def _tried(self, noted: Sequence[Noted]) -> Iterator[pa.RecordBatch]:
        try:
            made = _events_of(noted)
        except Exception:  # a defect of ours must not end the tracing of all else
            if len(noted) > 1:
                for one in noted:
                    yield from self._tried([one])
            else:
                _log.exception("slotwheel trace: %d events could not be made", noted[0].count)
                self._gone(noted[0].count)
        else:
            yield made

    def _numbered(self, events: pa.RecordBatch) -> pa.RecordBatch:
        first, self._next = self._next, self._next + events.num_rows
        numbers = from_numpy(np.arange(first, self._next, dtype=np.int64), pa.int64())
        return events.set_column(0, EVENT.field("number"), numbers)

    def _report(self) -> list[pa.RecordBatch]:
        """The event that says how many were dropped, behind a gap of as many numbers."""
        with self._lock:
            count, self._unreported = self._unreported, 0
            if not count:
                return []
            self._count += 1
        self._next += count
        return [self._numbered(make_dropped(clock_ms(), count))]

    def _send(self, events: pa.RecordBatch) -> None:
        for start in range(0, events.num_rows, _BATCH_ROWS):
            self._send_part(events.slice(start, _BATCH_ROWS))

    def _send_part(self, events: pa.RecordBatch) -> None:
        value = encode(self._sender, events)
        rows = events.num_rows
        if len(value) <= BATCH_BYTES_MAX:
            self._gone(rows, sent=self._sending.stored(value))
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


def since_us(began_s: float) -> int:
    """Microseconds since ``began_s``, of the monotonic clock."""
    return int((time.monotonic() - began_s) * 1_000_000)


def _events_of(noted: Sequence[Noted]) -> pa.RecordBatch:
    if isinstance(noted[0], ShipmentEvents):
        return noted[0].make()
    return make_records([one for one in noted if isinstance(one, RecordEvents)])
