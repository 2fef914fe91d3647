"""The life of a wheel under each delivery mode: what the sweep of at-least-once knows, and more.

At most once: nothing is repeated, and what is lost was in the chunk that was leaving when the power
failed. Exactly once: nothing is lost and nothing repeated; and each cancel gets a true answer once
it is known what has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from slotwheel.delivery import semantics as semantics_module
from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.delivery.embedded.exactly_once import EmbeddedExactlyOnce
from slotwheel.delivery.handover import BatchOutcome
from slotwheel.delivery.kafka.exactly_once import KafkaExactlyOnce
from slotwheel.delivery.ports import DeliveryEvents
from slotwheel.delivery.semantics import AtMostOnce, NotReady
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.due.chunk import Chunk
from support.crashbook import Key
from support.crashfs import Mode
from support.crashlife import Steps, World
from support.fakekafka import FakeBroker, FakeKafkaSink, Net, Record
from support.wheels import keys_of, master_of

T = TypeVar("T")


class ModeWorld(World):
    """``semantics``: how chunks are delivered; made anew by ``choose_semantics``."""

    def __init__(self, steps: Steps, *, embedded: bool = False) -> None:
        super().__init__(steps, embedded=embedded)
        self.book.once = True
        self.semantics: Any = None
        self.begun = False
        self.crashed = False

    def crash(self, mode: Mode, rng: Random, steps: Steps | None = None) -> None:
        """The second time nothing survives that was not synced, not even what a process that was
        killed has left to the next one."""
        super().crash("durable" if self.crashed else mode, rng, steps)
        self.crashed = True

    def open(self) -> None:
        self.begun = False
        super().open()
        self.ready()

    def ready(self) -> bool:
        if not self.begun:
            self.commit()  # the first entry of the epoch
            try:
                self.semantics.begin(master_of(self.wheel), self.now_ms)
            except NotReady:
                return False
            self.begun = True
            self.commit()
        return True

    def hand_over(self, chunk: Chunk) -> BatchOutcome:
        outcome: BatchOutcome
        outcome = self.semantics.deliver(
            master_of(self.wheel), chunk, lambda: self.now_ms, trial=chunk.topic is not None
        )
        self.begun &= not outcome.begin_again
        return outcome


class AtMostOnceWorld(ModeWorld):
    def choose_semantics(self) -> None:
        self.semantics = AtMostOnce(self.target, self.dead)
        self.semantics.stopping = self._sink_comes_back
        master: Any = master_of(self.wheel)
        # Alone in its thread, so who waits for the journal has to write it.
        master._due_changed.wait = lambda timeout=None: self.commit()

    def _sink_comes_back(self) -> bool:
        """Asked before each try."""
        self.tries += 1
        if self.tries > 3:
            self.is_down_after = None
        return False

    def hand_over(self, chunk: Chunk) -> BatchOutcome:
        keys = set(keys_of(chunk.rows))
        self.tries = 0
        self.book.may_be_lost |= keys
        with (
            patch.object(semantics_module, "_NOT_NOW_S", 0.0),
            patch.object(semantics_module, "_AGAIN_S", 0.0),
        ):
            outcome = super().hand_over(chunk)
        self.book.may_be_lost -= keys & self.book.answered
        return outcome


class ExactWorld(ModeWorld):
    def cancel(self, name: str, row: int) -> CancelAnswer | None:
        answer = super().cancel(name, row)
        lines = master_of(self.wheel).due.lines
        flying = any(line.flight for line in (lines.main, *lines.held.values()))
        if self.begun and not flying:
            assert answer is not CancelAnswer.UNKNOWN, f"{name} {row}: nobody knows"
        return answer

    def finish(self) -> None:
        told: list[int] = []
        restart = self.restart

        def count_and_restart() -> None:
            status = self.wheel.status()
            told.append(status.delivered + status.dead + status.expired)
            restart()

        with patch.object(self, "restart", count_and_restart):
            super().finish()
        assert told == [len(self.book.answered)], f"{told}: {len(self.book.answered)} are answered"


class EmbeddedWorld(ExactWorld):
    """The topics are the truth about what has left."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps, embedded=True)
        self.book.once = False
        self._opened_with: Counter[Key] | None = None
        """What the topics hold, until a delivery begins."""

    def choose_semantics(self) -> None:
        target: Any = self.target
        target.recover_all = target._inner.recover_all
        letters = DeadLetters(target, None)
        self.semantics = EmbeddedExactlyOnce(target, letters, self.files)

    def ready(self) -> bool:
        if not self.begun and super().ready():
            found = self._opened_with or super().check_topics()
            self._opened_with = None
            self.book.answered = set(found)
            self.check_marks_now()
        return self.begun

    def check_marks_now(self) -> None:
        self.book.check_marks(master_of(self.wheel).marks)

    def check_topics(self) -> Counter[Key]:
        self._opened_with = found = super().check_topics()
        for key, count in found.items():
            assert count == 1, f"{key} is in the topics {count} times"
            assert key not in self.book.cancelled, f"{key} was cancelled and is in a topic"
        return found


class _CrashNet(Net):
    """Each request is two steps: before it takes effect, and before its answer comes."""

    def __init__(self, world: KafkaWorld) -> None:
        super().__init__(world.broker)
        self._world = world

    def call(self, name: str, request: Callable[[], T]) -> T:
        self._world.steps.hit(name)
        self.broker.down = self._world.is_down_after is not None
        answer = request()
        self._world.steps.hit(f"{name}: answer")
        return answer


class KafkaWorld(ExactWorld):
    """Kafka has power all the time."""

    def __init__(self, steps: Steps) -> None:
        self.broker = FakeBroker(self._committed)
        super().__init__(steps)
        self.broker.blocked = self.blocked

    def choose_semantics(self) -> None:
        self.target = FakeKafkaSink(self.wheel.mint, _CrashNet(self))
        self.semantics = KafkaExactlyOnce(self.target, DEAD_LETTER_TOPIC, DeliveryEvents())

    def _committed(self, records: Sequence[Record]) -> None:
        for one in records:
            assert one.value is not None
            headers = {name: value or b"" for name, value in one.headers}
            self.offer(one.key, one.topic, one.value, headers)
            self.book.accept(one.key)


WORLDS: dict[str, type[ModeWorld]] = {
    "at-most-once": AtMostOnceWorld,
    "exactly-once, embedded": EmbeddedWorld,
    "exactly-once, Kafka": KafkaWorld,
}
