"""Many small requests leave as few large batches.

Theory: a request's messages wait for the batches before them and leave together with all that came
meanwhile; so the load itself decides how large a batch is, and nobody waits for a timer. All of
this is the loop's; the client's threads only say that something is done.

    requests ──> waiting ──(if few batches are on their way)──> Client.ship ──> done ──> futures

Rules: nothing here waits in the loop's thread. What is too much is refused at once
(``Overloaded``), so that memory is bounded whatever comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import pyarrow as pa

from ..client import Client, Receipts
from ..client.batch import nbytes_of
from ..client.buffer import ROW_OVERHEAD
from ..client.message import FlatMessage
from ..wheel.errors import Overloaded
from ..wheel.request import RequestKey

IN_FLIGHT_MAX = 2
"""Batches of joined requests on their way; one more would be smaller, and cost another sync."""
_MESSAGE_OVERHEAD = 200


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


class Gatherer:
    """Belongs to one event loop. ``bytes_max``: of all messages that are not stored yet."""

    def __init__(self, client: Client, bytes_max: int, rows_max: int = 5_000) -> None:
        self._client = client
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[FlatMessage, int, asyncio.Future[str]]] = []
        self._in_flight = 0
        self._bytes = 0
        self._scheduled = False
        self.batches = 0
        self.messages = 0

    @property
    def nbytes(self) -> int:
        """Of all messages that are not stored yet."""
        return self._bytes

    def store(self, flat: FlatMessage, body_bytes: int = 0) -> asyncio.Future[str]:
        """Store one message, together with others; its id. ``body_bytes``: of the request, if it is
        kept in memory until then. Errors: ``Overloaded`` at once; all others are the future's."""
        size = max(flat.nbytes, body_bytes) + _MESSAGE_OVERHEAD
        self._make_room(size)
        future: asyncio.Future[str] = self._loop.create_future()
        self._waiting.append((flat, size, future))
        self._go_on()
        return future

    def store_whole(
        self,
        rows: pa.RecordBatch | Sequence[FlatMessage],
        request: RequestKey | None = None,
        body_bytes: int = 0,
    ) -> asyncio.Future[Stored]:
        """Store all of the messages, or none; ``request``: once, however often it comes;
        ``body_bytes``: as of ``store``. Errors: as of ``Client.ship``."""
        nbytes = max(nbytes_of(rows), body_bytes) + _MESSAGE_OVERHEAD * len(rows)
        self._make_room(nbytes)
        future: asyncio.Future[Stored] = self._loop.create_future()

        def done(receipts: Receipts) -> None:
            self._call(self._whole_done, receipts, future, nbytes)

        try:
            self._client.ship(rows, whole=True, done=done, request=request)
        except BaseException:
            self._bytes -= nbytes
            raise
        self.batches += 1
        self.messages += len(rows)
        return future

    def _make_room(self, nbytes: int) -> None:
        if self._bytes + nbytes > self._bytes_max:
            raise Overloaded(
                "more messages wait to be stored than may wait",
                got=f"{self._bytes + nbytes} bytes",
                limit=f"{self._bytes_max} bytes",
                remedy="Send again in a moment, or slower",
            )
        self._bytes += nbytes

    def _ship(self) -> None:
        self._scheduled = False
        part = self._next_part()
        if not part:
            return
        flats = [flat for flat, _, _ in part]
        futures = [future for _, _, future in part]
        nbytes = sum([size for _, size, _ in part])

        def done(receipts: Receipts) -> None:
            self._call(self._joined_done, receipts, futures, nbytes)

        self._in_flight += 1
        self.batches += 1
        self.messages += len(flats)
        try:
            self._client.ship(flats, whole=False, done=done)
        except Exception as error:
            self._in_flight -= 1
            self._bytes -= nbytes
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._go_on()

    def _next_part(self) -> list[tuple[FlatMessage, int, asyncio.Future[str]]]:
        """What waits, as far as it fits into one batch."""
        rows_max, bytes_max = self._client.batch_limits
        count = nbytes = 0
        for flat, _, _ in self._waiting:
            nbytes += flat.nbytes + ROW_OVERHEAD
            if count and (count >= min(rows_max, self._rows_max) or nbytes > bytes_max):
                break
            count += 1
        part, self._waiting = self._waiting[:count], self._waiting[count:]
        return part

    def _go_on(self) -> None:
        """Ship what waits, behind all that can be read from sockets just now."""
        if self._waiting and not self._scheduled and self._in_flight < IN_FLIGHT_MAX:
            self._scheduled = True
            self._loop.call_soon(self._ship)

    def _call(self, function: object, *arguments: object) -> None:
        """From a thread of the client; the loop may have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]

    def _joined_done(
        self, receipts: Receipts, futures: list[asyncio.Future[str]], nbytes: int
    ) -> None:
        self._in_flight -= 1
        self._bytes -= nbytes
        self._go_on()
        for future, outcome in zip(futures, receipts.outcomes(), strict=True):
            if future.done():  # its connection is gone
                continue
            if isinstance(outcome, str):
                future.set_result(outcome)
            else:
                future.set_exception(copy(outcome))

    def _whole_done(self, receipts: Receipts, future: asyncio.Future[Stored], nbytes: int) -> None:
        self._bytes -= nbytes
        if not future.done():
            future.set_result(Stored(receipts))
