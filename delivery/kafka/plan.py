"""Values that the Kafka sinks, their producers and their transactions hand each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ...wheel.config import MIB
from ...wheel.schema import Int64s
from ..sink import Answer
from .produceerrors import UNCLEAR, meaning_of
from .records import ProducerRecords
from .topicbook import TopicInfo

NO_PARTITION = -1


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The brokers of a Kafka sink, and its limits. ``extra``: the user's settings of the client
    (``settings.py``), which override ours."""

    bootstrap: str
    delivery_timeout_s: float = 10.0
    """A record that is not acknowledged after this time is given up; its outcome is unknown."""
    trial_timeout_s: float = 3.0
    """The same for a record of a topic that is held back."""
    metadata_timeout_s: float = 2.0
    unknown_topic_after_s: float = 1.0
    """Rows are refused when brokers have reported their topic missing for so long."""
    rows_in_flight_max: int = 32_768
    bytes_in_flight_max: int = 32 * MIB
    record_bytes_max: int = 64 * MIB
    """The clients' own limit. It is high, so that the topic's own limit decides."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendFailure:
    """The answer for a record that was not accepted, and the reason. ``bystander``: it failed only
    with another record, and can be sent again at once."""

    answer: Answer
    reason: str
    bystander: bool = False
    code: int | None = None
    """The number of Kafka's error, where a broker gave one."""

    @classmethod
    def by_code(cls, code: object, reason: str) -> SendFailure:
        """The failure for the number of a client's error; anything but a number, which some errors
        have in its place, is UNKNOWN. ``reason``: the client's text."""
        meaning = meaning_of(code) if isinstance(code, int) else UNCLEAR
        text = f"{reason.rstrip('.')}. {meaning.remedy}" if meaning.remedy else reason
        return cls(meaning.answer, text, code=code if isinstance(code, int) else None)


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The rows to send. ``rows`` are indices into ``records``, ascending. ``partitions`` has one
    for each record, ``NO_PARTITION`` where the key decides; ``topics`` has those of all rows."""

    batch: pa.RecordBatch
    records: ProducerRecords
    rows: list[int]
    partitions: Int64s
    topics: dict[str, TopicInfo]
