"""The policies of a wheel group: levels, retry policies, routes, rules of consumer groups.

They are one value that all peers have in the same version, as JSON in the group's configuration
(docs/formats.md), and as TOML in the file of a node:

    levels = ["5s", "10s", "30s"]

    [policies.orders]
    levels = ["1s", "2s", "4s"]
    jitter = 0.1                        # up to a tenth later
    dead-letters = "orders-dead"

    [[routes.invoices]]
    where = { header = "region", equals = "eu" }
    to = ["invoices-eu", "audit"]

    [[routes.invoices]]                 # without 'where': each message
    to = ["audit"]
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ..wheel.errors import InvalidConfiguration, InvalidMessage
from .levels import DEFAULT_LEVELS, spans_ms
from .retry import DEFAULT, DEFAULT_POLICY, RetryPolicy
from .routes import Route
from .rule import Rule, parse_rule
from .shown import shown

BYTES_MAX = 256 * 1024
GROUPS_MAX = 1000
GROUPS_BYTES_MAX = BYTES_MAX // 2
"""The most bytes of all groups' rules, so that groups cannot take the room of the policies."""
RULE_BYTES_MAX = 4 * 1024
"""The most bytes of one group's rule, as each change writes all policies to the journal."""
_WRITTEN = {"levels", "policies", "routes"}
_STORED = {*_WRITTEN, "version", "groups"}


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The policies of a group. ``version`` rises by one with each change; 0: there was none.
    ``levels``: delays in ms by level. ``groups``: the rules of consumer groups that have
    registered; None: the group takes all messages."""

    version: int = 0
    levels: Mapping[str, int] = field(
        default_factory=lambda: spans_ms(list(DEFAULT_LEVELS), "levels")
    )
    policies: Mapping[str, RetryPolicy] = field(default_factory=lambda: {DEFAULT_POLICY: DEFAULT})
    routes: Mapping[str, Route] = field(default_factory=dict)
    groups: Mapping[str, Rule | None] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, text: str, where: str) -> Self:
        """Decode a node's file; ``where`` is its path, for errors. Errors:
        ``InvalidConfiguration``, ``InvalidMessage`` for a topic's name."""
        try:
            fields = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidConfiguration(
                f"{where} is not TOML: {error}"[:400],
                remedy="See docs/formats.md, 'Policies', for an example",
            ) from None
        return cls._parse(fields, where, _WRITTEN)

    @classmethod
    def from_dict(cls, fields: object) -> Self:
        """Decode policies as they are stored and sent. Errors: as of ``from_toml``."""
        if not isinstance(fields, Mapping):
            raise _damaged(fields)
        settings = cls._parse(fields, "policies", _STORED)
        version, groups = fields.get("version", 0), fields.get("groups", {})
        if type(version) is not int or version < 0 or not isinstance(groups, Mapping):
            raise _damaged(fields)
        rules = {
            group: None if rule is None else parse_rule(rule) for group, rule in groups.items()
        }
        return replace(settings, version=version, groups=rules)

    @classmethod
    def _parse(cls, fields: Mapping[str, Any], where: str, known: set[str]) -> Self:
        unknown = fields.keys() - known
        if unknown:
            raise InvalidConfiguration(
                f"{where}: no such setting",
                got=", ".join(sorted(unknown))[:200],
                limit=", ".join(sorted(_WRITTEN)),
                remedy="Correct the name",
            )
        for name in ("policies", "routes"):
            if not isinstance(fields.get(name, {}), Mapping):
                raise InvalidConfiguration(
                    f"{where}: {name} is not a table",
                    got=shown(fields[name]),
                    limit="a table",
                    remedy="Write [policies.NAME] and [[routes.NAME]]",
                )
        settings = cls()
        levels = settings.levels
        if "levels" in fields:
            levels = spans_ms(fields["levels"], f"{where}: levels")
            if len(levels) < len(fields["levels"]):
                raise InvalidConfiguration(
                    f"{where}: a level that stands there twice",
                    got=" ".join(fields["levels"])[:200],
                    limit="each level once, or their numbers would mean others",
                    remedy="Take one of them out",
                )
        policies = {DEFAULT_POLICY: RetryPolicy.parse(DEFAULT_POLICY, {"levels": list(levels)})}
        for name, policy in fields.get("policies", {}).items():
            policies[name] = RetryPolicy.parse(name, policy)
        routes = {
            name: Route.parse(name, branches) for name, branches in fields.get("routes", {}).items()
        }
        return replace(settings, levels=levels, policies=policies, routes=routes)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-able data."""
        return {
            "version": self.version,
            **self.written(),
            "groups": {
                group: None if rule is None else rule.to_dict()
                for group, rule in sorted(self.groups.items())
            },
        }

    def written(self) -> dict[str, Any]:
        """The settings that a node's file can have: all but the version and the groups."""
        return {
            "levels": list(self.levels),
            "policies": {name: policy.to_dict() for name, policy in sorted(self.policies.items())},
            "routes": {name: route.to_list() for name, route in sorted(self.routes.items())},
        }

    def check_horizon(self, horizon_ms: int) -> None:
        """Refuse delays beyond the horizon, ms. Errors: ``InvalidConfiguration``."""
        usual = PolicySet()
        named = {f"level {name}": delay for name, delay in self.levels.items()}
        if self.levels == usual.levels:  # nobody has chosen these
            named = {}
        for name, policy in self.policies.items():
            if policy == usual.policies.get(name):
                continue
            for level, delay in zip(policy.levels, policy.delays_ms, strict=True):
                named[f"policy {name}, level {level}"] = int(delay * (1 + policy.jitter))
        for name, delay in named.items():
            if delay > horizon_ms:
                raise InvalidConfiguration(
                    f"{name}: beyond the horizon",
                    got=f"{delay} ms",
                    limit=f"{horizon_ms} ms",
                    remedy="Shorten it, or run the nodes with a longer --horizon, 3660d at most",
                )

    def changed(self, wanted: PolicySet) -> PolicySet:
        """These policies with the settings of ``wanted``, which a file has; the version rises if
        that changes any. Errors: ``InvalidConfiguration`` when they grow too large."""
        if wanted.written() == self.written():
            return self
        return self._next(
            replace(self, levels=wanted.levels, policies=wanted.policies, routes=wanted.routes)
        )

    def registered(self, group: str, rule: Rule | None) -> PolicySet:
        """These policies with the rule of a consumer group. Errors: ``InvalidMessage`` when another
        rule is registered; ``InvalidConfiguration`` for too many groups, or too large a rule."""
        if group not in self.groups:
            nbytes = rule_bytes(group, rule)
            if nbytes > RULE_BYTES_MAX:
                raise InvalidConfiguration(
                    f"the rule of consumer group {group} is too large",
                    got=f"{nbytes} bytes",
                    limit=f"{RULE_BYTES_MAX} bytes",
                    remedy="Write a shorter rule, or filter in the handler",
                )
            every = nbytes + sum(rule_bytes(name, known) for name, known in self.groups.items())
            if len(self.groups) >= GROUPS_MAX or every > GROUPS_BYTES_MAX:
                raise InvalidConfiguration(
                    "too many consumer groups with rules",
                    got=group,
                    limit=f"{GROUPS_MAX}, and {GROUPS_BYTES_MAX} bytes",
                    remedy="Remove those that are gone: slotwheel routes forget GROUP",
                )
            return self._next(replace(self, groups={**self.groups, group: rule}))
        known = self.groups[group]
        if known != rule:
            raise InvalidMessage(
                f"consumer group {group} has another rule: its members would lose each other's"
                " messages",
                got="no rule" if rule is None else str(rule),
                limit="no rule" if known is None else str(known),
                remedy="Give all members the same rule; to change it, stop them all, then"
                f" slotwheel routes forget {group}",
            )
        return self

    def forgotten(self, group: str) -> PolicySet:
        """These policies without the rule of a consumer group."""
        if group not in self.groups:
            return self
        groups = {name: rule for name, rule in self.groups.items() if name != group}
        return self._next(replace(self, groups=groups))

    def _next(self, settings: PolicySet) -> PolicySet:
        policies = replace(settings, version=self.version + 1)
        nbytes = len(json.dumps(policies.to_dict()))
        if nbytes > BYTES_MAX:
            raise InvalidConfiguration(
                "policies are too large",
                got=f"{nbytes} bytes",
                limit=f"{BYTES_MAX} bytes",
                remedy="Take some out",
            )
        return policies


def rule_bytes(group: str, rule: Rule | None) -> int:
    """The bytes that a group and its rule take in the policies."""
    return len(json.dumps({group: None if rule is None else rule.to_dict()}))


def _damaged(fields: object) -> InvalidConfiguration:
    return InvalidConfiguration(
        "not the policies of a group",
        got=shown(fields),
        limit="what the action 'policies' answers",
        remedy="Use the same version of slotwheel here and on the nodes",
    )
