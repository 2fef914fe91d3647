"""Endpoints of pages, and of actions, which only a page of this console can ask for.

Rules
- A time such as ``+10m`` is worked out once, by a redirect to the address that has the time itself.
  Otherwise a page, its late parts and its action would each count from their own moment, and an
  action would hit messages that its page did not count.
- Text may be typed as pages show it (``visible_text``), and is read back before anything else looks
  at it. Otherwise what is copied from a page, such as the key ``a\\u{200b}b``, would not be found.
- A page changes nothing; an action is a POST from a page that says what it would do. So whoever
  follows a link or loads a page again cancels nothing.
- An action on many messages needs their number, typed as the page showed it, and is refused if
  there are more by then. Otherwise one click would cancel whatever a wrong filter matches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from ...client.message import clock_ms
from ...security.rights import Operation
from ...wheel.texts import typed_text
from ..endpoint import AnyEndpoint, Endpoint, Handler, RouteCall
from ..errors import HttpError
from ..requests import Reply
from .forms import QuestionForm
from .guard import check_token
from .parts import PartsQuery, again
from .rendering import BASE, redirect
from .shown import iso, when
from .viewer import note_operation


class ActionBody(msgspec.Struct, forbid_unknown_fields=True):
    """The form of an action."""

    token: str = ""


class CountedBody(ActionBody, forbid_unknown_fields=True):
    """The form of an action on many messages. ``shown``: the number on the page; ``typed``: the
    number that was typed."""

    shown: int = 0
    typed: str = ""

    def check(self) -> None:
        """Errors: ``HttpError`` 422: the two numbers differ."""
        if self.typed.replace(",", "").strip() != str(self.shown):
            raise HttpError(
                422,
                "what was typed is not the number that was shown",
                place="form typed",
                got=self.typed,
                limit=self.shown,
            )


def page_endpoint(
    operation: Operation,
    path: str,
    handler: Handler[Any, Any],
    query: type[PartsQuery],
    times: tuple[str, ...] = (),
) -> AnyEndpoint:
    """A page. ``times``: the fields of ``query`` that are times; a question's form has its own."""
    if issubclass(query, QuestionForm):
        times = query.times()

    async def page_of_fixed_times(call: RouteCall[Any, Any]) -> Reply:
        call = _read_back(call)
        return _with_fixed_times(call, times) or await handler(call)

    note_operation(path, operation)
    return Endpoint(operation, "GET", BASE + path, page_of_fixed_times, query, None, {})


def _read_back(call: RouteCall[Any, Any]) -> RouteCall[Any, Any]:
    """The call with the texts of its query as they were before a page wrote out what nobody sees.
    Errors: ``HttpError`` 422."""
    query = msgspec.structs.asdict(call.query)
    written = {name: value for name, value in query.items() if "\\u{" in str(value)}
    if not written:
        return call
    try:
        texts = {name: typed_text(value) for name, value in written.items()}
    except ValueError as error:
        raise HttpError(422, str(error), place="query", limit="\\u{0} to \\u{10ffff}") from None
    return replace(call, query=msgspec.structs.replace(call.query, **texts))


def _with_fixed_times(call: RouteCall[Any, Any], times: tuple[str, ...]) -> Reply | None:
    """A redirect to this page with its times from now as times of the clock. None: it has no time
    from now, or one that cannot be read, of which the page says what is wrong."""
    now_ms, fixed = clock_ms(), {}
    for name in times:
        text = getattr(call.query, name).strip()
        if text.startswith(("+", "-")):
            try:
                fixed[name] = iso(when(text, now_ms, name) or 0)
            except HttpError:
                return None
    return redirect(again(call, **fixed)) if fixed else None


def action_endpoint(
    operation: Operation,
    path: str,
    handler: Handler[Any, Any],
    query: type[Any],
    body: type[ActionBody] = ActionBody,
) -> AnyEndpoint:
    """An action: a POST of a form of this console, as of ``check_token``."""

    async def guarded(call: RouteCall[Any, Any]) -> Reply:
        check_token(call.scope, call.body.token)
        call = _read_back(call)
        # Answers from before the action would stand beside its refusal, or on the page behind it.
        call.services.fresh.forget()
        try:
            return await handler(call)
        finally:
            call.services.fresh.forget()

    note_operation(path, operation)
    return Endpoint(operation, "POST", BASE + path, guarded, query, body, {}, form=True)
