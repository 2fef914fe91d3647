"""Stored messages as JSON: the same names as a message that is sent, and its headers as pairs."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from ...reading.messagefields import Fields, message_fields
from ...wheel.names import NAME_HEADER
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

    @property
    def name(self) -> HeaderValue:
        """The name under which it was sent; None: it has none."""
        return next((value for name, value in self.headers if name == NAME_HEADER), None)


def found_messages(ids: list[str], rows: pa.RecordBatch) -> list[FoundMessage]:
    """Rows of the schema ``ROW`` with their ids, in their order."""
    columns = (
        ids,
        times(rows, "due").tolist(),
        times(rows, "created").tolist(),
        rows.column("topic").to_pylist(),
        message_fields(rows),
    )
    return [
        FoundMessage(
            message_id,
            due,
            created,
            topic,
            **{**fields, "headers": header_values(fields["headers"])},
        )
        for message_id, due, created, topic, fields in zip(*columns, strict=True)
    ]


def header_values(headers: list[Fields]) -> list[tuple[str, Any]]:
    """Headers of ``message_fields`` as pairs; bytes that are no text are ``{"base64": …}``."""
    return [
        (field["key"], {"base64": raw} if (raw := field.get("value_base64")) else field["value"])
        for field in headers
    ]
