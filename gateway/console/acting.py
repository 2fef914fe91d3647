"""Endpoints of pages, and of actions, which are done only for a page of this console.

Rules
- A time such as ``+10m`` is worked out once: whatever belongs to a page, its late parts, the pages
  behind it and what it does, is of the same times.
- Text may be typed as pages show it (``visible_text``): it is read back before anything else looks
  at it.
- A page changes nothing. An action is a POST, and each has a page that says first what it would do.
- What concerns many messages is done only if their number was typed as the page showed it, and if
  there are not more by then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from ...client.message import clock_ms
from ...wheel.texts import typed_text
from ..endpoint import AnyEndpoint, Endpoint, Handler, RouteCall
from ..errors import HttpError
from ..requests import Reply
from .forms import QuestionForm
from .guard import check_token
from .parts import PartsQuery, again
from .rendering import BASE, redirect
from .shown import iso, when


class ActionBody(msgspec.Struct, forbid_unknown_fields=True):
    """What the form of each action sends."""

    token: str = ""


class CountedBody(ActionBody, forbid_unknown_fields=True):
    """Of an action that concerns many. ``shown``: how many the page said; ``typed``: what was
    typed."""

    shown: int = 0
    typed: str = ""

    def check(self) -> None:
        """Errors: ``HttpError`` 422."""
        if self.typed.replace(",", "").strip() != str(self.shown):
            raise HttpError(
                422,
                "what was typed is not the number that was shown",
                place="form typed",
                got=self.typed,
                limit=self.shown,
            )


def page_endpoint(
    path: str, handler: Handler[Any, Any], query: type[PartsQuery], times: tuple[str, ...] = ()
) -> AnyEndpoint:
    """``times``: the fields of ``query`` that are times; those of a question's form are known."""
    if issubclass(query, QuestionForm):
        times = query.times()

    async def of_fixed_times(call: RouteCall[Any, Any]) -> Reply:
        call = _as_meant(call)
        return _fixed(call, times) or await handler(call)

    return Endpoint("GET", BASE + path, of_fixed_times, query, None, {})


def _as_meant(call: RouteCall[Any, Any]) -> RouteCall[Any, Any]:
    """The call with its query's texts read back from the form in which pages show them. Errors:
    ``HttpError`` 422."""
    given = msgspec.structs.asdict(call.query)
    texts = {name: value for name, value in given.items() if "\\u{" in str(value)}
    if not texts:
        return call
    try:
        meant = {name: typed_text(value) for name, value in texts.items()}
    except ValueError as error:
        raise HttpError(422, str(error), place="query", limit="\\u{0} to \\u{10ffff}") from None
    return replace(call, query=msgspec.structs.replace(call.query, **meant))


def _fixed(call: RouteCall[Any, Any], times: tuple[str, ...]) -> Reply | None:
    """The way to the page of the times that those from now are at present; None: it is this one."""
    given = {name: getattr(call.query, name).strip() for name in times}
    now_ms, fixed = clock_ms(), {}
    for name, text in given.items():
        if text.startswith(("+", "-")):
            try:
                fixed[name] = iso(when(text, now_ms, name) or 0)
            except HttpError:
                return None  # the page says what is wrong
    return redirect(again(call, **fixed)) if fixed else None


def action_endpoint(
    path: str,
    handler: Handler[Any, Any],
    query: type[Any],
    body: type[ActionBody] = ActionBody,
) -> AnyEndpoint:
    async def guarded(call: RouteCall[Any, Any]) -> Reply:
        check_token(call.scope, call.body.token)
        call = _as_meant(call)
        # Neither what is shown with a refusal nor the page behind it is one from before.
        call.services.fresh.forget()
        try:
            return await handler(call)
        finally:
            call.services.fresh.forget()

    return Endpoint("POST", BASE + path, guarded, query, body, {}, form=True)


def more_by_now(found: int, shown: int) -> HttpError:
    return HttpError(
        409,
        "there are more by now, and nothing was done",
        got=found,
        limit=shown,
        remedy="Look at the number again",
    )
