"""The fields of a message, for text and for JSON.

Bytes that are UTF-8 are text; others are base64, under another name (``value_base64``). Null stays
null, so that it differs from empty.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

Fields = dict[str, Any]


def content(name: str, value: bytes | None) -> Fields:
    """A binary value as fields: ``{name: text}`` or ``{name_base64: text}``."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def message_fields(batch: pa.RecordBatch) -> Iterator[Fields]:
    """Partition, key, value and headers of each row of a slot file, a journal or a topic."""
    names = ("partition", "key", "value", "headers")
    columns = [batch.column(name).to_pylist() for name in names]
    for partition, key, value, headers in zip(*columns, strict=True):
        yield {
            **({} if partition is None else {"partition": partition}),
            **content("key", key),
            **content("value", value),
            "headers": [{"key": one["key"], **content("value", one["value"])} for one in headers],
        }
