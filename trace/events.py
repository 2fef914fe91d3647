"""A trace event: what happened to one message, somewhere, at some time; and how events travel.

Theory: what the wheel knows of a message is in its files. The two ends are not: when it was sent
and acknowledged, when a consumer got it, and what became of it there. So clients and consumers send
events, in batches, to a topic; the columns are in docs/formats.md.

Rules
- Whoever sends events numbers all of its own, also those that it had to drop: a gap in the numbers
  is how many are missing, and events with the same sender and number are one event.
- What is the same for all events of a sender stands once in a batch, in the schema's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa

from ..wheel.arrowclaims import CLAIM_ERRORS, RECORD_BATCH, SCHEMA, claims
from ..wheel.errors import InvalidMessage, UnsupportedVersion
from ..wheel.schema import TIME

TRACE_TOPIC = "slotwheel-trace"
TRACE_VERSION = 1
BATCH_BYTES_MAX = 512 << 10
"""Of an encoded batch: half of what Kafka takes by itself."""
DECODED_BYTES_MAX, DECODED_ROWS_MAX = 64 << 20, 1 << 17
"""Of a batch in memory, whatever it claims to be."""
_VALUE_BYTES_MAX = 2 * BATCH_BYTES_MAX
_NAME_CHARACTERS, _TAGS_CHARACTERS = 256, 4096
"""Of a sender's names, and of all its tags."""
_VERSION_KEY, _SENDER_KEY = b"slotwheel.trace", b"slotwheel.trace.sender"
_WRITING = pa.ipc.IpcWriteOptions(compression="lz4")

ID = pa.struct(
    [
        pa.field("group", pa.utf8(), nullable=False),
        pa.field("due", TIME, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("check", pa.uint32(), nullable=False),
    ]
)
"""A message's id by its parts: a sender has these as columns, and its text takes longer to make
than all the rest of an event."""

EVENT = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("at", TIME, nullable=False),
        pa.field("kind", pa.utf8(), nullable=False),
        pa.field("took_us", pa.int64()),
        pa.field("id", ID),
        pa.field("origin", ID),
        pa.field("traceparent", pa.utf8()),
        pa.field("tag", pa.utf8()),
        pa.field("topic", pa.utf8()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("group", pa.utf8()),
        pa.field("attempt", pa.int32()),
        pa.field("error", pa.utf8()),
        pa.field("count", pa.int64()),
    ],
    metadata={_VERSION_KEY: str(TRACE_VERSION).encode()},
)

_NAME = pa.dictionary(pa.int32(), pa.utf8())
STORED = pa.schema(
    [
        *EVENT,
        pa.field("sender", _NAME, nullable=False),
        pa.field("client", _NAME, nullable=False),
        pa.field("address", _NAME, nullable=False),
        pa.field("sender_tags", _NAME, nullable=False),
    ],
    metadata=EVENT.metadata,
)
"""An event beside others: with its sender. ``sender_tags``: a JSON object."""


class EventKind(StrEnum):
    """What happened. Where it failed, the event has an error."""

    PRODUCED = "produced"
    """A client sent it; ``took_us``: until the node had acknowledged or refused it."""
    RECEIVED = "received"
    """A consumer's application got it at that time, and has not answered yet."""
    PROCESSED = "processed"
    """The application has answered for what it got at that time, ``took_us`` later."""
    RETRIED = "retried"
    """The consumer asked for another attempt."""
    DEAD = "dead"
    """The consumer made a dead letter of it; ``error``: why."""
    COMMITTED = "committed"
    """A partition's position moved to ``offset``."""
    DROPPED = "dropped"
    """``count`` events before this one are missing: there was no room for them."""


@dataclass(frozen=True, slots=True)
class EventSender:
    """Who sends events. ``name``: unique for each start of a program; ``client``: what its people
    call it; ``address``: where it runs; ``tags``: what else they say of it."""

    name: str
    client: str = ""
    address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def with_sender(sender: EventSender, events: pa.RecordBatch) -> pa.RecordBatch:
    """Events of one sender (schema ``EVENT``) as events beside others (schema ``STORED``)."""
    tags = json.dumps(dict(sender.tags), sort_keys=True)
    same = pa.array(np.zeros(events.num_rows, np.int32))
    texts = (sender.name, sender.client, sender.address, tags)
    named = [pa.DictionaryArray.from_arrays(same, pa.array([text])) for text in texts]
    return pa.RecordBatch.from_arrays([*events.columns, *named], schema=STORED)


def encode(sender: EventSender, events: pa.RecordBatch) -> bytes:
    """A batch of events (schema ``EVENT``) as the value of a message: an Arrow IPC stream."""
    about = {
        "name": sender.name,
        "client": sender.client,
        "address": sender.address,
        "tags": dict(sender.tags),
    }
    metadata = {**(EVENT.metadata or {}), _SENDER_KEY: json.dumps(about).encode()}
    schema = EVENT.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_WRITING) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(events.columns, schema=schema))
    return bytes(sink.getvalue())


def decode(value: bytes) -> tuple[EventSender, pa.RecordBatch]:
    """What ``encode`` has made. Errors: ``InvalidMessage``: it is no batch of events, or claims too
    much; ``UnsupportedVersion``."""
    if len(value) > _VALUE_BYTES_MAX:
        raise InvalidMessage(
            "too large for a batch of trace events",
            got=f"{len(value)} bytes",
            limit=_VALUE_BYTES_MAX,
        )
    try:
        with pa.ipc.open_stream(value) as reader:
            metadata = reader.schema.metadata or {}
            version = metadata.get(_VERSION_KEY, b"none").decode("ascii", "replace")
            if version != str(TRACE_VERSION):
                raise UnsupportedVersion(
                    "trace events of an unknown version",
                    got=version,
                    limit=TRACE_VERSION,
                    remedy="Use the slotwheel version that wrote them, or a newer one",
                )
            if not reader.schema.equals(EVENT):
                raise InvalidMessage("no batch of trace events", got=str(reader.schema)[:200])
            _check_claims(value)
            table = reader.read_all()
            table.validate(full=True)
            _check_nulls(table)
            about = json.loads(metadata[_SENDER_KEY])
            sender = EventSender(
                str(about["name"]),
                str(about["client"]),
                str(about["address"]),
                {str(name): str(tag) for name, tag in dict(about["tags"]).items()},
            )
            _check_sender(sender)
    except (*CLAIM_ERRORS, KeyError, TypeError, RecursionError) as error:
        raise InvalidMessage("no batch of trace events", got=str(error)[:200]) from None
    batches = table.combine_chunks().to_batches()
    return sender, batches[0] if batches else pa.RecordBatch.from_pylist([], schema=EVENT)


def _check_claims(value: bytes) -> None:
    rows = nbytes = 0
    for claim in claims(value):
        if claim.kind not in (SCHEMA, RECORD_BATCH):
            raise ValueError(f"a message of kind {claim.kind}")
        rows += claim.rows
        nbytes += claim.nbytes
        if rows > DECODED_ROWS_MAX or nbytes > DECODED_BYTES_MAX:
            raise ValueError(f"it claims to have {rows} rows, {nbytes} bytes")


def _check_nulls(table: pa.Table) -> None:
    """Arrow itself does not mind nulls in a column that has none."""
    for about, column in zip(table.schema, table.columns, strict=True):
        if column.null_count and not about.nullable:
            raise ValueError(f"column {about.name} has nulls")
        if about.type == ID and any(
            part.null_count for chunk in column.chunks for part in chunk.drop_null().flatten()
        ):
            raise ValueError(f"an id in column {about.name} has nulls")


def _check_sender(sender: EventSender) -> None:
    tags = json.dumps(dict(sender.tags))
    for text, most in (
        (sender.name, _NAME_CHARACTERS),
        (sender.client, _NAME_CHARACTERS),
        (sender.address, _NAME_CHARACTERS),
        (tags, _TAGS_CHARACTERS),
    ):
        text.encode()  # raises for half of a surrogate pair
        if len(text) > most:
            raise ValueError(f"a sender with {len(text)} characters in one of its names or tags")
    if not sender.name:
        raise ValueError("a sender without a name")
