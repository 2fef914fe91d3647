"""Exactly once into Kafka, whatever happens to the node, the broker, and the requests between them.

Everything sent is read once by a reader of committed records, in its topic or, where the topic
refuses it, in the dead-letter topic; nothing comes early.

The long run: ``python -m pytest -m soak tests/test_exactly_once_chaos.py``
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from slotwheel.delivery.kafka.alternating import TRANSACTION_TIMEOUT_S
from slotwheel.delivery.kafka.confluent import ConfluentSink
from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings, SendPlan
from slotwheel.delivery.kafka.records import to_records
from slotwheel.delivery.kafka.topicbook import TopicInfo, Unreachable
from slotwheel.delivery.kafka.transactions import Fenced, StoredMark, Transactions, Unclear
from support.broker import Broker
from support.deliveries import MINT, Sent, rows_of
from support.kafkafaults import Api, KafkaFaults, Rates
from support.kafkaread import read_all
from support.oncechaos import OnceChaos, OnceReport
from support.waiting import eventually

pytestmark = pytest.mark.kafka
Figure = Callable[[str], None]
RATES = dict.fromkeys(Api, Rates(close=0.02, delay=0.05, repeat=0.02, delay_ms=50))
RATES[Api.PRODUCE] = Rates(close=0.002, delay=0.01, repeat=0.01, delay_ms=50)
"""There are many more of these."""


def check(report: OnceReport, sink: str, figure: Figure, node_log: str) -> None:
    figure(f"exactly once in trouble, {sink}: {report.line()}")
    assert report.violations() == {}, f"{report.line()}\n{node_log[-8000:]}"
    assert report.dead > 0


@pytest.mark.parametrize("sink", ["confluent", "kafka-python"])
def test_trouble(
    own_broker: Broker, faults: KafkaFaults, tmp_path: Path, figure: Figure, sink: str
) -> None:
    chaos = OnceChaos(tmp_path, own_broker, faults, sink, seed=5)
    steps = [chaos.kill_node, chaos.close_topic, chaos.kill_node]
    if sink == "confluent":
        steps += [chaos.kill_broker, chaos.pause_node]
    steps += [chaos.open_topic, chaos.refuse]
    report = chaos.run(steps, rate=400, rates=RATES)
    check(report, sink, figure, chaos.node.log_text())


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
    chaos = OnceChaos(tmp_path, own_broker, faults, sink, seed=seed)
    steps: list[Callable[[], None]] = []
    for number in range(kills):
        steps.append(chaos.rng.choice([chaos.kill_node, chaos.kill_node, chaos.kill_broker]))
        more = {1: chaos.close_topic, 4: chaos.open_topic, 7: chaos.pause_node}.get(number % 10)
        if more is not None:
            steps.append(more)
    steps.append(chaos.refuse)
    report = chaos.run(steps, rate=1_200, rates=RATES, enough=6_000 * kills, wait_s=180)
    check(report, sink, figure, chaos.node.log_text())


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
