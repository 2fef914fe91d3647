"""Message: what became of one, and another due time or a cancel for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...client.message import clock_ms
from ..endpoint import RouteCall
from ..errors import HttpError
from ..requests import Reply
from ..v1.cancelling import IdAnswer, RescheduleBody, cancelled, moved
from ..v1.searching import KnownMessage, known_message
from .acting import ActionBody
from .parts import PagePart, PartsQuery, page, search_off
from .rendering import address, redirect
from .shown import iso, when


class MessageForm(PartsQuery, forbid_unknown_fields=True):
    """``done``: what was just done to it, for a line above the page; ``old``: the id before."""

    id: str = ""
    done: Literal["", "cancelled", "moved", "already-delivered", "unknown"] = ""
    old: str = ""


class MoveForm(MessageForm, forbid_unknown_fields=True):
    """``due``: its new due time."""

    due: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to a message, or will. ``took_ms``: since the step before it."""

    at_ms: int
    what: str
    note: str = ""
    took_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MessageShown:
    """What is known, and the steps of its way in their order."""

    known: KnownMessage
    steps: list[Step]


def steps_of(known: KnownMessage) -> list[Step]:
    """The steps that the directory knows of."""
    found = []
    if known.message is not None:
        found.append(Step(known.message.created_ms, "accepted", "the node had it durable"))
    if known.due_ms is not None:
        waited = known.due_ms - found[0].at_ms if found else None
        found.append(Step(known.due_ms, "due", "it leaves then, or as soon as it can", waited))
    return sorted(found, key=lambda one: one.at_ms)


async def message(call: RouteCall[MessageForm, None]) -> Reply:
    """What is known of a message."""
    form, parts = call.query, {}
    if call.services.searcher is None:
        parts = {"known": search_off()}
    elif form.id:
        parts = {"known": _known(call, "message/known.html")}
    return await page(call, "message", "message.html", parts, form=form)


def _known(call: RouteCall[Any, Any], template: str, **more: Any) -> PagePart:
    message_id = call.query.id

    async def ask() -> MessageShown:
        known = await known_message(call.services, message_id)
        return MessageShown(known, steps_of(known))

    return PagePart(template, ("message", message_id), ask, more={"form": call.query, **more})


async def confirm_cancel(call: RouteCall[MessageForm, Any]) -> Reply:
    """What a cancel would take back."""
    action = address("/message/cancel", id=call.query.id)
    parts = {"form": _known(call, "message/confirm_cancel.html", action=action)}
    return await page(call, "message", "message_act.html", parts, title="Cancel", form=call.query)


async def cancel(call: RouteCall[MessageForm, ActionBody]) -> Reply:
    """Cancel it, and show what became of it."""
    (answer,) = await cancelled(call.services, [call.query.id])
    return redirect(address("/message", id=call.query.id, done=_word(answer)))


def _word(answer: IdAnswer) -> str:
    return answer.answer.replace(" ", "-")


async def confirm_move(call: RouteCall[MoveForm, Any]) -> Reply:
    """What another due time would do."""
    form = call.query
    due_ms = _due(form)
    action = address("/message/reschedule", id=form.id, due=iso(due_ms))
    parts = {"form": _known(call, "message/confirm_move.html", action=action, due_ms=due_ms)}
    return await page(call, "message", "message_act.html", parts, title="Reschedule", form=form)


async def move(call: RouteCall[MoveForm, ActionBody]) -> Reply:
    """Give it the other due time, and show the message that it is then."""
    form = call.query
    done = await moved(call.services, form.id, RescheduleBody(due_ms=_due(form)))
    return redirect(address("/message", id=done.new_id, done="moved", old=form.id))


def _due(form: MoveForm) -> int:
    due_ms = when(form.due, clock_ms(), "New due time")
    if due_ms is None:
        raise HttpError(422, "no new due time", place="New due time", limit="a time as +10m")
    return due_ms
