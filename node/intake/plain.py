"""Plain rows of many callers: requests that came in one turn are appended together.

Theory: a program that sends one message and waits for it costs the node a read, an entry, a sync
and an answer. Here the requests of all such programs that came in one turn of the server become one
entry (``wheel/plain.py``): requests that come during a sync are read after it, so entries grow with
the load, and a message costs less.

    take --+                                  +--> answer
    take --+--> append: one entry, one sync --+--> answer
    take --+                                  +--> answer

Rules
- A caller's bad rows refuse that request of that caller, and nothing else in the turn.
- A request for which the wheel has no room is tried again until its time is over, and then refused;
  its connection stays. One with a name whose message is just leaving is refused at once: its sender
  tries it again, and sends meanwhile what was joined with it.
- An answer has its request's number, and may come before that of an earlier request: a request that
  was stored before is answered at once, and need not wait for the commit of those before it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import numpy as np

from ...security.pending import PendingOffer
from ...wheel.arrowbytes import PlainRow
from ...wheel.errors import InvalidBatch, NotRunning, Overloaded, SlotwheelError
from ...wheel.plain import PlainAnswer, PlainBatch, decode_records
from ...wheel.protocol import (
    STORED_ONE,
    AppendCommand,
    decode_request,
    encode_refused,
    encode_stored,
)
from ...wheel.request import RequestKey
from ...wire.frames import Frame, Kind, encode_answer
from .amounts import amounts_of_plain
from .callers import ConnectedCaller
from .door import Door
from .exchange import failed_on, prior_rows
from .ports import Clock, IntakeEvents, WheelPort

_ONE = struct.Struct("<BBHI" + STORED_ONE.format.removeprefix("<"))
"""A whole frame: the answer to a request of one row (``frames.py``, ``protocol.py``)."""
assert _ONE.size == 8 + STORED_ONE.size

_ROW_BYTES = 300
"""An estimate of a row's memory besides its bytes."""
BYTES_MAX = 64 << 10
"""The most bytes of a request, unless a single message may be larger. A message of up to twice its
limit is still read, so that its refusal can name the limit."""

OnPlainAnswer = Callable[["Request", bytes | None], None]
"""Takes a request and its answer, a whole frame; None: no answer is sent."""


class Request:
    """A request under way. ``number`` is its number in its connection. ``batch`` has its rows, and
    this request as ``caller``; without rows ``error`` has the reason. ``nbytes`` estimates its
    memory. ``caller`` has sent it; ``charged``: its rows count against that one's quota; ``offer``
    counts them as pending until somebody else does.
    ``silent``: its sender wants no receipt. ``waits``: it is not answered yet."""

    __slots__ = (
        "_answer",
        "batch",
        "began_s",
        "caller",
        "charged",
        "error",
        "key",
        "nbytes",
        "number",
        "offer",
        "silent",
        "waits",
    )

    def __init__(
        self,
        frame: Frame,
        command: AppendCommand,
        caller: ConnectedCaller,
        answer: OnPlainAnswer,
        *,
        early: bool,
        bytes_max: int,
    ) -> None:
        """Errors: ``InvalidBatch``: without a number it cannot be answered."""
        self.number, self.key, count = decode_request(frame.metadata)
        self._answer = answer
        self.caller = caller
        self.charged = False
        self.offer: PendingOffer | None = None
        self.silent = command.acks == "0"
        self.began_s = time.perf_counter()
        self.waits = True
        key = self.key
        producer, sequence = command.producer, self.number if command.producer else -1
        if key is not None:
            producer, sequence = key.within(caller.rights.scope).producer, key.sequence
        body = bytes(frame.body)
        try:
            if frame.thrown_away:
                raise InvalidBatch(
                    "plain rows of too many bytes",
                    got=f"{frame.thrown_away} bytes",
                    limit=f"{bytes_max} bytes",
                    remedy="Send fewer at a time, or an Arrow batch",
                )
            rows: Sequence[PlainRow] = decode_records(body, count)
            self.error: SlotwheelError | None = None
        except InvalidBatch as error:
            rows, self.error = (), copy(error)
        self.batch = PlainBatch(rows, len(body), producer, sequence, early, self)
        self.nbytes = len(body) + len(rows) * _ROW_BYTES

    def give(self, answer: bytes | None) -> None:
        """Answer the request, unless it was answered."""
        if self.waits:
            self.waits = False
            self._answer(self, answer)


class PlainIntake:
    """Collects and appends plain rows, in the server's thread. Once ``closing`` is set, it accepts
    no more. ``wake`` is called, from any thread, when a request can be answered. ``has_peers``,
    ``door``: as of ``AppendExchange``."""

    def __init__(
        self,
        wheel: WheelPort,
        clock: Clock,
        events: IntakeEvents,
        *,
        closing: threading.Event,
        room_timeout_s: float,
        wake: Callable[[], None],
        has_peers: bool,
        door: Door | None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._events = events
        self._closing = closing
        self._room_timeout_s = room_timeout_s
        self._wake = wake
        self._has_peers = has_peers
        self._door = door
        self.bytes_max = max(BYTES_MAX, 2 * wheel.config.message_bytes_max)
        """The most bytes of a request."""
        self._taken: list[Request] = []  # to be appended in this turn
        self._waiting: list[Request] = []  # for room
        self._done: deque[tuple[Sequence[PlainBatch], PlainAnswer]] = deque()

    @property
    def pending(self) -> bool:
        """True when requests can be appended or answered at once."""
        return bool(self._taken or self._done)

    @property
    def waits(self) -> bool:
        """True when requests wait for room."""
        return bool(self._waiting)

    def take(
        self, frame: Frame, command: AppendCommand, caller: ConnectedCaller, answer: OnPlainAnswer
    ) -> Request:
        """Take a request. Errors: ``InvalidBatch``: without a number it cannot be answered."""
        early = self._has_peers and command.acks == "1"
        request = Request(frame, command, caller, answer, early=early, bytes_max=self.bytes_max)
        self._taken.append(request)
        return request

    def retry(self) -> None:
        """Append requests that wait for room in the next turn."""
        self._taken = self._waiting + self._taken
        self._waiting = []

    def append(self, *, wake: bool) -> bool:
        """Append the requests of this turn. Returns False if there was none to append. ``wake``: as
        of ``WheelPort.append_all``."""
        taken, self._taken = self._taken, []
        offered = []
        for request in taken:
            try:
                self._check(request)
            except SlotwheelError as error:
                self._became([request.batch], copy(error))
            else:
                offered.append(request.batch)
        if not offered:
            return False
        try:
            self._wheel.append_plain(offered, self._clock(), self._became, wake=wake)
        except Exception as error:  # a bug, or the disk's error: nobody may wait for ever
            self._events.alarm("append-failed", error=repr(error))
            unknown = failed_on("request; whether it is stored", error)
            self._became([batch for batch in offered if _request(batch).waits], unknown)
        return True

    def _check(self, request: Request) -> None:
        """Errors: ``SlotwheelError``."""
        if self._closing.is_set():
            raise NotRunning("the node is shutting down", remedy="Try again in a moment")
        if request.error is not None:
            raise request.error
        request.caller.check_plain(request.batch)
        if not request.charged:
            rows = request.batch.rows
            amounts = partial(amounts_of_plain, rows)
            request.offer = request.caller.charge(len(rows), request.batch.nbytes, amounts)
            request.charged = True
        if self._door is not None and self._wheel.serving:
            self._door.check_plain(
                request.batch, self._wheel, time.perf_counter() - request.began_s
            )

    def _became(self, batches: Sequence[PlainBatch], answer: PlainAnswer) -> None:
        """Take the outcome of batches, from any thread."""
        self._done.append((batches, answer))
        self._wake()

    def answer(self) -> None:
        """Answer the requests whose outcome is known."""
        while self._done:
            batches, answer = self._done.popleft()
            if isinstance(answer, SlotwheelError):
                for batch in batches:
                    self._refuse(_request(batch), answer)
                continue
            base, created_ms = answer.base_offset, answer.created_ms
            checks = self._wheel.mint.checks_from(answer.due, base)
            prior_of_all = prior_rows(self._wheel.mint, answer.named)
            at = nbytes = 0
            for batch in batches:
                request = _request(batch)
                if request.offer is not None:
                    request.offer.settle(base + len(answer.due))
                count = len(batch.rows)
                nbytes += batch.nbytes
                prior = {
                    row - at: before
                    for row, before in prior_of_all.items()
                    if at <= row < at + count
                }
                if request.silent:
                    request.give(None)
                elif count == 1 and request.key is None and not prior:
                    head = Kind.ANSWER, 0, 0, STORED_ONE.size
                    request.give(
                        _ONE.pack(*head, 0, 1, request.number, base + at, created_ms, checks[at])
                    )
                else:
                    shift_ms = (
                        None if request.key is None else _shift_ms(request.key, answer.sequence)
                    )
                    ids = np.array(checks[at : at + count], np.uint64)
                    stored = encode_stored(
                        request.number, base + at, created_ms, ids, shift_ms, prior
                    )
                    request.give(encode_answer(stored))
                at += count
            seconds = time.perf_counter() - _request(batches[0]).began_s
            self._events.appended(at, nbytes, seconds)

    def _refuse(self, request: Request, error: SlotwheelError) -> None:
        waited_s = time.perf_counter() - request.began_s
        patient = waited_s < self._room_timeout_s and not self._closing.is_set()
        if patient and isinstance(error, Overloaded) and error.row is None:
            self._waiting.append(request)
            return
        if request.offer is not None:
            request.offer.settle(-1)
        self._events.refused(error.code, len(request.batch.rows))
        request.give(encode_answer(encode_refused(request.number, error)))


def _request(batch: PlainBatch) -> Request:
    assert isinstance(batch.caller, Request)
    return batch.caller


def _shift_ms(key: RequestKey, first: int) -> int:
    """The shift of a keyed request's due times, ms; ``first``: the sequence under which it was
    stored before, -1: it was not."""
    return 0 if first < 0 else key.shift_ms(first)
