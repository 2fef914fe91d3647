"""Message: what became of it, and the forms that reschedule or cancel it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...client.cancels import is_id
from ...client.message import clock_ms
from ...trace.chains.chain import Chain
from ...trace.chains.fields import place_of
from ..endpoint import RouteCall
from ..errors import HttpError
from ..requests import Reply
from ..v1.cancelling import RescheduleBody, cancelled, moved
from ..v1.pending import KnownMessage
from ..v1.searching import known_message
from ..v1.tracing import chain_of
from .acting import ActionBody
from .guard import is_sealed, seal_of
from .parts import SEARCH_OFF, PagePart, PartsQuery, page
from .rendering import address, redirect
from .shown import iso, when


class MessageForm(PartsQuery, forbid_unknown_fields=True):
    """``done``: what an action has just done to it, for a line above the page; ``old``: the id that
    it had before; ``seal``: as of ``seal_of``, without which that line is not shown."""

    id: str = ""
    done: Literal["", "cancelled", "moved", "already-delivered", "unknown"] = ""
    old: str = ""
    seal: str = ""


class MoveForm(MessageForm, forbid_unknown_fields=True):
    """``due``: its new due time, as it was typed."""

    due: str = ""


STEPS_MAX = 500
"""Steps on a page, at most. Of more the first ones are shown, and the page says so."""


@dataclass(frozen=True, slots=True)
class ShownStep:
    """Something that happened to a message, or will. ``number``: the place in its chain of the
    message that it happened to, from 1; ``since_ms``: since the step before it; None: one of the
    two times is unknown."""

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
        return max(0, len(self.chain.steps) - STEPS_MAX)


def shown_steps(chain: Chain) -> list[ShownStep]:
    """The first ``STEPS_MAX`` steps of a chain."""
    numbers = {linked.id: number for number, linked in enumerate(chain.messages, 1)}
    steps: list[ShownStep] = []
    before: int | None = None
    for step in chain.steps[:STEPS_MAX]:
        at_ms = step.at_ms
        steps.append(
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
    return steps


async def message(call: RouteCall[MessageForm, None]) -> Reply:
    """A message as the wheel knows it, the way it went, and the state in which that ended. Way and
    state may come from the store of events, and are parts of their own: a message can be cancelled
    while they are looked for."""
    form, parts = call.query, {}
    if not call.services.searches:
        parts = {"known": SEARCH_OFF}
    elif form.id:
        parts = {"known": _known(call, "message/known.html")}
        if is_id(form.id):
            parts |= {name: _way(call, f"message/{name}.html") for name in ("state", "way")}
    sealed = is_sealed(call.scope, form.seal, form.id, form.done, form.old)
    done = form.done if sealed else ""
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


async def confirm_cancel(call: RouteCall[MessageForm, Any]) -> Reply:
    """The page before a cancel, with its form."""
    action = address("/message/cancel", id=call.query.id)
    parts = {"form": _known(call, "message/confirm_cancel.html", action=action)}
    return await page(call, "message", "message_act.html", parts, title="Cancel", form=call.query)


async def cancel(call: RouteCall[MessageForm, ActionBody]) -> Reply:
    """Cancel a message, and show what became of it."""
    (reply,) = await cancelled(call.services, [call.query.id])
    return _page_behind(call.body.token, call.query.id, reply.answer.replace(" ", "-"))


def _page_behind(token: str, message_id: str, done: str, old: str = "") -> Reply:
    """The page of a message, with a line about what was done."""
    seal = seal_of(token, message_id, done, old)
    return redirect(address("/message", id=message_id, done=done, old=old, seal=seal))


async def confirm_move(call: RouteCall[MoveForm, Any]) -> Reply:
    """The page before another due time, with its form."""
    form = call.query
    due_ms = _due(form)
    action = address("/message/reschedule", id=form.id, due=iso(due_ms))
    parts = {"form": _known(call, "message/confirm_move.html", action=action, due_ms=due_ms)}
    return await page(call, "message", "message_act.html", parts, title="Reschedule", form=form)


async def move(call: RouteCall[MoveForm, ActionBody]) -> Reply:
    """Reschedule a message, and show the one that it is then."""
    form = call.query
    done = await moved(call.services, form.id, RescheduleBody(due_ms=_due(form)))
    return _page_behind(call.body.token, done.new_id, "moved", form.id)


def _due(form: MoveForm) -> int:
    due_ms = when(form.due, clock_ms(), "New due time")
    if due_ms is None:
        raise HttpError(422, "no new due time", place="New due time", limit="a time as +10m")
    return due_ms
