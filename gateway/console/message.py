"""Message: what became of one, and another due time or a cancel for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...client.message import clock_ms
from ...trace.chains.chain import Chain
from ...trace.chains.fields import place_of
from ...wheel.errors import UnknownId
from ...wheel.ids import MessageId
from ..endpoint import RouteCall
from ..errors import HttpError
from ..requests import Reply
from ..v1.cancelling import IdAnswer, RescheduleBody, cancelled, moved
from ..v1.searching import KnownMessage, known_message
from ..v1.tracing import chain_of
from .acting import ActionBody
from .guard import is_sealed, seal_of
from .parts import PagePart, PartsQuery, page, search_off
from .rendering import address, redirect
from .shown import iso, when


class MessageForm(PartsQuery, forbid_unknown_fields=True):
    """``done``: what was just done to it, for a line above the page; ``old``: the id before;
    ``seal``: without it neither is shown."""

    id: str = ""
    done: Literal["", "cancelled", "moved", "already-delivered", "unknown"] = ""
    old: str = ""
    seal: str = ""


class MoveForm(MessageForm, forbid_unknown_fields=True):
    """``due``: its new due time."""

    due: str = ""


STEPS_MAX = 500
"""Of a page; of more the first ones, and the page says so."""


@dataclass(frozen=True, slots=True)
class ShownStep:
    """Something that happened to a message, or will. ``number``: of the chain's message that it
    happened to. ``since_ms``: since the step before it; None: one of the two times is unknown."""

    at_ms: int | None
    what: str
    by: str
    number: int | None
    since_ms: int | None
    took_ms: float | None
    where: str
    why: str
    failed: bool


@dataclass(frozen=True, slots=True)
class MessageWay:
    """The chain of a message, and what is shown of it."""

    chain: Chain
    steps: list[ShownStep]

    @property
    def left_out(self) -> int:
        """Steps that are not shown."""
        return max(0, len(self.chain.steps) - STEPS_MAX)


def shown_steps(chain: Chain) -> list[ShownStep]:
    """The steps of a chain."""
    numbers = {one.id: number for number, one in enumerate(chain.messages, 1)}
    found: list[ShownStep] = []
    before: int | None = None
    for step in chain.steps[:STEPS_MAX]:
        at_ms = step.at_ms
        found.append(
            ShownStep(
                at_ms,
                step.kind,
                step.group or step.client or step.tier,
                numbers.get(step.id),
                None if at_ms is None or before is None else at_ms - before,
                None if step.took_us is None else step.took_us / 1000,
                place_of(step),
                step.why,
                step.failed,
            )
        )
        before = at_ms
    return found


async def message(call: RouteCall[MessageForm, None]) -> Reply:
    """What is known of a message. Its state is that of its whole way, which may have to be looked
    for in the store of events: both come when they are there."""
    form, parts = call.query, {}
    if call.services.searcher is None:
        parts = {"known": search_off()}
    elif form.id:
        parts = {"known": _known(call, "message/known.html")}
        if _is_id(form.id):
            parts |= {name: _way(call, f"message/{name}.html") for name in ("state", "way")}
    said = form.id, form.done, form.old
    done = form.done if is_sealed(call.scope, form.seal, *said) else ""
    return await page(call, "message", "message.html", parts, form=form, done=done)


def _known(call: RouteCall[Any, Any], template: str, **more: Any) -> PagePart:
    message_id = call.query.id

    async def ask() -> KnownMessage:
        return await known_message(call.services, message_id)

    return PagePart(template, ("message", message_id), ask, more={"form": call.query, **more})


def _way(call: RouteCall[MessageForm, None], template: str) -> PagePart:
    message_id = call.query.id

    async def ask() -> MessageWay:
        chain = await chain_of(call.services, message_id)
        return MessageWay(chain, shown_steps(chain))

    return PagePart(template, ("way", message_id), ask)


def _is_id(text: str) -> bool:
    try:
        MessageId.parse(text)
    except UnknownId:
        return False
    return True


async def confirm_cancel(call: RouteCall[MessageForm, Any]) -> Reply:
    """What a cancel would take back."""
    action = address("/message/cancel", id=call.query.id)
    parts = {"form": _known(call, "message/confirm_cancel.html", action=action)}
    return await page(call, "message", "message_act.html", parts, title="Cancel", form=call.query)


async def cancel(call: RouteCall[MessageForm, ActionBody]) -> Reply:
    """Cancel it, and show what became of it."""
    (answer,) = await cancelled(call.services, [call.query.id])
    return _told(call.body.token, call.query.id, _word(answer))


def _told(token: str, message_id: str, done: str, old: str = "") -> Reply:
    """The page of a message, which says what was done."""
    seal = seal_of(token, message_id, done, old)
    return redirect(address("/message", id=message_id, done=done, old=old, seal=seal))


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
    return _told(call.body.token, done.new_id, "moved", form.id)


def _due(form: MoveForm) -> int:
    due_ms = when(form.due, clock_ms(), "New due time")
    if due_ms is None:
        raise HttpError(422, "no new due time", place="New due time", limit="a time as +10m")
    return due_ms
