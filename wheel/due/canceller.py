"""Cancel and reschedule, with answers that are true when they are given.

Theory: an id proves by its check that this group made it, and names slot and offset, so no index of
messages is needed. Whether its row can still be stopped is decided under the owner's lock, against
the marks, the chunk in flight, and the registered cancels. While a cancel is on its way to the
journal its row is held back; once it is committed the answer is *cancelled*, and stays so.

Rules
- For a row in flight the request waits for the sink's answer. If the sink gave no clear one, the
  answer is *unknown* until a later try succeeds.
- An older row that the last epoch's marks reach but do not cover may have left or not: *unknown*.
  No clock decides it. Under exactly-once the sink knows (``know_what_left``).
- A row that has left is *already delivered* only if it is known that no cancel came first.
- Slot files are read outside the lock, or all else would wait for the disk; each once a request,
  and only if an answer depends on it.

docs/durability.md says what each answer means.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..answers import AppendReceipt, CancelAnswer
from ..config import TICK_MS
from ..errors import Damaged, Overloaded
from ..ids import IdMint, MessageId
from ..journal.payloads import EncodedBatch, cancel_rows, encode_cancels, encode_own
from ..journal.queued import AppendWaiter
from ..rows import members
from ..schema import INPUT, PAYLOAD, TIME, Int64s, Mask
from ..slots.lookup import cancelled_rows, topics_of
from ..slots.slot import rows_by_slot
from ..slots.storage import Storage
from .cancels import Cancels
from .lines import HasLeft, Lines

QueueRows = Callable[[Callable[[int], EncodedBatch]], AppendWaiter]
"""Queues rows, which are encoded by what is given, at a time in ms; and holds back from then on
what they name."""
AppendCancels = Callable[[Int64s, Int64s], AppendWaiter | None]
CheckRows = Callable[[pa.RecordBatch], pa.RecordBatch]
MayCancel = Callable[[str], bool]
"""Tells of a topic whether its messages may be cancelled by who asks."""
Topics = npt.NDArray[np.object_]


class RowState(IntEnum):
    """The decision about a row, as far as it has got."""

    APPEND = 0
    """It can be stopped: a cancel row is to be appended."""
    DELIVERED = 1
    WAIT = 2
    """The sink's answer is awaited."""
    UNKNOWN = 3
    READ = 4
    """Its topic has to be read, which the decision depends on."""
    PENDING = 5
    """Its cancel is on its way to the journal."""
    CANCELLED = 6


_OF_LEFT = np.zeros(len(HasLeft), np.int8)
_OF_LEFT[HasLeft.NO] = RowState.APPEND
_OF_LEFT[HasLeft.YES] = RowState.DELIVERED
_OF_LEFT[HasLeft.IN_FLIGHT] = RowState.WAIT
_OF_LEFT[HasLeft.UNKNOWN] = RowState.UNKNOWN
_OF_LEFT[HasLeft.BY_TOPIC] = RowState.READ

_ANSWERS: dict[int, CancelAnswer] = {
    RowState.DELIVERED: CancelAnswer.DELIVERED,
    RowState.CANCELLED: CancelAnswer.CANCELLED,
}

_SHARE = 1024
"""So many rows at most are decided, and cancelled by one entry, while the lock is held once."""


@dataclass(slots=True)
class _Request:
    """Rows that were asked for together; arrays of shape (rows,).

    ``topics``: None for rows whose topic was not needed.
    """

    due: Int64s
    offset: Int64s
    topics: Topics
    append: AppendCancels
    timeout_s: float
    state: npt.NDArray[np.int8]
    pending: dict[Future[AppendReceipt], list[int]] = field(default_factory=dict)
    """The entries with cancels of these rows, and the rows' positions."""
    queued: Future[AppendReceipt] | None = None
    """The newest such entry of this request."""

    def rows(self, state: RowState) -> Int64s:
        """Positions of the rows in that state."""
        return np.flatnonzero(self.state == state)


class Canceller:
    """Decides about ids. ``epoch_offset``: rows from there on were appended in this epoch.
    ``reach_ms``: of older rows, those due later were not handed out before this epoch.
    ``lost``: from due times in ms to the mask of those in slots of which a repair gave up rows,
    shape (rows,) each."""

    def __init__(
        self,
        mint: IdMint,
        lines: Lines,
        storage: Storage,
        cancels: Cancels,
        lock: threading.RLock,
        *,
        epoch_offset: int,
        reach_ms: int,
        lost: Callable[[Int64s], Mask],
    ) -> None:
        self._mint = mint
        self._lines = lines
        self._storage = storage
        self._cancels = cancels
        self._lock = lock
        self._epoch_offset = epoch_offset
        self._reach_ms = reach_ms
        self._lost = lost

    def know_what_left(self) -> None:
        """Under the lock: believe the lines from now on about rows of earlier epochs, too."""
        self._reach_ms = -1

    def cancel(
        self,
        ids: Sequence[MessageId | str],
        append: QueueRows,
        timeout_s: float,
        may: MayCancel | None = None,
    ) -> list[CancelAnswer]:
        """One answer for each id, in order. With ``may``, the row's topic is read before anything
        is decided; one that it refuses, or that is nowhere any more, is *unknown*. Errors:
        ``UnknownId`` when one is malformed."""
        # Two ids may name one offset: that of the row there, and one given before its commit
        # (``acks``) to a row that was lost with its master.
        texts = [str(message_id) for message_id in ids]
        asked = list(dict.fromkeys(texts))
        due, offset, genuine = self._mint.read(asked)
        if may is not None:
            allowed = np.zeros(len(asked), np.bool_)
            allowed[genuine] = self._allowed(due[genuine], offset[genuine], may)
            genuine = allowed
        due, offset = due[genuine], offset[genuine]

        def append_cancels(due: Int64s, offset: Int64s) -> AppendWaiter:
            return append(partial(encode_cancels, due, offset))

        topics = np.full(len(offset), None, object)
        decided = np.full(len(asked), RowState.UNKNOWN, np.int8)
        decided[genuine] = self._settle(due, offset, topics, append_cancels, timeout_s)
        state = dict(zip(asked, decided.tolist(), strict=True))
        return [_ANSWERS.get(state[text], CancelAnswer.UNKNOWN) for text in texts]

    def reschedule(
        self,
        target: MessageId,
        due_ms: int,
        append: QueueRows,
        check: CheckRows,
        timeout_s: float,
        may: MayCancel | None = None,
        stays: Callable[[], bool] = lambda: True,
    ) -> tuple[CancelAnswer | None, MessageId | None]:
        """Cancel ``target`` and append it anew, due at ``due_ms``. Returns what became of the old
        message, and the new one's id if there is one. ``may``: as of ``cancel``; ``stays``: as of
        ``cancel_row``."""
        if not self._mint.genuine(target):
            return CancelAnswer.UNKNOWN, None
        try:
            row = self._storage.find(target.due, target.offset)
        except Damaged:
            return CancelAnswer.UNKNOWN, None
        if may is not None and (row is None or not may(row.column("topic")[0].as_py())):
            return CancelAnswer.UNKNOWN, None
        fresh = None if row is None else check(_with_due(row, due_ms))
        queued: list[AppendWaiter] = []
        moved = False

        def append_cancels(due: Int64s, offset: Int64s) -> AppendWaiter | None:
            nonlocal moved
            moved = not stays()
            if fresh is None or moved:
                return None
            rows = pa.concat_batches([cancel_rows(due, offset), _as_payload(fresh)])
            queued.append(append(partial(encode_own, rows)))
            return queued[0]

        topic = None if row is None else row.column("topic")[0].as_py()
        answer = self._settle_one(target, topic, append_cancels, timeout_s)
        if not queued:
            return (None if moved or self._moved(stays) else answer), None
        if answer is not CancelAnswer.CANCELLED:  # the name has moved, but by this very entry
            return answer, None
        return answer, self._mint.one(due_ms, queued[0].receipt.base_offset + 1)

    def cancel_row(
        self,
        target: MessageId,
        topic: str,
        append: QueueRows,
        timeout_s: float,
        stays: Callable[[], bool],
    ) -> CancelAnswer | None:
        """Cancel the row of that topic that has a name, as ``cancel`` does. ``stays`` tells, under
        the lock, if it still has it; None: it has not any more, and it was left alone.

        A row that was cancelled has no name (``named/table.py``). So no file has to be read for
        that, unless the row is not plainly pending."""
        due, offset = np.array([target.due], np.int64), np.array([target.offset], np.int64)
        with self._lock:
            state, _ = self.states(due, offset, np.array([topic], object))
            waiter = None
            if state[0] == RowState.APPEND and stays():
                waiter = append(partial(encode_cancels, due, offset))
        if waiter is not None:
            return _outcome(waiter, timeout_s)
        cancelled = False

        def append_cancels(due: Int64s, offset: Int64s) -> AppendWaiter | None:
            nonlocal cancelled
            cancelled = stays()
            return append(partial(encode_cancels, due, offset)) if cancelled else None

        answer = self._settle_one(target, topic, append_cancels, timeout_s)
        return None if not cancelled and self._moved(stays) else answer

    def _settle_one(
        self, target: MessageId, topic: str | None, append: AppendCancels, timeout_s: float
    ) -> CancelAnswer:
        """As ``_settle``, of one row. ``topic``: None: it is not known."""
        due, offset = np.array([target.due], np.int64), np.array([target.offset], np.int64)
        (state,) = self._settle(due, offset, np.array([topic], object), append, timeout_s).tolist()
        return _ANSWERS.get(state, CancelAnswer.UNKNOWN)

    def _moved(self, stays: Callable[[], bool]) -> bool:
        with self._lock:
            return not stays()

    def _allowed(self, due: Int64s, offset: Int64s, may: MayCancel) -> Mask:
        """The mask of rows whose topic can be read and is one that may be cancelled, shape
        (rows,)."""
        topics = topics_of(self._storage, due, offset).tolist()
        verdicts = {topic: bool(topic) and may(topic) for topic in dict.fromkeys(topics)}
        return np.fromiter((verdicts[topic] for topic in topics), np.bool_, len(topics))

    def _settle(
        self,
        due: Int64s,
        offset: Int64s,
        topics: Topics,
        append: AppendCancels,
        timeout_s: float,
    ) -> npt.NDArray[np.int8]:
        """Decide about rows, and cancel those that can be stopped: a final ``RowState`` each. May
        wait twice: for the sink, and for the commit.

        Errors: those of an entry that was not written.
        """
        state = np.full(len(due), RowState.READ, np.int8)
        request = _Request(due, offset, topics, append, timeout_s, state)
        seconds = frozenset((due // TICK_MS).tolist())
        with self._lock:
            self._cancels.pin(seconds)
            in_tail = self._cancels.misses_unspilled(self._storage.spilled)
        try:
            self._read_cancels(seconds, request, in_tail=in_tail)
            self._decide_all(request.rows(RowState.READ), request)
            in_flight = request.rows(RowState.WAIT)
            if len(in_flight):
                with self._lock:
                    self._wait_for_the_sink(in_flight, request)
                    self._decide_share(in_flight[:_SHARE], request)  # before they fly again
                rest = np.concatenate([request.rows(RowState.READ), in_flight[_SHARE:]])
                self._decide_all(rest, request)
        finally:
            with self._lock:
                self._cancels.unpin(seconds)
        self._await_commits(request)
        return state

    def _read_cancels(self, seconds: Set[int], request: _Request, *, in_tail: bool) -> None:
        """Find out which rows were cancelled by slot files or, where these were deleted, by the
        records of cancels. Rows of a damaged file become *unknown*. ``in_tail``: the register may
        have forgotten cancels that are in the tail."""
        due, offset = request.due, request.offset
        named, unreadable = cancelled_rows(self._storage, due, offset, in_tail=in_tail)
        request.state[unreadable] = RowState.UNKNOWN
        request.state[named] = RowState.CANCELLED
        # Behind the files: one that was deleted meanwhile has left its cancels there.
        with self._lock:
            kept = self._storage.cancelled
            recorded = {second for second in seconds if second in kept}
        for second, rows in rows_by_slot(recorded, due):
            try:
                named = members(kept.offsets(second), offset[rows])
            except Damaged:
                request.state[rows] = RowState.UNKNOWN
                continue
            request.state[rows[named]] = RowState.CANCELLED

    def _read_topics(self, unread: Int64s, request: _Request) -> None:
        """Read the topics of these rows, and of all others of their seconds, so that no slot of a
        second is read twice. Those of ``unread`` in a damaged file become *unknown*."""
        second = request.due // TICK_MS
        rows = np.flatnonzero(np.isin(second, second[unread]))
        request.topics[rows] = topics_of(self._storage, request.due[rows], request.offset[rows])
        damaged = [row for row in unread.tolist() if request.topics[row] is None]
        request.state[damaged] = RowState.UNKNOWN

    def _decide_all(self, at: Int64s, request: _Request) -> None:
        """Decide share by share, and read slot files between where an answer depends on a topic."""
        while len(at):
            for start in range(0, len(at), _SHARE):
                # One share on its way at a time: appends come between. When one is not committed in
                # time, the others would not be, either.
                queued = {request.queued} if request.queued is not None else set()
                if wait(queued, request.timeout_s).not_done:
                    request.state[at[start:]] = RowState.UNKNOWN
                    return
                self._decide_share(at[start : start + _SHARE], request)
            unread = request.rows(RowState.READ)
            if len(unread):
                self._read_topics(unread, request)
            at = request.rows(RowState.READ)

    def _decide_share(self, at: Int64s, request: _Request) -> None:
        """Decide, and in the same instant queue the cancels: from then on their rows are held back.

        Errors: ``Overloaded`` when nothing of the request was queued before.
        """
        with self._lock:
            self._decide(at, request)
            stoppable = at[request.state[at] == RowState.APPEND]
            if not len(stoppable):
                return
            try:
                carried = request.append(request.due[stoppable], request.offset[stoppable])
            except Overloaded:
                if request.queued is None:
                    raise
                carried = None
            if carried is None:
                request.state[stoppable] = RowState.UNKNOWN
                return
            request.state[stoppable] = RowState.PENDING
            request.queued = carried.future
            request.pending[carried.future] = stoppable.tolist()

    def _decide(self, at: Int64s, request: _Request) -> None:
        """Under the lock: the state of the rows at these positions."""
        due, offset = request.due[at], request.offset[at]
        state, pending = self.states(due, offset, request.topics[at])
        # Unless its cancel may be forgotten by now.
        left = state == RowState.DELIVERED
        state[left & ~self._storage.cancelled.known(due)] = RowState.UNKNOWN
        for row, future in pending.items():
            request.pending.setdefault(future, []).append(int(at[row]))
        request.state[at] = state

    def states(
        self, due: Int64s, offset: Int64s, topics: Topics
    ) -> tuple[npt.NDArray[np.int8], dict[int, Future[AppendReceipt]]]:
        """Under the lock: the ``RowState`` of each row, as far as it is known without its files;
        and, by position, the futures of cancels on their way. ``due`` (ms), ``offset``, ``topics``:
        shape (rows,)."""
        state = _OF_LEFT[self._lines.has_left(due, offset, topics)]
        left = state == RowState.DELIVERED
        state[left & self._lost(due)] = RowState.UNKNOWN  # a repair may have lost its cancel
        state[(offset < self._epoch_offset) & (due <= self._reach_ms)] = RowState.UNKNOWN
        known, pending = self._cancels.find(due, offset)
        state[known] = RowState.CANCELLED
        for row in pending:
            state[row] = RowState.PENDING
        return state, pending

    def _wait_for_the_sink(self, at: Int64s, request: _Request) -> None:
        """Wait until none of these rows is in flight; the lock is held, but for the waiting."""
        due, offset = request.due[at], request.offset[at]
        known = set(request.topics.tolist())
        self._lines.answered.wait_for(
            lambda: not self._lines.any_in_flight(due, offset, known), request.timeout_s
        )

    @staticmethod
    def _await_commits(request: _Request) -> None:
        """Wait until the cancels are committed. Those that are not in time become *unknown*, and so
        do rows that are in flight again.

        Errors: those of an entry that was not written; ``Overloaded`` when none of them was.
        """
        done = wait(request.pending, request.timeout_s).done
        refused = {future for future in done if isinstance(future.exception(), Overloaded)}
        if len(refused) < len(request.pending):
            done -= refused
        for future, rows in request.pending.items():
            request.state[rows] = RowState.UNKNOWN
            if future in done:
                future.result()
                request.state[rows] = RowState.CANCELLED


def _outcome(waiter: AppendWaiter, timeout_s: float) -> CancelAnswer:
    """What became of a row whose cancel is on its way. Errors: those of an entry that was not
    written."""
    try:
        waiter.future.result(timeout_s)
    except TimeoutError:
        return CancelAnswer.UNKNOWN
    return CancelAnswer.CANCELLED


def _with_due(row: pa.RecordBatch, due_ms: int) -> pa.RecordBatch:
    due = pa.array([due_ms], pa.int64()).cast(TIME)
    columns = [due, *(row.column(name) for name in INPUT.names[1:])]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def _as_payload(rows: pa.RecordBatch) -> pa.RecordBatch:
    """INPUT rows in the PAYLOAD schema; ``created`` is filled in when they are queued."""
    due = rows.column("due")
    cancels = pa.nulls(rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([due, due, cancels, *rows.columns[1:]], schema=PAYLOAD)
