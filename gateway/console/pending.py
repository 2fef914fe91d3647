"""Pending: messages found by topic, key, header and due time, and all that were found cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...reading.search.query import Query, page_text, parse_page
from ...wheel.errors import InvalidConfiguration
from ..endpoint import RouteCall
from ..errors import HttpError, from_slotwheel
from ..requests import Reply
from ..services import Services
from ..v1.cancellations import start_cancellation
from ..v1.found import FoundMessage, found_messages
from ..v1.searching import problem_texts, searcher_of
from .acting import CountedBody, more_by_now
from .forms import QuestionForm, form_of
from .parts import PagePart, page, search_off
from .rendering import address, redirect

ROWS = 50
PendingForm = form_of("PendingForm", Query, "due", "page")


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of messages. ``next``: the address of the one behind it."""

    messages: Sequence[FoundMessage]
    next: str
    looked_through: int
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Matches:
    """How many messages fulfil the conditions."""

    total: int
    problems: list[str]


async def pending(call: RouteCall[QuestionForm, None]) -> Reply:
    """Search, and a page of what was found."""
    form, services = call.query, call.services
    if message_id := form.typed("id").strip():
        return redirect(address("/message", id=message_id))
    filters = form.given(Query)
    values: dict[str, Any] = {"form": form, "problem": None}
    if services.searcher is None:
        return await page(call, "pending", "pending.html", {"rows": search_off()}, **values)
    try:
        query = form.question(Query)
        after = parse_page(text) if (text := form.typed("page")) else None
    except (HttpError, InvalidConfiguration) as error:
        problem = error if isinstance(error, HttpError) else from_slotwheel(error)
        return await page(
            call, "pending", "pending.html", {}, 422, **{**values, "problem": problem}
        )

    async def rows() -> FoundPage:
        found = await searcher_of(services).page(query, after, ROWS)
        messages = await services.run(found_messages, found.ids, found.rows)
        behind = "" if found.next is None else page_text(found.next)
        following = behind and address("/pending", **filters, page=behind)
        return FoundPage(messages, following, found.looked_through, problem_texts(found.problems))

    more = {"form": form, "filters": filters}
    parts = {
        "count": count_part(services, query, "pending/count.html", more),
        "rows": PagePart("pending/rows.html", ("page", query, after), rows, more=more),
    }
    return await page(call, "pending", "pending.html", parts, **values)


def count_part(services: Services, query: Query, template: str, more: dict[str, Any]) -> PagePart:
    async def count() -> Matches:
        found = await searcher_of(services).count(query)
        return Matches(found.total, problem_texts(found.problems))

    return PagePart(template, ("count", query), count, more=more)


async def confirm(call: RouteCall[QuestionForm, Any], problem: HttpError | None = None) -> Reply:
    """Ask before a cancel: how many it hits. An empty condition would hit all, and is refused."""
    form, services = call.query, call.services
    searcher_of(services)
    query, filters = form.question(Query), form.given(Query)
    if query.is_empty:
        raise HttpError(
            422,
            "every pending message would be cancelled",
            got="no condition",
            limit="at least one; the due time 0 or later is one that all fulfil",
        )
    more = {"filters": filters, "action": address("/pending/cancel", **filters)}
    parts = {"form": count_part(services, query, "pending/confirm.html", more)}
    status = 200 if problem is None else problem.status
    return await page(
        call, "pending", "pending_cancel.html", parts, status, filters=filters, problem=problem
    )


async def cancel(call: RouteCall[QuestionForm, CountedBody]) -> Reply:
    """Begin the job that cancels all that fulfils the conditions."""
    services, body = call.services, call.body
    query = call.query.question(Query)
    try:
        body.check()
        found = await searcher_of(services).count(query)
        if found.total > body.shown:
            raise more_by_now(found.total, body.shown)
    except HttpError as error:
        if error.status == 404:
            raise
        return await confirm(call, error)
    if query.is_empty:
        return await confirm(call)
    job = start_cancellation(services, query, found)
    return redirect(address("/job", id=job.id))
