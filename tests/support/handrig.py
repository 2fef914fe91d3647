"""A hand on a real wheel, with a sink that does as it is told and a clock that a test can step."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.departures import KeptDepartures
from slotwheel.delivery.hand import Hand
from slotwheel.delivery.ports import DeliveryEvents
from slotwheel.delivery.semantics import AtLeastOnce
from slotwheel.delivery.sink import Answer, Answers, Sink
from slotwheel.policy.deadletters import EXPIRED
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import Int64s, times
from slotwheel.wheel.wheel import Wheel
from support.deliveries import MINT
from support.memstate import MemoryState
from support.waiting import PATIENCE_S, now_ms
from support.wheels import batch, master_of

Script = Callable[[str, bytes | None], Answer]
"""What the sink answers for a row, by its topic and value."""


def accept(_topic: str, _value: bytes | None) -> Answer:
    return Answer.ACCEPTED


class StepClock:
    """The machine's clock plus an offset that a test can change."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        return now_ms() + self.offset_ms


class ScriptedSink(Sink):
    """Answers by script and records what it took: (topic, value, due, clock at that moment)."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(MINT)
        self.clock = clock
        self.script: Script = accept
        self.reason: Callable[[Answer, str], str] = lambda answer, _: f"{answer.name} by script"
        self.waits_for_clock: dict[str, str] = {}
        self.up = True
        self.probes: Counter[str] = Counter()
        self.calls = 0
        self.before: Callable[[pa.RecordBatch, bool], None] = lambda _rows, _trial: None
        self.taken: list[tuple[str, bytes | None, int, int]] = []
        self._lock = threading.Lock()

    def deliver(self, rows: pa.RecordBatch, *, trial: bool = False) -> Answers:
        self.calls += 1
        self.before(rows, trial)
        if not self.up:
            return Answers.same(rows.num_rows, Answer.NOT_NOW, "down", down=True)
        answers = Answers.same(rows.num_rows, Answer.ACCEPTED)
        columns = (rows.column("topic").to_pylist(), rows.column("value").to_pylist())
        with self._lock:
            now = self.clock()
            found = zip(*columns, times(rows, "due").tolist(), strict=True)
            for row, (topic, value, due) in enumerate(found):
                answer = self.script(topic, value)
                if answer is Answer.ACCEPTED:
                    self.taken.append((topic, value, due, now))
                else:
                    answers.set(row, answer, self.reason(answer, topic))
        return answers

    def probe(self, topic: str) -> bool:
        self.probes[topic] += 1
        return self.up

    @property
    def problems(self) -> dict[str, str]:
        return self.waits_for_clock

    def healthy(self) -> bool:
        return self.up

    def close(self) -> None: ...

    def values(self, topic: str) -> list[bytes | None]:
        with self._lock:
            return [value for name, value, _, _ in self.taken if name == topic]

    def early(self) -> int:
        with self._lock:
            return sum(due > now for _, _, due, now in self.taken)


class Recorder(DeliveryEvents):
    """Events as lists."""

    def __init__(self) -> None:
        self.late: list[int] = []
        self.deaths: Counter[str] = Counter()
        self.notes: list[tuple[str, str]] = []
        self.why_held: dict[str, str] = {}

    def delivered(self, lateness_ms: Int64s) -> None:
        self.late += lateness_ms.tolist()

    def dead(self, count: int, reason: str) -> None:
        self.deaths[reason] += count

    def expired(self, count: int) -> None:
        self.deaths[EXPIRED] += count

    def not_kept(self, count: int, reason: str) -> None:
        self.notes += [("not kept", reason)] * count

    def held(self, topic: str, reason: str) -> None:
        self.notes.append(("held", topic))
        self.why_held[topic] = reason

    def set_aside(self, topic: str) -> None:
        self.notes.append(("set aside", topic))

    def released(self, topic: str) -> None:
        self.notes.append(("released", topic))

    def sink_down(self, reason: str) -> None:
        self.notes.append(("down", reason))

    def sink_up(self) -> None:
        self.notes.append(("up", ""))

    def alarm(self, name: str, **fields: object) -> None:
        self.notes.append((name, str(fields["reason"])))

    def count(self, kind: str) -> int:
        return sum(name == kind for name, _ in self.notes)


class Rig:
    """Wheel, syncer thread and hand thread over one directory."""

    def __init__(
        self,
        path: Path,
        config: WheelConfig | None = None,
        semantics: Callable[[Sink, DeadLetters], AtLeastOnce] | None = None,
        sink: Callable[[Rig], Sink] | None = None,
    ) -> None:
        """``sink``: makes another one than the scripted."""
        self.clock = StepClock()
        self.files = OsFiles(path)
        self.state = MemoryState()
        self.wheel = Wheel.open(self.files, self.state, config or WheelConfig(), self.clock())
        self.scripted = ScriptedSink(self.clock)
        self.sink = sink(self) if sink else self.scripted
        self.events = Recorder()
        self.fatal: list[BaseException] = []
        self.dead_letters = DeadLetters(self.sink, None)
        self.departures = KeptDepartures(self.files, 3_600_000, 0, self.events)
        self.hand = Hand(
            master_of(self.wheel),
            (semantics or AtLeastOnce)(self.sink, self.dead_letters),
            self.clock,
            events=self.events,
            departures=self.departures,
            on_fatal=self.fatal.append,
        )
        self._stop = threading.Event()
        self._stop_syncer = threading.Event()
        self._threads = [
            threading.Thread(target=self._sync, daemon=True),
            threading.Thread(target=self.hand.run, args=(self._stop,), daemon=True),
        ]
        self._threads[0].start()

    def start(self) -> None:
        self._threads[1].start()

    def send(self, rows: Sequence[tuple[str, bytes]], due_in_ms: int | Sequence[int] = 0) -> None:
        """Append and wait for the receipt."""
        now = self.clock()
        due = (np.full(len(rows), now, np.int64) + np.asarray(due_in_ms, np.int64)).tolist()
        sent = batch([(at, *row) for at, row in zip(due, rows, strict=True)])
        self.wheel.append(sent, now).result(60)

    def wait(self, condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            assert not self.fatal, self.fatal
            time.sleep(0.002)

    def stop_hand(self) -> None:
        self._stop.set()
        if self._threads[1].is_alive():
            self._threads[1].join(60)
        assert not self._threads[1].is_alive()

    def close(self) -> None:
        self.stop_hand()
        self._stop_syncer.set()
        self._threads[0].join(60)
        self.departures.close()
        self.sink.close()
        self.wheel.close()
        self.files.close()

    def _sync(self) -> None:
        while not self._stop_syncer.is_set():
            self.wheel.write_pending(0.05)
