"""Many small requests leave as few large batches.

Theory: a request's messages wait for the batches before them and leave together with all that came
meanwhile; so the load itself decides how large a batch is, and nobody waits for a timer. All of
this is the loop's; the client's threads only say that something is done.

    requests ──> waiting ──(if few batches are on their way)──> Client.ship ──> done ──> futures

Rules
- Nothing here waits in the loop's thread. What is too much is refused at once (``Overloaded``), so
  that memory is bounded whatever comes.
- A message has its answer within the time that a message is tried, however many wait before it: a
  batch is tried until the first message in it has waited so long.
- A batch that is refused as a whole, as too large, say, is sent again in halves, until only the
  message fails that is at fault.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import pyarrow as pa

from ..client import Client, Receipts
from ..client.batch import nbytes_of
from ..client.buffer import ROW_OVERHEAD
from ..client.message import FlatMessage
from ..client.sender import no_answer
from ..wheel.errors import InvalidBatch, InvalidMessage, Overloaded
from ..wheel.request import RequestKey

IN_FLIGHT_MAX = 2
"""Batches of joined requests on their way; one more would be smaller, and cost another sync."""
_MESSAGE_OVERHEAD = 200
_JOIN_WITHIN = 0.1
"""Messages are joined if they came within this part of the time for which they are tried."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message on its way. ``nbytes``: with what is kept beside it. ``deadline``: of the loop's
    clock, s."""

    flat: FlatMessage
    nbytes: int
    deadline: float
    future: asyncio.Future[str]

    def fail(self, error: Exception) -> None:
        if not self.future.done():  # its connection may be gone
            self.future.set_exception(copy(error))


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
    """Belongs to one event loop. ``bytes_max``: of all messages that are not stored yet.
    ``answer_s``: how long a message is tried."""

    def __init__(
        self, client: Client, bytes_max: int, answer_s: float, rows_max: int = 5_000
    ) -> None:
        self._client = client
        self._bytes_max = bytes_max
        self._answer_s = answer_s
        self._rows_max = rows_max
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._halves: deque[list[_Waiting]] = deque()
        """Of refused batches; they leave before what waits."""
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
        deadline = self._loop.time() + self._answer_s
        self._waiting.append(_Waiting(flat, size, deadline, future))
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
        part = self._halves.popleft() if self._halves else self._next_part()
        if not part:
            return

        def done(receipts: Receipts) -> None:
            self._call(self._joined_done, receipts, part)

        self._in_flight += 1
        self.batches += 1
        self.messages += len(part)
        left_s = max(0.0, part[0].deadline - self._loop.time())
        try:
            flats = [one.flat for one in part]
            self._client.ship(flats, whole=False, done=done, timeout_s=left_s)
        except Exception as error:
            self._in_flight -= 1
            self._refused(part, error)
        self._go_on()

    def _next_part(self) -> list[_Waiting]:
        """What waits, as far as it fits into one batch."""
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline <= now:
            self._fail([self._waiting.popleft()], no_answer(self._answer_s))
        rows_max, bytes_max = self._client.batch_limits
        rows_max = min(rows_max, self._rows_max)
        part: list[_Waiting] = []
        nbytes = 0
        while self._waiting and len(part) < rows_max:
            one = self._waiting[0]
            nbytes += one.flat.nbytes + ROW_OVERHEAD
            within_s = one.deadline - part[0].deadline if part else 0.0
            if part and (nbytes > bytes_max or within_s > _JOIN_WITHIN * self._answer_s):
                break
            part.append(self._waiting.popleft())
        return part

    def _go_on(self) -> None:
        """Ship what waits, behind all that can be read from sockets just now."""
        work = self._waiting or self._halves
        if work and not self._scheduled and self._in_flight < IN_FLIGHT_MAX:
            self._scheduled = True
            self._loop.call_soon(self._ship)

    def _call(self, function: object, *arguments: object) -> None:
        """From a thread of the client; the loop may have ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]

    def _joined_done(self, receipts: Receipts, part: list[_Waiting]) -> None:
        self._in_flight -= 1
        if receipts.failure is not None:
            self._refused(part, receipts.failure)
            self._go_on()
            return
        self._bytes -= sum([one.nbytes for one in part])
        self._go_on()
        for one, outcome in zip(part, receipts.outcomes(), strict=True):
            if not isinstance(outcome, str):
                one.fail(outcome)
            elif not one.future.done():  # its connection may be gone
                one.future.set_result(outcome)

    def _refused(self, part: list[_Waiting], error: Exception) -> None:
        """None of them was stored, or that is not known."""
        sure = isinstance(error, InvalidMessage | InvalidBatch) and not error.uncertain
        if len(part) > 1 and sure:
            middle = len(part) // 2
            self._halves.extendleft((part[middle:], part[:middle]))
        else:
            self._fail(part, error)

    def _fail(self, part: Sequence[_Waiting], error: Exception) -> None:
        self._bytes -= sum([one.nbytes for one in part])
        for one in part:
            one.fail(error)

    def _whole_done(self, receipts: Receipts, future: asyncio.Future[Stored], nbytes: int) -> None:
        self._bytes -= nbytes
        if not future.done():
            future.set_result(Stored(receipts))
