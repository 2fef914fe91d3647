"""The checks of a batch from outside, and the errors for what is refused.

Theory: ``check_input`` is the guard: a batch with one bad row is refused whole. Whoever gathers
rows of many callers (the client, the delay topic) asks for ``bad_rows`` instead, so that each fails
alone and the rest goes on. Both look at the same faults of values, column by column; nulls are
refused by ``check_input`` and by whoever asks for ``bad_rows``. A due time in the past
is no fault: such a row leaves at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from . import compute as pc
from .config import WheelConfig
from .delay import are_delays, due_times
from .errors import InvalidBatch, InvalidMessage
from .expiry import EXPIRES_HEADER, bad_expiries
from .expiry import started as expiries_started
from .names import IF_EXISTS_HEADER, NAME_HEADER, bad_names
from .rows import from_numpy
from .schema import FEW_ROWS, INPUT, TIME, Int64s, absent, bounds, distinct, lengths, sizes, times
from .texts import span_text, time_text

_NEVER_NULL = [(number, field.name) for number, field in enumerate(INPUT) if not field.nullable]
TOPIC_LENGTH_MAX = 249
PARTITION_MAX = (1 << 31) - 1
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}")
TOPIC_PATTERN = f"^{_TOPIC.pattern}$"
RESERVED_PREFIX = "slotwheel-"
"""Headers with this prefix are slotwheel's own. A reader of a record trusts them, so a message from
outside may not bring any."""
REDELIVERED_PREFIX = "slotwheel-redelivered-"
"""Headers of a message that is delivered again say what its first delivery was."""
REDELIVERED_ID_HEADER = f"{REDELIVERED_PREFIX}id"
"""The id under which a message that is sent again was sent first."""
DEAD_PREFIX = "slotwheel-dead-"
INPUT_PREFIXES = (REDELIVERED_PREFIX, DEAD_PREFIX, "slotwheel-retry-", "slotwheel-origin-")
"""Reserved prefixes that a message from outside may use: whoever sends it again says with them what
it was before."""
INPUT_HEADERS = (EXPIRES_HEADER, NAME_HEADER, IF_EXISTS_HEADER)
"""Reserved names by which a message from outside says something about itself."""
STAGE_HEADER = "slotwheel-dead-stage"
"""The one such name that only a node may write: by it a dead letter of the sink is known."""
DEAD_ERROR_HEADER = "slotwheel-dead-error"
"""A message that calls itself a dead letter has to say why. Without this header it could pass for a
letter of the sink in the former format, which had neither this nor a stage."""


_TIMES_MS = range(946_684_800_000, 253_402_300_800_000)
"""From the year 2000 to 9999."""


def is_time(ms: int) -> bool:
    """True if a number from outside can be a time, ms since the epoch. -1 says *none*, 2^63 - 1
    says *never*, 0 nothing, and a time in seconds is one in 1970: none of them is computed with."""
    return ms in _TIMES_MS


class InputBatch(NamedTuple):
    """A batch to be appended. ``rows``: the INPUT schema (``check_input`` says which
    columns may be missing). ``producer`` and ``sequence`` make a retry harmless: the same pair is
    stored once; those of a request (``request.py``) are found by the producer alone, and its due
    times become those of the first time. ``early``: its future resolves when it is durable on this
    node, whatever the peers have."""

    rows: pa.RecordBatch
    producer: int = 0
    sequence: int = -1
    early: bool = False


def is_topic(name: str) -> bool:
    """True if ``name`` is legal for a Kafka topic."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_topic(topic: str) -> None:
    """Raise ``InvalidMessage`` unless ``topic`` is a legal Kafka topic name."""
    if not is_topic(topic):
        raise InvalidMessage(
            "no topic" if topic == "" else "illegal topic name",
            got=repr(topic[:300]),
            limit=f"1 to {TOPIC_LENGTH_MAX} of a-z A-Z 0-9 . _ -",
            remedy="Name the target topic as Kafka would accept it",
        )


def is_reserved(header: str) -> bool:
    """True if a message from outside may not have a header of this name."""
    if not header.startswith(RESERVED_PREFIX) or header in INPUT_HEADERS:
        return False
    return header == STAGE_HEADER or not header.startswith(INPUT_PREFIXES)


def reserved_among(names: Sequence[str]) -> list[str]:
    """Those of a message's header names that it may not have."""
    wrong = [name for name in names if is_reserved(name)]
    if DEAD_ERROR_HEADER not in names:
        wrong += [name for name in names if name.startswith(DEAD_PREFIX) and name not in wrong]
    return wrong


def _ours_among(headers: pa.Array) -> set[str]:
    """The names with our prefix in a headers column. Mostly there are none, and one look takes the
    place of one for each kind of header."""
    if len(headers.values) == 0:
        return set()
    names = headers.flatten().field(0)
    if len(names) > FEW_ROWS:
        ours = pc.starts_with(names, RESERVED_PREFIX)
        if not ours.true_count:
            return set()
        names = names.filter(ours).unique()
    return {name for name in names.to_pylist() if name and name.startswith(RESERVED_PREFIX)}


def reserved_headers(headers: pa.Array) -> dict[int, list[str]]:
    """The rows of a headers column that have reserved names, and which; mostly none."""
    some = [name for name in _ours_among(headers) if _is_asked(name)]
    if not some:
        return {}
    names = headers.flatten().field(0)
    asked = np.flatnonzero(np.asarray(pc.is_in(names, pa.array(some, pa.utf8()))))
    ends = np.cumsum(lengths(headers))
    by_row: dict[int, list[str]] = {}
    for row in np.unique(np.searchsorted(ends, asked, side="right")).tolist():
        start = ends[row - 1] if row else 0
        if wrong := reserved_among(names[start : ends[row]].to_pylist()):
            by_row[row] = wrong
    return by_row


def _is_asked(name: str) -> bool:
    return name.startswith(DEAD_PREFIX) or is_reserved(name)


def reserved_header(names: Sequence[str]) -> InvalidMessage:
    """The error for a message that has these reserved names among its headers."""
    return InvalidMessage(
        f"reserved header name{'s' * (len(names) > 1)}",
        got=", ".join(names)[:300],
        limit=f"names that do not begin with '{RESERVED_PREFIX}'",
        remedy="Leave it out, also when a delivered message is sent again: slotwheel adds its own",
    )


def check_input(
    batch: pa.RecordBatch, config: WheelConfig, now_ms: int, *, reserved: bool = False
) -> pa.RecordBatch:
    """Check a batch from outside, and return it with exactly the ``INPUT`` schema; delays in it
    begin at ``now_ms``.

    ``reserved``: headers may have reserved names, as these rows are ours, or were accepted before.

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
        _validate(batch)
        batch = started(_without_nulls(conformed(batch, cast)), now_ms)
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
    latest = now_ms + config.horizon_ms
    for row, fault in _faults(batch, latest, now_ms, config.message_bytes_max, reserved, nbytes):
        fault.row = row
        raise copy(fault)  # raised itself it would refer to this frame, and that refers to it
    return batch


def started(batch: pa.RecordBatch, start_ms: int) -> pa.RecordBatch:
    """INPUT rows with times for delays that begin at ``start_ms``, and for spans until expiry."""
    given = times(batch, "due")
    due = due_times(given, start_ms)
    if due is given:
        return batch
    headers = expiries_started(batch.column("headers"), are_delays(given), due)
    columns = [from_numpy(due, TIME), *batch.columns[1:-1], headers]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def due_column(batch: pa.RecordBatch) -> Int64s:
    """Due times and delays of a batch that was checked, as its sender has given them."""
    return times(conformed(batch, cast), "due")


def check_together(
    batches: Sequence[pa.RecordBatch], config: WheelConfig, now_ms: int
) -> pa.RecordBatch | None:
    """Check several batches at the cost of one: their rows, copied one after the other. None: at
    least one of them may have to be refused; ``check_input`` says which, and why. What passes
    together would pass alone.
    """
    try:
        for batch in batches:
            if not batch.num_rows:
                return None
            _validate(batch)  # before their buffers are read to join them
        return check_input(pa.concat_batches(batches), config, now_ms)
    except (pa.ArrowException, UnicodeDecodeError, InvalidBatch, InvalidMessage):
        return None


def _validate(batch: pa.RecordBatch) -> None:
    """Errors: those of Arrow, which leaves the one offset of a column without values unchecked, and
    then writes a message that nobody can read: so those of absent headers are looked at here."""
    batch.validate(full=True)
    at = batch.schema.get_field_index("headers")
    headers = batch.column(at) if at >= 0 else None
    if headers is None or not pa.types.is_list(headers.type) or len(headers.values):
        return
    fields = headers.values.flatten() if pa.types.is_struct(headers.values.type) else ()
    for field in fields:
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            _, offsets, data = field.buffers()
            size = 0 if data is None else data.size
            place = memoryview(offsets or b"").cast("B")[4 * field.offset :][:4]
            if not 0 <= int.from_bytes(place, "little", signed=True) <= size:
                raise pa.ArrowInvalid("an offset of absent headers is outside of their bytes")


def _nbytes(batch: pa.RecordBatch, limit: int) -> int:
    """Bytes of the rows; of all that their buffers hold, if even that is below ``limit``."""
    # Not ``get_total_buffer_size``: of buffers that begin at one place it counts only the first,
    # and who sends them may let a large one begin where a small one does.
    buffers = (buffer for column in batch.columns for buffer in column.buffers())
    held = sum(buffer.size for buffer in buffers if buffer is not None)
    return held if held < limit else int(batch.nbytes)


def bad_rows(
    batch: pa.RecordBatch,
    *,
    latest_due_ms: int | None,
    message_bytes_max: int,
    start_ms: int = 0,
    reserved: bool = False,
) -> dict[int, InvalidMessage]:
    """Every row that no wheel would take, with its error (``row`` unset); empty when all are good.

    ``batch`` has the schema ``INPUT`` and is valid Arrow data. ``latest_due_ms`` None: the horizon
    is not known, and not checked; delays that begin at ``start_ms`` must not end later, either.
    ``reserved``: see ``check_input``.
    """
    bad: dict[int, InvalidMessage] = {}
    nbytes = _nbytes(batch, message_bytes_max)
    limits = latest_due_ms, start_ms, message_bytes_max
    for row, fault in _faults(batch, *limits, reserved, nbytes):
        bad.setdefault(row, fault)
    return bad


def _faults(
    batch: pa.RecordBatch,
    latest_due_ms: int | None,
    start_ms: int,
    bytes_max: int,
    reserved: bool,
    nbytes: int,
) -> Iterator[tuple[int, InvalidMessage]]:
    """Bad rows, each with its error: one kind of fault after the other, so a row may come twice.

    ``nbytes``: of the batch; no row is larger."""
    due = times(batch, "due")
    lowest, highest = bounds(due)
    if lowest < 0:
        for row in np.flatnonzero((due < 0) & ~are_delays(due)).tolist():
            yield row, due_before_1970(int(due[row]))
    if latest_due_ms is not None and (lowest < 0 or highest > latest_due_ms):
        ends = due_times(due, start_ms)
        for row in np.flatnonzero(ends > latest_due_ms).tolist():
            yield row, due_beyond_horizon(int(ends[row]), latest_due_ms)
    topics = batch.column("topic")
    for topic in distinct(topics):
        try:
            check_topic(topic)
        except InvalidMessage as fault:
            for row in np.flatnonzero(np.asarray(pc.equal(topics, topic))).tolist():
                yield row, copy(fault)
    partitions = batch.column("partition")
    if partitions.null_count < len(partitions) and pc.min(partitions).as_py() < 0:
        negative = np.asarray(pc.fill_null(pc.less(partitions, 0), False))
        for row in np.flatnonzero(negative).tolist():
            yield row, bad_partition(partitions[row].as_py())
    headers = batch.column("headers")
    ours = _ours_among(headers)
    if EXPIRES_HEADER in ours:
        yield from bad_expiries(headers, due).items()
    if NAME_HEADER in ours or IF_EXISTS_HEADER in ours:
        yield from bad_names(headers).items()
    if not reserved and any(map(_is_asked, ours)):
        for row, names in sorted(reserved_headers(headers).items()):
            yield row, reserved_header(names)
    if nbytes > bytes_max:
        bytes_of = sizes(batch)
        for row in np.flatnonzero(bytes_of > bytes_max).tolist():
            yield row, too_large(int(bytes_of[row]), bytes_max)


def conformed(rows: Any, cast_column: Callable[[Any, pa.Field], Any]) -> Any:
    """A record batch or a table with the columns of ``INPUT``, in its order and of its types, those
    that may be left out filled in. Nulls are not looked for. Errors: ``InvalidBatch``."""
    if rows.schema.equals(INPUT, check_metadata=False):
        return rows
    names = rows.schema.names
    check_names(names)
    columns = []
    for field in INPUT:
        if field.name not in names:
            columns.append(absent(field, rows.num_rows))
            continue
        column = rows.column(field.name)
        columns.append(column if column.type == field.type else cast_column(column, field))
    return type(rows).from_arrays(columns, schema=INPUT)


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch as it is. Errors: ``InvalidMessage`` for a null that may not be."""
    for number, name in _NEVER_NULL:
        # Without this the value "null" would be read from whatever bytes lie under it.
        column = batch.column(number)
        if column.null_count:
            row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
            raise InvalidMessage(
                f"no {name}", got="null", row=row, remedy=f"Give every message a {name}"
            )
    if has_keyless(batch.column("headers")):
        raise InvalidMessage(
            "a header without a key",
            got="null",
            remedy="Give every header a key (a value may be null)",
        )
    return batch


def has_keyless(headers: pa.Array) -> bool:
    """True if a header in the column has no key."""
    if len(headers.values) == 0:
        return False
    flat = headers.flatten()
    return bool(flat.null_count or flat.field(0).null_count)


def check_names(names: Sequence[str]) -> None:
    """Raise ``InvalidBatch`` unless columns of these names can become ``INPUT``."""
    unknown = set(names) - set(INPUT.names)
    missing = {"due", "topic", "value"} - set(names)
    if unknown or missing or len(names) != len(set(names)):
        raise InvalidBatch(
            f"wrong schema: columns {'missing' if missing else 'unknown or twice'}",
            got=", ".join(names)[:300],
            limit=", ".join(f"{field.name} {field.type}" for field in INPUT),
            remedy="'due', 'topic', 'value' are needed; 'partition', 'key', 'headers' may be"
            " left out; nothing else is allowed",
        )


def cast(column: Any, field: pa.Field) -> Any:
    """A column, or a table's, with the type of ``field``. Errors: ``InvalidBatch``."""
    try:
        converted = column.cast(field.type)
        converted.validate(full=True)
        return converted
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise wrong_type(column, field, str(error)[:200]) from None


def wrong_type(column: Any, field: pa.Field, why: str) -> InvalidBatch:
    return InvalidBatch(
        f"column '{field.name}' has the wrong type",
        got=str(column.type)[:300],
        limit=field.type,
        remedy=why,
    )


def due_beyond_horizon(due_ms: int, latest_ms: int) -> InvalidMessage:
    return InvalidMessage(
        "due beyond the horizon",
        got=f"{time_text(due_ms)} ({due_ms} ms, too far ahead by {span_text(due_ms - latest_ms)})",
        limit=time_text(latest_ms),
        remedy="Send it later, or run the node with a longer --horizon, 3660d at most",
    )


def due_before_1970(due_ms: int) -> InvalidMessage:
    return InvalidMessage(
        "due before 1970",
        got=f"{due_ms} ms",
        limit=0,
        remedy="Give the due time in milliseconds since the epoch, UTC",
    )


def bad_partition(partition: int) -> InvalidMessage:
    return InvalidMessage(
        "negative partition" if partition < 0 else "no such partition",
        got=partition,
        limit=f"0 to {PARTITION_MAX}",
        remedy="Leave the partition out to let the key decide",
    )


def too_large(nbytes: int, limit: int) -> InvalidMessage:
    return InvalidMessage(
        "message too large",
        got=f"{nbytes} bytes of key, value and headers",
        limit=f"{limit} bytes",
        remedy="Store the payload elsewhere and send a reference",
    )
