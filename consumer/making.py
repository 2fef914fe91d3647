"""Topics that a consumer makes, by either client's own administration, as the brokers have them by
default."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from ..wheel.errors import NodeUnreachable

_log = logging.getLogger("slotwheel.librdkafka")
_ASK_S = 5.0
OF_CONSUMERS = (
    *("group.", "session.", "heartbeat.", "auto.offset", "enable.auto", "isolation.", "queued."),
    *("fetch.", "max.poll", "partition.assign", "allow.auto"),
)
"""How settings begin that only a consumer has."""


def no_brokers(bootstrap: str, error: Exception) -> NodeUnreachable:
    return NodeUnreachable(
        f"no Kafka broker answers: {str(error) or type(error).__name__}",
        got=bootstrap,
        remedy="Check bootstrap, the network, and the settings in kafka={…}",
    )


def make_by_kafka_python(config: dict[str, Any], topics: Sequence[str]) -> None:
    """Make those that are not there. ``config``: of a consumer. Errors: kafka-python's."""
    if not topics:
        return
    known = {key: value for key, value in config.items() if key in KafkaAdminClient.DEFAULT_CONFIG}
    admin = KafkaAdminClient(**known)
    try:
        there = set(admin.list_topics())
        wanted = {"num_partitions": -1, "replication_factor": -1}
        for topic in topics:
            if topic not in there:
                try:
                    admin.create_topics({topic: wanted}, wait_for_metadata=True)
                except kafka_errors.TopicAlreadyExistsError:
                    continue  # another member was quicker
    finally:
        admin.close()


def make_by_confluent(
    common: dict[str, Any], config: dict[str, Any], topics: Sequence[str]
) -> None:
    """Make topics that are not there. ``config``: of a consumer; ``common``: what every client
    needs. Errors: confluent-kafka's."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    shared = {key: value for key, value in config.items() if not key.startswith(OF_CONSUMERS)}
    admin = AdminClient(common | shared, logger=_log)
    for asked in admin.create_topics([NewTopic(name, -1, -1) for name in topics]).values():
        try:
            asked.result(_ASK_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another member was quicker
                raise
