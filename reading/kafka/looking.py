"""Consumers of kafka-python that only look: no group, nothing committed, no topic made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka.errors import KafkaError

from ...delivery.kafka.header_names import read_leniently
from ...delivery.kafka.kafka_python import typed
from ...wheel.errors import InvalidConfiguration, NodeUnreachable

CALL_MS = 10_000
"""How long a question to the brokers may take."""


def open_looking(
    bootstrap: str, client_id: str, settings: Mapping[str, str], **ours: Any
) -> KafkaConsumer:
    """``ours``: further settings of the client; ``settings``: those of the user, which come first.

    Errors: ``NodeUnreachable``; ``InvalidConfiguration`` for a setting.
    """
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs each attempt to connect
    read_leniently()
    common: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "client_id": client_id,
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
        "fetch_max_wait_ms": 100,
        "bootstrap_timeout_ms": CALL_MS,
        "reconnect_backoff_max_ms": 1000,
    }
    try:
        return KafkaConsumer(**common | ours | typed(settings))
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidConfiguration(
            f"a setting of the Kafka client is not usable: {error}", remedy="Change --kafka"
        ) from None
    except (KafkaError, OSError) as error:
        raise unreachable(bootstrap, error) from None


def unreachable(bootstrap: str, error: Exception) -> NodeUnreachable:
    return NodeUnreachable(
        f"Kafka at {bootstrap}: {str(error) or type(error).__name__}",
        remedy="Check --bootstrap, and that the broker runs",
    )
