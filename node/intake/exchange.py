"""The rules of an append exchange: which batches are appended, and in which order answers leave.

Theory: a client sends batches, and gets an answer to each, in their order. An exchange appends a
batch to the wheel, which checks, copies and queues it for the next group commit, and keeps the
future in line with those before it. It moves no bytes, and waits for nothing: ``wire.py``, which
does, asks if the next batch may be read, and for the next answer.

    read -> append -> (line: sequence, future) -> answer

Rules
- At most ``IN_FLIGHT_MAX`` batches are read and not answered; besides, ``REQUESTS_IN_FLIGHT_MAX``
  requests, while together they are smaller than a full batch. The next one is not even read, so
  flow control of the transport stops the sender and memory stays bounded.
- A request is appended under its own producer, and may come again on any exchange.
- A batch that cannot be accepted is answered with an error, and the exchange goes on. Only an error
  that leaves nothing to answer to (no sequence, broken framing, a wrong schema) ends it.
- A kept error is a copy: the frames of the original refer to the refused batch, which would stay in
  memory with it.
- On a deposed master an exchange ends: batches that wait are answered ``NotMaster``, and a quiet
  client gets an answer to no batch (``NO_BATCH``), so that it connects to the new master by itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...security.pending import PendingOffer
from ...wheel.answers import NamedAnswer
from ...wheel.checks import InputBatch
from ...wheel.errors import InvalidBatch, NotMaster, NotRunning, Overloaded, SlotwheelError
from ...wheel.ids import IdMint
from ...wheel.protocol import (
    IN_FLIGHT_MAX,
    NO_BATCH,
    REQUESTS_IN_FLIGHT_MAX,
    AppendCommand,
    PriorRow,
    decode_sequence,
    encode_refused,
    encode_stored,
)
from ...wheel.request import RequestKey
from .amounts import amounts_of, settle
from .callers import ConnectedCaller, local_caller
from .door import Door
from .ports import Clock, IntakeEvents, WheelPort

AppendOutcome = Future[Any] | SlotwheelError


@dataclass(slots=True)
class _InLine:
    """A batch that was read. ``outcome`` None: it is not appended yet."""

    sequence: int
    request: RequestKey | None
    batch: pa.RecordBatch | None
    rows: int
    nbytes: int
    received_s: float
    outcome: AppendOutcome | None = None
    charged: bool = False
    """True once its rows count against the caller's quota: it may be offered again and again."""
    offer: PendingOffer | None = None
    """Counts its rows as pending until somebody else does; None: nobody has to."""


class AppendExchange:
    """An exchange. Once ``closing`` is set, no further batch is accepted; once ``ending`` is set,
    batches are answered without waiting for their commit. ``resolved`` is called, from any thread,
    when an answer may be ready. ``caller``: whose rows they are; None: of one who may everything.
    ``door`` refuses topics that do not exist; None: all are taken. One thread may read while
    another one answers.
    """

    def __init__(
        self,
        wheel: WheelPort,
        clock: Clock,
        events: IntakeEvents,
        command: AppendCommand,
        *,
        closing: threading.Event,
        ending: threading.Event,
        room_timeout_s: float,
        resolved: Callable[[], object],
        caller: ConnectedCaller | None = None,
        has_peers: bool = False,
        door: Door | None = None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._events = events
        self._command = command
        # Without peers, an append is committed when it is durable here.
        self._early = has_peers and command.acks == "1"
        self._closing = closing
        self._ending = ending
        self._room_timeout_s = room_timeout_s
        self._resolved = resolved
        self._caller = caller or local_caller()
        self._door = door
        self._line: deque[_InLine | NotMaster] = deque()  # in the order of the answers
        self._waiting: _InLine | None = None  # read last; not appended yet
        self._counting = threading.Lock()
        self._batches = self._requests = self._requests_bytes = 0
        self._read = 0  # batches read
        self._answered = 0
        self._stored_s = time.monotonic()  # the last time at which a message was stored, or begin

    @property
    def idle(self) -> bool:
        """True when every batch that was read is answered."""
        return self._read == self._answered

    @property
    def quiet_s(self) -> float:
        """The seconds since a message was stored; -1 while one is on its way. Empty batches,
        refused ones, and answers that the client does not read do not count: a client could keep
        its place with them for ever."""
        waiting = self._waiting
        if (waiting is not None and waiting.rows) or any(map(_is_on_its_way, tuple(self._line))):
            return -1.0
        return time.monotonic() - self._stored_s

    @property
    def has_room(self) -> bool:
        """True when the next batch may be read."""
        return (
            self._waiting is None
            and self._batches < IN_FLIGHT_MAX
            and self._requests < REQUESTS_IN_FLIGHT_MAX
            and self._requests_bytes < self._wheel.config.batch_bytes_max
        )

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the batch that waits."""
        waiting = self._waiting
        return 0 if waiting is None or waiting.batch is None else waiting.nbytes

    # Reading

    def read(
        self, batch: pa.RecordBatch | None, metadata: bytes | None, thrown_away: int = 0
    ) -> None:
        """Take a batch that arrived, until ``append_waiting``. ``metadata`` has its sequence.
        ``thrown_away``: the bytes of a batch that was too large to be read.

        Errors: ``InvalidBatch``: without a sequence it cannot be answered.
        """
        received_s = time.perf_counter()
        sequence, request = decode_sequence(metadata)
        rows = 0 if batch is None else batch.num_rows
        nbytes = thrown_away if batch is None else batch.get_total_buffer_size()
        item = _InLine(sequence, request, batch, rows, nbytes, received_s)
        self._read += 1
        self._count(1, item)
        self._waiting = item

    @property
    def waits(self) -> bool:
        """True while the last batch is not appended, as it was just read, or there is no room."""
        return self._waiting is not None

    @property
    def room_left_s(self) -> float:
        """The seconds for which the batch that waits will still be tried; negative: it is over."""
        item = self._waiting
        return 0.0 if item is None else item.received_s + self._room_timeout_s - time.perf_counter()

    def append(self) -> None:
        """Append the batch that waits, if there is room. Errors: as of ``appended``."""
        [outcome] = append_waiting([self])
        self.appended(outcome)

    def offer(self) -> InputBatch:
        """The batch that waits, checked. Errors: ``SlotwheelError`` when it is refused."""
        item = self._waiting
        assert item is not None
        if self._closing.is_set():
            raise NotRunning("the node is shutting down", remedy="Try again in a moment")
        check_size(item.nbytes, self._wheel.config.batch_bytes_max)
        if item.batch is None:
            raise InvalidBatch("metadata without a batch", remedy="Send both in one frame")
        topics = self._caller.check_rows(item.batch)
        if not item.charged:
            amounts = partial(amounts_of, item.batch, topics)
            item.offer = self._caller.charge(item.rows, item.nbytes, amounts)
            item.charged = True
        if item.request is not None:
            request = item.request.within(self._caller.rights.scope)
            producer, sequence = request.producer, request.sequence
        else:
            producer = self._command.producer
            sequence = item.sequence if producer else -1
        checked = InputBatch(item.batch, producer, sequence, self._early)
        if self._door is not None and self._wheel.serving:
            self._door.check(checked, self._wheel, time.perf_counter() - item.received_s)
        return checked

    def appended(self, outcome: AppendOutcome) -> None:
        """Take the outcome of the batch that waits. The batch takes its place in the line, unless
        it goes on waiting for room. Errors: ``NotMaster``: it is answered, and the exchange ends.
        """
        item = self._waiting
        assert item is not None
        # A row's name that is just leaving says nothing of the batches behind it.
        if isinstance(outcome, Overloaded) and outcome.row is None and self.room_left_s > 0:
            return
        item.batch, item.outcome, self._waiting = None, outcome, None
        if item.offer is not None:
            settle(item.offer, outcome)
        self._line.append(item)
        if isinstance(outcome, Future) and not self._ending.is_set():
            outcome.add_done_callback(self._on_future)
        else:
            self._resolved()
        if isinstance(outcome, NotMaster):
            raise copy(outcome)  # the original's frames refer to the batch

    def _on_future(self, _future: Future[Any]) -> None:
        self._resolved()

    def depose(self, error: NotMaster) -> None:
        """Answer the client that this node is no longer the master. From any thread."""
        self._line.append(error)
        self._resolved()

    # Answering

    def next_answer(self) -> tuple[bytes | None] | None:
        """The next answer in a tuple, (None,) for a batch whose client wants none; None while no
        answer is ready."""
        if not self._line:
            return None
        item = self._line[0]
        if isinstance(item, NotMaster):
            self._line.popleft()
            return (encode_refused(NO_BATCH, item),)
        ready = not isinstance(item.outcome, Future) or item.outcome.done()
        if not ready and not self._ending.is_set():
            return None
        self._line.popleft()
        answer = self._answer(item)
        self._answered += 1
        self._count(-1, item)
        return (answer,)

    def _answer(self, item: _InLine) -> bytes | None:
        receipt = _result(item.outcome)
        if isinstance(receipt, SlotwheelError):
            self._events.refused(receipt.code, item.rows)
            return encode_refused(item.sequence, receipt)
        if isinstance(receipt, BaseException):
            return encode_refused(item.sequence, self._unexpected(receipt))
        if receipt.count:
            self._stored_s = time.monotonic()
        self._events.appended(receipt.count, item.nbytes, time.perf_counter() - item.received_s)
        if self._command.acks == "0":
            return None
        base = receipt.base_offset
        offsets = np.arange(base, base + receipt.count, dtype=np.int64)
        checks = self._wheel.mint.checks(receipt.due, offsets)
        shift_ms = None if item.request is None else item.request.shift_ms(receipt.sequence)
        prior = prior_rows(self._wheel.mint, receipt.named)
        return encode_stored(item.sequence, base, receipt.created_ms, checks, shift_ms, prior)

    def _count(self, change: int, item: _InLine) -> None:
        """Count a batch that is in flight (``change`` 1), or not any more (-1)."""
        with self._counting:
            if item.request is None:
                self._batches += change
            else:
                self._requests += change
                self._requests_bytes += change * item.nbytes

    def append_all(self, batches: Sequence[InputBatch], *, wake: bool) -> Sequence[AppendOutcome]:
        """Append batches to the wheel. An unexpected error is the outcome of all of them."""
        try:
            return self._wheel.append_all(batches, self._clock(), wake=wake)
        except Exception as error:  # a bug, or the disk's error: the exchanges must go on
            return [self._unexpected(error)] * len(batches)

    def _unexpected(self, error: BaseException) -> SlotwheelError:
        self._events.alarm("append-failed", error=repr(error))
        return failed_on("batch; whether it is stored", error)


def prior_rows(mint: IdMint, named: Sequence[NamedAnswer]) -> dict[int, PriorRow]:
    """By row, the messages before of rows whose name was known before, with the checks of their
    ids; mostly none."""
    if not named:
        return {}
    due = np.array([answer.due for answer in named], np.int64)
    offsets = np.array([answer.offset for answer in named], np.int64)
    checks = mint.checks(due, offsets).tolist()
    return {
        answer.row: PriorRow(answer.before, answer.due, answer.offset, check)
        for answer, check in zip(named, checks, strict=True)
    }


def failed_on(what: str, error: BaseException) -> SlotwheelError:
    """The answer after an error that nobody foresaw; ``what`` ends in the question that is open."""
    return SlotwheelError(
        f"the node failed on this {what} is not known",
        got=type(error).__name__,
        remedy="The node's log has the cause",
        uncertain=True,
    )


def append_waiting(
    exchanges: Sequence[AppendExchange], *, wake: bool = True
) -> list[AppendOutcome]:
    """Append the waiting batch of each of these exchanges of one wheel. Returns an outcome for
    each, which the caller passes to ``appended``. ``wake``: as of ``WheelPort.append_all``."""
    refused: dict[int, SlotwheelError] = {}
    batches = []
    for number, exchange in enumerate(exchanges):
        try:
            batches.append(exchange.offer())
        except SlotwheelError as error:
            refused[number] = copy(error)
    outcomes = iter(exchanges[0].append_all(batches, wake=wake) if batches else ())
    return [refused.get(number) or next(outcomes) for number in range(len(exchanges))]


def received_bytes_max(limit: int) -> int:
    """The most bytes of a batch's buffers as received: the wheel's ``limit`` is for the exact size,
    and padding may take a tenth more."""
    return limit + limit // 10


def check_size(nbytes: int, limit: int) -> None:
    """Check the bytes of a batch's buffers as received, before their content is read.

    Errors: ``InvalidBatch``."""
    if nbytes > received_bytes_max(limit):
        raise InvalidBatch(
            "batch too large",
            got=f"{nbytes} bytes",
            limit=f"{limit} bytes",
            remedy="Send smaller batches",
        )


def _is_on_its_way(item: _InLine | NotMaster) -> bool:
    """Returns True when messages of the batch will be stored."""
    if isinstance(item, NotMaster) or not item.rows:
        return False
    return isinstance(item.outcome, Future) and not item.outcome.done()


def _result(outcome: AppendOutcome | None) -> Any:
    """The receipt, or the error, which is not raised: its frames would refer to the batch."""
    if isinstance(outcome, SlotwheelError):
        return outcome
    if outcome is None or not outcome.done():
        return NotRunning(
            "the node is shutting down; whether the batch is stored is not known yet",
            remedy="Send it again with the same producer and sequence",
            uncertain=True,
        )
    return outcome.exception() or outcome.result()
