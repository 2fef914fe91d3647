"""Months of a node's life in seconds: its wall clock steps, its machine sleeps, it is killed; and
an account of what another client reads from Kafka.

    with FarLife(tmp_path, broker.bootstrap, topics, dead, partitions=2) as life:
        life.send(100, [500, 30 * DAY_MS])
        life.spill()
        life.step(-2 * DAY_MS)
        life.kill(down_ms=3 * DAY_MS)
        assert life.finish().violations() == {}

Theory: a node is to hand each message over once and not before its due time *by the clock that it
goes by at that moment*, and that clock steps. So the life is cut into stretches in which nobody
touched a clock, and of each it is known by how much the wall clock is off, and which time the node
has to go by (docs/operations.md, "slotwheel clock"). The topics keep the time at which the node
sent a record, by its own wall clock. Less the offset of a stretch, that is a time of this machine,
and it lies in the stretch for one offset only: so each record says itself in which stretch it was
handed over, however late it is read.

*Example.* The wall clock stepped two days ahead at 12:00:03 by this machine, and is not believed. A
record with the time 14:00:05 was handed over at 12:00:05; the node then went by 12:00:05, and a
message due at 12:00:06 is early.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self

import numpy as np

from slotwheel import Client
from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.slots.slot import DAY_S, HOUR_S, slot_of_name, width_s

from . import kafkaload
from .chaosfaults import last_marks
from .datadirs import state_of
from .deliveries import Sent
from .kafkaread import Arrived, HandedReader, assert_order, assert_partitions
from .nodeprocess import NodeProcess, run_cli
from .promises import Account, Arrival, Death, Fate, Fault, Meddled, Promised, account
from .waiting import eventually, now_ms
from .wallclock import WallClock

HOUR_MS, DAY_MS = HOUR_S * TICK_MS, DAY_S * TICK_MS
BEGIN_MS = 22_000 * DAY_MS + 9 * HOUR_MS
"""When the life begins, by the node's clock: at nine in the morning."""
HORIZON_MS = 60 * DAY_MS
KEEPS_TIMES: dict[str, Any] = {
    "message_timestamp_type": "CreateTime",
    "message_timestamp_after_max_ms": 10**13,
    "retention_ms": -1,
}
"""The settings of a topic that takes any time of a record and keeps it."""
_TAIL_BYTES = 64 << 10
_SLACK_MS = 60_000
"""Of a busy machine: far less than any step of a clock."""
_ROUNDING_MS = 2
"""The time of a node that does not believe its wall clock is a sum of three that are cut to ms."""
_IN_HAND_MS = 10_000
"""For so long, on a busy machine, a message may be on its way from the node's look at its clock to
Kafka's client."""


@dataclass(frozen=True)
class Stretch:
    """A time from ``begin_ms`` to ``end_ms`` by this machine's clock. ``wall_ms`` and
    ``believed_ms``: by how much the node's wall clock, and the time that it goes by, are ahead of
    that. ``paused``: its clock is behind messages that have left, so nothing may leave. ``sent``:
    how many messages were sent up to its end."""

    begin_ms: int
    wall_ms: int
    believed_ms: int
    paused: bool
    end_ms: int = 1 << 62
    sent: int = 0

    def has(self, sent_ms: int) -> bool:
        """True if a record that the node sent at this time of its wall clock is of the stretch."""
        return self.begin_ms <= sent_ms - self.wall_ms <= self.end_ms


class FarLife:
    """Begun when the ``with`` block is entered. ``topics`` have ``partitions`` each and, as the
    topic ``dead`` for dead letters, the settings ``KEEPS_TIMES``. ``exact``: delivery is exactly
    once, so not even a kill explains a message that comes twice."""

    def __init__(
        self,
        path: Path,
        bootstrap: str,
        topics: Sequence[str],
        dead: str,
        *,
        partitions: int,
        exact: bool = False,
        seed: int = 1,
    ) -> None:
        self.rng = Random(seed)
        self._topics, self._partitions = topics, partitions
        self._bootstrap = bootstrap
        self._clock = WallClock(path / "clock", BEGIN_MS - now_ms())
        self._believed_ms = self._clock.offset_ms
        self._stretches: list[Stretch] = []
        self._sent: list[Sent] = []
        self._ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._cancels: dict[int, Meddled] = {}
        self._arrived: list[Arrived] = []
        self._handed: set[int] = set()
        self._kills: list[Fault] = []
        self._exact = exact
        self._furthest_ms = -1
        options = [
            *("--group", path.name, "--sink", "kafka-python", "--bootstrap", bootstrap),
            *("--dead-letter-topic", dead, "--horizon", f"{HORIZON_MS // DAY_MS}d"),
            *("--delivery", "exactly-once" if exact else "at-least-once"),
            *("--tail-bytes", str(_TAIL_BYTES)),
        ]
        self.node = NodeProcess(path / "data", *options, **self._clock.variables)

    def __enter__(self) -> Self:
        self.node.__enter__()
        self._reader = HandedReader(self._bootstrap, self._topics)
        self._begin_stretch(now_ms())
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self.node.__exit__()

    @property
    def now_ms(self) -> int:
        """The time that the node goes by."""
        return now_ms() + self._believed_ms

    @property
    def pending(self) -> list[int]:
        """The numbers of messages that are still to leave."""
        gone = self._handed | self._cancels.keys()
        return [number for number in range(len(self._sent)) if number not in gone]

    @property
    def sent(self) -> int:
        """How many messages were sent."""
        return len(self._sent)

    def due_ms(self, number: int) -> int:
        return self._sent[number].due

    @property
    def widths(self) -> set[int]:
        """The widths of the slots that have files now, in seconds."""
        slots = [slot_of_name(path.name) for path in (self.node.data / "slots").iterdir()]
        return {width_s(slot) for slot in slots if slot is not None}

    # What clients do

    def send(self, count: int, ahead_ms: Sequence[int]) -> range:
        """Messages of all kinds, due so far ahead of now, in turn; their numbers."""
        now = self.now_ms
        return self.send_due(count, [now + span for span in ahead_ms])

    def send_due(self, count: int, due_ms: Sequence[int]) -> range:
        """The same, due at these times in turn."""
        due = itertools.cycle(due_ms)
        seed = len(self._sent)
        return self._send(
            kafkaload.make(count, self._topics, self._partitions, lambda _: next(due), seed)
        )

    def _send(self, sent: list[Sent]) -> range:
        ids = kafkaload.send_by_client(self.node.address, sent)
        first = len(self._sent)
        self._sent += sent
        self._ids += ids
        self._numbers |= {id_: first + at for at, id_ in enumerate(ids)}
        return range(first, len(self._sent))

    def cancel(self, numbers: Sequence[int]) -> list[str]:
        """Cancel messages and note the answers, which have to be true; the answers."""
        with Client(self.node.address, timeout_s=60) as client:
            answers = client.cancel([self._ids[number] for number in numbers])
        for number, answer in zip(numbers, answers, strict=True):
            if answer == "already delivered":
                eventually(partial(self._has_come, number))
            elif self._fate(number) is not Fate.CANCELLED:
                fate = Fate.CANCELLED if answer == "cancelled" else Fate.UNCERTAIN
                self._cancels[number] = Meddled(fate)
        return answers

    def _has_come(self, number: int) -> bool:
        return self._look() and number in self._handed

    def _fate(self, number: int) -> Fate | None:
        return self._cancels[number].fate if number in self._cancels else None

    def spill(self) -> None:
        """Have all of the tail spilled: a message comes in that is larger than a tail may be. (A
        tail is also spilled by its age, when a clock goes ahead.)"""
        due_ms = self.now_ms + self.rng.randrange(DAY_MS, HORIZON_MS)
        self._send([Sent(self._topics[0], bytes(_TAIL_BYTES), b"large", due=due_ms)])
        with Client(self.node.address, timeout_s=60) as client:
            eventually(lambda: client.status()["tail_rows"] == 0)

    # What happens to the clock, and to the process

    def step(self, ms: int, *, believed: bool = True) -> None:
        """The wall clock steps. ``believed``: what the node has to make of it, by the manual."""
        with self._next_stretch():
            self._clock.set(self._clock.offset_ms + ms)
            if believed:
                self._believed_ms = self._clock.offset_ms

    def wait_for_note(self) -> None:
        """Wait until a restart knows the clock that the node believes; it is noted once a second
        (``node/clock.py``)."""
        eventually(lambda: self._noted_off_ms() < _SLACK_MS)

    def _noted_off_ms(self) -> int:
        _, _, noted_ms = state_of(self.node.data).clock.partition(" ")
        since_start_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        started_ms = self.now_ms - since_start_ms - self._clock.slept_ms
        return abs(int(noted_ms or 0) - started_ms)

    def accept(self) -> None:
        """An operator says that the wall clock is right."""
        with self._next_stretch("--accept"):
            self._believed_ms = self._clock.offset_ms

    def set_back(self) -> None:
        """An operator has the mark set back to the clock."""
        with self._next_stretch("--set-back"):
            self._furthest_ms = -1

    def sleep(self, ms: int) -> None:
        """The machine sleeps for so long; the node goes on afterwards."""
        with self._next_stretch():
            self._clock.sleep(ms)
            self._believed_ms += ms

    def sleep_until(self, time_ms: int) -> None:
        """Sleep until the node's time is this one, if it is not yet."""
        if (span_ms := time_ms - self.now_ms) > 0:
            self.sleep(span_ms)

    def kill(self, down_ms: int = 0) -> None:
        """SIGKILL; the node is started again after ``down_ms`` by its clock."""
        with self._next_stretch():
            self.node.kill()
            died_ms = self.now_ms
            self._look()
            if not self._exact:
                death = Death(len(self._arrived), last_marks(self.node.data), exact=False)
                self._kills.append(Fault("SIGKILL", died_ms, died_ms, death=death))
            self._clock.sleep(down_ms)
            self._believed_ms += down_ms
            self.node.start()

    @contextmanager
    def _next_stretch(self, *command: str) -> Iterator[None]:
        """Do something to the clock in the ``with`` block, then give the node a ``command``, and
        see that it goes by the time of this account. The stretch before ends behind the change, and
        the next one begins before it: in between a record is of the one whose offset it has."""
        begin_ms, last = now_ms(), self._stretches[-1]
        if not last.paused:
            self._furthest_ms = max(self._furthest_ms, self.now_ms)
        yield
        self._stretches[-1] = replace(last, end_ms=now_ms(), sent=len(self._sent))
        self._begin_stretch(begin_ms, *command)

    def _begin_stretch(self, begin_ms: int, *command: str) -> None:
        paused = self.now_ms < self._furthest_ms
        self._stretches.append(Stretch(begin_ms, self._clock.offset_ms, self._believed_ms, paused))
        if command:
            done = run_cli("clock", *command, "--node", self.node.address)
            assert done.returncode == 0, done.stderr
        eventually(self._clocks_agree, otherwise=self._shown)

    def _shown(self) -> dict[str, int]:
        answer = run_cli("clock", "--json", "--node", self.node.address)
        shown: dict[str, int] = json.loads(answer.stdout)["clock"]
        return shown

    def _clocks_agree(self) -> bool:
        shown, wall_ms = self._shown(), now_ms() + self._clock.offset_ms
        off_ms = abs(shown["now_ms"] - self.now_ms), abs(shown["wall_ms"] - wall_ms)
        return max(off_ms) < _SLACK_MS

    # What came of it

    def arrive(self, ahead_ms: int = 0) -> None:
        """Wait until all is in Kafka that is due now or within ``ahead_ms``, ms."""
        due_ms = self.now_ms + ahead_ms
        wanted = {number for number in self.pending if self._sent[number].due <= due_ms}
        eventually(
            lambda: self._look() and wanted <= self._handed,
            otherwise=lambda: (len(wanted - self._handed), self.node.log_text()[-2000:]),
        )

    def assert_in_order(self, due_ms: Sequence[int]) -> None:
        """What was due at these times, and sent long before, left in the order of due times and
        offsets, whatever files it lay in: else the mark would cover messages that did not leave."""
        late = assert_order(row for row in self._arrived if row.due_ms in due_ms).late
        assert late == 0, late

    def _look(self) -> bool:
        new = self._reader.new()
        self._arrived += new
        self._handed |= {self._numbers[row.id] for row in new if row.id in self._numbers}
        return True

    def finish(self) -> Account:
        """Sleep until nothing is left, in the node or on its disk: the file of a day is deleted at
        the end of the day. What became of the promises."""
        last_ms = max(sent.due for sent in self._sent)
        self.sleep_until(last_ms)
        self.arrive()
        self.sleep_until(last_ms + DAY_MS)
        eventually(lambda: self.node.metric("slotwheel_pending") == 0)
        assert self.node.metric("slotwheel_dead_total") == 0
        eventually(lambda: not self.widths)
        self._look()
        self._assert_contents()
        assert_partitions(self._arrived, self._partitions)
        promised = Promised(
            np.array([sent.due for sent in self._sent], np.int64),
            np.array([MessageId.parse(id_).offset for id_ in self._ids], np.int64),
            self._cancels,
        )
        return account(promised, [self._arrival(row) for row in self._arrived], self._kills)

    def _arrival(self, row: Arrived) -> Arrival:
        """``at_ms``: the time that the node went by when it handed the record over."""
        number, at = self._numbers.get(row.id, -1), self._stretch(row)
        stretch = self._stretches[at]
        at_ms = row.appended_ms - stretch.wall_ms + stretch.believed_ms
        if stretch.wall_ms != stretch.believed_ms:
            at_ms += _ROUNDING_MS
        if stretch.paused or at_ms < row.due_ms:
            in_hand_ms = self._in_hand_ms(number, at)
            assert in_hand_ms >= row.due_ms, ("early, or left while the clock was behind", row)
            at_ms = in_hand_ms
        return Arrival(number, row.due_ms, row.offset, at_ms)

    def _in_hand_ms(self, number: int, at: int) -> int:
        """The latest time that the node went by shortly before the stretch, when the message had
        been sent; -1: none. The node looks at its clock, hands the message over, and its client
        writes the time into the record: if the clock steps back in between, that time is before
        the due time of a message that was handed over behind it."""
        return max(
            (
                earlier.end_ms + earlier.believed_ms
                for earlier in self._stretches[:at]
                if self._stretches[at].begin_ms - earlier.end_ms <= _IN_HAND_MS
                and number < earlier.sent
                and not earlier.paused
            ),
            default=-1,
        )

    def _stretch(self, row: Arrived) -> int:
        """The place of the stretch that a record is of."""
        for at, stretch in enumerate(self._stretches):
            if stretch.has(row.appended_ms):
                return at
        raise AssertionError(("a time that the node's clock never had", row, self._stretches))

    def _assert_contents(self) -> None:
        """Second by second, what came is what was sent and not cancelled, each thing of it: topic,
        key, value, headers, due time."""
        wanted: dict[int, Counter[Sent]] = defaultdict(Counter)
        for number, sent in enumerate(self._sent):
            fate = self._fate(number)
            if fate is None or (fate is Fate.UNCERTAIN and number in self._handed):
                wanted[sent.due // TICK_MS][replace(sent, partition=None)] += 1
        came: dict[int, Counter[Sent]] = defaultdict(Counter)
        for row in {row.id: row for row in self._arrived}.values():
            came[row.due_ms // TICK_MS][row.content()] += 1
        for second in wanted.keys() | came.keys():
            assert came[second] == wanted[second], (second, came[second], wanted[second])

    def lateness_ms(self) -> list[int]:
        """By how much those were late that became due in the stretch in which they left, ascending:
        not what became due while the machine slept, or while the clock was behind."""
        late = []
        for row in self._arrived:
            stretch, at_ms = self._stretches[self._stretch(row)], self._arrival(row).at_ms
            since_ms = max(row.due_ms, row.created_ms)
            ahead_ms = stretch.believed_ms
            if stretch.begin_ms + ahead_ms <= since_ms <= at_ms <= stretch.end_ms + ahead_ms:
                late.append(at_ms - since_ms)
        return sorted(late)
