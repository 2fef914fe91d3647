"""Exactly once into Kafka, whatever happens to the node, the broker, and the requests between them.

Everything sent is read once by a reader of committed records, in its topic or, where the topic
refuses it, in the dead-letter topic; nothing comes early.

The long run: ``python -m pytest -m soak tests/test_exactly_once_chaos.py``
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaAdminClient

from slotwheel.delivery.kafka.alternating import TRANSACTION_TIMEOUT_S
from slotwheel.delivery.kafka.confluent import ConfluentSink
from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings, SendPlan
from slotwheel.delivery.kafka.records import to_records
from slotwheel.delivery.kafka.topicbook import TopicInfo, Unreachable
from slotwheel.delivery.kafka.transactions import Fenced, StoredMark, Transactions, Unclear
from slotwheel.wheel.rows import from_columns
from support.broker import Broker, every_rule, read_only
from support.deliveries import MINT, Sent, rows_of
from support.kafkafaults import Api, KafkaFaults, Rates
from support.kafkaread import read_all
from support.load import Load
from support.promises import Promised
from support.scenario import Scenario
from support.waiting import eventually

pytestmark = pytest.mark.kafka
Figure = Callable[[str], None]
RATES = dict.fromkeys(Api, Rates(close=0.02, delay=0.05, repeat=0.02, delay_ms=50))
RATES[Api.PRODUCE] = Rates(close=0.002, delay=0.01, repeat=0.01, delay_ms=50)
"""There are many more of these."""


PARTITIONS = 3
LARGE = 2_000
"""The most bytes that a message of the topic ``small`` may have."""
LARGE_EVERY = 300
"""Of so many messages of the topic ``small`` one is too large."""


class OnceLoad(Load):
    """Messages in turn for each topic, with keys. The second topic takes none that is large; now
    and then one is."""

    keyless = 0
    """How many of the next messages for the first topic, which takes none without a key, have
    none."""

    def __init__(self, *where: Any, **how: Any) -> None:
        self.buried: set[int] = set()
        super().__init__(*where, **how)

    def stop(self) -> Promised:
        return replace(super().stop(), buried=frozenset(self.buried))

    def _rows_of(self, numbers: range, due: Sequence[int]) -> pa.RecordBatch:
        names = [self._topics[number % len(self._topics)] for number in numbers]
        keys: list[bytes | None] = [b"%d" % number for number in numbers]
        values = [b"%d" % number for number in numbers]
        for at, number in enumerate(numbers):
            if self.keyless and names[at] == self._topics[0]:
                keys[at] = None
                self.keyless -= 1
            elif number % (LARGE_EVERY * len(self._topics)) == 1:
                values[at] = values[at].ljust(LARGE + 500)
            else:
                continue
            self.buried.add(number)
        nothing = [None] * len(due)
        return from_columns(due, names, nothing, keys, values, [()] * len(due))


class Trouble:
    """A node that delivers exactly once through the proxy ``faults``. The node is killed, and
    stopped for longer than a transaction may take; the broker is killed and comes back; one topic
    takes nothing for a while, and others refuse single messages."""

    def __init__(
        self, path: Path, broker: Broker, faults: KafkaFaults, sink: str, seed: int
    ) -> None:
        self.done: Counter[str] = Counter()
        self._broker, self._faults = broker, faults
        own = path.name
        keyed = broker.create_topic(f"keyed-{own}", PARTITIONS, cleanup_policy="compact")
        small = broker.create_topic(f"small-{own}", PARTITIONS, max_message_bytes=LARGE)
        self._closed = broker.create_topic(f"closed-{own}", PARTITIONS)
        others = [broker.create_topic(f"other-{number}-{own}", 2) for number in range(3)]
        self.scene = Scenario(
            path,
            [keyed, small, self._closed, *others],
            seed=seed,
            broker=broker,
            bootstrap=faults.address,
            sink=sink,
            semantics="exactly-once",
            dead_topic=broker.create_topic(f"dead-{own}", PARTITIONS),
        )
        self.rng = self.scene.rng

    def kill_node(self) -> None:
        self.scene.node.kill()
        self.scene.node.start()

    def pause_node(self) -> None:
        """For longer than the broker lets a transaction be open."""
        self.scene.node.running.send_signal(signal.SIGSTOP)
        time.sleep(TRANSACTION_TIMEOUT_S + 1.5)
        self.scene.node.running.send_signal(signal.SIGCONT)

    def kill_broker(self) -> None:
        self._broker.kill()
        time.sleep(self.rng.uniform(0.0, 1.0))
        self._broker.start()

    def refuse(self) -> None:
        """The broker will refuse two messages. Until it is known which, and for a minute then, all
        of that topic are sent one by one."""
        assert isinstance(self.scene.load, OnceLoad)
        self.scene.load.keyless = 2

    def close_topic(self) -> None:
        """From now on nobody may write to it."""
        with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
            admin.create_acls(read_only(self._closed))

    def open_topic(self) -> None:
        with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
            admin.delete_acls([every_rule(self._closed)])

    def run(
        self,
        steps: Sequence[Callable[[], None]],
        figure: Callable[[str], None],
        *,
        rate: float,
        enough: int = 0,
        wait_s: float = 120.0,
    ) -> None:
        """Do the ``steps`` under load, and send ``enough`` messages at least. Then all is read once
        where it belongs."""
        before = self._faults.counts.copy()
        for api, often in RATES.items():
            self._faults.set([api], often)
        with self.scene as scene:
            load = scene.send(OnceLoad, rate=rate, rows=50)
            with self._faults.happening():
                for step in steps:
                    time.sleep(self.rng.uniform(0.2, 1.2))
                    self._revive()
                    step()
                    self.done[step.__name__.replace("_", " ")] += 1
                while len(load.due) < enough:
                    time.sleep(0.1)
                    self._revive()
                time.sleep(0.5)
            self._revive()
            found = scene.finish(within_s=wait_s)
            scene.node.signal()
        done = ", ".join(f"{count} x {what}" for what, count in sorted(self.done.items()))
        accidents = (self._faults.counts - before).total()
        figure(f"exactly once, {accidents} accidents with requests, {done}: {found.line()}")
        assert found.violations() == {}, scene.node.log_text()[-8000:]
        assert found.repeated == 0
        assert found.buried > 0

    def _revive(self) -> None:
        """As a supervisor does. librdkafka itself ends a process now and then, by an assertion."""
        node = self.scene.node
        code = node.running.poll()
        if code is not None:
            assert code == -signal.SIGABRT, (code, node.log_text()[-2000:])
            self.done["end by librdkafka"] += 1
            node.start()


@pytest.mark.parametrize("sink", ["confluent", "kafka-python"])
def test_trouble(
    own_broker: Broker, faults: KafkaFaults, tmp_path: Path, figure: Figure, sink: str
) -> None:
    chaos = Trouble(tmp_path, own_broker, faults, sink, seed=5)
    steps = [chaos.kill_node, chaos.close_topic, chaos.kill_node]
    if sink == "confluent":
        steps += [chaos.kill_broker, chaos.pause_node]
    steps += [chaos.open_topic, chaos.refuse]
    chaos.run(steps, figure, rate=400)


@pytest.mark.soak
@pytest.mark.parametrize(("sink", "kills"), [("confluent", 50), ("kafka-python", 15)])
def test_much_trouble(
    own_broker: Broker,
    faults: KafkaFaults,
    tmp_path: Path,
    figure: Figure,
    sink: str,
    kills: int,
) -> None:
    """The kills are of the node and of the broker; besides, the node is paused."""
    seed = time.time_ns() % 1_000_000
    figure(f"seed {seed}")
    chaos = Trouble(tmp_path, own_broker, faults, sink, seed=seed)
    steps: list[Callable[[], None]] = []
    for number in range(kills):
        steps.append(chaos.rng.choice([chaos.kill_node, chaos.kill_node, chaos.kill_broker]))
        more = {1: chaos.close_topic, 4: chaos.open_topic, 7: chaos.pause_node}.get(number % 10)
        if more is not None:
            steps.append(more)
    steps.append(chaos.refuse)
    chaos.run(steps, figure, rate=1_200, enough=6_000 * kills, wait_s=180)


def test_rows_of_an_aborted_transaction_stay_away(own_broker: Broker) -> None:
    """The broker dies with a transaction open, and comes back when that is too old: it ends it
    without writing so into the target, and would count its rows with the next commit there."""
    broker = own_broker
    dead = broker.create_topic("dead")
    settings = KafkaSettings(broker.bootstrap, delivery_timeout_s=4.0, metadata_timeout_s=1.0)
    made = {
        broker.create_topic(f"target-{name}", 2): kind.make_transactions(settings, name, dead)
        for name, kind in (("confluent", ConfluentSink), ("kafka-python", KafkaPythonSink))
    }
    for target, transactions in made.items():
        transactions.start()
        transactions.begin()
        assert transactions.send(_plan(target, b"before")) == {}
        transactions._open.store(1, "before")  # type: ignore[attr-defined]
    broker.kill()
    back_s = time.monotonic() + TRANSACTION_TIMEOUT_S + 1
    for transactions in made.values():
        with pytest.raises(Unclear):
            transactions.commit(1, "before")
    time.sleep(max(0.0, back_s - time.monotonic()))
    broker.start()
    for target, transactions in made.items():
        assert eventually(partial(_started, transactions)) == [None]
        for number in range(2):  # with each id
            transactions.begin()
            assert transactions.send(_plan(target, b"%d" % number)) == {}
            transactions.commit(number, "after")
        transactions.close()
    for target in made:
        found = {one.value for one in read_all(broker.bootstrap, [target], 4)}
        assert found == {b"0", b"1"}, target


def _started(transactions: Transactions) -> list[StoredMark | None]:
    with suppress(Unreachable, Fenced):
        return [transactions.start()]
    return []


def _plan(topic: str, value: bytes) -> SendPlan:
    """One row for each of two partitions."""
    rows = rows_of([Sent(topic, value, partition=at) for at in range(2)])
    numbers = np.arange(2, dtype=np.int64)
    return SendPlan(rows, to_records(rows, MINT), [0, 1], numbers, {topic: TopicInfo(2)})
