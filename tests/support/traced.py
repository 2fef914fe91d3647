"""Made-up trace events, and what a plain list of them says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from slotwheel.trace.events import EVENT, STORED, EventSender, with_sender
from slotwheel.trace.store import TraceQuery
from slotwheel.wheel.ids import MessageId

Row = Mapping[str, Any]
CHECK = 0xF1A9C07D2B86E457
"""Of a long id; as a signed number it is below zero."""


def id_parts(offset: int, group: str = "g", due: int = 5, check: int = CHECK) -> dict[str, Any]:
    return {"group": group, "due": due, "offset": offset, "check": check}


def event(number: int, at: int, sender: str = "s", kind: str = "produced", **more: Any) -> Row:
    """An event as a row of ``stored``."""
    return {"number": number, "at": at, "kind": kind, "sender": sender, **more}


def of_sender(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of one sender, schema ``EVENT``."""
    plain = [{name: row.get(name) for name in EVENT.names} for row in rows]
    return pa.RecordBatch.from_pylist(plain, schema=EVENT)


def stored(rows: Iterable[Row]) -> pa.Table:
    """Rows in their order, schema ``STORED``."""
    batches = [
        with_sender(EventSender(row["sender"], row.get("client", "")), of_sender([row]))
        for row in rows
    ]
    return pa.Table.from_batches(batches, STORED).unify_dictionaries()


def keys_of(events: pa.Table) -> list[tuple[int, str, int]]:
    """``at``, sender and number of each event."""
    at = events.column("at").cast(pa.int64()).to_pylist()
    senders = events.column("sender").to_pylist()
    return list(zip(at, senders, events.column("number").to_pylist(), strict=True))


def expected(rows: Iterable[Row], query: TraceQuery) -> list[tuple[int, str, int]]:
    """The keys of those that fulfil a query, in order."""
    return sorted((r["at"], r["sender"], r["number"]) for r in rows if _fulfils(r, query))


def _fulfils(row: Row, query: TraceQuery) -> bool:
    for name in ("key", "tag", "topic", "group", "kind"):
        wanted = getattr(query, name)
        if wanted is not None and row.get(name) != wanted:
            return False
    if query.client is not None and row.get("client", "") != query.client:
        return False
    if query.failed is not None and (row.get("error") is not None) != query.failed:
        return False
    if query.id is not None and query.id not in (_id(row.get("id")), _id(row.get("origin"))):
        return False
    return (query.from_ms is None or row["at"] >= query.from_ms) and (
        query.to_ms is None or row["at"] < query.to_ms
    )


def _id(parts: Mapping[str, Any] | None) -> MessageId | None:
    return None if parts is None else MessageId(**parts)
