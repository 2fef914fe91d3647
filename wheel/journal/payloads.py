"""Decoding an entry's payload: rows, or a configuration (marks: ``mark.py``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import Damaged
from ..schema import PAYLOAD, Int64s, times
from .entry import Entry
from .segment import STORE_ID_BYTES


@dataclass(frozen=True, slots=True)
class CancelRows:
    """The cancel rows of an entry, shape (rows,) each: the due times (ms) and offsets of the rows
    they name, and their own offsets."""

    due: Int64s
    target: Int64s
    own: Int64s

    def __len__(self) -> int:
        return len(self.target)

    @classmethod
    def of(cls, rows: pa.RecordBatch, base_offset: int) -> CancelRows:
        """Those among the rows of an entry (PAYLOAD schema)."""
        named = rows.column("cancels")
        at = np.flatnonzero(np.asarray(named.is_valid()))
        target = np.asarray(named.drop_null())
        return cls(times(rows, "due")[at], target, base_offset + at)


def decode_rows(entry: Entry, where: str, *, full: bool = True) -> pa.RecordBatch:
    """The rows of an entry (PAYLOAD schema). Errors: ``Damaged``.

    Safe to compute with, whoever wrote the entry, when it is checked in ``full``. A wheel checked
    each batch in full before it made an entry of it, and does not check its own again.
    """
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(entry.payload), PAYLOAD)
        if full:
            rows.validate(full=True)
    except (pa.ArrowException, ValueError, EOFError, OSError) as error:
        raise Damaged(where, 0, expected="a record batch", found=str(error)[:200]) from None
    if rows.num_rows != entry.count:
        raise Damaged(where, 0, expected=f"{entry.count} rows", found=f"{rows.num_rows} rows")
    return rows


def decode_config(entry: Entry, where: str) -> dict[str, Any]:
    """The wheel group's configuration. Errors: ``Damaged``."""
    try:
        config = json.loads(bytes(entry.payload))
        missing = {"group", "key", "slots"} - set(config)
    except (ValueError, TypeError, RecursionError) as error:
        raise Damaged(where, 0, expected="a configuration", found=str(error)[:200]) from None
    if missing:
        raise Damaged(where, 0, expected="group, key and slots", found=f"no {sorted(missing)}")
    stores = config.get("stores", {})
    if not isinstance(stores, dict) or not all(map(_is_store_id, stores.values())):
        raise Damaged(where, 0, expected="a store id of each peer", found=str(stores)[:200])
    return dict(config)


def _is_store_id(text: object) -> bool:
    try:
        return isinstance(text, str) and len(bytes.fromhex(text)) == STORE_ID_BYTES
    except ValueError:
        return False
