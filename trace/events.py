"""A trace event: what happened to one message, somewhere, at some time.

Theory: the wheel's files say what happened to a message in the wheel. They do not say when it was
sent and acknowledged, when a consumer got it, and what became of it there. So clients and consumers
send events, in batches, to a topic; the columns are in docs/formats.md.

Rules
- A sender numbers its events, also those that it had to drop: a gap in the numbers says how many
  are missing, and an event that was sent twice counts once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa

from ..wheel.schema import CHECK, TIME

TRACE_TOPIC = "slotwheel-trace"
AUDIT_TOPIC = "slotwheel-audit"
"""The topic of the sums of ``audit/``."""
OWN_TOPICS = frozenset({TRACE_TOPIC, AUDIT_TOPIC})
"""Topics that figures and audits leave out: no application sends to them."""
TRACE_VERSION = 2
"""Version 1 has checks of 32 bits, of short ids alone (``wheel/ids.py``)."""
VERSION_KEY = b"slotwheel.trace"
"""Key of ``TRACE_VERSION`` in a schema's metadata."""

ID = pa.struct(
    [
        pa.field("group", pa.utf8(), nullable=False),
        pa.field("due", TIME, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        CHECK,
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
    metadata={VERSION_KEY: str(TRACE_VERSION).encode()},
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
"""An event with its sender, as the store has it. ``sender_tags``: a JSON object."""


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
    """A sender of events. ``name``: unique for each start of a program; ``client``: what people
    call the program; ``address``: its host; ``tags``: any further names and values."""

    name: str
    client: str = ""
    address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def with_sender(sender: EventSender, events: pa.RecordBatch) -> pa.RecordBatch:
    """Events of one sender (schema ``EVENT``) with schema ``STORED``."""
    tags = json.dumps(dict(sender.tags), sort_keys=True)
    same = pa.array(np.zeros(events.num_rows, np.int32))
    texts = (sender.name, sender.client, sender.address, tags)
    named = [pa.DictionaryArray.from_arrays(same, pa.array([text])) for text in texts]
    return pa.RecordBatch.from_arrays([*events.columns, *named], schema=STORED)
