"""The consumer's own thread, with a source and a transactor that are made up."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from slotwheel.client.message import clock_ms
from slotwheel.consumer.clock import RemoteClock
from slotwheel.consumer.failing import Failing
from slotwheel.consumer.inflight import CommitBatch, InFlight
from slotwheel.consumer.message import OutputRecord, Received, SourcePartition
from slotwheel.consumer.outbox import KafkaOutbox
from slotwheel.consumer.pump import Pump
from slotwheel.consumer.source import ConsumerFailed, Source
from slotwheel.consumer.transactions import TransactionFailed, Transactor
from slotwheel.policy.retry import RetryPolicy
from support.waiting import PATIENCE_S

PARTITION = SourcePartition("work", 0)


class MadeSource(Source):
    """One message, again and again."""

    def __init__(self) -> None:
        self.read = False

    def poll(self, timeout_s: float, count: int) -> list[Received]:
        if self.read or not count:
            time.sleep(min(timeout_s, 0.01))
            self.seen = {}
            return []
        self.read = True
        self.seen = {PARTITION: 0}
        return [Received(*PARTITION, 0, None, b"v", [], clock_ms())]

    def commit(self, positions: Mapping[SourcePartition, int]) -> None: ...

    def hold(self, partitions: Collection[SourcePartition]) -> None: ...

    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        self.read = False

    def close(self) -> None: ...


class MadeTransactor(Transactor):
    """Each transaction fails; the topics have these numbers of partitions."""

    def __init__(self, topics: Mapping[str, int | None], *, fenced: bool = False) -> None:
        self.fenced, self.topics, self.batches = fenced, topics, 0

    def start(self) -> None: ...

    def commit(self, batch: CommitBatch) -> None:
        self.batches += 1
        if self.fenced:
            raise TransactionFailed("fenced", fenced=True)
        raise self.unclear(batch, "no answer")

    def partitions(self, topic: str) -> int | None:
        return self.topics[topic]

    def close(self) -> None: ...


def ended_by(transactor: Transactor) -> ConsumerFailed:
    """How a consumer ends that answers each message by a retry."""
    inflight = InFlight(100, 10_000, transactional=True)
    inflight.assigned([PARTITION], None)
    failing = Failing("group", RetryPolicy.literal("1s"), "dead", RemoteClock(None))
    outbox = KafkaOutbox(failing, "1s", "delays", inflight)
    wanted = SimpleNamespace(messages_max=100, transactional_id="the-id", observer=None)
    parts: Any = SimpleNamespace(
        close=lambda: None,
        inflight=inflight,
        outbox=outbox,
        source=MadeSource(),
        transactor=transactor,
    )
    parts.wanted, parts.rule, parts.retries = wanted, None, "group-retry"
    with closing(Pump(parts)) as pump, pytest.raises(ConsumerFailed) as failed:
        answer_all(pump, inflight)
    return failed.value


def answer_all(pump: Pump, inflight: InFlight) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for message in inflight.take(1, 0.1):
            inflight.answer(message)
            inflight.give_back(message, OutputRecord("delays", b"v", None, []))
        pump.check()


def test_of_two_members_with_one_transactional_id_one_ends() -> None:
    assert "the-id" in str(ended_by(MadeTransactor({}, fenced=True)))


def test_a_topic_that_goes_away_is_not_waited_for_for_ever() -> None:
    transactor = MadeTransactor({"delays": 0})
    assert "delays" in str(ended_by(transactor))
    assert transactor.batches == 3


@pytest.mark.parametrize(
    ("counts", "refused"),
    [
        ({"a": 1, "b": 2}, 2),
        ({"a": 0, "b": 3}, 0),
        ({"a": None, "b": 0}, None),
        ({"a": 1, "b": 3}, None),
    ],
)
def test_which_output_has_no_target(counts: Mapping[str, int | None], refused: int | None) -> None:
    outputs: Sequence[OutputRecord] = [
        OutputRecord("a", None, None, []),
        OutputRecord("b", None, None, []),
        OutputRecord("b", None, None, [], partition=2),
    ]
    batch = CommitBatch({PARTITION: 3}, [(PARTITION, at, one) for at, one in enumerate(outputs)])
    found = MadeTransactor(counts).unclear(batch, "no answer").refused
    assert found == (None if refused is None else (PARTITION, refused))
