"""The fast Kafka sink: the contract, on a real broker, and what happens without the extra."""

from __future__ import annotations

import pytest

from slotwheel.delivery.kafka import confluent
from slotwheel.delivery.kafka.confluent import ConfluentSink, MissingExtra
from slotwheel.delivery.kafka.sink import KafkaSettings
from slotwheel.delivery.sink import Sink
from support.deliveries import MINT
from support.sinkcontract import KafkaContract


class TestConfluentSink(KafkaContract):
    def build(self, settings: KafkaSettings) -> Sink:
        return ConfluentSink(MINT, settings)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent, "ck", None)
    with pytest.raises(MissingExtra, match=r"slotwheel\[fast\]"):
        ConfluentSink(MINT, KafkaSettings("127.0.0.1:9092"))
