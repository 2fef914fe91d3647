"""Consumers of kafka-python that change nothing in Kafka, whatever the user sets: they join no
group, commit nothing and make no topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka.errors import AuthorizationError, KafkaError

from ...broker.header_names import missing_codec, read_leniently
from ...broker.reach import is_kept_out, why_not
from ...broker.settings import ClientKind, for_kafka_python
from ...broker.topicids import id_text
from ...wheel.errors import InvalidConfiguration, NodeUnreachable

CALL_MS = 10_000
"""How long a question to the brokers may take."""
SOON_S = 2.0
"""After so long without an answer it is asked whether waiting would help: whoever gave a wrong
password would else hear so only when all of ``CALL_MS`` is over."""


def open_looking(
    bootstrap: str, client_id: str, settings: Mapping[str, str], **ours: Any
) -> KafkaConsumer:
    """``ours``: further settings of the client. ``settings``: those of the user, which count before
    ours, but for those by which the client would change something.

    Errors: ``NodeUnreachable``; ``InvalidConfiguration`` for a setting.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs each attempt to connect
    read_leniently()
    common: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "client_id": client_id,
        "isolation_level": "read_committed",
        "fetch_max_wait_ms": 100,
        "bootstrap_timeout_ms": CALL_MS,
        "reconnect_backoff_max_ms": 1000,
    }
    harmless = {"group_id": None, "enable_auto_commit": False, "allow_auto_create_topics": False}
    theirs = for_kafka_python(settings, ClientKind.CONSUMER)
    wanted = common | ours | theirs | harmless
    try:
        soon_ms = min(wanted["bootstrap_timeout_ms"], int(1000 * SOON_S))
        try:
            return KafkaConsumer(**wanted | {"bootstrap_timeout_ms": soon_ms})
        except KafkaError:
            left_ms = wanted["bootstrap_timeout_ms"] - soon_ms
            if left_ms <= 0 or is_kept_out(bootstrap, settings):
                raise
            return KafkaConsumer(**wanted | {"bootstrap_timeout_ms": left_ms})
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidConfiguration(
            f"a setting of the Kafka client is not usable: {error}", remedy="Change --kafka"
        ) from None
    except (KafkaError, OSError) as error:
        raise unreachable(bootstrap, settings, error) from None


def source_of(consumer: KafkaConsumer, topic: str) -> str:
    """Which topic of which cluster goes by that name, by the metadata that came last; empty where
    the brokers do not tell. A position in one means nothing in another."""
    cluster = consumer._cluster
    topic_id = id_text(cluster.topic_id(topic))
    return f"{cluster.cluster_id}/{topic_id}" if topic_id else ""


def unreachable(
    bootstrap: str, settings: Mapping[str, str], error: Exception | str
) -> NodeUnreachable | InvalidConfiguration:
    """The error for brokers that do not answer, or that let this client not in."""
    if codec := missing_codec(error):
        return InvalidConfiguration(f"Kafka at {bootstrap}: {codec[0]}", remedy=codec[1])
    if isinstance(error, AuthorizationError):
        return NodeUnreachable(
            f"Kafka at {bootstrap} refuses: {error}", remedy="Give this client the right to it"
        )
    if is_kept_out(bootstrap, settings):
        return InvalidConfiguration(f"Kafka at {why_not(bootstrap, settings, error)}")
    return NodeUnreachable(
        f"Kafka at {bootstrap}: {why_not(bootstrap, settings, error)}",
        remedy="Check --bootstrap and --kafka, and that the broker runs",
    )
