"""Levels: named delays. A level is only a shorthand for a delay: a message with one is due to the
millisecond.

Time spans are written as ``500ms``, ``30s``, ``5m``, ``2h``, ``7d``, also ``1.5h``; a number alone,
where it can be no level, is seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from ..wheel.checks import is_time
from ..wheel.errors import InvalidConfiguration, InvalidMessage
from ..wheel.texts import time_text
from .shown import shown

DEFAULT_LEVELS = ("5s", "10s", "30s", "1m", "2m", "5m", "10m", "20m", "30m", "45m", "1h", "2h")
LEVELS_MAX = 100
SPAN_EXAMPLES = "500ms, 30s, 5m, 2h or 30d"
"""Spans in each unit, for errors: who is not shown ``d`` writes a month as 720h, or ``1y``."""
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1000}
_UNITS_OF_TIME = {"seconds": 1, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_SPAN = re.compile(r"(\d{1,10}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?", re.ASCII)


def span_of(text: str) -> float | None:
    """A time span in ms; None if the text is none."""
    match = _SPAN.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS_MS[match[2]]


def span_ms(text: str) -> int:
    """A time span with its unit in whole ms, at least 1. Errors: ``InvalidConfiguration``."""
    span = span_of(text)
    ms = 0 if span is None else round(span)
    if ms < 1 or text.strip()[:10].isdecimal() or not text.strip()[-1].isalpha():
        raise InvalidConfiguration(
            "not a time span",
            got=repr(text[:80]),
            limit=f"at least 1 ms, as in {SPAN_EXAMPLES}",
            remedy="Write a number and its unit: ms, s, m, h or d",
        )
    return ms


def written_span(ms: int) -> str:
    """A time span as ``span_of`` reads it, in the largest unit of which it has a whole number:
    ``90s``, ``1m``."""
    units = {unit: size for unit, size in _UNITS_MS.items() if unit and ms % size == 0}
    unit = max(units, key=units.__getitem__)
    return f"{ms // units[unit]}{unit}"


def instant_ms(text: str, now_ms: int) -> int:
    """The time in a text, ms since 1970. It is written in ISO 8601 (UTC, if it has no zone), as a
    span from ``now_ms`` (``+10m``, ``-10m``), or in ms since 1970. Errors:
    ``InvalidConfiguration``."""
    text = text.strip()
    if text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= 20:
        check_instant(int(text))
        return int(text)
    problem = "not a time"
    try:
        if text[:1] in ("+", "-"):
            away = span_ms(text[1:])
            ms = now_ms + (away if text[0] == "+" else -away)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            ms = round(moment.timestamp() * 1000)
        if is_time(ms):
            return ms
        problem = "a time before 2000, or after 9999"
    except (ValueError, OverflowError, InvalidConfiguration):
        pass
    raise InvalidConfiguration(
        problem,
        got=repr(text[:80]),
        limit="a time as 2026-05-31T18:30:00Z (without zone: UTC), +10m from now, or ms since 1970",
        remedy="Write it in one of these forms",
    )


def check_instant(ms: int) -> None:
    """Refuse a number that cannot be a time in ms: a number of seconds would be in 1970, and each
    message would be due after it. Errors: ``InvalidConfiguration``, with a probable unit."""
    if is_time(ms):
        return
    guesses = {unit: ms * 1000 // parts for unit, parts in _UNITS_OF_TIME.items()}
    probably = [f"{unit}: {time_text(at)}" for unit, at in guesses.items() if is_time(at)]
    raise InvalidConfiguration(
        "a time before 2000, or not in milliseconds",
        got=f"{ms} ({', '.join(f'perhaps {guess}' for guess in probably) or time_text(ms)})",
        limit="milliseconds since 1970, in the years 2000 to 9999",
        remedy=f"Write {next(at for at in guesses.values() if is_time(at))}, if that is meant"
        if probably
        else "Write it in milliseconds, as in 1790000000000, or leave it out for no limit",
    )


def check_times(from_ms: int | None, to_ms: int | None) -> None:
    """Errors: ``InvalidConfiguration``: one cannot be a time in ms (``check_instant``), or no time
    lies between the two."""
    for ms in (from_ms, to_ms):
        if ms is not None:
            check_instant(ms)
    check_order(from_ms, to_ms)


def check_order(from_ms: int | None, to_ms: int | None) -> None:
    """Errors: ``InvalidConfiguration``: no time lies between the two."""
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise InvalidConfiguration(
            "no time lies between the two",
            got=f"from {from_ms} ms to {to_ms} ms",
            remedy="Give an end behind the begin; the end itself is left out",
        )


def spans_ms(texts: object, what: str) -> dict[str, int]:
    """Delays, ms, by their texts, in order; ``what`` names them in an error. Errors:
    ``InvalidConfiguration``."""
    if not isinstance(texts, list | tuple) or not 1 <= len(texts) <= LEVELS_MAX:
        raise InvalidConfiguration(
            f"{what}: not a list of levels",
            got=shown(texts),
            limit=f"1 to {LEVELS_MAX} time spans",
            remedy='Write them as in ["1s", "30s", "5m"]',
        )
    delays: dict[str, int] = {}
    for text in texts:
        if not isinstance(text, str):
            raise InvalidConfiguration(
                f"{what}: a level that is no text",
                got=shown(text),
                limit="a text",
                remedy='Write levels in quotes: "30s"',
            )
        delays[text.strip()] = span_ms(text)
    return delays


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
