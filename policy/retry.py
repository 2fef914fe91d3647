"""A retry policy: the delay after each failed attempt, and the topic for messages whose attempts
are used up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..wheel.checks import check_topic
from ..wheel.errors import InvalidConfiguration, InvalidMessage
from .levels import DEFAULT_LEVELS, spans_ms
from .shown import shown

DEFAULT_POLICY = "default"
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9._-]{0,99}")
"""Names of policies and routes begin with a letter, literal policies with a digit."""
_FIELDS = {"levels", "jitter", "dead-letters"}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A retry policy. ``delays_ms``: the delays after the first failed attempt, the second, and so
    on. ``jitter``: up to this share of a delay is added to it, at random. ``dead_letters``: the
    topic of messages whose attempts are used up; None: the usual one."""

    name: str
    levels: tuple[str, ...]
    delays_ms: tuple[int, ...]
    jitter: float = 0.0
    dead_letters: str | None = None

    @classmethod
    def parse(cls, name: str, fields: object) -> Self:
        """Decode a policy of a file. Errors: ``InvalidConfiguration``, ``InvalidMessage`` for a
        topic's name."""
        check_name("policy", name)
        if not isinstance(fields, Mapping) or fields.keys() - _FIELDS or "levels" not in fields:
            raise InvalidConfiguration(
                f"policy {name}: not a policy",
                got=shown(fields),
                limit="levels, and perhaps jitter and dead-letters",
                remedy='Write levels = ["1s", "30s"]; jitter = 0.1 and dead-letters = "topic" if'
                " you like",
            )
        delays = spans_ms(fields["levels"], f"policy {name}")
        jitter = fields.get("jitter", 0.0)
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            raise InvalidConfiguration(
                f"policy {name}: no usable jitter",
                got=shown(jitter),
                limit="0 to 1, the share of a delay that may be added to it",
                remedy="Write jitter = 0.1 for up to a tenth more",
            )
        dead_letters = fields.get("dead-letters")
        if dead_letters is not None:
            if not isinstance(dead_letters, str):
                raise InvalidConfiguration(
                    f"policy {name}: no usable dead-letters",
                    got=shown(dead_letters),
                    limit="the name of a topic",
                    remedy='Write dead-letters = "topic"',
                )
            check_topic(dead_letters)
        levels = tuple(str(level).strip() for level in fields["levels"])
        return cls(name, levels, tuple(delays[level] for level in levels), jitter, dead_letters)

    @classmethod
    def literal(cls, text: str) -> Self:
        """A policy by its levels alone: ``1s 2s 4s``. Errors: ``InvalidConfiguration``."""
        levels = tuple(text.split())
        delays = spans_ms(levels, f"policy {text[:80]!r}")
        return cls(" ".join(levels), levels, tuple(delays[level] for level in levels))

    def to_dict(self) -> dict[str, Any]:
        """The policy as ``parse`` reads it."""
        fields: dict[str, Any] = {"levels": list(self.levels)}
        if self.jitter:
            fields["jitter"] = self.jitter
        if self.dead_letters is not None:
            fields["dead-letters"] = self.dead_letters
        return fields

    def delay_ms(self, failed: int, chance: float) -> int | None:
        """The delay after attempt ``failed`` (from 1 on), ms; None if there is no next one.
        ``chance``: 0 to 1, at random."""
        if failed > len(self.delays_ms):
            return None
        delay = self.delays_ms[failed - 1]
        return delay + int(delay * self.jitter * chance)


def find_policy(policies: Mapping[str, RetryPolicy], text: str) -> RetryPolicy:
    """The policy of that name, or the literal one. Errors: ``InvalidMessage``."""
    known = policies.get(text)
    if known is not None:
        return known
    try:
        if not text[:1].isdigit():
            raise InvalidConfiguration("no such policy")
        return RetryPolicy.literal(text)
    except InvalidConfiguration:
        raise InvalidMessage(
            "no such retry policy",
            got=repr(text[:80]),
            limit=f"one of {', '.join(sorted(policies))}, or levels as in 1s 30s 5m",
            remedy="Name one of these; 'slotwheel policies' shows them",
        ) from None


def check_name(what: str, name: str) -> None:
    """Check a name; ``what`` says in the error whose it is. Errors: ``InvalidConfiguration``."""
    if not NAME.fullmatch(name):
        raise InvalidConfiguration(
            f"unusable name of a {what}",
            got=repr(name[:120]),
            limit="a letter, then up to 99 letters, digits, '.', '_' and '-'",
            remedy="Rename it",
        )


DEFAULT = RetryPolicy.parse(DEFAULT_POLICY, {"levels": list(DEFAULT_LEVELS)})
