"""The expiry of a message: from that millisecond on it is worth nothing, and is not delivered
(``delivery/handover.py`` looks at it).

The time is a header of the message, in decimal digits, and not a column: it is delivered with the
message in any case, so that a consumer that lags behind can leave it out, too; and rows of which
none expires cost one look at the names of their headers.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from . import compute as pc
from .delay import are_delays
from .errors import InvalidMessage
from .rows import from_numpy, header_lists, header_values, headers_at
from .schema import Int64s, Mask, bounds

EXPIRES_HEADER = "slotwheel-expires-ms"
NEVER_MS = (1 << 63) - 1
BEFORE_DUE = "expires before it is due"
EXPIRES_LIMIT_MS = 10**18
"""Times are lower than this: they have at most 18 digits."""
_DIGITS = "^[0-9]{1,18}$"
_SPAN = "^[+][0-9]{1,18}$"
"""The header's form in a message with a delay: so many ms after it is due (``delay.py``)."""


def expires_ms(headers: pa.Array) -> Int64s | None:
    """The expiry of each row, ms since the epoch, shape (rows,), ``NEVER_MS`` for rows without it,
    or whose header is no such time; None: none has the header. ``headers``: that column."""
    given = header_values(headers, EXPIRES_HEADER)
    if given is None:
        return None
    rows, values = given
    expiries = np.full(len(headers), NEVER_MS, np.int64)
    expiries[rows] = _numbers(values)
    return expiries


def started(headers: pa.Array, delayed: Mask, due: Int64s) -> pa.Array:
    """The headers column of rows whose delays have become due times: a ``delayed`` row that named
    the span after which it expires names the time."""
    given = header_values(headers, EXPIRES_HEADER)
    if given is None:
        return headers
    rows, values = given
    spans = _spans(values)
    changed = delayed[rows] & (spans != NEVER_MS)
    if not changed.any():
        return headers
    flat = headers.flatten()
    # A due time below 2^62 and a span below 10^18 are no overflow together.
    times = (due[rows[changed]] + spans[changed]).astype("S20").tolist()
    contents = pa.concat_arrays([flat.field(1), pa.array(times, pa.binary())])
    at = np.arange(len(flat))
    at[headers_at(flat, EXPIRES_HEADER)[changed]] = len(flat) + np.arange(len(times))
    counts = np.asarray(pc.list_value_length(headers), np.int64)
    return header_lists(counts, flat.field(0), contents.take(from_numpy(at, pa.int64())))


def bad_expiries(headers: pa.Array, due: Int64s) -> dict[int, InvalidMessage]:
    """The rows whose time is unusable, with their errors. ``due``: due times, or delays."""
    given = header_values(headers, EXPIRES_HEADER)
    if given is None:
        return {}
    rows, values = given
    times, own = _numbers(values), due[rows]
    if bounds(due)[0] < 0:
        delayed = are_delays(own)
        times, own = np.where(delayed, np.minimum(times, _spans(values)), times), own.copy()
        own[delayed] = 0
    twice = np.zeros(len(rows), np.bool_)
    twice[1:] = rows[1:] == rows[:-1]
    bad: dict[int, InvalidMessage] = {}
    for at in np.flatnonzero(twice | (times == NEVER_MS) | (times <= own)).tolist():
        row, time = int(rows[at]), int(times[at])
        if twice[at]:
            bad[row] = _unusable("header twice", values[at].as_py(), "one", "Send it once")
        elif time == NEVER_MS:
            limit = "milliseconds since the epoch in 1 to 18 decimal digits"
            remedy = "Write it as in 1790000000000"
            bad[row] = _unusable("unreadable time", values[at].as_py(), limit, remedy)
        else:
            bad[row] = expires_before_due(time, int(own[at]))
    return bad


def expires_before_due(expires: int, due_ms: int) -> InvalidMessage:
    return InvalidMessage(
        BEFORE_DUE,
        got=f"{expires} ms",
        limit=f"later than its due time, {due_ms} ms",
        remedy="Let it expire later, or leave the time out; instead of a reschedule, cancel it and"
        " send it again",
    )


def _unusable(what: str, got: bytes | None, limit: str, remedy: str) -> InvalidMessage:
    shown = "null" if got is None else repr(got[:80])
    return InvalidMessage(f"{EXPIRES_HEADER}: {what}", got=shown, limit=limit, remedy=remedy)


def _spans(values: pa.Array) -> Int64s:
    """Header values as spans, ms; ``NEVER_MS`` for what is none."""
    good = np.asarray(pc.fill_null(pc.match_substring_regex(values, _SPAN), False))
    spans = np.full(len(values), NEVER_MS, np.int64)
    if good.any():
        texts = values.filter(pa.array(good)).cast(pa.utf8())
        spans[good] = np.asarray(pc.utf8_slice_codeunits(texts, 1).cast(pa.int64()))
    return spans


def _numbers(values: pa.Array) -> Int64s:
    """Header values as times, ms; ``NEVER_MS`` for what is none."""
    good = pc.fill_null(pc.match_substring_regex(values, _DIGITS), False)
    digits = pc.if_else(good, values, pa.scalar(b"0", values.type))
    numbers = np.asarray(digits.cast(pa.utf8()).cast(pa.int64()))
    expiries: Int64s = np.where(np.asarray(good), numbers, NEVER_MS)
    return expiries
