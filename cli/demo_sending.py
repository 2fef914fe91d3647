"""What the demos send and cancel, and what they were promised.

One thread does it all in small steps; the client retries on its own threads meanwhile. What came in
is read from the topics' files, beside the running nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..client import Client
from ..client.receipts import Receipts
from ..wheel.errors import NodeUnreachable
from ..wheel.schema import Int64s
from .demo_arrivals import TOPICS, VALUE, Arrivals
from .demo_node import START_MAX_S, STEP_S
from .demo_proof import Sent

KEEPING = ("--retain", "1GiB")
"""Options of the nodes: for `slotwheel replay` afterwards."""
RECEIPTS = "receipts.arrows"
BATCH_ROWS = 1_000
KEPT_DUE_S = 3_600
"""When the messages are due that stay in their slot files."""
KEPT_SLOTS = 20
_FLUSH_S = 60.0
_REST_S = 12.0


class Show(Protocol):
    """What a demo tells while it runs."""

    def event(self, text: str) -> None: ...

    def counts(self, sent: int, arrived: int, cancelled: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """``messages`` due within ``seconds`` of the start of sending, and ``kept`` ones in an hour.
    ``sent_at``: the share of the time after which all are sent."""

    messages: int
    kept: int
    seconds: float
    sent_at: float

    @property
    def total(self) -> int:
        return self.messages + self.kept


@dataclass(slots=True)
class Ledger:
    """What was sent, by number. Batches come one after the other, each with its receipts."""

    total: int
    receipts: list[Receipts] = field(default_factory=list)
    count: int = 0
    cancelled: set[int] = field(default_factory=set)
    uncertain: set[int] = field(default_factory=set)
    answers: dict[str, int] = field(default_factory=dict)

    def mask(self, numbers: set[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        found = np.zeros(self.total, np.bool_)
        found[list(numbers)] = True
        return found


class Sending:
    """The story's time begins with ``begin``; from then on ``until`` and ``pause`` send at an even
    pace, and watch what comes in. Errors: ``SlotwheelError`` of the client."""

    def __init__(self, client: Client, plan: Plan, arrivals: Arrivals, show: Show) -> None:
        self.ledger = Ledger(plan.total)
        self._client = client
        self._plan = plan
        self._arrivals = arrivals
        self._show = show
        self._random = np.random.default_rng()
        self._kept_due: Int64s = np.zeros(0, np.int64)
        self._start = 0.0
        self._end_ms = 0

    @property
    def slot_seconds(self) -> list[int]:
        """Slots of the messages that are kept for later."""
        return sorted({due // 1000 for due in self._kept_due.tolist()})

    def begin(self) -> None:
        begin = (now_ms() // 1000 + KEPT_DUE_S) * 1000
        kept = np.arange(self._plan.kept, dtype=np.int64)
        self._kept_due = begin + kept % KEPT_SLOTS * 1000
        for at in range(0, self._plan.kept, BATCH_ROWS):
            self._ship(self._kept_due[at : at + BATCH_ROWS])
        self._client.flush(_FLUSH_S)  # connected, and the story's time begins
        self._start = time.monotonic()
        self._end_ms = now_ms() + int(self._plan.seconds * 1000)

    def until(self, share: float) -> None:
        """Go on until that share of the time."""
        while time.monotonic() - self._start < share * self._plan.seconds:
            self._step()

    def pause(self, what: str, done: Callable[[], bool]) -> None:
        """Go on until something has come about; ``what`` says what it is."""
        limit = time.monotonic() + START_MAX_S
        while not done():
            if time.monotonic() > limit:
                raise NodeUnreachable(f"waited in vain: {what}", limit=f"{START_MAX_S:.0f} s")
            self._step()

    def send_the_rest(self) -> None:
        while self.ledger.count < self._plan.total:
            self._send()
        self._client.flush(_FLUSH_S)
        self._show.event(f"all {self._plan.total:,} messages are stored")

    def cancel_some(self) -> None:
        """Cancel one in twenty of those that are stored and due in the last third."""
        self._client.flush(_FLUSH_S)
        ledger = self.ledger
        border = self._end_ms - int(self._plan.seconds * 1000) // 3
        chosen: list[int] = []
        ids: list[str] = []
        number = 0
        for receipts in ledger.receipts:
            due = receipts.due_ms
            if receipts.done() and not receipts.errors():
                for row in np.flatnonzero((due >= border) & (due < self._end_ms)).tolist()[::20]:
                    if number + row not in ledger.cancelled:
                        chosen.append(number + row)
                        ids.append(receipts[row].id)
            number += len(receipts)
        answers = self._client.cancel(ids)
        for one, answer in zip(chosen, answers, strict=True):
            ledger.answers[answer] = ledger.answers.get(answer, 0) + 1
            if answer == "cancelled":
                ledger.cancelled.add(one)
            elif answer == "unknown":  # "already delivered" has to be true: it stays promised
                ledger.uncertain.add(one)
        self._show.event(f"cancelled {answers.count('cancelled'):,} messages")

    def wait_for_the_rest(self, kept_in_files: Callable[[], bool]) -> None:
        """Until all that is expected has come and the kept ones are in their slot files."""
        ledger = self.ledger
        wanted = self._plan.messages - len(ledger.cancelled) - len(ledger.uncertain)
        limit = time.monotonic() + _REST_S
        while time.monotonic() < limit:
            self._watch()
            if self._arrivals.messages >= wanted and kept_in_files():
                return
            time.sleep(STEP_S)
        self._show.event("not everything came in time; the proof will say what is missing")

    def sent(self) -> Sent:
        """What was sent and promised, for the proof."""
        ledger = self.ledger
        return Sent(
            due=np.concatenate([receipts.due_ms for receipts in ledger.receipts]),
            offset=np.concatenate([receipts.offsets(0) for receipts in ledger.receipts]),
            cancelled=ledger.mask(ledger.cancelled),
            uncertain=ledger.mask(ledger.uncertain),
            kept=np.arange(ledger.total) < self._plan.kept,
        )

    def _step(self) -> None:
        plan, elapsed_s = self._plan, time.monotonic() - self._start
        share = min(1.0, elapsed_s / (plan.sent_at * plan.seconds))
        while self.ledger.count < min(plan.total, plan.kept + plan.messages * share):
            self._send()
        self._watch()
        time.sleep(STEP_S)

    def _watch(self) -> None:
        self._arrivals.look()
        ledger = self.ledger
        self._show.counts(ledger.count, self._arrivals.messages, len(ledger.cancelled))

    def _send(self) -> None:
        rows = min(BATCH_ROWS, self.ledger.total - self.ledger.count)
        first = min(now_ms() + 1_000, self._end_ms - 1)
        self._ship(np.sort(self._random.integers(first, self._end_ms, rows)))

    def _ship(self, due: Int64s) -> None:
        numbers = range(self.ledger.count, self.ledger.count + len(due))
        table = pa.table(
            {
                "due": due,
                "topic": [TOPICS[number % len(TOPICS)] for number in numbers],
                "key": [b"customer %d" % (number % 1000) for number in numbers],
                "value": [VALUE.format(number).encode() for number in numbers],
            }
        )
        self.ledger.receipts.append(self._client.send_table(table))
        self.ledger.count += len(due)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
