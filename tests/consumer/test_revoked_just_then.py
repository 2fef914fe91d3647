"""kafka-python's own thread takes partitions away while the consumer's is about to use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.consumer.subscription_state import SubscriptionState

from slotwheel.consumer.kafka_python_source import KafkaPythonSource
from slotwheel.consumer.message import SourcePartition
from slotwheel.consumer.source import SourceAway

GONE, KEPT = SourcePartition("t", 0), SourcePartition("t", 1)


class Client:
    """What a source uses of a ``KafkaConsumer``; ``before``: what its own thread does just when one
    partition is used."""

    def __init__(self) -> None:
        self.subscription = SubscriptionState()
        self.before: Callable[[], None] = self._revoke
        self._fetcher = self
        self._paused_partition_records: dict[TopicPartition, object] = {}
        self.assign(GONE, KEPT)

    def assign(self, *partitions: SourcePartition) -> None:
        self.subscription.assign_from_user([TopicPartition(*one) for one in partitions])

    def _revoke(self) -> None:
        self.assign(KEPT)

    def assignment(self) -> set[TopicPartition]:
        return set(self.subscription.assigned_partitions())

    def paused(self) -> set[TopicPartition]:
        return set(self.subscription.paused_partitions())

    def pause(self, *partitions: TopicPartition) -> None:
        self.before()
        for one in partitions:
            self.subscription.pause(one)

    def resume(self, *partitions: TopicPartition) -> None:
        self.before()
        for one in partitions:
            self.subscription.resume(one)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.before()
        self.subscription.seek(partition, offset)


def source_of(client: Any) -> KafkaPythonSource:
    source = KafkaPythonSource.__new__(KafkaPythonSource)
    source._consumer = client
    return source


def test_what_is_gone_is_not_held() -> None:
    client = Client()
    source_of(client).hold([GONE, KEPT])
    assert client.paused() == {TopicPartition(*KEPT)}


def test_what_is_gone_is_not_let_go() -> None:
    client = Client()
    client.before = lambda: None
    source = source_of(client)
    source.hold([GONE, KEPT])
    client.before = client._revoke
    source.hold([])
    assert client.paused() == set()
    assert client.assignment() == {TopicPartition(*KEPT)}


def test_what_is_gone_is_read_from_nowhere() -> None:
    with pytest.raises(SourceAway, match="not a partition of this member"):
        source_of(Client()).seek({GONE: 7})
