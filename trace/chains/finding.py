"""Finds the chain of a message: the events and the fates of all its messages.

Theory: an event leads from a message to the one that it comes from, and the store from that one to
all that come from it. So whichever id is asked for, the search goes along these in both ways until
nothing new is found.

Rules
- Anyone may write events. A text that is no id is not followed, and a chain has a largest size, so
  that forged events cannot lead through the whole store.
- What a caller may not see is taken out before anything is concluded from it: each event by its own
  topic, each message by the topic that the wheel's files have. Otherwise an event that says that a
  message of others comes from one's own would show that message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from ...reading.search.fate import MessageFate, visible_fate
from ...reading.visible import MayTopic
from ...wheel.errors import UnknownId
from ...wheel.ids import MessageId
from ...wheel.texts import counted
from ..events import ID, STORED
from ..store import TracePage
from .anomalies import LIMITS, AnomalyLimits
from .assembling import assemble, id_of
from .chain import Chain

MESSAGES_MAX = 1_000
"""Messages of a chain at most: one that is tried more often is shown in part."""
EVENTS_MAX = 20_000
"""From so many events on no further messages are looked for."""
Fates = Callable[[Sequence[str]], Sequence[MessageFate]]
"""Returns the fate of each message, by their ids."""


class EventsById(Protocol):
    def of_id(self, wanted: MessageId, may: MayTopic | None = None) -> TracePage:
        """All events of the message, and of those that come from it, of topics that ``may`` be
        seen; None: of all."""


def find_chain(
    text: str,
    events: EventsById | None,
    fates: Fates,
    now_ms: int,
    limits: AnomalyLimits = LIMITS,
    unread: Collection[str] = (),
    may: MayTopic | None = None,
) -> Chain:
    """The chain of the message with the id ``text``. ``events``: the store, or None; ``unread``:
    topics that no consumer is expected to read; ``may``: tells of a topic whether the caller may
    see its messages; None: it may see all.

    Errors: ``UnknownId``: it is no id; those of ``events`` and ``fates``.
    """
    asked = MessageId.parse(text)
    tables: dict[MessageId, pa.Table] = {}
    waiting, seen, missing = [asked], {asked}, []
    count = 0
    while waiting and events is not None and count < EVENTS_MAX:
        message_id = waiting.pop(0)
        page = events.of_id(message_id, may)
        tables[message_id] = table = page.events
        count += table.num_rows
        missing += [f"{message_id}: {problem.text}" for problem in page.problems]
        if page.next is not None:
            missing.append(f"{message_id}: it has more than these {table.num_rows} events")
        for other in _linked(table):
            if other in seen:
                continue
            if len(seen) == MESSAGES_MAX:
                missing.append(f"more than {MESSAGES_MAX} messages: these are the first found")
                break
            seen.add(other)
            waiting.append(other)
    if waiting and events is not None:
        left_out = counted(len(waiting), "message")
        missing.append(f"{EVENTS_MAX} events and more: those of {left_out} are not looked for")
    if events is None:
        missing.append("there is no store of events: what clients and consumers did is not known")
    every = _once(list(tables.values()))
    of_each = [
        visible_fate(fate, may)
        for fate in fates([str(message_id) for message_id in sorted(seen, key=str)])
    ]
    return assemble(text, every, of_each, now_ms, limits, dict.fromkeys(missing), unread)


def _linked(events: pa.Table) -> Iterator[MessageId]:
    for name in ("id", "origin"):
        ids = pa.Table.from_struct_array(events.column(name).drop_null())
        once = ids.group_by(ID.names, use_threads=False).aggregate([])
        for parts in once.to_pylist():
            try:
                yield MessageId.parse(str(id_of(parts)))
            except UnknownId:
                continue


def _once(tables: Sequence[pa.Table]) -> pa.Table:
    """All events of these tables, each once: one with an origin is in two of them."""
    if not tables:
        return STORED.empty_table()
    every = pa.concat_tables(tables).combine_chunks()
    numbers = zip(
        every.column("sender").to_pylist(), every.column("number").to_pylist(), strict=True
    )
    places = {key: at for at, key in enumerate(numbers)}
    return every.take(pa.array(sorted(places.values()), pa.int64()))
