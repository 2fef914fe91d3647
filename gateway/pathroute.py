"""A route whose parameters are whole segments of the path.

Theory: a name may have a slash in it, which is sent as ``%2F``. So a path is cut into its segments
as it came, and each is decoded by itself. Cut after it was decoded, ``/v1/schedules/a%2Frun`` would
be two things at once: the schedule ``a/run``, and a run of the schedule ``a``.

Rule: a parameter may be empty. Whoever leaves a name out learns from its handler that the name is
missing, and not that the gateway has no such page.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from starlette.routing import BaseRoute, Match

IN_PATH = re.compile(r"\{(\w+)(?::(int))?\}")
"""A parameter in a path: its name and, if it is not a text, its kind."""
_DIGITS = re.compile("[0-9]{1,20}")


class PathRoute(BaseRoute):
    """``path``: its segments, of which those of the form ``{name}`` or ``{name:int}`` are
    parameters. ``endpoint``: the ASGI application that answers it."""

    def __init__(self, path: str, endpoint: Any) -> None:
        self.path = path
        self.endpoint = endpoint
        self._segments = [(part, IN_PATH.fullmatch(part)) for part in path.split("/")]

    def matches(self, scope: Any) -> tuple[Match, Any]:
        sent = scope["raw_path"].split(b"/")
        if len(sent) != len(self._segments):
            return Match.NONE, {}
        values: dict[str, str | int] = {}
        for segment, (part, parameter) in zip(sent, self._segments, strict=True):
            text = unquote(segment.decode("latin-1"))
            if parameter is None:
                if text != part:
                    return Match.NONE, {}
            elif parameter[2] is None:
                values[parameter[1]] = text
            elif _DIGITS.fullmatch(text):
                values[parameter[1]] = int(text)
            else:
                return Match.NONE, {}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": values}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NotImplementedError("addresses are written out")

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        await self.endpoint(scope, receive, send)


def segment_of(scope: Any, number: int) -> bytes:
    """A segment of a request's path as it came, from 1 on: of ``/v1/jobs`` the second one is
    ``jobs``."""
    segment: bytes = scope["raw_path"].split(b"/")[number]
    return segment
