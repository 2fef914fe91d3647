"""Makes new messages of dead letters, which keep only the content of the original.

Headers that the wheel, a consumer or a burial added are left out, so attempts are counted anew. The
letter's id becomes ``slotwheel-redelivered-id``, in place of that of an earlier redrive: otherwise
a letter would get longer each time it is sent. A message that is sent again does not expire, or it
would be a dead letter at once: ``slotwheel-expires-ms`` is renamed, as by every re-delivery, and so
is the ``ttl`` of a message that a consumer gave up.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...policy import deadletters
from ...policy.headercolumns import HeaderColumn
from ...wheel.checks import REDELIVERED_ID_HEADER, REDELIVERED_PREFIX, RESERVED_PREFIX
from ...wheel.expiry import EXPIRES_HEADER
from ...wheel.rows import from_numpy, header_lists, headers_of, with_headers, without_header
from ...wheel.schema import HEADERS, INPUT, TIME, Int64s
from .letters import letter_starts

_EXPIRED = f"{REDELIVERED_PREFIX}{EXPIRES_HEADER.removeprefix(RESERVED_PREFIX)}"
_RENAMED = {
    EXPIRES_HEADER: _EXPIRED,
    deadletters.EXPIRES: _EXPIRED,
    deadletters.TTL: f"{REDELIVERED_PREFIX}ttl",
}

AGAIN = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("buried", TIME),
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("for_partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
    ]
)
"""A letter's place, and the message that it becomes."""


def as_messages(letters: pa.RecordBatch, to_topic: str | None) -> pa.RecordBatch:
    """Make messages (schema ``AGAIN``) of letters (schema ``LETTER``).

    ``to_topic``: their topic, if it is not the one they were addressed to. The partition that a
    letter was addressed to is kept only in the topic that it was addressed to.
    """
    address, partition = letters.column("for_topic"), letters.column("for_partition")
    topic = address
    if to_topic is not None:
        topic = pa.repeat(pa.scalar(to_topic, pa.utf8()), letters.num_rows)
        unchanged = pc.fill_null(pc.equal(address, to_topic), False)
        partition = pc.if_else(unchanged, partition, pa.scalar(None, pa.int32()))
    headers = headers_again(letters.column("headers"))
    before = HeaderColumn(headers).last_values(REDELIVERED_ID_HEADER)
    ids = pc.coalesce(letters.column("id").cast(pa.binary()), before.cast(pa.binary()))
    headers, added = (
        without_header(headers, REDELIVERED_ID_HEADER),
        headers_of({REDELIVERED_ID_HEADER: ids}),
    )
    columns = {"topic": topic, "for_partition": partition, "headers": with_headers(headers, added)}
    every = [columns[name] if name in columns else letters.column(name) for name in AGAIN.names]
    return pa.RecordBatch.from_arrays(every, schema=AGAIN)


def headers_again(headers: pa.Array) -> pa.Array:
    """A column of headers without those that were added to the original messages."""
    columns = HeaderColumn(headers)
    flat = columns.flat
    if not len(flat):
        return headers
    names = flat.field(0).dictionary_encode()
    known = names.dictionary.to_pylist()
    renamed = pa.array(map(_name_again, known), pa.utf8()).take(names.indices)
    kept = np.asarray(renamed.is_valid())
    # Before the letter's own headers, the names of Kafka Connect are the message's.
    connect = np.array([name.startswith(deadletters.CONNECT_PREFIX) for name in known])
    starts = np.repeat(letter_starts(columns), columns.ends - columns.starts)
    added = np.arange(len(flat)) >= starts
    kept &= ~(connect[np.asarray(names.indices)] & added)
    running = np.concatenate([[0], np.cumsum(kept)])
    counts = running[columns.ends] - running[columns.starts]
    mask = pa.array(kept)
    return header_lists(counts, renamed.filter(mask), flat.field(1).filter(mask))


def _name_again(name: str) -> str | None:
    """The name that a header has in the new message; None: it is left out."""
    if name in _RENAMED:
        return _RENAMED[name]
    if name.startswith(REDELIVERED_PREFIX):
        return name
    return None if name.startswith(RESERVED_PREFIX) else name


def to_input(rows: pa.RecordBatch, due: Int64s) -> pa.RecordBatch:
    """Rows for the wheel (schema ``INPUT``), of ``AGAIN`` rows. ``due``: ms, shape (rows,)."""
    columns = {"due": from_numpy(due, TIME), "partition": rows.column("for_partition")}
    every = [columns[name] if name in columns else rows.column(name) for name in INPUT.names]
    return pa.RecordBatch.from_arrays(every, schema=INPUT)
