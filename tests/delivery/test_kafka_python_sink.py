"""The default Kafka sink: the contract, on a real broker."""

from __future__ import annotations

from kafka.structs import TopicPartition

from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.lane import ProducerLane
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.sink import Sink
from support.broker import Cluster
from support.deliveries import MINT
from support.sinkcontract import KafkaContract
from support.waiting import eventually


class TestKafkaPythonSink(KafkaContract):
    def build(self, settings: KafkaSettings) -> Sink:
        return KafkaPythonSink(MINT, settings)


def test_a_topic_that_went_is_asked_for_only_while_something_waits(broker: Cluster) -> None:
    target = TopicPartition(broker.create_topic("that-went"), 0)
    lane = ProducerLane(KafkaSettings(broker.bootstrap), 60.0)
    producer = lane._producer
    metadata, ready = producer._metadata, producer._accumulator.ready
    try:
        assert not lane.ensure_topics([target.topic])
        lane.append(target, None, b"value", []).get(30)
        broker.delete_topic(target.topic)

        def is_gone() -> bool:
            metadata.request_update()
            return metadata.leader_for_partition(target) is None

        eventually(is_gone)
        assert not ready(metadata)[2]
        lane.append(target, None, b"value", [])
        assert ready(metadata)[2]
    finally:
        lane.abandon()
