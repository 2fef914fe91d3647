"""The default Kafka sink: the contract, on a real broker."""

from __future__ import annotations

from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.sink import Sink
from support.deliveries import MINT
from support.sinkcontract import KafkaContract


class TestKafkaPythonSink(KafkaContract):
    def build(self, settings: KafkaSettings) -> Sink:
        return KafkaPythonSink(MINT, settings)
