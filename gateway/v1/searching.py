"""Pending messages by topic, key, header and due time; and a message by its id."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

import msgspec

from ...policy.parameters import query_of
from ...reading.search.pending import PendingCount, PendingPage
from ...reading.search.query import CountQuery, PageKey, PageQuery, Query
from ...security.rights import Operation, Right
from ...wheel.config import TICK_MS
from ...wheel.ids import MessageId
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError
from ..predecessors import fate_before
from ..requests import JSON, NDJSON, Reply, as_json, wanted_type
from ..searcher import Searcher
from ..services import Services
from .found import found_messages
from .joining import behind, joined_counts, joined_page, unknown_message
from .pending import FoundMessages, KnownMessage, PendingCounts, ReadUpTo, SlotCount

_ROWS_MAX = 30_000
"""Wheels are asked for so many messages together: 100 wheels that were asked for 10,000 each would
fill the memory with a million."""


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
    if (front := services.front) is not None:
        if after is not None and not after.wheel:
            raise HttpError(
                422,
                "the page before was of one wheel, and this gateway is of a fleet",
                place="query page",
                got=str(after),
                remedy="Ask the same gateway for the next page",
            )
        share = min(limit, max(1, _ROWS_MAX // len(front.names)))
        asked = {
            name: PageQuery(**conditions(query), limit=share, page=behind(after, name))
            for name in front.names
        }
        paths = {name: f"/v1/messages?{query_of(each)}" for name, each in asked.items()}
        topics = services.patterns_for(Right.READ)
        pages, missing = await front.ask_each(paths, FoundMessages, topics=topics)
        return await services.run(joined_page, pages, limit, missing)
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
    if (front := services.front) is not None:
        path = f"/v1/messages/count?{query_of(CountQuery(**conditions(query), by=by))}"
        counts, missing = await front.ask_all(path, PendingCounts, services.patterns_for(right))
        return joined_counts(counts, by, missing)
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
    if (front := services.front) is not None:
        wheel = MessageId.parse(message_id).group
        if wheel not in front.names:
            return unknown_message(message_id, f"the fleet has no wheel {wheel!r}")
        path = {wheel: f"/v1/messages/{quote(message_id, safe='')}"}
        topics = services.patterns_for(Right.READ)
        answers, missing = await front.ask_each(path, KnownMessage, topics=topics)
        return answers[wheel] if answers else unknown_message(message_id, missing[0])
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


def conditions(query: Query) -> dict[str, Any]:
    """The conditions of a question, without what else it says."""
    return {name: getattr(query, name) for name in Query.__struct_fields__}


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
