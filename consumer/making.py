"""Makes topics for a consumer, by either client's own administration, with the brokers' default
numbers of partitions and replicas."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from ..broker.reach import is_kept_out, why_not
from ..broker.settings import ClientKind, for_confluent, for_kafka_python
from ..wheel.errors import InvalidConfiguration, NodeUnreachable

_log = logging.getLogger("slotwheel.librdkafka")
_ASK_S = 5.0


def no_brokers(
    bootstrap: str, settings: Mapping[str, Any], error: Exception
) -> NodeUnreachable | InvalidConfiguration:
    """The error for brokers that do not answer, or that refuse this client."""
    if is_kept_out(bootstrap, settings):
        return InvalidConfiguration(f"Kafka at {why_not(bootstrap, settings, error)}")
    return NodeUnreachable(
        f"no Kafka broker answers: {why_not(bootstrap, settings, error)}",
        got=bootstrap,
        remedy="Check bootstrap, the network, and the settings in kafka={…}",
    )


def make_by_kafka_python(
    common: Mapping[str, Any], settings: Mapping[str, Any], topics: Sequence[str]
) -> None:
    """Make those of ``topics`` that do not exist. ``common``: the settings of every client;
    ``settings``: the user's. Errors: kafka-python's."""
    if not topics:
        return
    admin = KafkaAdminClient(**{**common, **for_kafka_python(settings, ClientKind.ADMIN)})
    try:
        existing = set(admin.list_topics())
        defaults = {"num_partitions": -1, "replication_factor": -1}
        for topic in topics:
            if topic not in existing:
                try:
                    admin.create_topics({topic: defaults}, wait_for_metadata=True)
                except kafka_errors.TopicAlreadyExistsError:
                    continue  # another member was quicker
    finally:
        admin.close()


def make_by_confluent(
    common: Mapping[str, Any], settings: Mapping[str, Any], topics: Sequence[str]
) -> None:
    """Make ``topics``, which did not exist a moment ago. Arguments: as of ``make_by_kafka_python``.
    Errors: confluent-kafka's."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    config = {**common, **for_confluent(settings, ClientKind.ADMIN)}
    admin = AdminClient(config, logger=_log)
    for asked in admin.create_topics([NewTopic(name, -1, -1) for name in topics]).values():
        try:
            asked.result(_ASK_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another member was quicker
                raise
