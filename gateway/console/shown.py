"""How numbers, times and sizes are written on a page."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from ...policy.levels import instant_ms
from ...wheel.errors import InvalidConfiguration
from ...wheel.texts import span_text
from ..errors import HttpError

NOTHING = "\N{EN DASH}"
_FAR_MS = 253_402_300_800_000
"""Year 10000, which ``datetime`` has not."""
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def number(value: float | None) -> str:
    """With groups of three digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes, in three digits or so."""
    if value is None:
        return NOTHING
    for unit, name in _SIZES:
        if value >= unit:
            many = value / unit
            return f"{many:.3g} {name}" if many < 1000 else f"{many:,.0f} {name}"
    return f"{int(value)} B"


def plain(name: str) -> str:
    """The name of a field as words; its unit stands with its value, as of ``measured``."""
    return _UNIT_OF.sub("", name).replace("_", " ")


def measured(value: float, name: str) -> str:
    """The value of a field, in the unit that its name ends with."""
    found = _UNIT_OF.search(name)
    return _WRITTEN[found[1]](value) if found else number(value)


def seconds(value: float) -> str:
    """A bound of a histogram: ``5 ms``, ``2 s``."""
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def _of_seconds(value: float) -> str:
    return span_text(1000 * value)


_WRITTEN = {"bytes": size, "ms": span_text, "s": _of_seconds}
_UNIT_OF = re.compile(rf"_({'|'.join(_WRITTEN)})(?=(_max)?$)")


def iso(ms: int) -> str:
    """ISO 8601, UTC, to the millisecond where there are any; what has no date: ms since 1970."""
    if not 0 <= ms < _FAR_MS:
        return str(ms)
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace(".000+00:00", "Z").replace("+00:00", "Z")


def time_element(ms: int | None, now_ms: int | None = None) -> Markup:
    """A ``time`` element with UTC; a script makes it local. ``now_ms``: how far it is from then is
    written beside it."""
    if ms is None:
        return escape(NOTHING)
    if not 0 <= ms < _FAR_MS:
        return Markup('<span class="num">{}</span> ms').format(ms)
    machine = iso(ms)
    text = machine.replace("T", " ").replace("Z", " UTC")
    made = Markup('<time datetime="{}" title="{}">{}</time>').format(machine, text, text)
    if now_ms is None:
        return made
    away = f"in {span_text(ms - now_ms)}" if ms >= now_ms else f"{span_text(now_ms - ms)} ago"
    return Markup('{} <small class="away">{}</small>').format(made, away)


def clock_element(ms: int) -> Markup:
    """The time of day of a time of these days, as of ``time_element``."""
    machine = iso(ms)
    return Markup('<time class="clock" datetime="{}" title="{}">{}</time>').format(
        machine, machine.replace("T", " ").replace("Z", " UTC"), machine[11:16]
    )


def when(text: str, now_ms: int, place: str) -> int | None:
    """A time that somebody wrote, ms since 1970; None: nothing was written. Errors: ``HttpError``
    422."""
    text = text.strip()
    if not text:
        return None
    try:
        return instant_ms(text, now_ms)
    except InvalidConfiguration as error:
        raise HttpError(422, error.message, place=place, got=text, limit=error.limit) from None


def content(of: Any, name: str, length: int = 0) -> Markup:
    """Key or value of a message or of a letter: text, or base64 that says so; cut after ``length``
    characters."""
    text, raw = getattr(of, name), getattr(of, f"{name}_base64")
    if raw is not None:
        return Markup('<span class="tag">base64</span> ') + _cut(raw, length)
    if text is None:
        return Markup('<span class="none">none</span>')
    return _cut(text, length) if text else Markup('<span class="none">empty</span>')


def header_value(value: Any) -> Markup:
    """Of ``gateway/v1/types.HeaderValue``."""
    if value is None:
        return Markup('<span class="none">none</span>')
    if isinstance(value, str):
        return escape(value)
    return Markup('<span class="tag">base64</span> {}').format(value["base64"])


def _cut(text: str, length: int) -> Markup:
    return escape(text if not length or len(text) <= length else text[:length] + "…")
