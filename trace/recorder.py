"""Keeps events until they are sent, so that an application never waits for the topic of its events.

    any thread --note--> waiting --0.5 s--> one thread: columns, an encoded batch, the target

Theory: to note an event is to append its values to a list, which takes a microsecond; another
thread encodes and sends.

Rules
- Memory is bounded: events beyond ``events_max`` waiting ones are dropped, and counted. The count
  is an event of its own.
- Events are numbered as they leave, and dropped ones have numbers, too: 7 and 11 with nothing in
  between say that three are missing. A reader takes events with one number for one event.
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
"""So many waiting records become columns together."""
_BATCH_ROWS = 100_000
"""Most events of a batch; as many waiting ones are sent at once. A node spends some ms on a message
that is due at once, whatever its size."""


class Recorder:
    """Sends events to ``target``. Thread-safe; one for each process. ``client``, ``tags``: as in
    ``EventSender``."""

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
        """Records that are no columns yet, appended without the lock: a thread that has records one
        by one would hold it most of the time."""
        self._records = RecordEvents()
        self._count = 0
        """Events that wait, or are being sent."""
        self._waiting = 0
        """Events that wait."""
        self._next = 0
        """The number of the next event that leaves."""
        self._rows = _BATCH_ROWS
        """Events of the next batch, by the size of the last one."""
        self._unreported = 0
        """Events that were dropped since the last event of kind ``dropped``."""
        self._noted = self._dropped = 0
        self.sent = 0
        """Events that the target has."""
        self._ended = False
        """True once the last events were taken; later ones are dropped."""
        self._sending = BatchSender(target, self._work, every_s=_EVERY_S, name="slotwheel-trace")

    @property
    def noted(self) -> int:
        """Events so far, with those that were dropped."""
        with self._lock:
            self._take_notes()
            return self._noted

    @property
    def dropped(self) -> int:
        """Events that were not sent: for want of room or time, or as they could not be made."""
        with self._lock:
            self._take_notes()
            return self._dropped

    def note(self, events: ShipmentEvents) -> None:
        """Note the events of a shipment. Never waits for the target, and never fails."""
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
        """Note an event of each record that ends now. Never waits for the target, and never
        fails."""
        text = None if error is None else cut(error).decode()
        now_s = time.monotonic()
        self._notes += [
            (
                kind,
                group,
                text,
                now_s,
                record.topic,
                record.partition,
                record.offset,
                record.key,
                record.headers,
                record.received_s,
            )
            for record in records
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
        """True if there is room for ``count`` events; else they are dropped."""
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
        made = [self._numbered(events) for events in self._made(noted)]
        made += self._report()
        for events in joined(made, _BATCH_ROWS):
            self._send(events)
        if last and self.dropped:
            _log.warning("slotwheel trace: %d events were dropped", self.dropped)

    def _made(self, noted: Sequence[ShipmentEvents | RecordEvents]) -> Iterator[EventColumns]:
        for events in noted:
            try:
                if events.size:
                    yield events.make()
            except Exception:  # a defect of ours must not end the tracing of all else
                _log.exception("slotwheel trace: %d events could not be made", events.size)
                self._gone(events.size)

    def _numbered(self, events: EventColumns) -> EventColumns:
        first, self._next = self._next, self._next + events.count
        return EventColumns(events.count, events.columns | {"number": first})

    def _report(self) -> list[EventColumns]:
        """An event that says how many were dropped, if any, behind a gap of as many numbers."""
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
        with self._lock:
            self._count -= count
            if sent:
                self.sent += count
            else:
                self._drop(count)
