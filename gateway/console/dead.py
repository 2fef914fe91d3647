"""Dead letters: by reason, one by one, and sent again."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ...client.message import clock_ms
from ..endpoint import RouteCall
from ..errors import HttpError
from ..requests import Reply
from ..v1.dead import (
    DeadLetter,
    LetterList,
    LettersQuery,
    RedriveBody,
    RedriveSummary,
    counted_redrive,
    letter_in,
    listed_letters,
    start_redrive,
)
from .acting import CountedBody
from .parts import PagePart, PartsQuery, page
from .rendering import address, redirect
from .shown import when

ROWS = 100
_FILTERS = ("topic", "reason", "for_topic", "key", "id", "group", "buried_from", "buried_to")


class LettersForm(PartsQuery, forbid_unknown_fields=True):
    """Which letters; empty sets no condition. ``topic``: where they lie."""

    topic: str = ""
    reason: str = ""
    for_topic: str = ""
    key: str = ""
    id: str = ""
    group: str = ""
    buried_from: str = ""
    buried_to: str = ""

    @property
    def filters(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in _FILTERS}

    def conditions(self) -> dict[str, Any]:
        """As fields of ``LetterConditions``. Errors: ``HttpError``."""
        now_ms = clock_ms()
        several = ("reason", "for_topic", "key", "id", "group")
        return {
            "topic": self.topic or None,
            **{name: (value,) for name in several if (value := getattr(self, name))},
            "from_ms": when(self.buried_from, now_ms, "Buried from"),
            "to_ms": when(self.buried_to, now_ms, "Buried before"),
        }


class PlaceForm(PartsQuery, forbid_unknown_fields=True):
    """Where a letter lies."""

    topic: str = ""
    partition: Annotated[int, Meta(ge=0)] = 0
    position: Annotated[int, Meta(ge=0)] = 0


class RedriveForm(LettersForm, forbid_unknown_fields=True):
    """Which letters are sent again, and how."""

    to_topic: str = ""
    rate: str = ""
    create_topics: bool = False
    despite_deleted_notes: bool = False

    @property
    def order(self) -> dict[str, Any]:
        return {
            "to_topic": self.to_topic,
            "rate": self.rate,
            "create_topics": self.create_topics,
            "despite_deleted_notes": self.despite_deleted_notes,
        }

    def body(self) -> RedriveBody:
        """Errors: ``HttpError``."""
        return RedriveBody(
            **self.conditions(),
            to_topic=self.to_topic or None,
            rate=_rate(self.rate),
            create_topics=self.create_topics,
            despite_deleted_notes=self.despite_deleted_notes,
        )


def _rate(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if 0 < rate <= 1e9:
        return rate
    raise HttpError(
        422, "not a rate", place="Messages a second", got=text, limit="a number above 0, up to 1e9"
    )


async def dead(call: RouteCall[LettersForm, None]) -> Reply:
    """Dead letters by reason, and the first of them."""
    form, services = call.query, call.services
    values: dict[str, Any] = {"form": form, "problem": None}
    try:
        query = LettersQuery(**form.conditions(), limit=ROWS)
    except HttpError as error:
        values["problem"] = error
        return await page(call, "dead", "dead.html", {}, error.status, **values)

    async def letters() -> LetterList:
        return await services.letters.run(listed_letters, services, query)

    key = ("letters", *form.filters.values())
    parts = {"letters": PagePart("dead/letters.html", key, letters, more={"form": form})}
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


async def confirm(call: RouteCall[RedriveForm, Any], problem: HttpError | None = None) -> Reply:
    """How many letters a redrive would send, and where to, and the form that does it."""
    form, services = call.query, call.services
    body = form.body()

    async def count() -> RedriveSummary:
        return await counted_redrive(services, body)

    action = address("/dead/redrive", **form.filters, **form.order)
    more = {"form": form, "action": action}
    key = ("redrive", action)
    parts = {"form": PagePart("dead/confirm.html", key, count, more=more)}
    status = 200 if problem is None else problem.status
    return await page(call, "dead", "dead_redrive.html", parts, status, form=form, problem=problem)


async def redrive(call: RouteCall[RedriveForm, CountedBody]) -> Reply:
    """Begin the job that sends them."""
    body = call.query.body()
    try:
        call.body.check()
        job = await start_redrive(call.services, body, call.body.shown)
    except HttpError as error:
        return await confirm(call, error)
    return redirect(address("/job", id=job.id))
