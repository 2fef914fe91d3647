"""Records that are sent, topics and brokers, in JSON. These types decode, so that what is not in
them is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ...client import Message
from ...wheel.rows import Content
from ..predecessors import NameBefore
from ..requests import PartitionNumber, SpanMilliseconds

_Instant = Annotated[int, Meta(ge=0, lt=1 << 62)]
_NULL = Raw(b"null")


class RecordHeader(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A header of a record; its value in base64."""

    name: str
    value: bytes | None = None


class ProducedRecord(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A record as a message to be sent later; at once, if it does not say when."""

    partition: PartitionNumber | None = None
    headers: list[RecordHeader] = []
    due_ms: _Instant | None = None
    """Milliseconds since 1970, UTC."""
    delay_ms: SpanMilliseconds | None = None
    level: str | None = None
    expires_ms: _Instant | None = None
    ttl_ms: SpanMilliseconds | None = None
    name: str | None = None
    """At most one pending message of the topic has it."""
    if_exists: Literal["replace", "keep", "refuse"] | None = None
    """What happens where another message has the name. Null: `replace`."""

    def message(self, topic: str, partition: int | None) -> Message:
        """``partition``: of the request's path; None: that of the record, if it has one."""
        key, value = self.content()
        at_once = self.due_ms is None and self.delay_ms is None and self.level is None
        delay_ms = 0 if at_once else self.delay_ms
        return Message(
            topic=topic,
            value=value,
            key=key,
            headers=[(one.name, one.value) for one in self.headers],
            partition=self.partition if partition is None else partition,
            due=self.due_ms,
            delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
            expires=self.expires_ms,
            ttl=None if self.ttl_ms is None else timedelta(milliseconds=self.ttl_ms),
            level=self.level,
            name=self.name,
            if_exists=self.if_exists,
        )

    def content(self) -> tuple[Content, Content]:
        """Key and value."""
        raise NotImplementedError


class BinaryRecord(ProducedRecord):
    """Key and value are base64."""

    key: bytes | None = None
    value: bytes | None = None

    def content(self) -> tuple[Content, Content]:
        return self.key, self.value


class JsonRecord(ProducedRecord):
    """Key and value are JSON, and stored as they stand here, but for null, which is no value."""

    key: Raw = _NULL
    value: Raw = _NULL

    def content(self) -> tuple[Content, Content]:
        return _json_content(self.key), _json_content(self.value)


def _json_content(given: Raw) -> bytes | None:
    text = bytes(given)
    return None if text == b"null" else text


class BinaryTopicRecord(BinaryRecord, kw_only=True):
    """One of many for several topics."""

    topic: str


class JsonTopicRecord(JsonRecord, kw_only=True):
    """One of many for several topics."""

    topic: str


class _Schemas(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """There are no formats with schemas here; who sends null for them means just that."""

    key_schema: None = None
    key_schema_id: None = None
    value_schema: None = None
    value_schema_id: None = None


class BinaryRecords(_Schemas):
    records: list[BinaryRecord]


class JsonRecords(_Schemas):
    records: list[JsonRecord]


class BinaryTopicRecords(_Schemas):
    records: list[BinaryTopicRecord]


class JsonTopicRecords(_Schemas):
    records: list[JsonTopicRecord]


class ProducedOffset(msgspec.Struct):
    """What became of a record: it is stored, so it has an id. It stands in no partition before it
    is due; ``partition`` is not null where the request names it."""

    partition: int | None
    id: str
    due_ms: int
    before: NameBefore | UnsetType = UNSET
    """The message that had the record's name before; missing: none was known."""
    offset: None = None
    error_code: None = None
    error: None = None


class TopicOffset(ProducedOffset, kw_only=True):
    topic: str


class ProducedOffsets(msgspec.Struct):
    """One for each record, in their order."""

    offsets: list[ProducedOffset] | list[TopicOffset]
    key_schema_id: None = None
    value_schema_id: None = None


class Replica(msgspec.Struct):
    """A broker that holds a partition."""

    broker: int
    leader: bool
    in_sync: bool


class PartitionDescription(msgspec.Struct):
    """``leader``: a broker's id; -1: there is none now."""

    partition: int
    leader: int
    replicas: list[Replica]


class TopicDescription(msgspec.Struct):
    """``configs``: those that differ from the broker's."""

    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionDescription]


class PartitionExtent(msgspec.Struct):
    """The offset of a partition's first record, and the one behind its last."""

    beginning_offset: int
    end_offset: int


class BrokerIds(msgspec.Struct):
    brokers: list[int]
