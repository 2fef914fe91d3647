"""Rows for sinks: any content, in the schema that sinks get, and what comes out again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from slotwheel.wheel.ids import KEY_BYTES, IdMint
from slotwheel.wheel.rows import Header, header_column
from slotwheel.wheel.schema import ROW, TIME

MINT = IdMint("test", bytes(range(KEY_BYTES)))
NOW_MS = 1_900_000_000_000


@dataclass(frozen=True)
class Sent:
    """One row to deliver."""

    topic: str
    value: bytes | None = b"value"
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    due: int = NOW_MS


def rows_of(sent: Sequence[Sent], first_offset: int = 0) -> pa.RecordBatch:
    """A batch of schema ROW: offsets from ``first_offset`` up, created a second before due."""
    count = len(sent)
    due = np.array([one.due for one in sent], np.int64)
    columns = [
        pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64)),
        pa.array(due).view(TIME),
        pa.array(due - 1000).view(TIME),
        pa.nulls(count, pa.int64()),
        pa.array([one.topic for one in sent], pa.utf8()),
        pa.array([one.partition for one in sent], pa.int32()),
        pa.array([one.key for one in sent], pa.binary()),
        pa.array([one.value for one in sent], pa.binary()),
        header_column([one.headers for one in sent]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


def id_of(sent: Sent, offset: int) -> str:
    return str(MINT.one(sent.due, offset))


ODD_ROWS = [
    (None, None, ()),
    (b"", b"", ()),
    (None, b"only a value", (("h", b"1"),)),
    (b"only a key", None, (("h", None),)),
    (b"k", b"", (("twice", b"1"), ("twice", b"2"), ("twice", None), ("twice", b""))),
    (b"", None, (("", b"empty key"), ("empty value", b""), ("ünïcode ✓", "ü".encode()))),
    (b"\x00\xff" * 50, bytes(range(256)) * 10, (("b", bytes(range(256))),)),
]
"""Key, value and headers that a careless sink changes."""


def odd(topic: str) -> list[Sent]:
    return [Sent(topic, value, key, headers) for key, value, headers in ODD_ROWS]
