"""Consumer instances in JSON, and what they read."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType, field

from ..requests import PartitionNumber
from .types import RecordHeader

PLACES_MAX = 1000
"""Topics or partitions in one request, and characters of a pattern."""
_Offset = Annotated[int, Meta(ge=0, lt=(1 << 63) - 1)]


class InstanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """A consumer instance that is to be made. Values may be texts, as in that interface's
    examples."""

    name: str | None = None
    format: str = "binary"
    auto_offset_reset: str = field(name="auto.offset.reset", default="latest")
    auto_commit_enable: bool | str = field(name="auto.commit.enable", default=True)
    fetch_min_bytes: int | str = field(name="fetch.min.bytes", default=1)
    """An answer with records waits for so many, or for its timeout."""
    request_timeout_ms: int | str = field(name="consumer.request.timeout.ms", default=1000)


class InstanceCreated(msgspec.Struct):
    instance_id: str
    base_uri: str


class TopicPartitionName(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    topic: str
    partition: PartitionNumber


class TopicPartitions(msgspec.Struct, forbid_unknown_fields=True):
    partitions: Annotated[list[TopicPartitionName], Meta(min_length=1, max_length=PLACES_MAX)]


class OffsetOf(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: PartitionNumber
    offset: _Offset
    metadata: Literal[""] | None = ""
    """Is not kept, so there may be none."""


class OffsetsOf(msgspec.Struct, forbid_unknown_fields=True):
    offsets: Annotated[list[OffsetOf], Meta(min_length=1, max_length=PLACES_MAX)]


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """One of the two."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=PLACES_MAX)] | None = None
    topic_pattern: Annotated[str, Meta(min_length=1, max_length=PLACES_MAX)] | None = None


class SubscribedTopics(msgspec.Struct):
    topics: list[str]


class ConsumedRecord(msgspec.Struct):
    """Key and value are bytes, which become base64, or JSON as it stands."""

    topic: str
    key: bytes | Raw | None
    value: bytes | Raw | None
    partition: int
    offset: int
    timestamp: int | UnsetType = UNSET
    headers: list[RecordHeader] | UnsetType = UNSET
