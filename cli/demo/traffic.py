"""The demo's messages and cancels, the answers, and the arrivals.

One thread does it all in small steps; the client retries on its own threads meanwhile. Arrivals are
read from the topics' files, beside the running nodes: each has embedded topics of its own, with the
messages it delivered while it was the master.
"""

from __future__ import annotations

import bisect
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...client import Client, Receipts
from ...client.cancels import CANCELLED, UNKNOWN
from ...client.message import clock_ms
from ...fleet.fleet import Fleet
from ...reading.directory import ReadOnlyFiles
from ...reading.topicreader import TopicReader
from ...wheel.schema import Int64s, times
from .proof import Arrivals, Promises
from .screen import Screen

TOPICS = ("demo-orders", "demo-mails", "demo-alarms")
STEP_S = 0.05
_VALUE = "message {:08d}"
"""A message's value: its number, by which the proof identifies it."""
_NUMBER = re.compile(rb"message (\d{8,})")
_BATCH_ROWS = 1_000
_KEPT_DUE_S = 3_600
"""The kept messages are due so long after the start."""
_KEPT_SLOTS = 20
_SENT_AT = 0.8
"""The share of the time after which all messages are sent."""
_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True)
class Workload:
    """``messages``: due within ``seconds`` of the start of sending; ``kept``: due in an hour."""

    messages: int
    kept: int
    seconds: float

    @property
    def total(self) -> int:
        return self.messages + self.kept


class Inbox:
    """Reads the topics of some data directories as they grow."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._files = [ReadOnlyFiles(directory) for directory in directories]
        self._readers = [TopicReader(files, topic) for files in self._files for topic in TOPICS]
        self._parts = [np.zeros((5, 0), np.int64)]
        self._numbers: set[int] = set()

    @property
    def messages(self) -> int:
        """Different messages so far."""
        return len(self._numbers)

    def read(self) -> None:
        for reader in self._readers:
            for batch in reader.batches():
                numbers = [_number(value) for value in batch.column("value").to_pylist()]
                names = ("offset", "due", "created", "delivered")
                self._parts.append(np.stack([numbers, *(times(batch, name) for name in names)]))
                self._numbers.update(numbers)

    def arrivals(self) -> Arrivals:
        """All rows, in the order in which the files were read."""
        return Arrivals(*np.concatenate(self._parts, axis=1))

    def first_after(self, at_ms: int) -> int:
        """The time of the first delivery after ``at_ms``, ms; 0: there was none."""
        delivered = self.arrivals().delivered
        return int(min(delivered[delivered > at_ms], default=0))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        for files in self._files:
            files.close()


class Traffic:
    """Sends the kept messages at once, and the others at an even pace, with each ``step``, which
    also reads arrivals. Errors: ``SlotwheelError`` of the client."""

    def __init__(
        self, client: Client | Fleet, load: Workload, inbox: Inbox, screen: Screen
    ) -> None:
        self.answers: Counter[str] = Counter()
        """How many cancels got each answer."""
        self._client = client
        self._load = load
        self._inbox = inbox
        self._screen = screen
        self._receipts: list[Receipts] = []
        self._starts = [0]
        """The number of each batch's first message, and of the next batch's."""
        self._cancelled = np.zeros(load.total, np.bool_)
        self._uncertain = np.zeros(load.total, np.bool_)
        self._random = np.random.default_rng()
        begin_ms = (clock_ms() // 1000 + _KEPT_DUE_S) * 1000
        due = begin_ms + np.arange(load.kept, dtype=np.int64) % _KEPT_SLOTS * 1000
        self.kept_seconds: list[int] = np.unique(due // 1000).tolist()
        for at in range(0, load.kept, _BATCH_ROWS):
            self._ship(due[at : at + _BATCH_ROWS])
        client.flush(_FLUSH_S)
        self._start = time.monotonic()
        self._end_ms = clock_ms() + int(load.seconds * 1000)

    @property
    def complete(self) -> bool:
        """True when all expected messages have arrived."""
        left_out = int(np.count_nonzero(self._cancelled | self._uncertain))
        return self._inbox.messages >= self._load.messages - left_out

    def until(self, share: float) -> None:
        """Go on until that share of the time has passed."""
        while time.monotonic() - self._start < share * self._load.seconds:
            self.step()
            time.sleep(STEP_S)

    def step(self) -> None:
        load, elapsed_s = self._load, time.monotonic() - self._start
        share = min(1.0, elapsed_s / (_SENT_AT * load.seconds))
        self._send_up_to(load.kept + int(load.messages * share))
        self._inbox.read()
        sent, cancelled = self._starts[-1], np.count_nonzero(self._cancelled)
        self._screen.counts(sent, self._inbox.messages, int(cancelled))

    def send_the_rest(self) -> None:
        self._send_up_to(self._load.total)
        self._client.flush(_FLUSH_S)
        self._screen.event(f"all {self._load.total:,} messages are stored")

    def cancel_some(self) -> None:
        """Cancel one in twenty of the messages that are stored and due in the last third."""
        self._client.flush(_FLUSH_S)
        promised = self.promises()
        border_ms = self._end_ms - int(self._load.seconds * 1000) // 3
        candidates = (promised.offset >= 0) & (promised.due >= border_ms) & ~promised.kept
        chosen = np.flatnonzero(candidates & ~promised.cancelled)[::20].tolist()
        answers = self._client.cancel([self._id(number) for number in chosen])
        self.answers.update(answers)
        for number, answer in zip(chosen, answers, strict=True):
            self._cancelled[number] = answer == CANCELLED
            # A message that is "already delivered" must have arrived: it stays promised.
            self._uncertain[number] = answer == UNKNOWN
        self._screen.event(f"cancelled {answers.count(CANCELLED):,} messages")

    def promises(self) -> Promises:
        """The messages that were sent so far, with their receipts."""
        sent = self._starts[-1]
        return Promises(
            due=np.concatenate([receipts.due_ms for receipts in self._receipts]),
            offset=np.concatenate([receipts.offsets(0) for receipts in self._receipts]),
            cancelled=self._cancelled[:sent],
            uncertain=self._uncertain[:sent],
            kept=np.arange(sent) < self._load.kept,
        )

    def _send_up_to(self, number: int) -> None:
        while (sent := self._starts[-1]) < number:
            rows = min(_BATCH_ROWS, self._load.total - sent)
            first_ms = min(clock_ms() + 1_000, self._end_ms - 1)
            self._ship(np.sort(self._random.integers(first_ms, self._end_ms, rows)))

    def _ship(self, due: Int64s) -> None:
        numbers = range(self._starts[-1], self._starts[-1] + len(due))
        table = pa.table(
            {
                "due": due,
                "topic": [TOPICS[number % len(TOPICS)] for number in numbers],
                "key": [b"customer %d" % (number % 1000) for number in numbers],
                "value": [_VALUE.format(number).encode() for number in numbers],
            }
        )
        self._receipts.append(self._client.send_table(table))
        self._starts.append(numbers.stop)

    def _id(self, number: int) -> str:
        batch = bisect.bisect_right(self._starts, number) - 1
        return self._receipts[batch][number - self._starts[batch]].id


def _number(value: bytes | None) -> int:
    """The number in a message's value; -1: it has none."""
    match = _NUMBER.fullmatch(value or b"")
    return int(match[1]) if match else -1
