"""The faults of ``support/kafkafaults.py`` really happen, and the transactions of a client that
retries as Kafka's documentation says survive them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.broker import Broker
from support.kafkafaults import Api, KafkaFaults, Rates
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.kafka
RECORDS = 5
BY_COORDINATOR = [Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN]
OFTEN = [api for api in Api if api is not Api.INIT_PRODUCER_ID]


class Transactions:
    """A transactional producer behind the proxy; ``committed``: the values of its transactions.
    ``marks``: each has an offset of a group, too. librdkafka looks for that group's coordinator
    once, and waits for ever if its only connection was lost just then: so this is not for a test
    that cuts the connection by which records are sent."""

    def __init__(self, broker: Broker, faults: KafkaFaults, name: str, *, marks: bool) -> None:
        self._marks = marks
        self._topic, self._name = broker.create_topic(name, 2), name
        self._reader = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._settings: dict[str, Any] = {
            "bootstrap.servers": faults.address,
            "transactional.id": name,
            "transaction.timeout.ms": 10_000,
            "message.timeout.ms": 10_000,
            "socket.timeout.ms": 1_000,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }
        self._producer = Producer(self._settings)
        self.committed: list[bytes] = []

    def begin(self) -> None:
        _retried(self._producer.init_transactions)

    def run(self, number: int) -> None:
        """One transaction, again if it has to be aborted."""
        values = [b"%d/%d" % (number, at) for at in range(RECORDS)]
        while True:
            try:
                self._try(number, values)
            except KafkaException as error:
                fault = error.args[0]
                if fault.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER and fault.fatal():
                    # Of a record, so the transaction is not committed; a new producer aborts it.
                    self._producer = Producer(self._settings)
                    self.begin()
                elif fault.txn_requires_abort():
                    _retried(self._producer.abort_transaction)
                else:
                    raise
            else:
                self.committed += values
                return

    def _try(self, number: int, values: list[bytes]) -> None:
        self._producer.begin_transaction()
        for at, value in enumerate(values):
            self._producer.produce(self._topic, value, partition=at % 2)
        if self._marks:
            group = self._reader.consumer_group_metadata()
            mark = [TopicPartition(self._topic, 0, number)]
            _retried(lambda wait_s: self._producer.send_offsets_to_transaction(mark, group, wait_s))
        _retried(self._producer.commit_transaction)

    def arrived(self) -> Counter[bytes]:
        """What a reader of committed records sees: as much as was committed, and what is behind."""
        self._reader.assign([TopicPartition(self._topic, at, 0) for at in range(2)])
        found: Counter[bytes] = Counter()
        end = time.monotonic() + PATIENCE_S
        quiet = False
        while (found.total() < len(self.committed) or not quiet) and time.monotonic() < end:
            records = self._reader.consume(10_000, 0.3)
            quiet = not records
            found.update(record.value() or b"" for record in records if not record.error())
        return found

    def mark(self) -> int:
        (found,) = self._reader.committed([TopicPartition(self._topic, 0)], PATIENCE_S)
        return int(found.offset)

    def close(self) -> None:
        self._reader.close()
        del self._producer  # while there is a broker: librdkafka waits for its connections


def _retried(call: Callable[[float], Any]) -> None:
    """Call until its outcome is known."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            call(PATIENCE_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end:
                raise
        else:
            return


@pytest.mark.parametrize(
    ("rates", "apis", "count"),
    [
        (Rates(close=1.0, close_ms=5, most=2), BY_COORDINATOR, 4),
        (Rates(close=1.0, close_ms=5, most=3), [Api.PRODUCE], 5),
        pytest.param(Rates(delay=0.5, delay_ms=20), OFTEN, 20, marks=pytest.mark.soak),
        (Rates(repeat=0.5), OFTEN, 30),
        pytest.param(
            Rates(close=1.0, close_ms=5, most=1), [Api.INIT_PRODUCER_ID], 1, marks=pytest.mark.soak
        ),
        pytest.param(Rates(silence=1.0, most=2), [Api.END_TXN], 3, marks=pytest.mark.soak),
    ],
    ids=["close", "close-produce", "delay", "repeat", "close-begin", "silence"],
)
def test_committed_records_arrive_once(
    own_broker: Broker,
    faults: KafkaFaults,
    request: pytest.FixtureRequest,
    rates: Rates,
    apis: list[Api],
    count: int,
) -> None:
    topic = request.node.callspec.id
    what, marks = topic.partition("-")[0], topic != "close-produce"
    faults.set(Api, Rates())
    faults.set(apis, rates)
    with closing(Transactions(own_broker, faults, topic, marks=marks)) as made:
        with faults.happening():
            made.begin()
            for number in range(1, count + 1):
                made.run(number)
        assert made.arrived() == Counter(made.committed)
        assert not marks or made.mark() == count
    assert {api for name, api in faults.counts if name == what} >= set(apis)


def test_nothing_happens_outside(own_broker: Broker, faults: KafkaFaults) -> None:
    faults.set(Api, Rates(close=1.0, repeat=1.0))
    before = faults.counts.copy()
    with closing(Transactions(own_broker, faults, "outside", marks=True)) as made:
        made.begin()
        made.run(1)
        assert made.arrived() == Counter(made.committed)
    assert +faults.counts == +before
