"""Pages whose parts come when they are there.

Theory: a page is shown at once. Each of its parts is worked out beside the others; what takes
longer than ``PATIENCE_S`` is left out, and the browser fetches it by itself as soon as it shows the
page. A browser without scripts is sent to the same page with ``whole``, which waits. A part that
fails, such as that of a node that cannot be reached, says so in its place, and the others stand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from markupsafe import Markup

from ...wheel.errors import SlotwheelError
from ..endpoint import RouteCall
from ..errors import HttpError, from_slotwheel
from ..requests import Reply
from .guard import cookie_header, new_token, token_of
from .rendering import page_reply, rendered

PATIENCE_S = 0.12
NODE_WAIT_S = 4.0
"""For what a node answers within milliseconds, if it can be reached."""


class PartsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What every page takes."""

    part: str = ""
    """Only this part of the page, as HTML to be put in its place."""
    whole: bool = False
    """Wait for all parts."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """``key``: of the question; parts with the same one get the same answer. None: it is asked at
    once, and each time. ``live``: it is fetched again every few seconds. ``template`` gets the
    answer as ``it``, and ``more``."""

    template: str
    key: Hashable | None
    ask: Callable[[], Awaitable[Any]]
    live: bool = False
    wait_s: float = 60.0
    """How long it is waited for at most; the work on it goes on."""
    more: Mapping[str, Any] | None = None


def node_part(template: str, key: str, ask: Callable[[], Awaitable[Any]]) -> PagePart:
    """What the node says of itself."""
    return PagePart(template, key, ask, live=True, wait_s=NODE_WAIT_S)


def off(template: str) -> PagePart:
    """In place of what this gateway was not started with."""

    async def nothing() -> str:
        return "off"

    return PagePart(template, None, nothing)


def search_off() -> PagePart:
    """In place of what would be searched for."""
    return off("search_off.html")


async def page(
    call: RouteCall[Any, Any],
    here: str,
    template: str,
    parts: Mapping[str, PagePart] | None = None,
    status: int = 200,
    **values: Any,
) -> Reply:
    """A page, or the part of it that was asked for. ``here``: which entry of the navigation it
    belongs to."""
    parts = parts or {}
    wanted, token = call.query.part, token_of(call.scope)
    if wanted:
        if wanted not in parts:
            raise HttpError(404, "no such part of this page", place="query part", got=wanted)
        text, _ = await _part(call, wanted, parts[wanted], None, token)
        return page_reply(text)
    more = []
    if not token:
        token = new_token()
        more.append(cookie_header(token))
    # A refusal is told on this page alone: the one that is fetched for late parts has it no more.
    patience = None if call.query.whole or status != 200 else PATIENCE_S
    found = await asyncio.gather(
        *(_part(call, name, one, patience, token) for name, one in parts.items())
    )
    text = rendered(
        template,
        here=here,
        token=token,
        parts={name: text for name, (text, _) in zip(parts, found, strict=True)},
        late=any(late for _, late in found) and again(call, whole="true"),
        **values,
    )
    return page_reply(text, status, *more)


async def _part(
    call: RouteCall[Any, Any], name: str, part: PagePart, patience: float | None, token: str
) -> tuple[Markup, bool]:
    """Its text, and whether it is late."""
    answer, problem, late = None, None, False
    try:
        if part.key is None:
            answer = await part.ask()
        else:
            wait_s = part.wait_s if patience is None else patience
            answer = await call.services.fresh.get(part.key, part.ask, wait_s)
            late = answer is None and patience is not None
            if answer is None and not late:
                raise HttpError(
                    503,
                    "there is no answer yet",
                    limit=f"{wait_s:g} s",
                    remedy="Load the page again in a moment",
                )
    except SlotwheelError as error:
        problem = from_slotwheel(error)
    except HttpError as error:
        problem = error
    values = {**(part.more or {}), "it": answer, "token": token}
    if problem is not None:
        inner = rendered("problem.html", problem=problem)
    elif late:
        inner = rendered("late.html", whole=again(call, whole="true"))
    else:
        inner = rendered(part.template, **values)
    # What is late is asked for again, too, if the first time got no answer.
    trigger = "load, tick from:body" if late else ("tick from:body" if part.live else "")
    source = again(call, part=name) if trigger else ""
    how = {"trigger": trigger, "source": source, "late": late, "live": trigger and not late}
    text = rendered("part.html", name=name, inner=inner, **how)
    return text, late


def again(call: RouteCall[Any, Any], **more: str) -> str:
    """The address of this page with other or further parameters."""
    kept = [
        one
        for one in parse_qsl(call.scope["query_string"].decode("ascii"), keep_blank_values=True)
        if one[0] not in ("part", "whole", *more)
    ]
    return f"{call.scope['path']}?{urlencode([*kept, *more.items()])}"
