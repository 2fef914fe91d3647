"""What the Kafka sinks, their producers and their transactions hand each other."""

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
    """How a Kafka sink reaches its brokers, and its limits.

    ``extra``: further settings of the client, in its own names (``security.protocol`` for
    confluent-kafka, ``security_protocol`` for kafka-python). They override ours.
    """

    bootstrap: str
    delivery_timeout_s: float = 10.0
    """After this a record that was not acknowledged is given up; its outcome is unknown."""
    trial_timeout_s: float = 3.0
    """Likewise for topics that are held back."""
    metadata_timeout_s: float = 2.0
    unknown_topic_after_s: float = 1.0
    """How long the brokers must have reported a topic missing before its rows are refused."""
    rows_in_flight_max: int = 32_768
    bytes_in_flight_max: int = 32 * MIB
    record_bytes_max: int = 64 * MIB
    """The clients' own limit. It is high, so that the topic's own limit decides."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendFailure:
    """Why a record was not accepted. ``bystander``: another record failed, this one only with it;
    it can be sent again at once."""

    answer: Answer
    reason: str
    bystander: bool = False
    code: int | None = None
    """The number of Kafka's error, where a broker gave one."""

    @classmethod
    def by_code(cls, code: object, reason: str) -> SendFailure:
        """By the number that a client's error has, whatever else it may have in its place."""
        found = meaning_of(code) if isinstance(code, int) else UNCLEAR
        text = f"{reason.rstrip('.')}. {found.remedy}" if found.remedy else reason
        return cls(found.answer, text, code=code if isinstance(code, int) else None)


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The rows to send. ``rows``: indices into ``records``, in order. ``partitions``: one a record,
    ``NO_PARTITION`` where the key decides. ``topics``: all topics of ``rows``."""

    batch: pa.RecordBatch
    records: ProducerRecords
    rows: list[int]
    partitions: Int64s
    topics: dict[str, TopicInfo]
