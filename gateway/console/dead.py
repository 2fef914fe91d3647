"""Dead letters: counted by reason, shown whole, and sent again."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ...reading.letters.course import RedriveOrder
from ...reading.letters.letters import LetterQuery
from ..endpoint import RouteCall
from ..errors import HttpError
from ..requests import Reply
from ..v1.dead import counted_redrive, found_letter, found_letters, start_redrive
from ..v1.letters import DeadLetter, LetterList, LettersQuery, RedriveSummary
from .acting import CountedBody
from .forms import QuestionForm, form_of
from .parts import PagePart, PartsQuery, page
from .rendering import address, redirect

ROWS = 100
_LABELS = {
    "topic": "Lies in topic",
    "for_topic": "Meant for topic",
    "id": "Id of the message",
    "group": "Consumer group",
    "rate": "Messages a second",
}
LettersForm = form_of("LettersForm", LetterQuery, "buried", _LABELS)
RedriveForm = form_of("RedriveForm", RedriveOrder, "buried", _LABELS)


class PlaceForm(PartsQuery, forbid_unknown_fields=True):
    """Where a letter lies."""

    topic: str = ""
    partition: Annotated[int, Meta(ge=0)] = 0
    position: Annotated[int, Meta(ge=0)] = 0


async def dead(call: RouteCall[QuestionForm, None]) -> Reply:
    """Dead letters counted by reason, and the first ``ROWS`` of them."""
    form, services = call.query, call.services
    filters = form.given(LetterQuery)
    try:
        query = form.question(LettersQuery, limit=ROWS)
    except HttpError as error:
        return await page(call, "dead", "dead.html", {}, error, form=form)

    async def letters() -> LetterList:
        return await found_letters(services, query)

    key = ("letters", *filters.values())
    more = {"form": form, "filters": filters, "order": RedriveForm.fields}
    parts = {"letters": PagePart("dead/letters.html", key, letters, more=more)}
    return await page(call, "dead", "dead.html", parts, form=form)


async def letter(call: RouteCall[PlaceForm, None]) -> Reply:
    """A dead letter with its value and headers."""
    form, services = call.query, call.services

    async def read() -> DeadLetter:
        place = form.partition, form.position
        return await found_letter(services, form.topic or None, place)

    key = ("letter", form.topic, form.partition, form.position)
    parts = {"letter": PagePart("dead/letter.html", key, read, more={"form": form})}
    return await page(call, "dead", "dead_letter.html", parts, form=form)


async def confirm(call: RouteCall[QuestionForm, Any], problem: HttpError | None = None) -> Reply:
    """The page before a redrive: how many letters it would send to which topics, and its form."""
    form, services = call.query, call.services
    order, filters = form.question(RedriveOrder), form.given(LetterQuery)

    async def count() -> RedriveSummary:
        return await counted_redrive(services, order)

    whole = form.given(RedriveOrder)
    action = address("/dead/redrive", **whole)
    more = {"form": form, "filters": filters, "whole": whole, "action": action}
    key = ("redrive", action)
    parts = {"form": PagePart("dead/confirm.html", key, count, more=more)}
    return await page(call, "dead", "dead_redrive.html", parts, problem, form=form, filters=filters)


async def redrive(call: RouteCall[QuestionForm, CountedBody]) -> Reply:
    """Begin a redrive as a job. If the number is wrong, or there are more letters by now, the page
    before it is shown again with the error."""
    order = call.query.question(RedriveOrder)
    try:
        call.body.check()
        job = await start_redrive(call.services, order, call.body.shown)
    except HttpError as error:
        return await confirm(call, error)
    return redirect(address("/job", id=job.id))
