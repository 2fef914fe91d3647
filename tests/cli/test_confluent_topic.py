"""What the fast reader of Kafka's topics says when it gets no further."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from slotwheel.reading.kafka import confluenttopic, looking
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
    topic._bootstrap, topic._settings = "b:1", {}
    topic._consumer, topic._trouble = consumer, ""
    monkeypatch.setattr(confluenttopic, "STALLED_S", 0.0)
    # A broker that answers, and has nothing to say against the client.
    monkeypatch.setattr(looking, "why_not", lambda _bootstrap, _settings, error: str(error))
    with pytest.raises(NodeUnreachable, match="Topic authorization failed"):
        next(topic.batches())
