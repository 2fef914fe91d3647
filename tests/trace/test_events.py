"""Events as they travel, and as they stand beside those of other senders."""

from __future__ import annotations

import json

import pyarrow as pa

from slotwheel.trace import EventKind, EventSender, decode
from slotwheel.trace.events import EVENT, STORED, encode, with_sender


def test_an_event_beside_others_has_its_sender() -> None:
    rows = [{"number": number, "at": 1, "kind": EventKind.PRODUCED} for number in range(3)]
    sent = EventSender("s1", "billing", "host", {"shop": "north"})
    sender, events = decode(encode(sent, pa.RecordBatch.from_pylist(rows, schema=EVENT)))
    other = with_sender(EventSender("s2"), events.slice(0, 1))
    together = pa.Table.from_batches([with_sender(sender, events), other]).unify_dictionaries()
    assert together.schema.equals(STORED, check_metadata=True)
    assert together.column("sender").to_pylist() == ["s1", "s1", "s1", "s2"]
    assert json.loads(together.column("sender_tags")[0].as_py()) == {"shop": "north"}
    assert together.column("number").to_pylist() == [0, 1, 2, 0]
