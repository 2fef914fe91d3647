"""A dead letter as it is sent again: a new life, with nothing left of the old one but its content.

Its headers are the original's own. What the wheel, a consumer and whoever buried it added is left
out, so attempts are counted anew; the id that it had becomes ``slotwheel-redelivered-id``, in place
of that of an earlier redrive: however often a letter is sent, it has no more headers. What is sent
again does not expire: ``slotwheel-expires-ms`` is renamed, as every re-delivery does it, and
so is the ``ttl`` of a message that a consumer gave up.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..policy import deadletters
from ..replay.facts.headers import HeaderColumn
from ..wheel.checks import REDELIVERED_ID_HEADER, REDELIVERED_PREFIX, RESERVED_PREFIX
from ..wheel.expiry import EXPIRES_HEADER
from ..wheel.rows import from_numpy, header_lists, headers_of, with_headers, without_header
from ..wheel.schema import HEADERS, INPUT, TIME, Int64s
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
"""A letter that is to be sent again: where it stands, and the message that it becomes."""


def as_messages(letters: pa.RecordBatch, to_topic: str | None) -> pa.RecordBatch:
    """Letters (schema ``LETTER``) as the messages that they become (schema ``AGAIN``).

    ``to_topic``: where they go if not where they were meant to. A partition is asked for only of
    the topic of which it was asked for before.
    """
    meant, partition = letters.column("for_topic"), letters.column("for_partition")
    topic = meant
    if to_topic is not None:
        topic = pa.repeat(pa.scalar(to_topic, pa.utf8()), letters.num_rows)
        same = pc.fill_null(pc.equal(meant, to_topic), False)
        partition = pc.if_else(same, partition, pa.scalar(None, pa.int32()))
    own = headers_again(letters.column("headers"))
    before = HeaderColumn(own).last_values(REDELIVERED_ID_HEADER)
    ids = pc.coalesce(letters.column("id").cast(pa.binary()), before.cast(pa.binary()))
    own, added = (
        without_header(own, REDELIVERED_ID_HEADER),
        headers_of({REDELIVERED_ID_HEADER: ids}),
    )
    columns = {"topic": topic, "for_partition": partition, "headers": with_headers(own, added)}
    every = [columns[name] if name in columns else letters.column(name) for name in AGAIN.names]
    return pa.RecordBatch.from_arrays(every, schema=AGAIN)


def headers_again(headers: pa.Array) -> pa.Array:
    """A headers column with the messages' own headers alone."""
    columns = HeaderColumn(headers)
    flat = columns.flat
    if not len(flat):
        return headers
    names = flat.field(0).dictionary_encode()
    known = names.dictionary.to_pylist()
    renamed = pa.array(map(_name_again, known), pa.utf8()).take(names.indices)
    kept = np.asarray(renamed.is_valid())
    # Before the letter's own headers, the names of Kafka Connect are the message's.
    theirs = np.array([name.startswith(deadletters.CONNECT_PREFIX) for name in known])
    starts = np.repeat(letter_starts(columns), columns.ends - columns.starts)
    added = np.arange(len(flat)) >= starts
    kept &= ~(theirs[np.asarray(names.indices)] & added)
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
    """Rows of the schema ``AGAIN``, due at these times, for the wheel."""
    columns = {"due": from_numpy(due, TIME), "partition": rows.column("for_partition")}
    every = [columns[name] if name in columns else rows.column(name) for name in INPUT.names]
    return pa.RecordBatch.from_arrays(every, schema=INPUT)
