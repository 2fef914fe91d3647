"""Cancel and reschedule, with answers that are true when they are given.

Theory: an id proves by its check that this group gave it out, and names slot and offset, so no
index of messages is needed. Whether its row can still be stopped is decided under the owner's lock,
against the marks, the chunk in flight, and the cancels that are known. While a cancel is on its way
to the journal its row is held back; once it is committed the answer is *cancelled*, and stays so.

Rules
- A row in flight is not guessed about: the question waits for the sink's answer. Where the sink
  could not say, the answer is *unknown* until a later try succeeds.
- Of older rows that the last epoch's marks reach and do not cover, nobody knows whether they left:
  *unknown*. No clock decides it.
- A row that has left is *already delivered* only if it is known that no cancel came first.
- Slot files are read outside the lock, each once a request, and only if an answer depends on it.

Source: DESIGN section 4 (Cancel and reschedule).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from .cancels import Cancels
from .config import TICK_MS
from .due import Due, Left
from .errors import Damaged, Overloaded
from .ids import IdMint, MessageId
from .log import Carried
from .receipt import CancelAnswer, Receipt
from .rows import from_numpy, no_headers
from .schema import INPUT, PAYLOAD, TIME
from .storage import Storage

QueueRows = Callable[[pa.RecordBatch, Sequence[tuple[int, int]]], Carried]
AppendCancels = Callable[[Sequence[MessageId]], Carried | None]
CheckRows = Callable[[pa.RecordBatch], pa.RecordBatch]


class _Next(Enum):
    APPEND = "append"
    WAIT = "wait"
    READ = "read"


Decision = CancelAnswer | Future[Receipt] | _Next

_SHARE = 256
"""Ids that are decided, and cancelled by one entry, while the lock is held once."""


@dataclass(slots=True)
class _Request:
    """Ids that were asked for together. ``topics``: of their rows, as far as they were needed."""

    ids: Sequence[MessageId]
    append: AppendCancels
    topics: dict[MessageId, str]
    timeout_s: float
    decisions: dict[MessageId, Decision] = field(default_factory=dict)
    queued: Future[Receipt] | None = None
    """The newest entry with cancels of it."""

    def left(self, what: _Next) -> list[MessageId]:
        return [one for one, decision in self.decisions.items() if decision is what]


class Canceller:
    """Decides about ids. ``epoch_offset``: rows from there on were appended in this epoch.
    ``reach_ms``: of the others, those due later have not been handed out before it. ``lost_rows``:
    whether a repair gave up rows of that second."""

    def __init__(
        self,
        mint: IdMint,
        due: Due,
        storage: Storage,
        cancels: Cancels,
        lock: threading.RLock,
        *,
        epoch_offset: int,
        reach_ms: int,
        lost_rows: Callable[[int], bool],
    ) -> None:
        self._mint = mint
        self._due = due
        self._storage = storage
        self._cancels = cancels
        self._lock = lock
        self._epoch_offset = epoch_offset
        self._reach_ms = reach_ms
        self._lost_rows = lost_rows

    def cancel(
        self, ids: Sequence[MessageId], append: QueueRows, timeout_s: float
    ) -> list[CancelAnswer]:
        """One answer for each id, in order."""

        def append_cancels(targets: Sequence[MessageId]) -> Carried:
            return append(_cancel_rows(targets), [(one.due, one.offset) for one in targets])

        answers = self._settle(
            self._mint.genuine_of(list(dict.fromkeys(ids))), append_cancels, timeout_s
        )
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
        try:
            row = self._storage.find(target.due, target.offset)
        except Damaged:
            return CancelAnswer.UNKNOWN, None
        fresh = None if row is None else check(_with_due(row, due_ms))
        topics = {} if row is None else {target: str(row.column("topic")[0].as_py())}
        queued: list[Carried] = []

        def append_cancels(targets: Sequence[MessageId]) -> Carried | None:
            if fresh is None:
                return None
            rows = pa.concat_batches([_cancel_rows(targets), _as_payload(fresh)])
            queued.append(append(rows, [(target.due, target.offset)]))
            return queued[0]

        answer = self._settle([target], append_cancels, timeout_s, topics)[target]
        if not queued or answer is not CancelAnswer.CANCELLED:
            return answer, None
        return answer, self._mint.one(due_ms, queued[0].receipt.base_offset + 1)

    def _read_cancels(self, ids: Sequence[MessageId]) -> set[int]:
        """Let the register know what the slot files of these ids say of cancels. Returns the
        seconds of files that are damaged: of their rows nothing can be said."""
        with self._lock:
            unread = [
                second
                for second in {one.due // TICK_MS for one in ids}
                if (info := self._storage.catalog.get(second)) is not None
                and info.cancels > 0
                and not self._cancels.file_read(second)
            ]
        damaged: set[int] = set()
        for second in unread:
            try:
                targets = self._storage.cancelled_in_file(second)
            except Damaged:
                damaged.add(second)
                continue
            with self._lock:
                self._cancels.add_from_file(second, targets)
        return damaged

    def _read_topics(
        self, needed: Sequence[MessageId], ids: Sequence[MessageId]
    ) -> dict[MessageId, str]:
        """The topics of all ``ids`` in the slots of those ``needed``, so that none is read twice;
        empty for a row that is nowhere any more. None at all for those of a damaged file."""
        of_second: dict[int, list[MessageId]] = {one.due // TICK_MS: [] for one in needed}
        for one in ids if needed else ():
            of_second.get(one.due // TICK_MS, []).append(one)
        found: dict[MessageId, str] = {}
        for second, wanted in of_second.items():
            with contextlib.suppress(Damaged):
                topics = self._storage.topics_of(second, [one.offset for one in wanted])
                found.update((one, topics.get(one.offset, "")) for one in wanted)
        return found

    def _settle(
        self,
        ids: Sequence[MessageId],
        append: AppendCancels,
        timeout_s: float,
        topics: Mapping[MessageId, str] = MappingProxyType({}),
    ) -> dict[MessageId, CancelAnswer]:
        """Decide about ``ids``, which are genuine, and cancel those that can be stopped. May wait
        twice: for the sink, and for the commit. ``topics``: those that are known already."""
        damaged = self._read_cancels(ids)
        request = _Request(ids, append, dict(topics), timeout_s=timeout_s)
        for one in ids:
            if one.due // TICK_MS in damaged:
                request.decisions[one] = CancelAnswer.UNKNOWN
        self._decide_all([one for one in ids if one not in request.decisions], request)
        in_flight = request.left(_Next.WAIT)
        if in_flight:
            with self._lock:
                self._wait_for_the_sink(in_flight, request.topics, timeout_s)
                self._decide_share(in_flight[:_SHARE], request)  # before they fly again
            self._decide_all(request.left(_Next.READ) + in_flight[_SHARE:], request)
        return self._resolve(request.decisions, timeout_s)

    def _decide_all(self, ids: Sequence[MessageId], request: _Request) -> None:
        """Share by share; slot files are read in between, where a topic turns out to matter."""
        while ids:
            for start in range(0, len(ids), _SHARE):
                # One share on its way at a time: appends come between. When one is not committed in
                # time, the others would not be, either.
                queued = {request.queued} if request.queued is not None else set()
                if wait(queued, request.timeout_s).not_done:
                    request.decisions.update(dict.fromkeys(ids[start:], CancelAnswer.UNKNOWN))
                    return
                self._decide_share(ids[start : start + _SHARE], request)
            unread = request.left(_Next.READ)
            request.topics.update(self._read_topics(unread, request.ids))
            ids = [one for one in unread if one in request.topics]
            damaged = set(unread).difference(ids)
            request.decisions.update(dict.fromkeys(damaged, CancelAnswer.UNKNOWN))

    def _decide_share(self, ids: Sequence[MessageId], request: _Request) -> None:
        """Decide, and in the same instant queue the cancels: from then on their rows are held back.

        Errors: ``Overloaded`` when nothing of the request was queued before.
        """
        with self._lock:
            decided = {one: self._decide(one, request.topics.get(one)) for one in ids}
            targets = [one for one, what in decided.items() if what is _Next.APPEND]
            try:
                carried = request.append(targets) if targets else None
            except Overloaded:
                if request.queued is None:
                    raise
                carried = None
            if carried is None:
                decided.update(dict.fromkeys(targets, CancelAnswer.UNKNOWN))
            else:
                request.queued = carried.future
                for row, target in enumerate(targets):
                    own = carried.receipt.base_offset + row
                    self._cancels.add(target.due, target.offset, own, carried.future)
                decided.update(dict.fromkeys(targets, carried.future))
            request.decisions.update(decided)

    def _wait_for_the_sink(
        self, ids: Sequence[MessageId], topics: Mapping[MessageId, str], timeout_s: float
    ) -> None:
        """Under the lock, which the wait lets go of: until none of these rows is in flight."""
        due = np.array([one.due for one in ids], np.int64)
        offset = np.array([one.offset for one in ids], np.int64)
        known = set(topics.values())
        self._due.answered.wait_for(
            lambda: not self._due.any_in_flight(due, offset, known), timeout_s
        )

    def _decide(self, one: MessageId, topic: str | None) -> Decision:
        """Under the lock."""
        known, pending = self._cancels.get(one.due, one.offset)
        if known:
            return CancelAnswer.CANCELLED if pending is None else pending
        if one.offset < self._epoch_offset and one.due <= self._reach_ms:
            return CancelAnswer.UNKNOWN
        left = self._due.has_left(one.due, one.offset, topic)
        if left is Left.YES and one.due > self._cancels.floor_ms:
            lost = self._lost_rows(one.due // TICK_MS)
            return CancelAnswer.UNKNOWN if lost else CancelAnswer.DELIVERED
        return _DECIDED[left]

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
            answers[one] = CancelAnswer.UNKNOWN  # in flight once more, or not committed in time
            if isinstance(decision, Future) and decision.done():
                decision.result()
                answers[one] = CancelAnswer.CANCELLED
        return answers


_DECIDED: dict[Left, Decision] = {
    Left.YES: CancelAnswer.UNKNOWN,  # or it was cancelled, which is forgotten by now
    Left.NO: _Next.APPEND,
    Left.IN_FLIGHT: _Next.WAIT,
    Left.UNKNOWN: CancelAnswer.UNKNOWN,
    Left.BY_TOPIC: _Next.READ,
}


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
