"""Resolves a message's level and route into a delay and topics, by the group's policies.

They are asked for when the first message needs them, and again after ``FRESH_S``: so long may a
running client use old ones after a change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ..policy.levels import level_ms
from ..policy.policyset import PolicySet
from ..policy.routes import Route, find_route
from ..wheel.errors import InvalidMessage
from .message import Message

FRESH_S = 10.0
_STANDS_FOR_ALL = "t"


class Resolver:
    """The policies of a group, which ``ask`` gets from a node. Thread-safe."""

    def __init__(self, ask: Callable[[], dict[str, Any]]) -> None:
        self._ask = ask
        self._known: tuple[float, PolicySet] | None = None

    def settings(self) -> PolicySet:
        """The policies, not older than ``FRESH_S``. Errors: ``NodeUnreachable``."""
        known = self._known
        return self.refresh() if known is None or self.fresh_s <= 0 else known[1]

    def refresh(self) -> PolicySet:
        """Ask now. Errors: ``NodeUnreachable``."""
        now = time.monotonic()
        policies = PolicySet.from_dict(self._ask())
        self._known = (now, policies)
        return policies

    @property
    def fresh_s(self) -> float:
        """The seconds for which no node is asked any more."""
        known = self._known
        return 0.0 if known is None else known[0] + FRESH_S - time.monotonic()

    def resolve(self, message: Message) -> tuple[Message, Route | None]:
        """The message with a delay in place of its level, and its route, if it has one: a topic in
        the message then stands for those of the route. Errors: ``InvalidMessage``,
        ``NodeUnreachable``."""
        for name, given in (("level", message.level), ("route", message.route)):
            if not isinstance(given, str | None):
                raise InvalidMessage(
                    f"unusable {name}",
                    got=repr(given)[:80],
                    limit="a text",
                    remedy=f"Give the name of a {name}; 'slotwheel policies' and 'slotwheel routes"
                    " list' show them",
                )
        if message.level is not None:
            if message.due is not None or message.delay is not None:
                raise InvalidMessage(
                    "both a level and a due time",
                    got=f"level {message.level}, due {message.due}, delay {message.delay}",
                    limit="one of due, delay and level",
                    remedy="Leave the others out",
                )
            delay_ms = level_ms(self.settings().levels, message.level)
            message = replace(message, delay=timedelta(milliseconds=delay_ms), level=None)
        if message.route is None:
            return message, None
        if message.topic or message.partition is not None:
            raise InvalidMessage(
                "both a route and a topic or partition",
                got=f"route {message.route}, topic {message.topic!r}, partition"
                f" {message.partition}",
                limit="a route alone",
                remedy="Leave topic and partition out: the route says where it goes",
            )
        route = find_route(self.settings().routes, message.route)
        return replace(message, topic=_STANDS_FOR_ALL, route=None), route
