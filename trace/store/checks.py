"""What the store does not take, although it is a batch of events: row by row, each for a reason.

Whoever may write to the trace topic may say anything. What can be shown, sorted and compared is
stored as what it is, however late or forged; what cannot is refused, and counted.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...wheel.schema import Mask, times
from ..events import ID, EventKind

TIME_END_MS = 253_402_300_800_000
"""The year 10000: no calendar of ours goes further."""
NUMBER_END = 1 << 53
FIELD_BYTES_MAX = 4096
"""Of each text and of the key."""
REASONS = (
    *("not-events", "unknown-version"),
    *("unknown-kind", "absurd-time", "bad-number", "too-large"),
)
"""The first two are of whole batches."""
_NOBODY = {"group": "", "due": 0, "offset": 0, "check": 0}
_TEXTS = ("traceparent", "tag", "topic", "key", "group", "error")


def checked(events: pa.RecordBatch) -> tuple[Mask, Counter[str]]:
    """Which events are taken, shape (rows,), and how many are refused by reason."""
    count = events.num_rows
    kinds = pa.array([one.value for one in EventKind])
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
    found: Mask = (at < 0) | (at >= TIME_END_MS)
    return found


def _too_large(column: pa.Array) -> Mask:
    if column.null_count == len(column):
        return np.zeros(len(column), np.bool_)
    found: Mask = np.asarray(pc.fill_null(pc.binary_length(column), 0)) > FIELD_BYTES_MAX
    return found
