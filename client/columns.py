"""Makes checked batches of messages and tables, with an error for each bad row.

Theory: the columns of many messages are built at once; only when that fails each message is tried
alone, to find the bad ones. So a bad message costs its neighbours only some microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..wheel import compute as pc
from ..wheel.checks import bad_rows, cast, conformed, has_keyless, started, wrong_type
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidBatch, InvalidMessage, SlotwheelError
from ..wheel.protocol import REQUESTS_IN_FLIGHT_MAX
from ..wheel.rows import from_columns, take_rows, without_slack
from ..wheel.schema import INPUT, Int64s, times
from .message import Message, due_of, flatten, has_own_headers, header_pairs

Errors = dict[int, SlotwheelError]

_DEFAULTS = WheelConfig()
_WRONG = (SlotwheelError, pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions of building a column from a value of a wrong type."""

CLOCK_SLACK_MS = 1000
"""Due times are refused here only if they are beyond the horizon by more; the node decides."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in the node's hello; the defaults hold until it has been reached.

    The defaults refuse nothing that a node may be configured to accept: one message may fill a
    batch.
    """

    message_bytes: int = _DEFAULTS.batch_bytes_max
    batch_rows: int = _DEFAULTS.batch_rows_max
    batch_bytes: int = _DEFAULTS.batch_bytes_max
    horizon_ms: int | None = None
    clock_ahead_ms: int = 0
    """The node's clock less ours, ms."""
    requests: int = REQUESTS_IN_FLIGHT_MAX
    """The most requests that it takes at once; 0: its version knows no requests."""

    def latest_due_ms(self, now_ms: int) -> int | None:
        if self.horizon_ms is None:
            return None
        return now_ms + max(self.clock_ahead_ms, 0) + self.horizon_ms + CLOCK_SLACK_MS

    def bad_rows(self, rows: pa.RecordBatch, now_ms: int) -> dict[int, InvalidMessage]:
        """The errors of rows of schema ``INPUT``, by row."""
        latest = self.latest_due_ms(now_ms)
        return bad_rows(
            rows, latest_due_ms=latest, start_ms=now_ms, message_bytes_max=self.message_bytes
        )

    def bad_rows_at(self, rows: pa.RecordBatch, now_ms: int) -> dict[int, InvalidMessage]:
        """``bad_rows``, and those that the node would refuse now because of the end of their delay,
        as far as its clock is known."""
        return self.bad_rows(started(rows, now_ms + self.clock_ahead_ms), now_ms)


@dataclass(frozen=True, slots=True)
class SortedColumns:
    """Good and bad rows. ``rows`` are the good ones (None: none); ``kept``: their numbers among all
    rows (None: all). ``due`` has due times and delays (``wheel/delay.py``) of all rows, shape
    (count,); ``errors`` those of bad rows, by number."""

    rows: pa.RecordBatch | None
    kept: Int64s | None
    due: Int64s
    errors: Errors


def batch_of(messages: Sequence[Message]) -> pa.RecordBatch:
    """One batch of all messages, schema ``INPUT``. Errors: ``_WRONG`` for any bad value."""
    due = [due_of(m.due, m.delay) for m in messages]
    return from_columns(
        due,
        [m.topic for m in messages],
        [m.partition for m in messages],
        [m.key for m in messages],
        [m.value for m in messages],
        [
            header_pairs(m, at) if has_own_headers(m) else ()
            for m, at in zip(messages, due, strict=True)
        ],
    )


def rows_of(messages: Sequence[Message]) -> pa.RecordBatch | None:
    """One batch of all messages, schema ``INPUT``, not held to any limit. None: one of them is no
    message, or has a value of a wrong type; ``sort_messages`` finds which."""
    try:
        rows = batch_of(messages)
    except _WRONG:
        return None
    incomplete = rows.column("topic").null_count or has_keyless(rows.column("headers"))
    return None if incomplete else rows


def sort_messages(messages: Sequence[Message], now_ms: int, limits: Limits) -> SortedColumns:
    """One batch of the good messages, and an error for each bad one."""
    rows = rows_of(messages)
    if rows is not None:
        return sort_rows(rows, now_ms, limits)
    errors: Errors = {}
    good: list[pa.RecordBatch] = []
    for number, message in enumerate(messages):
        checked = check_message(message, now_ms, limits)
        if isinstance(checked, SlotwheelError):
            errors[number] = checked
        else:
            good.append(checked)
    due = np.zeros(len(messages), np.int64)
    kept = np.array([i for i in range(len(messages)) if i not in errors], np.int64)
    if not good:
        return SortedColumns(None, kept, due, errors)
    rows = pa.concat_batches(good)
    due[kept] = times(rows, "due")
    return SortedColumns(rows, kept, due, errors)


def check_message(message: Message, now_ms: int, limits: Limits) -> pa.RecordBatch | SlotwheelError:
    """The message as a batch of one row, or its error."""
    try:
        flatten(message)
        row = batch_of([message])
    except SlotwheelError as error:
        return error
    except _WRONG as error:
        return InvalidMessage(
            f"not a message: {str(error)[:200]}",
            got=repr(message)[:200],
            remedy="topic: str; value, key: bytes or None; headers: pairs of str and bytes or None",
        )
    return limits.bad_rows(row, now_ms).get(0, row)


def sort_rows(rows: pa.RecordBatch, now_ms: int, limits: Limits) -> SortedColumns:
    """Remove the bad rows from a batch of schema ``INPUT``."""
    due = times(rows, "due")
    bad = limits.bad_rows(rows, now_ms)
    if not bad:
        return SortedColumns(rows, None, due, {})
    kept, good = without(rows, list(bad))
    return SortedColumns(good, kept, due, dict(bad))


def without(rows: pa.RecordBatch, bad: Sequence[int]) -> tuple[Int64s, pa.RecordBatch | None]:
    """The numbers of the good rows, and those rows (None: there is none)."""
    stays = np.ones(rows.num_rows, bool)
    stays[list(bad)] = False
    kept = np.flatnonzero(stays)
    return kept, take_rows(rows, kept) if len(kept) else None


def conform(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """A caller's table with exactly the schema ``INPUT``. Errors: ``InvalidBatch``."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    conforming = conformed(table, _cast)
    for field, column in zip(INPUT, conforming.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InvalidBatch(f"null in column '{field.name}'", remedy="Give every row a value")
    if any(has_keyless(chunk) for chunk in conforming.column("headers").chunks):
        raise InvalidBatch("a header without a key", remedy="Give every header a key")
    return conforming


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if field.name == "due" and pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise wrong_type(column, field, "a timestamp without a time zone")
        column = pc.ceil_temporal(column, unit="millisecond")  # rounded up: never early
    return cast(column, field)


def pieces(
    table: pa.Table | pa.RecordBatch, rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yields the table in batches within both limits, but of one row at least."""
    if isinstance(table, pa.RecordBatch):
        count = table.num_rows
        batches = [table.slice(start, rows_max) for start in range(0, count, rows_max)]
    else:
        batches = table.to_batches(max_chunksize=rows_max)
    for batch in batches:
        stack = [batch]
        while stack:
            part = stack.pop()
            if part.num_rows <= 1 or part.nbytes <= bytes_max:
                if part.num_rows:
                    yield without_slack(part)
                continue
            half = part.num_rows // 2
            stack += [part.slice(half), part.slice(0, half)]
