"""Messages of many requests, as far as they wait to be stored: how much memory they take.

Theory: single messages of all requests leave together, as plain rows over the loop's own connection
(``client/asynclink.py``); what is stored whole or not at all, and what is large, leaves as an Arrow
batch by the client's threads, which only say that something is done.

Rules
- Nothing here waits in the loop's thread. What is too much is refused at once (``Overloaded``), so
  that memory is bounded whatever comes.
- Room is given back when a message is answered for, also where nobody awaits the answer any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ..client import Client, Receipts
from ..client.asynclink import AsyncLink, MessageAnswer
from ..client.batch import PLAIN_BYTES_MAX, nbytes_of
from ..client.message import FlatMessage
from ..client.predecessor import NamedId, Predecessor
from ..wheel.errors import Overloaded
from ..wheel.request import RequestKey

_MESSAGE_OVERHEAD = 200
_PLAIN_HEADERS_MAX = 1_000


@dataclass(slots=True)
class _Answer:
    """What became of one message goes to ``taker``, and its room back."""

    room: Room
    nbytes: int
    taker: MessageAnswer

    def done(self) -> bool:
        return False  # its room is to be given back, also where its connection is gone

    def set_result(self, message_id: str, /) -> None:
        self.room.nbytes -= self.nbytes
        if not self.taker.done():
            self.taker.set_result(message_id)

    def set_exception(self, error: Exception, /) -> None:
        self.room.nbytes -= self.nbytes
        if not self.taker.done():
            self.taker.set_exception(error)


@dataclass(slots=True)
class Stored:
    """Receipts of messages that are stored, or have failed."""

    receipts: Receipts

    def ids(self) -> list[str]:
        """Errors: that of the first message that was not stored."""
        found = []
        for outcome in self.receipts.outcomes():
            if not isinstance(outcome, str):
                raise copy(outcome)
            found.append(outcome)
        return found

    def befores(self) -> dict[int, Predecessor]:
        """Of stored messages, by the number of their id: the messages before of their names."""
        return self.receipts.befores()


def due_in(message_id: str) -> int:
    """The due time that is the second field of an id, ms since the epoch."""
    return int(message_id.split(".", 2)[1])


def topics_in(rows: pa.RecordBatch | Sequence[FlatMessage]) -> dict[str, int]:
    """The number of messages for each topic, of those that are about to be stored."""
    if not isinstance(rows, pa.RecordBatch):
        return Counter(flat.topic for flat in rows)
    counts = rows.column("topic").value_counts()
    return dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))


@dataclass(slots=True)
class Room:
    """Room for messages that are not stored yet: ``nbytes`` of ``bytes_max`` are taken. Belongs to
    one event loop."""

    bytes_max: int
    nbytes: int = 0

    def take(self, nbytes: int) -> None:
        """Errors: ``Overloaded``: there is not so much."""
        if self.nbytes + nbytes > self.bytes_max:
            raise Overloaded(
                "more messages wait to be stored than may wait",
                got=f"{self.nbytes + nbytes} bytes",
                limit=f"{self.bytes_max} bytes",
                remedy="Send again in a moment, or slower",
            )
        self.nbytes += nbytes


class MessageStore(Protocol):
    """Where requests store messages: a ``Gatherer``, or one for each wheel of a fleet."""

    room: Room

    @property
    def batches(self) -> int: ...
    @property
    def messages(self) -> int: ...
    def store(self, flat: FlatMessage, body_bytes: int = 0) -> asyncio.Future[str]: ...
    def store_for(self, taker: MessageAnswer, flat: FlatMessage, body_bytes: int = 0) -> None: ...
    def store_whole(
        self,
        rows: pa.RecordBatch | Sequence[FlatMessage],
        request: RequestKey | None = None,
        body_bytes: int = 0,
    ) -> asyncio.Future[Stored]: ...


class Gatherer:
    """Messages for one wheel. Belongs to one event loop."""

    def __init__(self, client: Client, link: AsyncLink, room: Room) -> None:
        self._client = client
        self._link = link
        self.room = room
        self._loop = asyncio.get_running_loop()
        self._batches = self._messages = 0

    @property
    def batches(self) -> int:
        """How many were sent."""
        return self._batches + self._link.batches

    @property
    def messages(self) -> int:
        return self._messages + self._link.messages

    def store(self, flat: FlatMessage, body_bytes: int = 0) -> asyncio.Future[str]:
        """Store one message, together with others; its id. ``body_bytes``: of the request, if it is
        kept in memory until then. Errors: ``Overloaded`` at once; all others are the future's."""
        future: asyncio.Future[str] = self._loop.create_future()
        self.store_for(future, flat, body_bytes)
        return future

    def store_for(self, taker: MessageAnswer, flat: FlatMessage, body_bytes: int = 0) -> None:
        """As ``store``; ``taker`` gets what the future would get, later, and must not raise."""
        size = max(flat.nbytes, body_bytes) + _MESSAGE_OVERHEAD
        self.room.take(size)
        answer = _Answer(self.room, size, taker)
        try:
            if flat.nbytes <= PLAIN_BYTES_MAX and len(flat.headers) <= _PLAIN_HEADERS_MAX:
                self._link.store(flat, answer)
            else:
                self._ship(flat, answer)
        except BaseException:
            self.room.nbytes -= size
            raise

    def _ship(self, flat: FlatMessage, answer: _Answer) -> None:
        def done(receipts: Receipts) -> None:
            self._call(self._shipped, receipts, answer, flat.is_named)

        self._client.ship([flat], whole=False, done=done)
        self._batches += 1
        self._messages += 1

    @staticmethod
    def _shipped(receipts: Receipts, answer: _Answer, named: bool) -> None:
        [outcome] = receipts.outcomes()
        if isinstance(outcome, str):
            answer.set_result(NamedId(outcome, receipts[0].before) if named else outcome)
        else:
            answer.set_exception(copy(outcome))

    def store_whole(
        self,
        rows: pa.RecordBatch | Sequence[FlatMessage],
        request: RequestKey | None = None,
        body_bytes: int = 0,
    ) -> asyncio.Future[Stored]:
        """Store all of the messages, or none; ``request``: once, however often it comes;
        ``body_bytes``: as of ``store``. Errors: as of ``Client.ship``."""
        nbytes = max(nbytes_of(rows), body_bytes) + _MESSAGE_OVERHEAD * len(rows)
        self.room.take(nbytes)
        future: asyncio.Future[Stored] = self._loop.create_future()

        def done(receipts: Receipts) -> None:
            self._call(self._whole_done, receipts, future, nbytes)

        try:
            self._client.ship(rows, whole=True, done=done, request=request)
        except BaseException:
            self.room.nbytes -= nbytes
            raise
        self._batches += 1
        self._messages += len(rows)
        return future

    def _call(self, function: object, *arguments: object) -> None:
        """From a thread of the client; the loop may have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]

    def _whole_done(self, receipts: Receipts, future: asyncio.Future[Stored], nbytes: int) -> None:
        self.room.nbytes -= nbytes
        if not future.done():
            future.set_result(Stored(receipts))
