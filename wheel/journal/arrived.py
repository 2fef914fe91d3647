"""An entry that comes from a journal or from a peer, made into what the wheel keeps of it.

The counterpart of appending: there a batch becomes an entry, here an entry becomes rows for the
tail, marks, cancels, a configuration. What it says counts only once it is committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..errors import Damaged
from ..mark import Marks
from ..schema import PAYLOAD, times
from ..state import Sent
from ..tail.tail import piece_of
from .entry import Entry, Kind
from .log import Queued
from .payloads import CancelRows


def arrived(entry: Entry) -> Queued:
    """Errors: ``Damaged`` when the payload is not what its kind says."""
    where = f"journal entry {entry.index}"
    queued = Queued(entry)
    if entry.kind is Kind.MARK:
        queued.marks = Marks.decode(bytes(entry.payload), where)
    elif entry.kind is Kind.CONFIG:
        queued.config = _configuration(entry, where)
    else:
        _rows(queued, where)
    return queued


def _configuration(entry: Entry, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(bytes(entry.payload))
    except ValueError as error:
        raise Damaged(where, 0, expected="a configuration", found=str(error)[:200]) from None
    if not isinstance(found, dict):
        raise Damaged(where, 0, expected="a configuration", found=type(found).__name__)
    return found


def _rows(queued: Queued, where: str) -> None:
    entry = queued.entry
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(entry.payload), PAYLOAD)
    except (pa.ArrowException, ValueError) as error:
        raise Damaged(where, 0, expected="a record batch", found=str(error)[:200]) from None
    if rows.num_rows != entry.count:
        raise Damaged(where, 0, expected=f"{entry.count} rows", found=f"{rows.num_rows} rows")
    created = int(times(rows, "created")[0]) if rows.num_rows else 0
    piece = piece_of(entry.base_offset, rows, entry.index, created)
    queued.piece = piece
    if piece.cancels:
        queued.cancels = CancelRows.of(rows, entry.base_offset)
    if entry.producer:
        queued.sent = Sent(entry.sequence, entry.base_offset, created, entry.index, entry.count)
