"""Levels: named delays. A level is a shorthand for a delay, and nothing more: what is sent with one
is due to the millisecond.

Time spans are written as ``500ms``, ``30s``, ``5m``, ``2h``, ``7d``, also ``1.5h``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ..wheel.errors import InvalidConfiguration, InvalidMessage
from .shown import shown

DEFAULT_LEVELS = ("5s", "10s", "30s", "1m", "2m", "5m", "10m", "20m", "30m", "45m", "1h", "2h")
LEVELS_MAX = 100
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)", re.ASCII)


def span_ms(text: str) -> int:
    """A time span in whole ms, at least 1. Errors: ``InvalidConfiguration``."""
    found = _SPAN.fullmatch(text.strip())
    ms = 0 if found is None else round(float(found[1]) * _UNITS_MS[found[2]])
    if ms < 1:
        raise InvalidConfiguration(
            "not a time span",
            got=repr(text[:80]),
            limit="at least 1 ms, as in 500ms, 30s, 5m or 2h",
            remedy="Write a number and its unit: ms, s, m, h or d",
        )
    return ms


def instant_ms(text: str, now_ms: int) -> int:
    """A time that somebody wrote, ms since 1970: ISO 8601 (UTC, if it has no zone), so long from
    now or ago (``+10m``, ``-10m``), or ms since 1970. Errors: ``InvalidConfiguration``."""
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    problem = "not a time"
    try:
        if text[:1] in ("+", "-"):
            away = span_ms(text[1:])
            ms = now_ms + (away if text[0] == "+" else -away)
        else:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
            ms = round(found.timestamp() * 1000)
        if ms >= 0:
            return ms
        problem = "a time before 1970"
    except (ValueError, OverflowError, InvalidConfiguration):
        pass
    raise InvalidConfiguration(
        problem,
        got=repr(text[:80]),
        limit="a time as 2026-05-31T18:30:00Z (without zone: UTC), +10m from now, or ms since 1970",
        remedy="Write it in one of these forms",
    )


def spans_ms(texts: object, what: str) -> dict[str, int]:
    """Delays by their texts, in order. ``what``: what they are, for the error.

    Errors: ``InvalidConfiguration``."""
    if not isinstance(texts, list | tuple) or not 1 <= len(texts) <= LEVELS_MAX:
        raise InvalidConfiguration(
            f"{what}: not a list of levels",
            got=shown(texts),
            limit=f"1 to {LEVELS_MAX} time spans",
            remedy='Write them as in ["1s", "30s", "5m"]',
        )
    found: dict[str, int] = {}
    for text in texts:
        if not isinstance(text, str):
            raise InvalidConfiguration(
                f"{what}: a level that is no text",
                got=shown(text),
                limit="a text",
                remedy='Write levels in quotes: "30s"',
            )
        found[text.strip()] = span_ms(text)
    return found


def level_ms(levels: Mapping[str, int], level: str) -> int:
    """The delay of ``level``, ms: its name, or its number from 1 on. Errors: ``InvalidMessage``."""
    name = level.strip()
    if name in levels:
        return levels[name]
    if _NUMBER.fullmatch(name) and int(name) <= len(levels):
        return list(levels.values())[int(name) - 1]
    raise InvalidMessage(
        "no such level",
        got=repr(level[:80]),
        limit=f"one of {' '.join(levels)}, or its number from 1 to {len(levels)}",
        remedy="Choose one of these, or give a delay",
    )
