"""The tails of topics of whichever kind they are; only those of a real Kafka load a client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...wheel.errors import InvalidConfiguration
from ..growing.tails import EmbeddedTails
from ..tailing import TopicTails


def open_tails(
    root: Path | None,
    bootstrap: str | None,
    settings: Mapping[str, str],
    *,
    client_id: str = "slotwheel-tail",
    records_max: int = 100,
) -> TopicTails:
    """Of topics in Kafka at ``bootstrap``; without one of the embedded topics in ``root``. Of
    Kafka's at most ``records_max`` records come at once.

    Errors: those of ``KafkaTails``; ``InvalidConfiguration`` without both.
    """
    if bootstrap is not None:
        from .tails import KafkaTails

        return KafkaTails(bootstrap, settings, client_id, records_max)
    if root is None:
        raise InvalidConfiguration(
            "nowhere to read a topic from",
            got="neither brokers nor a data directory",
            remedy="Give --bootstrap, or the --data directory of a node with embedded topics",
        )
    return EmbeddedTails(root)
