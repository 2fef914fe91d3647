"""The demo's story: a node in a process of its own, a client that sends for some seconds, a kill.

    0 s     sending begins; messages are due from 1 s after they are sent up to ``seconds``
    20 %    some are cancelled
    40 %    SIGKILL, in the middle of sending and of delivering; started again half a second later
    60 %    all is sent; some more are cancelled
    100 %   the last one is due; the node is stopped cleanly

One thread does it all in small steps; the client retries on its own threads meanwhile. What came
in is read from the topics' files, beside the running node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..client import Client
from ..client.receipts import Receipts
from ..wheel.errors import NodeUnreachable, SlotwheelError
from ..wheel.schema import Int64s
from .demo_arrivals import TOPICS, VALUE, Arrivals
from .demo_node import START_MAX_S, STEP_S, NodeProcess
from .demo_proof import Arrived, Sent

BATCH_ROWS = 1_000
KEPT_DUE_S = 3_600
"""When the messages are due that stay in their slot files."""
KEPT_SLOTS = 20


class Show(Protocol):
    """What the scenario tells while it runs."""

    def event(self, text: str) -> None: ...

    def counts(self, sent: int, arrived: int, cancelled: int) -> None: ...


@dataclass(slots=True)
class Outcome:
    sent: Sent
    arrived: Arrived
    killed_ms: int
    ready_ms: int
    cancel_answers: dict[str, int] = field(default_factory=dict)
    slot_seconds: list[int] = field(default_factory=list)
    """Slots of the messages that were kept for later."""


@dataclass(slots=True)
class _Ledger:
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


class Scenario:
    """``messages`` due within ``seconds`` of the start of sending, and ``kept`` ones in an hour."""

    def __init__(self, data: Path, messages: int, kept: int, seconds: float, show: Show) -> None:
        self._node = NodeProcess(data)
        self._messages = messages
        self._kept = kept
        self._seconds = seconds
        self._show = show
        self._ledger = _Ledger(messages + kept)
        self._random = np.random.default_rng()
        self._arrivals: Arrivals | None = None
        self._kept_due: Int64s = np.zeros(0, np.int64)

    def run(self) -> Outcome:
        """Errors: ``SlotwheelError`` when the node or the client fails as it should not."""
        try:
            self._node.start()
            self._node.wait_ready()
            self._show.event(f"node started on {self._node.address}, data in {self._node.data}")
            self._arrivals = Arrivals(self._node.data)
            with Client(self._node.address, timeout_s=60.0) as client:
                killed_ms, ready_ms = self._act(client)
            code = self._node.stop()
            if code != 0:
                raise SlotwheelError(f"the node ended with code {code} when told to stop")
            self._show.event("node stopped")
            return self._outcome(killed_ms, ready_ms)
        finally:
            self._node.stop()
            if self._arrivals is not None:
                self._arrivals.close()

    def _act(self, client: Client) -> tuple[int, int]:
        self._send_kept(client)
        client.flush(60.0)  # connected, and the story's time begins
        start = time.monotonic()
        end_ms = _now_ms() + int(self._seconds * 1000)

        def until(share: float) -> None:
            """Send at an even pace, watch what comes in, until that share of the time."""
            while time.monotonic() - start < share * self._seconds:
                self._step(client, time.monotonic() - start, end_ms)

        until(0.2)
        client.flush(60.0)
        self._cancel(client, end_ms)
        until(0.4)
        killed_ms = _now_ms()
        pid = self._node.kill()
        self._show.event(f"SIGKILL to the node (process {pid}), in the middle of it all")
        self._pause(client, start, end_ms, lambda: _now_ms() > killed_ms + 500)
        self._node.start()
        self._pause(client, start, end_ms, self._node.ready)
        ready_ms = _now_ms()
        self._show.event(
            f"node started again; it was away for {(ready_ms - killed_ms) / 1000:.1f} s"
        )
        until(0.6)
        while self._ledger.count < self._messages + self._kept:
            self._send(client, end_ms)
        client.flush(60.0)
        self._show.event(f"all {self._messages + self._kept:,} messages are stored")
        self._cancel(client, end_ms)
        until(1.0)
        self._wait_for_the_rest(client)
        return killed_ms, ready_ms

    def _pause(self, client: Client, start: float, end_ms: int, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + START_MAX_S
        while not done():
            if time.monotonic() > limit:
                raise NodeUnreachable("the node did not come back", limit=f"{START_MAX_S:.0f} s")
            self._step(client, time.monotonic() - start, end_ms)

    def _step(self, client: Client, elapsed_s: float, end_ms: int) -> None:
        wanted = self._kept + self._messages * min(1.0, elapsed_s / (0.6 * self._seconds))
        while self._ledger.count < self._ledger.total and self._ledger.count < wanted:
            self._send(client, end_ms)
        self._watch()
        time.sleep(STEP_S)

    def _watch(self) -> None:
        assert self._arrivals is not None
        self._arrivals.look()
        ledger = self._ledger
        self._show.counts(ledger.count, self._arrivals.messages, len(ledger.cancelled))

    def _send_kept(self, client: Client) -> None:
        begin = (_now_ms() // 1000 + KEPT_DUE_S) * 1000
        self._kept_due = begin + np.arange(self._kept, dtype=np.int64) % KEPT_SLOTS * 1000
        for at in range(0, self._kept, BATCH_ROWS):
            self._ship(client, self._kept_due[at : at + BATCH_ROWS])

    def _send(self, client: Client, end_ms: int) -> None:
        rows = min(BATCH_ROWS, self._ledger.total - self._ledger.count)
        first = min(_now_ms() + 1_000, end_ms - 1)
        self._ship(client, np.sort(self._random.integers(first, end_ms, rows)))

    def _ship(self, client: Client, due: Int64s) -> None:
        numbers = range(self._ledger.count, self._ledger.count + len(due))
        table = pa.table(
            {
                "due": due,
                "topic": [TOPICS[number % len(TOPICS)] for number in numbers],
                "key": [b"customer %d" % (number % 1000) for number in numbers],
                "value": [VALUE.format(number).encode() for number in numbers],
            }
        )
        self._ledger.receipts.append(client.send_table(table))
        self._ledger.count += len(due)

    def _cancel(self, client: Client, end_ms: int) -> None:
        """Cancel one in twenty of those that are stored and due in the last third."""
        ledger = self._ledger
        border = end_ms - int(self._seconds * 1000) // 3
        chosen: list[int] = []
        ids: list[str] = []
        number = 0
        for receipts in ledger.receipts:
            due = receipts.due_ms
            if receipts.done() and not receipts.errors():
                for row in np.flatnonzero((due >= border) & (due < end_ms)).tolist()[::20]:
                    if number + row not in ledger.cancelled:
                        chosen.append(number + row)
                        ids.append(receipts[row].id)
            number += len(receipts)
        answers = client.cancel(ids)
        for one, answer in zip(chosen, answers, strict=True):
            ledger.answers[answer] = ledger.answers.get(answer, 0) + 1
            if answer == "cancelled":
                ledger.cancelled.add(one)
            elif answer == "unknown":  # "already delivered" has to be true: it stays promised
                ledger.uncertain.add(one)
        self._show.event(f"cancelled {answers.count('cancelled'):,} messages")

    def _wait_for_the_rest(self, client: Client) -> None:
        """Until all that is expected has come and the kept ones are in their slot files."""
        assert self._arrivals is not None
        ledger = self._ledger
        wanted = self._messages - len(ledger.cancelled) - len(ledger.uncertain)
        limit = time.monotonic() + 12.0
        while time.monotonic() < limit:
            self._watch()
            spilled = client.status()["slot_rows"] >= self._kept
            if self._arrivals.messages >= wanted and spilled:
                return
            time.sleep(STEP_S)
        self._show.event("not everything came in time; the proof will say what is missing")

    def _outcome(self, killed_ms: int, ready_ms: int) -> Outcome:
        ledger = self._ledger
        sent = Sent(
            due=np.concatenate([receipts.due_ms for receipts in ledger.receipts]),
            offset=np.concatenate([receipts.offsets(0) for receipts in ledger.receipts]),
            cancelled=ledger.mask(ledger.cancelled),
            uncertain=ledger.mask(ledger.uncertain),
            kept=np.arange(ledger.total) < self._kept,
        )
        seconds = sorted({due // 1000 for due in self._kept_due.tolist()})
        # Read anew: the proof is about what stands in the files now.
        final = Arrivals(self._node.data)
        final.look()
        arrived = final.result()
        final.close()
        return Outcome(sent, arrived, killed_ms, ready_ms, ledger.answers, seconds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
