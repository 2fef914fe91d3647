"""Stored messages as JSON: the same names as a message that is sent, and its headers as pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from ...reading.messagefields import Fields, message_fields
from ...wheel.schema import times
from .types import HeaderValue


class FoundMessage(msgspec.Struct, omit_defaults=True):
    """A stored message. Content that is not UTF-8 is in ``value_base64`` and ``key_base64``."""

    id: str
    due_ms: int
    created_ms: int
    """When the node took it, by its clock."""
    topic: str
    partition: int | None = None
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[tuple[str, HeaderValue]] = []


def found_messages(ids: list[str], rows: pa.RecordBatch) -> list[FoundMessage]:
    """Rows of the schema ``ROW`` with their ids."""
    columns = (
        ids,
        times(rows, "due").tolist(),
        times(rows, "created").tolist(),
        rows.column("topic").to_pylist(),
        fields_of(rows),
    )
    return [
        FoundMessage(one, due, created, topic, **fields)
        for one, due, created, topic, fields in zip(*columns, strict=True)
    ]


def fields_of(rows: pa.RecordBatch) -> Iterator[Fields]:
    """Partition, value, key and headers of each row, named as of ``FoundMessage``."""
    for fields in message_fields(rows):
        yield {**fields, "headers": header_values(fields["headers"])}


def header_values(headers: list[Fields]) -> list[tuple[str, Any]]:
    return [
        (one["key"], {"base64": one["value_base64"]} if "value_base64" in one else one["value"])
        for one in headers
    ]
