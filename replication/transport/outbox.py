"""Queues for one peer: messages that go first, and entries to ship.

Theory: Raft needs no reliable queue. A message that could not be sent soon is worthless, and a
newer one replaces it; so both queues are bounded and drop the oldest. Entries are not held here: a
shipment names indexes, and their bytes are loaded when the link has room for them. That is why a
peer that is slow, or gone, costs no memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...wheel.files import Bytes
from ...wheel.journal.entry import Entry
from ..rules.messages import Append, Heartbeat, PeerMessage
from .encoding import encode, pack_entries

MESSAGES_MAX = 256
STALE_S = 1.0
"""A message that waited longer than this, s, is not sent."""
SHIPMENTS_MAX = 256
SHIPMENT_BYTES = 4 << 20
"""Bytes of entries in one message, unless the first entry is larger."""

LoadEntries = Callable[[int, int, int], Sequence[Entry]]
"""(first, last, bytes_max) to entries, at least one. Errors: ``LookupError``: not in the
journal."""
Parcel = tuple[bytes, Sequence[Bytes]]
"""A message's header, and its entries, in parts."""


class Outbox:
    """Votes, heartbeats, acknowledgements: small, and sent first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[tuple[float, PeerMessage]] = deque(maxlen=MESSAGES_MAX)

    def put(self, message: PeerMessage) -> None:
        with self._lock:
            if isinstance(message, Heartbeat):  # the newest heartbeat replaces older ones
                kept = [item for item in self._waiting if not isinstance(item[1], Heartbeat)]
                if len(kept) != len(self._waiting):
                    self._waiting = deque(kept, maxlen=MESSAGES_MAX)
            self._waiting.append((self._clock(), message))

    def __len__(self) -> int:
        return len(self._waiting)

    def pop(self, now: float) -> Parcel | None:
        with self._lock:
            while self._waiting:
                put_at, message = self._waiting.popleft()
                if now - put_at <= STALE_S:
                    return encode(message), ()
        return None

    def clear(self) -> None:
        """Drop nothing: messages may still be fresh enough when the link is back."""


class Shipments:
    """Ranges of entries for one peer. ``unsent(index)``: called, in the thread that sends or drops,
    when entries from ``index`` on will not arrive and the peer must be asked again for its
    position. ``failed(error)``: the own journal could not be read.

    When a master assumes its pipeline lost and begins again further back, its older requests that
    are still queued are dropped, or a slow link would carry everything twice.
    """

    def __init__(
        self,
        load: LoadEntries,
        unsent: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._load = load
        self._unsent = unsent
        self._failed = failed
        self._lock = threading.Lock()
        self._waiting: deque[Append] = deque()

    def put(self, append: Append) -> None:
        dropped = None
        with self._lock:
            while self._waiting and self._waiting[-1].prev_index >= append.prev_index:
                self._waiting.pop()
            if len(self._waiting) >= SHIPMENTS_MAX:
                dropped = self._waiting.popleft()
            self._waiting.append(append)
        if dropped is not None:
            self._unsent(dropped.prev_index + 1)

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        with self._lock:
            first = self._waiting[0].prev_index + 1 if self._waiting else None
            self._waiting.clear()
        if first is not None:
            self._unsent(first)

    def forget(self) -> None:
        """Drop what is queued without a report: this node is not the master any more."""
        with self._lock:
            self._waiting.clear()

    def pop(self, now: float) -> Parcel | None:  # noqa: ARG002
        with self._lock:
            if not self._waiting:
                return None
            append = self._waiting.popleft()
        if not append.entries:
            return encode(append), ()
        entries = self._loaded(append)
        if not entries:
            return None
        count = len(entries)
        if count < len(append.entries):
            rest = replace(
                append,
                prev_index=append.prev_index + count,
                prev_epoch=append.entries[count - 1].epoch,
                entries=append.entries[count:],
            )
            append = replace(append, entries=append.entries[:count])
            with self._lock:
                self._waiting.appendleft(rest)
        return encode(append), pack_entries(entries)

    def _loaded(self, append: Append) -> Sequence[Entry]:
        """The entries an append begins with; none if they are not those it was made for."""
        first = append.prev_index + 1
        try:
            entries = self._load(first, append.last_index, SHIPMENT_BYTES)
        except LookupError:
            self._unsent(first)
            return ()
        except Exception as error:  # an error of a link never ends the node
            self._failed(error)
            self._unsent(first)
            return ()
        wanted = [meta.epoch for meta in append.entries[: len(entries)]]
        if [entry.epoch for entry in entries] != wanted:
            return ()  # the log was cut and has grown again: the append is of an epoch that is over
        return entries


SendQueue = Outbox | Shipments
"""A queue of messages. ``pop``: the next, None if there is none; ``clear``: the link is lost."""
