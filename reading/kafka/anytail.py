"""The tail of a topic of whichever kind it is; only that of a real Kafka loads a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...wheel.errors import InvalidConfiguration
from ..tailing import EmbeddedTail, TopicTail


def open_tail(
    topic: str,
    positions: Mapping[int, int],
    *,
    root: Path | None,
    bootstrap: str | None,
    settings: Mapping[str, str],
    source: str = "",
    on_damage: Callable[[str], None] = lambda _: None,
) -> TopicTail:
    """Of the topic in Kafka at ``bootstrap``; without one of the embedded topic in ``root``.
    Errors: those of ``KafkaTail``; ``InvalidConfiguration`` without both."""
    if bootstrap is not None:
        from .kafkatail import KafkaTail

        return KafkaTail(bootstrap, topic, positions, settings, source)
    if root is None:
        raise InvalidConfiguration(
            "nowhere to read a topic from",
            got=topic,
            remedy="Give --bootstrap, or the --data directory of a node with embedded topics",
        )
    return EmbeddedTail(root, topic, positions, on_damage)
