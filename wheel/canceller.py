"""Cancel and reschedule, with answers that are true when they are given.

Theory: an id proves by its check that this group gave it out, and names slot and offset, so no
index of messages is needed. Whether its row can still be stopped is decided under the owner's lock,
against the marks, the chunk in flight, and the cancels that are known. While a cancel is on its way
to the journal its row is held back; once it is committed the answer is *cancelled*, and stays so.

Rules
- A row in flight is not guessed about: the question waits for the sink's answer.
- Rows that were due before this epoch began may have been delivered without a mark: *unknown*.
- A row that has left is *already delivered* only if it is known that no cancel came first.

Source: DESIGN section 4 (Cancel and reschedule).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from enum import Enum

import numpy as np
import pyarrow as pa

from .cancels import Cancels
from .config import TICK_MS
from .due import Due
from .ids import IdMint, MessageId
from .log import Carried
from .receipt import CancelAnswer, Receipt
from .rows import from_numpy, no_headers
from .schema import INPUT, PAYLOAD, TIME
from .storage import Storage

QueueRows = Callable[[pa.RecordBatch, Sequence[tuple[int, int]]], Carried]
CheckRows = Callable[[pa.RecordBatch], pa.RecordBatch]


class _Next(Enum):
    APPEND = "append"
    WAIT = "wait"


Decision = CancelAnswer | Future[Receipt] | _Next


class Canceller:
    """Decides about ids. ``epoch_offset``: rows from there on were appended in this epoch."""

    def __init__(
        self,
        mint: IdMint,
        due: Due,
        storage: Storage,
        cancels: Cancels,
        lock: threading.RLock,
        *,
        epoch_offset: int,
        epoch_start_ms: int,
    ) -> None:
        self._mint = mint
        self._due = due
        self._storage = storage
        self._cancels = cancels
        self._lock = lock
        self._epoch_offset = epoch_offset
        self._epoch_start_ms = epoch_start_ms

    def cancel(
        self, ids: Sequence[MessageId], append: QueueRows, timeout_s: float
    ) -> list[CancelAnswer]:
        """One answer for each id, in order."""
        topics = {one: self._look_up(one) for one in ids if self._mint.genuine(one)}
        with self._lock:
            decisions = self._decide_in_time(topics, timeout_s)
            targets = [one for one, decision in decisions.items() if decision is _Next.APPEND]
            if targets:
                carried = append(_cancel_rows(targets), [(t.due, t.offset) for t in targets])
                self._register(targets, carried)
                decisions.update(dict.fromkeys(targets, carried.future))
        answers = self._resolve(decisions, timeout_s)
        return [answers.get(one, CancelAnswer.UNKNOWN) for one in ids]

    def reschedule(
        self,
        target: MessageId,
        due_ms: int,
        append: QueueRows,
        check: CheckRows,
        timeout_s: float,
    ) -> tuple[CancelAnswer, MessageId | None]:
        """What became of the old message, and the new one's id if there is a new one."""
        if not self._mint.genuine(target):
            return CancelAnswer.UNKNOWN, None
        topic = self._look_up(target)
        row = self._storage.find(target.due, target.offset)
        fresh = None
        if row is not None:
            fresh = check(_with_due(row, due_ms))
        with self._lock:
            decision = self._decide_in_time({target: topic}, timeout_s)[target]
            if decision is _Next.APPEND:
                if fresh is None:
                    return CancelAnswer.UNKNOWN, None
                rows = pa.concat_batches([_cancel_rows([target]), _as_payload(fresh)])
                carried = append(rows, [(target.due, target.offset)])
                self._register([target], carried)
                decision = carried.future
                new_offset = carried.receipt.base_offset + 1
            else:
                return self._resolve({target: decision}, timeout_s)[target], None
        answer = self._resolve({target: decision}, timeout_s)[target]
        if answer is not CancelAnswer.CANCELLED:
            return answer, None
        return answer, self._mint.one(due_ms, new_offset)

    def _look_up(self, one: MessageId) -> str | None:
        """What deciding may need from disk, read before the lock is taken: the row's topic."""
        second = one.due // TICK_MS
        with self._lock:
            info = self._storage.catalog.get(second)
            unread = info is not None and info.cancels > 0 and not self._cancels.file_read(second)
            held = self._due.any_held
        if unread:
            targets = self._storage.cancelled_in_file(second)
            with self._lock:
                self._cancels.add_from_file(second, targets)
        if not held:
            return None
        return self._topic(one)

    def _topic(self, one: MessageId) -> str:
        """The topic of a row; empty if it is nowhere any more, so that nobody looks again."""
        row = self._storage.find(one.due, one.offset)
        return "" if row is None else str(row.column("topic")[0].as_py())

    def _decide_in_time(
        self, topics: Mapping[MessageId, str | None], timeout_s: float
    ) -> dict[MessageId, Decision]:
        """Under the lock, which a wait lets go of: all are decided at the instant this returns.

        One wait for all of them: those in flight, whose rows a sink may keep for long.
        """
        decisions: dict[MessageId, Decision] = dict.fromkeys(topics, _Next.WAIT)

        def decided() -> bool:
            for one, decision in decisions.items():
                if isinstance(decision, _Next):  # the others stay what they are
                    decisions[one] = self._decide(one, topics[one])
            return _Next.WAIT not in decisions.values()

        if not self._due.answered.wait_for(decided, timeout_s):
            for one, decision in decisions.items():
                if decision is _Next.WAIT:
                    decisions[one] = CancelAnswer.UNKNOWN
        return decisions

    def _decide(self, one: MessageId, topic: str | None) -> Decision:
        """Under the lock."""
        known, pending = self._cancels.get(one.due, one.offset)
        if known:
            return CancelAnswer.CANCELLED if pending is None else pending
        before_epoch = one.offset < self._epoch_offset and one.due <= self._epoch_start_ms
        if before_epoch:
            return CancelAnswer.UNKNOWN
        left = self._due.has_left(one.due, one.offset, topic)
        if left and topic is None and self._due.any_held:
            # A topic was held back after the row was looked up: is it this row's?
            left = self._due.has_left(one.due, one.offset, self._topic(one))
        if left is None:
            return _Next.WAIT
        if not left:
            return _Next.APPEND
        if one.due <= self._cancels.floor_ms:
            return CancelAnswer.UNKNOWN
        return CancelAnswer.DELIVERED

    def _register(self, targets: Sequence[MessageId], carried: Carried) -> None:
        for row, target in enumerate(targets):
            own = carried.receipt.base_offset + row
            self._cancels.add(target.due, target.offset, own, carried.future)

    @staticmethod
    def _resolve(
        decisions: Mapping[MessageId, Decision], timeout_s: float
    ) -> dict[MessageId, CancelAnswer]:
        """The answers, once the cancels are committed; *unknown* for those that are not in time.

        Errors: those of the entry that a cancel was in: it was not written.
        """
        wait({d for d in decisions.values() if isinstance(d, Future)}, timeout_s)
        answers: dict[MessageId, CancelAnswer] = {}
        for one, decision in decisions.items():
            if isinstance(decision, CancelAnswer):
                answers[one] = decision
                continue
            assert isinstance(decision, Future)
            answers[one] = CancelAnswer.UNKNOWN
            if decision.done():
                decision.result()
                answers[one] = CancelAnswer.CANCELLED
        return answers


def _cancel_rows(targets: Sequence[MessageId]) -> pa.RecordBatch:
    """Cancel rows (PAYLOAD schema): due with their targets, so in the targets' slots."""
    count = len(targets)
    due = from_numpy(np.array([t.due for t in targets], np.int64), TIME)
    names = pa.array([t.offset for t in targets], pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            due,
            due,
            names,
            pa.array([""] * count, pa.utf8()),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.binary()),
            pa.nulls(count, pa.binary()),
            no_headers(count),
        ],
        schema=PAYLOAD,
    )


def _with_due(row: pa.RecordBatch, due_ms: int) -> pa.RecordBatch:
    """A stored row as an input with another due time."""
    due = pa.array([due_ms], pa.int64()).cast(TIME)
    columns = [due, *(row.column(name) for name in INPUT.names[1:])]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def _as_payload(rows: pa.RecordBatch) -> pa.RecordBatch:
    """INPUT rows in the PAYLOAD schema; whoever queues them fills in ``created``."""
    due = rows.column("due")
    cancels = pa.nulls(rows.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([due, due, cancels, *rows.columns[1:]], schema=PAYLOAD)
