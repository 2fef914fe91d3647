"""One hand that delivers exactly once into the model of a broker, turn by turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from slotwheel.delivery import hand as hand_module
from slotwheel.delivery import held as held_module
from slotwheel.delivery.departures import KeptDepartures
from slotwheel.delivery.kafka.exactly_once import KafkaExactlyOnce
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.config import WheelConfig
from support.fakekafka import FakeBroker, FakeKafkaSink, Lost, Net, Record
from support.handrig import Recorder
from support.masters import AtOnce, Later, StoryHand
from support.wheels import Node, master_of

T = TypeVar("T")
T0 = 1_900_000_000_000


class LosingNet(Net):
    """``lose``: requests whose next answer is lost, though they take effect."""

    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker)
        self.lose: set[str] = set()
        self.before: Callable[[str], None] = lambda _: None

    def call(self, name: str, request: Callable[[], T]) -> T:
        self.before(name)
        answer = request()
        if name in self.lose:
            self.lose.remove(name)
            raise Lost(f"{name}: no answer")
        return answer


class OneHand:
    """A node and its hand; ``got``: the values that can be read committed."""

    def __init__(self, node: Node, broker: FakeBroker, *, accept_repeats: bool = False) -> None:
        self.node, self.broker = node, broker
        self.now_ms = T0
        self.got: Counter[bytes | None] = Counter()
        broker.committed = self._committed
        self.net = LosingNet(broker)
        self.events = Recorder()
        self.semantics = KafkaExactlyOnce(
            FakeKafkaSink(node.wheel.mint, self.net),
            DEAD_LETTER_TOPIC,
            self.events,
            accept_repeats=accept_repeats,
        )
        self.hand = StoryHand(
            master_of(node.wheel),
            self.semantics,
            lambda: self.now_ms,
            events=self.events,
            departures=KeptDepartures(node.files, 3_600_000, 0, self.events),
        )
        held: Any = self.hand._held
        held._pool = AtOnce()

    def _committed(self, records: Sequence[Record]) -> None:
        self.got.update(record.value for record in records)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.hand.turn()
            self.node.sync()

    @property
    def held(self) -> list[str]:
        return master_of(self.node.wheel).held_topics()


@contextmanager
def one_hand(path: Path, config: WheelConfig) -> Iterator[OneHand]:
    later = Later()
    with patch.object(hand_module, "time", later), patch.object(held_module, "time", later):
        node = Node(path, config, T0)
        node.sync()
        yield OneHand(node, FakeBroker())
        node.crash()
