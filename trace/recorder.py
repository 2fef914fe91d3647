"""Keeps events until they are sent, off the way of whoever has them.

    any thread --note--> waiting --0.5 s--> one thread: columns, an encoded batch, the target

Theory: to note an event is to append what it is made of to a list; encoding and sending are
another thread's. So a sender or a consumer pays a microsecond, whatever becomes of its events.

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
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ..client.message import clock_ms
from ..policy.headers import cut
from .batches import (
    BATCH_BYTES_MAX,
    DECODED_BYTES_MAX,
    EventColumns,
    decoded_bytes,
    encode,
    joined,
)
from .events import EventKind, EventSender
from .making import Record, RecordEvents, RecordRow, ShipmentEvents, make_dropped
from .sending import BatchSender, TraceTarget

_log = logging.getLogger("slotwheel.trace")

EVENTS_MAX = 300_000
_EVERY_S = 0.5
_NOTES = 256
"""So many records become columns together, or more of them that are noted at once."""
_BATCH_ROWS = 100_000
"""So many events leave at once, and at most together. A node spends some ms on a message that is
due at once, whatever it holds."""


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
        self._shipments: list[ShipmentEvents] = []
        self._notes: deque[RecordRow] = deque()
        """Records, which become columns some at a time. It has no lock: whoever has records
        one by one would hold it most of the time, and keep all others from it."""
        self._records = RecordEvents()
        self._count = 0
        """Events that wait, or are being sent."""
        self._waiting = 0
        """Of them those that wait."""
        self._next = 0
        """The number of the next event that leaves."""
        self._rows = _BATCH_ROWS
        """So many events are a batch that is small enough, as the last one was."""
        self._unreported = 0
        """Events that were dropped since the last event that said so."""
        self._noted = self._dropped = 0
        self.sent = 0
        """Events that the target has."""
        self._ended = False
        """Whether the last events were taken; what comes behind them is dropped."""
        self._sending = BatchSender(target, self._work, every_s=_EVERY_S, name="slotwheel-trace")

    @property
    def noted(self) -> int:
        """Events so far, with those that were dropped."""
        with self._lock:
            self._take_notes()
            return self._noted

    @property
    def dropped(self) -> int:
        """Events that are missing for want of room, or as they could not be made."""
        with self._lock:
            self._take_notes()
            return self._dropped

    def note(self, events: ShipmentEvents) -> None:
        """Never waits, and never fails."""
        with self._lock:
            if self._admits(events.size):
                self._shipments.append(events)

    def note_records(
        self,
        kind: EventKind,
        group: str | None,
        records: Sequence[Record],
        error: str | None = None,
    ) -> None:
        """Note what ended just now with each of these records. Never waits, and never fails."""
        text = None if error is None else cut(error).decode()
        now_s = time.monotonic()
        self._notes += [
            (
                kind,
                group,
                text,
                now_s,
                one.topic,
                one.partition,
                one.offset,
                one.key,
                one.headers,
                one.received_s,
            )
            for one in records
        ]
        if (len(self._notes) >= _NOTES or self._ended) and self._lock.acquire(blocking=False):
            try:
                self._take_notes()
            finally:
                self._lock.release()

    def _take_notes(self) -> None:
        # Only who has the lock takes one away.
        rows = [self._notes.popleft() for _ in range(len(self._notes))]
        room = 0 if self._ended else max(0, self._events_max - self._count)
        for part in (rows[:room], rows[room:]):
            if part and self._admits(len(part)):
                self._add(part)

    def _add(self, rows: Sequence[RecordRow]) -> None:
        try:
            self._records.add(rows)
        except Exception:  # a defect of ours must not end the tracing of all else
            bad = sum(not self._added(row) for row in rows)
            _log.exception("slotwheel trace: %d events could not be made", bad)
            self._count -= bad
            self._drop(bad)

    def _added(self, row: RecordRow) -> bool:
        try:
            self._records.add([row])
        except Exception:
            return False
        return True

    def _admits(self, count: int) -> bool:
        """Whether there is room for so many events; else they are dropped."""
        self._noted += count
        if self._count + count > self._events_max or self._ended:
            self._drop(count)
            return False
        self._count += count
        self._waiting += count
        if self._waiting >= min(_BATCH_ROWS, max(1, self._events_max // 2)):
            self._sending.wake()
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits, for so long at most, s; what is left then is dropped. May be called
        again."""
        self._sending.close(timeout_s)

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._unreported += count

    # The thread

    def _work(self, last: bool) -> None:
        with self._lock:
            self._take_notes()
            if last:
                self._ended = True
                self._take_notes()  # from now on whoever notes something sees that it has ended
            noted: list[ShipmentEvents | RecordEvents] = [*self._shipments, self._records]
            self._shipments, self._records = [], RecordEvents()
            self._waiting = 0
        made = [self._numbered(one) for one in self._made(noted)]
        made += self._report()
        for events in joined(made, _BATCH_ROWS):
            self._send(events)
        if last and self.dropped:
            _log.warning("slotwheel trace: %d events were dropped", self.dropped)

    def _made(self, noted: Sequence[ShipmentEvents | RecordEvents]) -> Iterator[EventColumns]:
        for one in noted:
            try:
                if one.size:
                    yield one.make()
            except Exception:  # a defect of ours must not end the tracing of all else
                _log.exception("slotwheel trace: %d events could not be made", one.size)
                self._gone(one.size)

    def _numbered(self, events: EventColumns) -> EventColumns:
        first, self._next = self._next, self._next + events.count
        return EventColumns(events.count, events.columns | {"number": first})

    def _report(self) -> list[EventColumns]:
        """The event that says how many were dropped, behind a gap of as many numbers."""
        with self._lock:
            count, self._unreported = self._unreported, 0
            if not count:
                return []
            self._count += 1
        self._next += count
        return [self._numbered(make_dropped(clock_ms(), count))]

    def _send(self, events: EventColumns) -> None:
        start = 0
        while start < events.count:
            part = events.slice(start, self._rows)
            if part.count > 1 and decoded_bytes(part) > DECODED_BYTES_MAX // 2:
                self._rows = part.count // 2
                continue
            value = encode(self._sender, part)
            fits = len(value) <= BATCH_BYTES_MAX
            if not fits and part.count > 1:
                self._rows = part.count // 2
                continue
            start += part.count
            # One event that is too large has a key or an error that is.
            self._gone(part.count, sent=fits and self._sending.stored(value))
            if len(value) < BATCH_BYTES_MAX // 2:
                self._rows = min(2 * self._rows, _BATCH_ROWS)

    def _gone(self, count: int, *, sent: bool = False) -> None:
        """So many events do not wait any more."""
        with self._lock:
            self._count -= count
            if sent:
                self.sent += count
            else:
                self._drop(count)
