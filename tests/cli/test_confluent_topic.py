"""What the fast reader of Kafka's topics says when it gets no further."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from slotwheel.reading.kafka import confluenttopic
from slotwheel.reading.kafka.confluenttopic import ConfluentTopic
from slotwheel.wheel.errors import NodeUnreachable


def test_the_last_trouble_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that may pass is waited for; then its text says more than the silence."""
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer = SimpleNamespace(
        assign=lambda parts: None,
        consume=lambda count, timeout: [SimpleNamespace(error=lambda: error)],
    )
    topic = ConfluentTopic.__new__(ConfluentTopic)
    topic.topic, topic.ranges = "t", {0: (0, 1)}
    topic._bootstrap, topic._consumer, topic._trouble = "b:1", consumer, ""
    monkeypatch.setattr(confluenttopic, "STALLED_S", 0.0)
    with pytest.raises(NodeUnreachable, match="Topic authorization failed"):
        next(topic.batches())
