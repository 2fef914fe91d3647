"""What a topic of a real Kafka is read as, whichever client reads it, and what both clients say of
it. A process that may never see a Kafka imports this, and no client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ...wheel.errors import InvalidMessage, SlotwheelError
from ...wheel.schema import HEADERS, TIME

DUMP_VERSION = 1
DUMP = pa.schema(
    [
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("record_partition", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("delivered", TIME),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
    ],
    metadata={b"slotwheel.dump": str(DUMP_VERSION).encode()},
)

STALLED_S = 30.0
"""After so long, s, without a record before a partition's end, Kafka has failed."""
CALL_S = 10.0
"""How long a request may take, s."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created, with as many replicas as the broker gives to one."""

    name: str
    partitions: int
    config: Mapping[str, str]


def no_such_topic(topic: str, there: Iterable[str]) -> InvalidMessage:
    """The error for a topic that does not exist. ``there``: those that do."""
    own = sorted(name for name in there if not name.startswith("__"))
    return InvalidMessage(
        "no such topic in Kafka",
        got=repr(topic),
        remedy=f"Topics there are: {', '.join(own[:10]) or 'none'}",
    )


def not_purged(topic: str, reason: str) -> SlotwheelError:
    """The error where Kafka does not delete the records of a topic."""
    return SlotwheelError(
        f"Kafka does not delete the records of {topic}: {reason}",
        remedy="Give the user the right DELETE on the topic, and the topic cleanup.policy=delete",
    )
