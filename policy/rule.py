"""Rules over a record's headers. A rule is data, never code:

    {"header": "region", "equals": "eu"}       {"header": "region", "in": ["eu", "us"]}
    {"header": "kind", "prefix": "order."}     {"header": "trace", "exists": true}
    {"all": [rule, …]}                         {"any": [rule, …]}

A header that occurs several times matches if one of its values does. Values are compared as bytes;
texts in a rule are UTF-8.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..wheel.errors import InvalidConfiguration
from ..wheel.rows import Header
from ..wheel.texts import is_utf8
from .shown import shown

DEPTH_MAX = 5
TERMS_MAX = 100
"""The most rules in an ``all`` or ``any``, and values in an ``in``."""
_REMEDY = (
    'Write {"header": "region", "equals": "eu"} (or "in" with a list, "prefix", "exists" with true'
    ' or false), or {"all": […]} or {"any": […]} of such rules'
)


class Rule(ABC):
    """A test of a record's headers."""

    @abstractmethod
    def matches(self, headers: Sequence[Header]) -> bool: ...

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The rule as data; equal rules give equal data."""

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class HeaderRule(Rule):
    """A test of one header. ``test``: one of ``equals``, ``in``, ``prefix``, ``exists``. The header
    is compared with ``values``; for ``exists``, it must exist or not, as ``wanted`` says."""

    header: str
    test: str
    values: tuple[bytes, ...]
    wanted: bool = True

    def matches(self, headers: Sequence[Header]) -> bool:
        for name, value in headers:
            if name != self.header:
                continue
            if self.test == "exists":
                return self.wanted
            if value is None:
                continue
            if value.startswith(self.values) if self.test == "prefix" else value in self.values:
                return True
        return self.test == "exists" and not self.wanted

    def to_dict(self) -> dict[str, Any]:
        texts = [value.decode() for value in self.values]
        content = {"exists": self.wanted, "in": texts}.get(self.test, texts[0] if texts else None)
        return {"header": self.header, self.test: content}


@dataclass(frozen=True, slots=True)
class Combined(Rule):
    """Several rules. ``every``: all of them must match, else any of them."""

    every: bool
    rules: tuple[Rule, ...]

    def matches(self, headers: Sequence[Header]) -> bool:
        matches = (rule.matches(headers) for rule in self.rules)
        return all(matches) if self.every else any(matches)

    def to_dict(self) -> dict[str, Any]:
        return {"all" if self.every else "any": [rule.to_dict() for rule in self.rules]}


def parse_rule(fields: object, depth: int = 1) -> Rule:
    """Decode a rule; ``depth`` counts rules around it. Errors: ``InvalidConfiguration``."""
    if depth > DEPTH_MAX:
        raise _unusable("rules within rules go too deep", f"level {depth}", f"{DEPTH_MAX} levels")
    if not isinstance(fields, Mapping):
        raise _unusable("not a rule", shown(fields), "a table")
    names = set(fields)
    for every, name in ((True, "all"), (False, "any")):
        if names == {name}:
            parts = _listed(fields[name], name)
            return Combined(every, tuple(parse_rule(part, depth + 1) for part in parts))
    header = fields.get("header")
    tests = names - {"header"}
    if not isinstance(header, str) or not is_utf8(header) or not header or len(tests) != 1:
        raise _unusable("not a rule", shown(dict(fields)), "a header and one test of it")
    (test,) = tests
    content = fields[test]
    if test == "exists":
        if not isinstance(content, bool):
            raise _unusable(f"header {header}: no usable 'exists'", shown(content), "a boolean")
        return HeaderRule(header, test, (), content)
    if test in ("equals", "prefix"):
        return HeaderRule(header, test, (_bytes(header, content),))
    if test == "in":
        values = [_bytes(header, value) for value in _listed(content, test)]
        return HeaderRule(header, test, tuple(sorted(set(values))))
    raise _unusable(f"header {header}: no such test", shown(test), "equals, in, prefix, exists")


def _listed(content: object, name: str) -> Sequence[object]:
    if not isinstance(content, list | tuple) or not 1 <= len(content) <= TERMS_MAX:
        raise _unusable(f"no usable '{name}'", shown(content), f"a list of 1 to {TERMS_MAX}")
    return content


def _bytes(header: str, content: object) -> bytes:
    if not isinstance(content, str) or not is_utf8(content):
        raise _unusable(f"header {header}: a value that is no text", shown(content), "a text")
    return content.encode()


def _unusable(message: str, got: str, limit: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"rule: {message}", got=got, limit=limit, remedy=_REMEDY)
