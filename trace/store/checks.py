"""Refuses events that cannot be shown, sorted and compared, and counts them by reason.

Anyone who may write to the trace topic may write anything. An event that can be shown is stored,
however late or forged; a time in the year 300000 would be an error wherever it is printed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...wheel.schema import Mask, times
from ..events import ID, EventKind

TIME_END_MS = 253_402_300_800_000
"""The year 10000: Python's dates end before it."""
NUMBER_END = 1 << 53
FIELD_BYTES_MAX = 4096
"""The largest text or key of an event."""
REASONS = (
    *("not-events", "unknown-version"),
    *("unknown-kind", "absurd-time", "bad-number", "too-large"),
)
"""The first two count whole batches."""
_NOBODY = {"group": "", "due": 0, "offset": 0, "check": 0}
_TEXTS = ("traceparent", "tag", "topic", "key", "group", "error")


def checked(events: pa.RecordBatch) -> tuple[Mask, Counter[str]]:
    """A mask of the events that are taken, shape (rows,), and numbers of refused ones by reason."""
    count = events.num_rows
    kinds = pa.array([kind.value for kind in EventKind])
    refused: dict[str, Mask] = {
        "unknown-kind": ~np.asarray(pc.is_in(events.column("kind"), kinds)),
        "absurd-time": _absurd(times(events, "at")),
        "too-large": np.zeros(count, np.bool_),
    }
    number = times(events, "number")
    refused["bad-number"] = (number < 0) | (number >= NUMBER_END)
    for name in _TEXTS:
        refused["too-large"] |= _too_large(events.column(name))
    for name in ("id", "origin"):
        ids = events.column(name)
        if ids.null_count == count:
            continue
        parts = pa.RecordBatch.from_struct_array(ids.fill_null(pa.scalar(_NOBODY, ID)))
        refused["absurd-time"] |= _absurd(times(parts, "due"))
        refused["too-large"] |= _too_large(parts.column("group"))
    taken: Mask = np.ones(count, np.bool_)
    reasons: Counter[str] = Counter()
    for reason, mask in refused.items():
        reasons[reason] += int((mask & taken).sum())
        taken &= ~mask
    return taken, +reasons


def _absurd(at: np.typing.NDArray[np.int64]) -> Mask:
    absurd: Mask = (at < 0) | (at >= TIME_END_MS)
    return absurd


def _too_large(column: pa.Array) -> Mask:
    if column.null_count == len(column):
        return np.zeros(len(column), np.bool_)
    large: Mask = np.asarray(pc.fill_null(pc.binary_length(column), 0)) > FIELD_BYTES_MAX
    return large
