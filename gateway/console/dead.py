"""Dead letters: by reason, one by one, and sent again."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ...reading.letters.course import RedriveOrder
from ...reading.letters.letters import LetterQuery
from ..endpoint import RouteCall
from ..errors import HttpError
from ..requests import Reply
from ..v1.dead import (
    DeadLetter,
    LetterList,
    LettersQuery,
    RedriveSummary,
    counted_redrive,
    letter_in,
    listed_letters,
    start_redrive,
)
from .acting import CountedBody
from .forms import QuestionForm, form_of
from .parts import PagePart, PartsQuery, page
from .rendering import address, redirect

ROWS = 100
LettersForm = form_of("LettersForm", LetterQuery, "buried")
RedriveForm = form_of("RedriveForm", RedriveOrder, "buried")


class PlaceForm(PartsQuery, forbid_unknown_fields=True):
    """Where a letter lies."""

    topic: str = ""
    partition: Annotated[int, Meta(ge=0)] = 0
    position: Annotated[int, Meta(ge=0)] = 0


async def dead(call: RouteCall[QuestionForm, None]) -> Reply:
    """Dead letters by reason, and the first of them."""
    form, services = call.query, call.services
    filters = form.given(LetterQuery)
    values: dict[str, Any] = {"form": form, "problem": None}
    try:
        query = form.question(LettersQuery, limit=ROWS)
    except HttpError as error:
        values["problem"] = error
        return await page(call, "dead", "dead.html", {}, error.status, **values)

    async def letters() -> LetterList:
        return await services.letters.run(listed_letters, services, query)

    key, more = ("letters", *filters.values()), {"form": form, "filters": filters}
    parts = {"letters": PagePart("dead/letters.html", key, letters, more=more)}
    return await page(call, "dead", "dead.html", parts, **values)


async def letter(call: RouteCall[PlaceForm, None]) -> Reply:
    """A dead letter whole."""
    form, services = call.query, call.services

    async def one() -> DeadLetter:
        place = form.partition, form.position
        return await services.letters.run(letter_in, services, form.topic or None, place)

    key = ("letter", form.topic, form.partition, form.position)
    parts = {"letter": PagePart("dead/letter.html", key, one, more={"form": form})}
    return await page(call, "dead", "dead_letter.html", parts, form=form)


async def confirm(call: RouteCall[QuestionForm, Any], problem: HttpError | None = None) -> Reply:
    """How many letters a redrive would send, and where to, and the form that does it."""
    form, services = call.query, call.services
    order, filters = form.question(RedriveOrder), form.given(LetterQuery)

    async def count() -> RedriveSummary:
        return await counted_redrive(services, order)

    whole = form.given(RedriveOrder)
    action = address("/dead/redrive", **whole)
    more = {"form": form, "filters": filters, "whole": whole, "action": action}
    key = ("redrive", action)
    parts = {"form": PagePart("dead/confirm.html", key, count, more=more)}
    status = 200 if problem is None else problem.status
    return await page(
        call, "dead", "dead_redrive.html", parts, status, filters=filters, problem=problem
    )


async def redrive(call: RouteCall[QuestionForm, CountedBody]) -> Reply:
    """Begin the job that sends them."""
    order = call.query.question(RedriveOrder)
    try:
        call.body.check()
        job = await start_redrive(call.services, order, call.body.shown)
    except HttpError as error:
        return await confirm(call, error)
    return redirect(address("/job", id=job.id))
