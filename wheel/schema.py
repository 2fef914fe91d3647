"""The one Arrow schema of a row, in the three shapes it takes on its way through the wheel.

``INPUT``    what a caller sends: no offset, no creation time, no cancels.
``PAYLOAD``  what a journal entry stores: offsets are dense in an entry, so they are left out.
``ROW``      what slot files, sinks and readers see: everything.

Encode once, at the edge: a batch is checked here, once, and from then on is never taken apart into
Python objects again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .config import WheelConfig
from .errors import InvalidBatch, InvalidMessage
from .texts import time_text

Int64s = npt.NDArray[np.int64]

SCHEMA_VERSION = 1
_METADATA = {b"slotwheel.schema": str(SCHEMA_VERSION).encode()}

TIME = pa.timestamp("ms", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("item", HEADER, nullable=False))

_OFFSET = pa.field("offset", pa.int64(), nullable=False)
_DUE = pa.field("due", TIME, nullable=False)
_CREATED = pa.field("created", TIME, nullable=False)
_CANCELS = pa.field("cancels", pa.int64())
_CONTENT = [
    pa.field("topic", pa.utf8(), nullable=False),
    pa.field("partition", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    # Not a map: Kafka allows a header key twice, and a null value.
    pa.field("headers", HEADERS, nullable=False),
]

INPUT = pa.schema([_DUE, *_CONTENT])
_NEVER_NULL = [(number, field.name) for number, field in enumerate(INPUT) if not field.nullable]
PAYLOAD = pa.schema([_DUE, _CREATED, _CANCELS, *_CONTENT])
ROW = pa.schema([_OFFSET, _DUE, _CREATED, _CANCELS, *_CONTENT], metadata=_METADATA)

TOPIC_LENGTH_MAX = 249
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

FEW_ROWS = 64
"""Up to here the calls cost more than the rows. Most of Arrow's give the interpreter away and have
to win it back: with many threads at work that is two context switches each, for microseconds."""

RESERVED_PREFIX = "slotwheel-"
"""Names of headers that begin so are slotwheel's own: who reads a record believes what they say."""
REDELIVERED_PREFIX = "slotwheel-redelivered-"
"""But for these, which say of a message that is sent again what it was before."""

DUE_MIN_MS = 0
"""Due times before 1970 are a caller's mistake in the unit or the sign, not a delay."""


Mask = npt.NDArray[np.bool_]


def check_topic(topic: str) -> None:
    """Raise ``InvalidMessage`` unless ``topic`` is a legal Kafka topic name."""
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidMessage(
            "no topic" if topic == "" else "illegal topic name",
            got=repr(topic[:300]),
            limit=f"1 to {TOPIC_LENGTH_MAX} of a-z A-Z 0-9 . _ -",
            remedy="Name the target topic as Kafka would accept it",
        )


def times(batch: pa.RecordBatch, column: str) -> Int64s:
    """A timestamp or int64 column without nulls as int64, zero-copy, shape (rows,)."""
    array = batch.column(column)
    values: Int64s = np.frombuffer(
        array.buffers()[1] or b"", dtype=np.int64, count=len(array), offset=array.offset * 8
    )
    return values


def bounds(values: Int64s) -> tuple[int, int]:
    """The lowest and the highest of at least one value."""
    if len(values) <= FEW_ROWS:
        few = values.tolist()
        return min(few), max(few)
    return int(values.min()), int(values.max())


def distinct(texts: pa.Array) -> list[str]:
    """The different values of a column, in the order in which they come."""
    if len(texts) <= FEW_ROWS:
        return list(dict.fromkeys(texts.to_pylist()))
    found: list[str] = texts.unique().to_pylist()
    return found


def sizes(batch: pa.RecordBatch) -> Int64s:
    """Bytes of key, value and headers of each row, shape (rows,)."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for name in ("key", "value"):
        total += np.asarray(pc.fill_null(pc.binary_length(batch.column(name)), 0))
    headers = batch.column("headers")
    flat = headers.flatten()
    if len(flat):
        lengths = np.asarray(pc.binary_length(flat.field(0)), dtype=np.int64)
        lengths = lengths + np.asarray(pc.fill_null(pc.binary_length(flat.field(1)), 0))
        running = np.concatenate([[0], np.cumsum(lengths)])
        ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(headers), 0)))
        total += running[ends] - running[np.concatenate([[0], ends[:-1]])]
    return total


def is_reserved(header: str) -> bool:
    """Whether a message from outside may not have a header of this name."""
    return header.startswith(RESERVED_PREFIX) and not header.startswith(REDELIVERED_PREFIX)


def reserved_headers(headers: pa.Array) -> dict[int, list[str]]:
    """The rows of a headers column that have reserved names, and which; mostly none."""
    if len(headers.values) == 0:
        return {}
    names = headers.flatten().field(0)
    if len(names) <= FEW_ROWS:
        wrong = [number for number, name in enumerate(names.to_pylist()) if is_reserved(name)]
    else:
        ours = pc.starts_with(names, RESERVED_PREFIX)
        if not ours.true_count:
            return {}
        ours = pc.and_not(ours, pc.starts_with(names, REDELIVERED_PREFIX))
        wrong = np.flatnonzero(np.asarray(ours)).tolist()
    if not wrong:
        return {}
    ends = np.cumsum(np.asarray(pc.list_value_length(headers), dtype=np.int64))
    found: dict[int, list[str]] = {}
    for number in wrong:
        row = int(np.searchsorted(ends, number, side="right"))
        found.setdefault(row, []).append(names[number].as_py())
    return found


def reserved_header(names: Sequence[str], row: int | None = None) -> InvalidMessage:
    """The error for a message with these headers."""
    return InvalidMessage(
        f"reserved header name{'s' * (len(names) > 1)}",
        got=", ".join(names)[:300],
        limit=f"names that do not begin with '{RESERVED_PREFIX}'",
        remedy="Leave it out, also when a delivered message is sent again: slotwheel adds its own",
        row=row,
    )


def check_input(
    batch: pa.RecordBatch, config: WheelConfig, now_ms: int, *, reserved: bool = False
) -> pa.RecordBatch:
    """Check a batch from outside, and return it with exactly the ``INPUT`` schema.

    ``reserved``: headers may have reserved names, for these rows are ours, or were taken before.

    Everything that a kernel could later trip over is checked here, first of all the buffers
    themselves (``validate(full=True)``: a bad offset in one crashes the process). Columns may come
    in any order; ``partition``, ``key``, ``headers`` may be missing.

    Errors: ``InvalidBatch`` (schema, limits, broken buffers), ``InvalidMessage`` with the row.
    """
    if batch.num_rows > config.batch_rows_max:
        raise InvalidBatch(
            "too many rows in one batch",
            got=batch.num_rows,
            limit=config.batch_rows_max,
            remedy="Send smaller batches",
        )
    if batch.num_rows == 0:
        raise InvalidBatch("empty batch", got=0, limit="1 row", remedy="Send at least one message")
    try:
        batch.validate(full=True)
        batch = _conform(batch)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidBatch(
            f"the batch is not valid Arrow data: {str(error)[:300]}",
            remedy="Build it with an Arrow library and the documented schema",
        ) from None
    nbytes = _nbytes(batch, min(config.batch_bytes_max, config.message_bytes_max))
    if nbytes > config.batch_bytes_max:
        raise InvalidBatch(
            "batch too large",
            got=f"{nbytes} bytes",
            limit=f"{config.batch_bytes_max} bytes",
            remedy="Send smaller batches",
        )
    _check_due(times(batch, "due"), config, now_ms)
    for topic in distinct(batch.column("topic")):
        try:
            check_topic(topic)
        except InvalidMessage as error:
            error.row = pc.index(batch.column("topic"), topic).as_py()
            raise InvalidMessage(
                error.message,
                got=error.got,
                limit=error.limit,
                remedy=error.remedy,
                row=error.row,
            ) from None
    _check_partition(batch)
    wrong = {} if reserved else reserved_headers(batch.column("headers"))
    if wrong:
        row = min(wrong)
        raise reserved_header(wrong[row], row)
    if nbytes > config.message_bytes_max:
        _check_sizes(batch, config)
    return batch


def _nbytes(batch: pa.RecordBatch, limit: int) -> int:
    """Bytes of the rows; where they are below ``limit``, of all that their buffers hold."""
    # Not ``get_total_buffer_size``: of buffers that begin at one place it counts only the first,
    # and who sends them may let a large one begin where a small one does.
    buffers = (buffer for column in batch.columns for buffer in column.buffers())
    held = sum(buffer.size for buffer in buffers if buffer is not None)
    return held if held < limit else int(batch.nbytes)


def _conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with exactly the INPUT schema: order, types, nullability."""
    if batch.schema.equals(INPUT, check_metadata=False):
        result = batch
    else:
        check_names(batch.schema.names)
        columns = []
        for field in INPUT:
            if field.name not in batch.schema.names:
                columns.append(absent(field, batch.num_rows))
                continue
            column = batch.column(field.name)
            if column.type != field.type:
                column = _cast(column, field)
            columns.append(column)
        result = pa.RecordBatch.from_arrays(columns, schema=INPUT)
    for number, name in _NEVER_NULL:
        # Without this the value "null" would be read from whatever bytes lie under it.
        column = result.column(number)
        if column.null_count:
            row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise InvalidMessage(
                f"no {name}", got="null", row=row, remedy=f"Give every message a {name}"
            )
    _check_header_keys(result.column("headers"))
    return result


def check_names(names: Sequence[str]) -> None:
    """Raise ``InvalidBatch`` unless columns of these names can become ``INPUT``."""
    unknown = set(names) - set(INPUT.names)
    missing = {"due", "topic", "value"} - set(names)
    if unknown or missing or len(names) != len(set(names)):
        raise InvalidBatch(
            "wrong schema",
            got=", ".join(names)[:300],
            limit=", ".join(INPUT.names),
            remedy="'due', 'topic', 'value' are needed; 'partition', 'key', 'headers' may be"
            " left out; nothing else is allowed",
        )


def absent(field: pa.Field, rows: int) -> pa.Array:
    """A column that was left out: nulls, or no headers."""
    if field.nullable:
        return pa.nulls(rows, field.type)
    ends = pa.py_buffer(np.zeros(rows + 1, np.int32))
    offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, ends])
    return pa.ListArray.from_arrays(offsets, pa.array([], type=HEADER), type=HEADERS)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        cast = column.cast(field.type)
        cast.validate(full=True)
        return cast
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidBatch(
            f"column '{field.name}' has the wrong type",
            got=column.type,
            limit=field.type,
            remedy=str(error)[:200],
        ) from None


def _check_header_keys(headers: pa.Array) -> None:
    if len(headers.values) == 0:
        return
    flat = headers.flatten()
    if len(flat) and (flat.null_count or flat.field(0).null_count):
        raise InvalidMessage(
            "a header without a key",
            got="null",
            remedy="Give every header a key (a value may be null)",
        )


def _check_due(due: Int64s, config: WheelConfig, now_ms: int) -> None:
    latest = now_ms + config.horizon_ms
    lowest, highest = bounds(due)
    if highest > latest:
        row = int(np.argmax(due > latest))
        raise InvalidMessage(
            "due beyond the horizon",
            got=f"{time_text(int(due[row]))} ({int(due[row])} ms,"
            f" {(int(due[row]) - now_ms) / 1000:.3f} s ahead)",
            limit=f"{config.slots} s ahead",
            remedy="Send it later, or run the node with more --slots",
            row=row,
        )
    if lowest < DUE_MIN_MS:
        row = int(np.argmin(due))
        raise InvalidMessage(
            "due before 1970",
            got=f"{int(due[row])} ms",
            limit=DUE_MIN_MS,
            remedy="Give the due time in milliseconds since the epoch, UTC",
            row=row,
        )


def _check_partition(batch: pa.RecordBatch) -> None:
    column = batch.column("partition")
    if column.null_count < len(column):
        lowest = pc.min(column).as_py()
        if lowest < 0:
            raise InvalidMessage(
                "negative partition",
                got=lowest,
                limit=0,
                remedy="Leave the partition out to let the key decide",
                row=pc.index(column, pa.scalar(lowest, pa.int32())).as_py(),
            )


def _check_sizes(batch: pa.RecordBatch, config: WheelConfig) -> None:
    lengths = sizes(batch)
    row = int(np.argmax(lengths))
    if lengths[row] > config.message_bytes_max:
        raise InvalidMessage(
            "message too large",
            got=f"{int(lengths[row])} bytes of key, value and headers",
            limit=f"{config.message_bytes_max} bytes",
            remedy="Store the payload elsewhere and send a reference",
            row=row,
        )
