"""Pending: a search by topic, key, header and due time, and the cancel of all its matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...reading.search.query import PageKey, Query
from ...security.rights import Right
from ...wheel.errors import InvalidConfiguration
from ..endpoint import RouteCall
from ..errors import HttpError, from_slotwheel
from ..requests import Reply
from ..services import Services
from ..v1.cancellations import cancellable, start_cancellation
from ..v1.found import FoundMessage
from ..v1.searching import found_counts, found_page, searcher_of
from .acting import CountedBody
from .forms import QuestionForm, form_of
from .parts import SEARCH_OFF, PagePart, page
from .rendering import address, redirect

ROWS = 50
PendingForm = form_of("PendingForm", Query, "due", {"id": "Id of a message"}, "page")


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of messages. ``next``: the address of the page behind it; empty: there is none."""

    messages: Sequence[FoundMessage]
    next: str
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Matches:
    """How many messages fulfil the conditions."""

    total: int
    problems: list[str]


async def pending(call: RouteCall[QuestionForm, None]) -> Reply:
    """The form of a search, the number of its matches, and a page of them."""
    form, services = call.query, call.services
    if message_id := form.typed("id").strip():
        return redirect(address("/message", id=message_id))
    filters = form.given(Query)
    if not services.searches:
        return await page(call, "pending", "pending.html", {"rows": SEARCH_OFF}, form=form)
    try:
        query = form.question(Query)
        after = PageKey.parse(text) if (text := form.typed("page")) else None
    except (HttpError, InvalidConfiguration) as error:
        problem = error if isinstance(error, HttpError) else from_slotwheel(error)
        return await page(call, "pending", "pending.html", {}, problem, form=form)

    async def rows() -> FoundPage:
        matches = await found_page(services, query, after, ROWS)
        behind = matches.next or ""
        following = behind and address("/pending", **filters, page=behind)
        return FoundPage(matches.messages, following, matches.problems)

    more = {"form": form, "filters": filters}
    parts = {
        "count": count_part(services, query, "pending/count.html", more),
        "rows": PagePart("pending/rows.html", ("page", query, after), rows, more=more),
    }
    return await page(call, "pending", "pending.html", parts, form=form)


def count_part(
    services: Services,
    query: Query,
    template: str,
    more: dict[str, Any],
    right: Right = Right.READ,
) -> PagePart:
    async def count() -> Matches:
        if right is Right.CANCEL:
            counted = await cancellable(services, query)
        else:
            counted = await found_counts(services, query, right=right)
        return Matches(counted.messages, counted.problems)

    return PagePart(template, ("count", query, right), count, more=more)


async def confirm(call: RouteCall[QuestionForm, Any], problem: HttpError | None = None) -> Reply:
    """The page before a cancel of many: how many it hits, and its form. Without a condition it
    would hit all messages, and is refused."""
    form, services = call.query, call.services
    if not services.searches:
        searcher_of(services)
    query, filters = form.question(Query), form.given(Query)
    if query.is_empty:
        raise HttpError(
            422,
            "every pending message would be cancelled",
            got="no condition",
            limit="at least one; all messages are due from 2000-01-01",
        )
    more = {"filters": filters, "action": address("/pending/cancel", **filters)}
    form_part = count_part(services, query, "pending/confirm.html", more, Right.CANCEL)
    parts = {"form": form_part}
    return await page(
        call, "pending", "pending_cancel.html", parts, problem, form=form, filters=filters
    )


async def cancel(call: RouteCall[QuestionForm, CountedBody]) -> Reply:
    """Begin a cancel of many as a job. If the number is wrong, or more match by now, the page
    before it is shown again with the error."""
    services, body = call.services, call.body
    query = call.query.question(Query)
    try:
        body.check()
        counted = await cancellable(services, query)
        if counted.messages > body.shown:
            raise HttpError(
                409,
                "there are more by now, and nothing was done",
                got=counted.messages,
                limit=body.shown,
                remedy="Look at the number again",
            )
    except HttpError as error:
        if error.status == 404:
            raise
        return await confirm(call, error)
    if query.is_empty:
        return await confirm(call)
    job = start_cancellation(services, query, counted)
    return redirect(address("/job", id=job.id))
