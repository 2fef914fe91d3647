"""A route finds the topics that a message goes to, by rules over its headers.

A route is a list of branches; each branch whose rule matches adds its topics. A message that goes
to n topics becomes n rows of one entry: all of them are stored, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..wheel.checks import check_topic
from ..wheel.errors import InvalidConfiguration, InvalidMessage
from ..wheel.rows import Header
from .retry import check_name
from .rule import TERMS_MAX, Rule, parse_rule
from .shown import shown

TARGETS_MAX = 64
"""The most topics that a message can go to."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A rule with its topics. ``where`` None: it matches each message."""

    where: Rule | None
    to: tuple[str, ...]

    def matches(self, headers: Sequence[Header]) -> bool:
        return self.where is None or self.where.matches(headers)


@dataclass(frozen=True, slots=True)
class Route:
    name: str
    branches: tuple[Branch, ...]

    @classmethod
    def parse(cls, name: str, branches: object) -> Self:
        """Decode a route. Errors: ``InvalidConfiguration``; ``InvalidMessage``: a topic's name."""
        check_name("route", name)
        if not isinstance(branches, list | tuple) or not 1 <= len(branches) <= TERMS_MAX:
            raise _unusable(name, branches, f"1 to {TERMS_MAX} branches")
        route = cls(name, tuple(_branch(name, fields) for fields in branches))
        topics = {topic for branch in route.branches for topic in branch.to}
        if len(topics) > TARGETS_MAX:
            raise _unusable(name, f"{len(topics)} topics", f"{TARGETS_MAX} topics")
        return route

    def topics(self, headers: Sequence[Header]) -> list[str]:
        """The topics of a message, each once. Errors: ``InvalidMessage`` if no rule matches."""
        matched = dict.fromkeys(
            topic for branch in self.branches if branch.matches(headers) for topic in branch.to
        )
        if not matched:
            raise InvalidMessage(
                f"route {self.name}: no rule matches",
                got=", ".join(f"{name}={value!r}"[:60] for name, value in headers[:8]) or "nothing",
                limit="a header that one of its rules asks for",
                remedy="Correct the headers, or give the route a branch without 'where'",
            )
        return list(matched)

    def explained(self, headers: Sequence[Header]) -> tuple[list[dict[str, Any]], list[str]]:
        """Each branch as ``matches``, ``where`` and ``to``, and the topics of a message with these
        headers: none if no branch matches, where ``topics`` raises."""
        branches = [
            {
                "matches": branch.matches(headers),
                "where": None if branch.where is None else branch.where.to_dict(),
                "to": list(branch.to),
            }
            for branch in self.branches
        ]
        matches = any(branch["matches"] for branch in branches)
        return branches, self.topics(headers) if matches else []

    def to_list(self) -> list[dict[str, Any]]:
        """The route as ``parse`` reads it."""
        return [
            {"where": branch.where.to_dict(), "to": list(branch.to)}
            if branch.where
            else {"to": list(branch.to)}
            for branch in self.branches
        ]


def find_route(routes: Mapping[str, Route], name: str) -> Route:
    """The route of that name. Errors: ``InvalidMessage``."""
    route = routes.get(name)
    if route is None:
        raise InvalidMessage(
            "no such route",
            got=repr(name[:80]),
            limit=f"one of {', '.join(sorted(routes)) or 'none: there are no routes'}",
            remedy="'slotwheel routes list' shows them; a node reads them with --policies",
        )
    return route


def _branch(name: str, fields: object) -> Branch:
    if not isinstance(fields, Mapping) or fields.keys() - {"where", "to"} or "to" not in fields:
        raise _unusable(name, fields, "'to', and perhaps 'where'")
    to = fields["to"]
    if not isinstance(to, list | tuple) or not 1 <= len(to) <= TARGETS_MAX:
        raise _unusable(name, to, f"1 to {TARGETS_MAX} topics")
    for topic in to:
        if not isinstance(topic, str):
            raise _unusable(name, topic, "names of topics")
        check_topic(topic)
    where = None if fields.get("where") is None else parse_rule(fields["where"])
    return Branch(where, tuple(to))


def _unusable(name: str, got: object, limit: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"route {name}: not a list of branches",
        got=shown(got),
        limit=limit,
        remedy='Write to = ["topic", …] and where = { header = "region", equals = "eu" }',
    )
