"""Ways of batches to their topic: by a node, or straight to Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..client import Client
from ..client.addresses import Nodes
from ..wheel.errors import NodeUnreachable
from .events import TRACE_TOPIC

_ANSWER_S = 10.0


class WheelTarget:
    """Sends batches to a node, which delivers them at once."""

    def __init__(self, address: str | Sequence[str] | Nodes, topic: str = TRACE_TOPIC) -> None:
        """Errors: ``InvalidConfiguration``."""
        self._client = Client(address, timeout_s=_ANSWER_S, linger_ms=0)
        self._topic = topic

    def send(self, value: bytes) -> None:
        """Errors: ``SlotwheelError``."""
        self._client.send(self._topic, value, delay=0).result()

    def close(self) -> None:
        self._client.close(0.0)


class KafkaPythonTarget:
    """Sends batches by a producer of kafka-python, and does not close it."""

    def __init__(self, producer: Any, topic: str = TRACE_TOPIC) -> None:
        self._producer, self._topic = producer, topic

    def send(self, value: bytes) -> None:
        """Errors: those of kafka-python."""
        self._producer.send(self._topic, value).get(_ANSWER_S)

    def close(self) -> None:
        """There is nothing of its own to close."""


class ConfluentTarget:
    """Sends batches by a producer of confluent-kafka."""

    def __init__(self, producer: Any, topic: str = TRACE_TOPIC) -> None:
        self._producer, self._topic = producer, topic

    def send(self, value: bytes) -> None:
        """Errors: those of confluent-kafka; ``NodeUnreachable``: no answer in time."""
        answers: list[Any] = []
        self._producer.produce(
            self._topic, value, on_delivery=lambda error, _: answers.append(error)
        )
        self._producer.flush(_ANSWER_S)
        if not answers:
            raise NodeUnreachable("no answer from the brokers in time", limit=f"{_ANSWER_S:g} s")
        if answers[0] is not None:
            raise NodeUnreachable(f"the brokers do not take it: {answers[0]}")

    def close(self) -> None:
        """There is nothing of its own to close."""
