"""Pages that are shown at once, and whose slow parts follow.

Theory: the parts of a page are worked out beside each other. One that takes longer than
``PATIENCE_S`` is left out, and the browser fetches it by itself as soon as it shows the page;
otherwise a node that cannot be reached would keep everything from its user for seconds. A browser
without scripts is sent to the same page with ``whole``, which waits. A part that fails says so in
its place, and the others stand.
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
from ..front.front import ASKED_WHEEL
from ..requests import Reply
from .guard import cookie_header, new_token, token_of
from .rendering import page_reply, rendered
from .viewer import Viewer, viewer_of

PATIENCE_S = 0.12
NODE_WAIT_S = 4.0
"""A node that can be reached answers within milliseconds, so more would only delay its error."""


class PartsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The parameters of every page."""

    part: str = ""
    """Only this part of the page, as HTML to be put in its place."""
    whole: bool = False
    """Wait for all parts."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """A part of a page. ``key``: of its question, by which parts and pages share an answer
    (``FreshAnswers``); None: it is asked each time, and always waited for. ``live``: the browser
    fetches it again every few seconds. ``template``: gets the answer as ``it``, and ``more``."""

    template: str
    key: Hashable | None
    ask: Callable[[], Awaitable[Any]]
    live: bool = False
    wait_s: float = 60.0
    """How long a page that waits for its parts waits for this one; the work on it goes on."""
    more: Mapping[str, Any] | None = None


def node_part(template: str, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> PagePart:
    """A live part that a node answers."""
    return PagePart(template, key, ask, live=True, wait_s=NODE_WAIT_S)


def off(template: str) -> PagePart:
    """A part that this gateway was started without; ``template`` says how to have it."""

    async def nothing() -> str:
        return "off"

    return PagePart(template, None, nothing)


SEARCH_OFF = off("search_off.html")


async def page(
    call: RouteCall[Any, Any],
    here: str,
    template: str,
    parts: Mapping[str, PagePart],
    problem: HttpError | None = None,
    **values: Any,
) -> Reply:
    """A page, or the part of it that was asked for. ``here``: its entry in the navigation;
    ``problem``: what was refused, with its status."""
    wanted, token, viewer = call.query.part, token_of(call.scope), viewer_of(call.scope)
    if wanted:
        if wanted not in parts:
            raise HttpError(404, "no such part of this page", place="query part", got=wanted)
        text, _ = await _part(call, wanted, parts[wanted], None, token, viewer)
        return page_reply(text)
    more = []
    if not token:
        token = new_token()
        more.append(cookie_header(token))
    # A page with a refusal waits: late parts would come from a page that was asked for without it.
    patience = None if call.query.whole or problem else PATIENCE_S
    texts = await asyncio.gather(
        *(_part(call, name, part, patience, token, viewer) for name, part in parts.items())
    )
    text = rendered(
        template,
        here=here,
        token=token,
        viewer=viewer,
        parts={name: text for name, (text, _) in zip(parts, texts, strict=True)},
        late=any(late for _, late in texts) and again(call, whole="true"),
        problem=problem,
        **values,
    )
    return page_reply(text, problem.status if problem else 200, *more)


async def _part(
    call: RouteCall[Any, Any],
    name: str,
    part: PagePart,
    patience: float | None,
    token: str,
    viewer: Viewer,
) -> tuple[Markup, bool]:
    """The part as HTML, and True if its answer is late. ``patience``: s; None: its ``wait_s``."""
    answer, problem, late = None, None, False
    try:
        if part.key is None:
            answer = await part.ask()
        else:
            wait_s = part.wait_s if patience is None else patience
            # Who has other rights, or asks another wheel, gets another answer to the same question.
            key = call.identity.rights, ASKED_WHEEL.get(), part.key
            answer = await call.services.fresh.get(key, part.ask, wait_s)
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
    values = {**(part.more or {}), "it": answer, "token": token, "viewer": viewer}
    if problem is not None:
        inner = rendered("problem.html", problem=problem)
    elif late:
        inner = rendered("late.html", whole=again(call, whole="true"))
    else:
        inner = rendered(part.template, **values)
    # A late part is fetched at once, and again in case that gets no answer.
    trigger = "load, tick from:body" if late else ("tick from:body" if part.live else "")
    source = again(call, part=name) if trigger else ""
    how = {"trigger": trigger, "source": source, "late": late, "live": trigger and not late}
    text = rendered("part.html", name=name, inner=inner, **how)
    return text, late


def again(call: RouteCall[Any, Any], **more: str) -> str:
    """The address of this page with other or further parameters."""
    kept = [
        pair
        for pair in parse_qsl(call.scope["query_string"].decode("ascii"), keep_blank_values=True)
        if pair[0] not in ("part", "whole", *more)
    ]
    return f"{call.scope['path']}?{urlencode([*kept, *more.items()])}"
