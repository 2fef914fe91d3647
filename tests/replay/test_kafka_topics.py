"""What a failure of Spark's Kafka source is told as."""

from __future__ import annotations

import pytest

from slotwheel.replay.facts.kafka_topics import KafkaTopics

NO_NODE = """An error occurred while calling o59.count.
: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: Timed \
out waiting for a node assignment. Call: listNodes
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
"""
NO_RECORD = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: \
java.util.concurrent.TimeoutException: Cannot fetch record for offset 0 in 30000 milliseconds
\tat org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.fetchData(KafkaDataConsumer.scala:7)
"""
OURS = """An exception was thrown from the Python worker:
Traceback (most recent call last):
\tat org.apache.spark.sql.kafka010.KafkaSourceRDD.compute(KafkaSourceRDD.scala:9)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NO_NODE, "failed while it was read: Timed out waiting for a node assignment. Call"),
        (NO_RECORD, "failed while it was read: Cannot fetch record for offset 0"),
    ],
)
def test_a_broker_that_fails_meanwhile(text: str, said: str) -> None:
    failure = KafkaTopics("127.0.0.1:9").failure(RuntimeError(text))
    assert said in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize("text", [OURS, "Job aborted: no space left on device"])
def test_another_failure_is_none_of_kafka(text: str) -> None:
    assert KafkaTopics("127.0.0.1:9").failure(RuntimeError(text)) is None
