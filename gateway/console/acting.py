"""Endpoints of pages, and of actions, which are done only for a page of this console.

Rules
- A page changes nothing. An action is a POST, and each has a page that says first what it would do.
- What concerns many messages is done only if their number was typed as the page showed it, and if
  there are not more by then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..endpoint import AnyEndpoint, Endpoint, Handler, RouteCall
from ..errors import HttpError
from ..requests import Reply
from .guard import check_token
from .rendering import BASE


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


def page_endpoint(path: str, handler: Handler[Any, Any], query: type[Any]) -> AnyEndpoint:
    return Endpoint("GET", BASE + path, handler, query, None, {})


def action_endpoint(
    path: str,
    handler: Handler[Any, Any],
    query: type[Any],
    body: type[ActionBody] = ActionBody,
) -> AnyEndpoint:
    async def guarded(call: RouteCall[Any, Any]) -> Reply:
        check_token(call.scope, call.body.token)
        # Neither what is shown with a refusal nor the page behind it is one from before.
        call.services.fresh.forget()
        try:
            return await handler(call)
        finally:
            call.services.fresh.forget()

    return Endpoint("POST", BASE + path, guarded, query, body, {}, form=True)


def more_by_now(found: int, shown: int) -> HttpError:
    return HttpError(
        *(409, "there are more by now, and nothing was done"),
        got=found,
        limit=shown,
        remedy="Look at the number again",
    )
