"""Pending messages by topic, key, header and due time; and a message by its id."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...reading.search.pending import PendingCount, PendingPage
from ...reading.search.query import CountQuery, PageKey, PageQuery, Query
from ...security.rights import Operation, Right
from ...wheel.config import TICK_MS
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError
from ..predecessors import NameBefore, fate_before
from ..requests import JSON, NDJSON, Reply, as_json, wanted_type
from ..searcher import Searcher
from ..services import Services
from .found import FoundMessage, found_messages


class ReadUpTo(msgspec.Struct):
    """How far an answer has read the log, and what had left by then."""

    next_offset: int
    """Every message below this offset of the log was seen."""
    index: int
    """The last entry of the log that was read."""
    mark_ms: int
    """Due time up to which messages have left."""
    mark_offset: int
    """Offset up to which those that came late have left."""
    reach_ms: int
    """No message that is due later has left; -1: that is not known."""
    looked_ms: int
    """When the log was looked at. A message that was due by then may have left meanwhile."""


class PageEnd(msgspec.Struct):
    """The end of a page: where the next one begins, and what was read for this one."""

    next: str | None
    """Give it as ``page`` for the messages behind these; null: there are none."""
    complete: bool
    """True: no match up to ``next`` is missing. False: ``problems`` say what may be."""
    looked_through: int
    """Messages that were read for it."""
    read_point: ReadUpTo | None
    """Null in the answer of a fleet: each wheel has a log of its own."""
    problems: list[str]
    limited_by_rights: bool
    """Whether only topics that the caller may read were looked at."""


class FoundMessages(PageEnd):
    """Pending messages, in the order in which they are due."""

    messages: list[FoundMessage]


class SlotCount(msgspec.Struct, omit_defaults=True):
    """How many messages are due in a slot that begins at ``from_ms``."""

    from_ms: int
    messages: int
    seconds: int = 1
    """The length of the slot: a second, or, of what is due further ahead, an hour or a day."""


class PendingCounts(msgspec.Struct, omit_defaults=True):
    """Counts of pending messages."""

    messages: int
    complete: bool
    looked_through: int
    read_point: ReadUpTo | None
    """Null in the answer of a fleet: each wheel has a log of its own."""
    problems: list[str]
    limited_by_rights: bool = False
    """Whether only topics that the caller may read were looked at."""
    slots: list[SlotCount] | None = None
    """Counts by slot, with ``by=slot``: by second for two hours at least; what shares the file of
    its hour or day by hour for two days at least, then by day. All are pending messages, without
    what was cancelled, and none is in two of them."""
    topics: dict[str, int] | None = None
    """Counts by topic, with ``by=topic``."""


class KnownMessage(msgspec.Struct):
    """The state of a message, and what tells it."""

    id: str
    state: Literal["pending", "delivered", "cancelled", "expired", "dead", "unknown"]
    why: str
    """What tells the state, or why it is not known."""
    due_ms: int | None
    created_ms: int | None
    """When it was accepted; null: not known."""
    left_ms: int | None
    """When it left first, or was passed over as it was cancelled; null: it has not, or when it did
    is not known."""
    topic: str | None
    """Where it was to go; null: not known."""
    message: FoundMessage | None
    """Its content, as long as a file of the wheel has it."""
    before: NameBefore | None = None
    """The message that had its name when it came; null: nobody had, or nobody knows any more, which
    ``why`` says then."""
    replaced_by: str | None = None
    """The id of the later message of its name that replaced it; null: likewise."""


def searcher_of(services: Services, right: Right = Right.READ) -> Searcher:
    """A searcher that sees the topics for which the caller has the right. Errors: ``HttpError``
    404: there is no data directory to search."""
    if services.searcher is None:
        raise HttpError(
            404,
            "this gateway does not search",
            remedy="Start it beside a node, or with --data DIRECTORY of one",
        )
    return services.searcher.limited_to(services.topics_for(right))


async def list_messages(call: RouteCall[PageQuery, None]) -> Reply:
    """List pending messages in the order in which they are due, a page at a time. Every message
    that was acknowledged before the question is seen; `read_point` says how far the answer goes
    beyond that. With `Accept: application/x-ndjson` each line of the answer is a message as JSON,
    and the last line is the end of the page."""
    kind = wanted_type(call.scope, (JSON, NDJSON))
    page = await found_page(call.services, call.query, call.query.page, call.query.limit)
    text = await call.services.run(_written, page, kind)
    return Reply(200, text, kind)


def _written(page: FoundMessages, kind: str) -> bytes:
    if kind == JSON:
        return msgspec.json.encode(page)
    end = msgspec.structs.asdict(page)
    messages = end.pop("messages")
    lines = [msgspec.json.encode(line) for line in (*messages, {"page": end})]
    return b"\n".join(lines) + b"\n"


async def found_page(
    services: Services, query: Query, after: PageKey | None, limit: int
) -> FoundMessages:
    """The page of matches behind ``after``. Errors: as of ``searcher_of`` and ``Searcher.page``;
    ``HttpError`` 422: the page before was of several wheels, or was not."""
    if services.front is not None:
        return await services.front.page(query, after, limit, services.patterns_for(Right.READ))
    if after is not None and after.wheel:
        raise HttpError(
            422,
            "the page before was of a fleet, and this gateway is of one wheel",
            place="query page",
            got=str(after),
            remedy="Ask the fleet's gateway for the next page",
        )
    searcher = searcher_of(services)
    page = await searcher.page(query, after and after.row, limit)
    messages = await services.run(found_messages, page.ids, page.rows)
    following = None if page.next is None else str(PageKey(*page.next))
    return FoundMessages(following, **_read(page, searcher.is_limited), messages=messages)


async def count_messages(call: RouteCall[CountQuery, None]) -> Reply:
    """Count pending messages. Without topic, key and header nothing has to be read for it."""
    return as_json(await found_counts(call.services, call.query, call.query.by))


async def found_counts(
    services: Services,
    query: Query,
    by: Literal["slot", "topic"] | None = None,
    right: Right = Right.READ,
) -> PendingCounts:
    """The number of matches, of topics for which the caller has the right. Errors: as of
    ``searcher_of`` and ``Searcher.count``."""
    if services.front is not None:
        return await services.front.counts(query, by, services.patterns_for(right))
    searcher = searcher_of(services, right)
    counted = await searcher.count(query, by_slot=by == "slot", by_topic=by == "topic")
    slots = [
        SlotCount(seconds.start * TICK_MS, count, len(seconds))
        for seconds, count in counted.by_slot.items()
    ]
    return PendingCounts(
        counted.total,
        **_read(counted, searcher.is_limited),
        slots=slots if by == "slot" else None,
        topics=counted.by_topic if by == "topic" else None,
    )


async def get_message(call: RouteCall[NoQuery, None]) -> Reply:
    """Show what is known of a message: pending, delivered, cancelled, expired, dead; or unknown,
    and why."""
    return as_json(await known_message(call.services, call.path["id"]))


async def known_message(services: Services, message_id: str) -> KnownMessage:
    """A message as the wheel's files have it. Errors: as of ``searcher_of``; ``Overloaded``."""
    if services.front is not None:
        return await services.front.known(message_id, services.patterns_for(Right.READ))
    (fate,) = await searcher_of(services).find([message_id])
    message = None
    if fate.row is not None:
        (message,) = found_messages([fate.id], fate.row)
    return KnownMessage(
        id=fate.id,
        state=fate.state.value,
        why=fate.why,
        due_ms=fate.due_ms,
        created_ms=fate.created_ms,
        left_ms=fate.left_ms,
        topic=fate.topic,
        before=fate_before(fate.before),
        replaced_by=fate.replaced_by,
        message=message,
    )


def _read(answer: PendingCount | PendingPage, is_limited: bool) -> dict[str, Any]:
    point = answer.point
    return {
        "complete": answer.complete,
        # The number of all messages is not for who may read some of them.
        "looked_through": 0 if is_limited else answer.looked_through,
        "limited_by_rights": is_limited,
        "read_point": msgspec.convert(point, ReadUpTo, from_attributes=True),
        "problems": list(map(str, answer.problems)),
    }


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.SEARCH,
        "GET",
        "/v1/messages",
        list_messages,
        {200: FoundMessages},
        (406,),
        name="searchMessages",
    ),
    endpoint(
        Operation.SEARCH,
        "GET",
        "/v1/messages/count",
        count_messages,
        {200: PendingCounts},
        name="countMessages",
    ),
    endpoint(
        Operation.SEARCH,
        "GET",
        "/v1/messages/{id}",
        get_message,
        {200: KnownMessage},
        name="getMessage",
    ),
]
