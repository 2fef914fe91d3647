"""How numbers, times and sizes are written on a page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from ...policy.levels import instant_ms
from ...wheel.errors import InvalidConfiguration
from ...wheel.texts import span_text, visible_text
from ..errors import from_slotwheel

NOTHING = "\N{EN DASH}"
_FAR_MS = 253_402_300_800_000
"""Year 10000, which ``datetime`` has not."""
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def number(value: float | None) -> str:
    """A number in groups of three digits; a dash for None."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """A number of bytes in three digits and a unit: ``1.21 MiB``."""
    if value is None:
        return NOTHING
    for unit, name in _SIZES:
        if value >= unit:
            many = value / unit
            return f"{many:.3g} {name}" if many < 1000 else f"{many:,.0f} {name}"
    return f"{int(value)} B"


def plain(name: str) -> str:
    """The name of a field as words, without the unit that ``measured`` writes with its value."""
    return _UNIT_OF.sub("", name).replace("_", " ")


def measured(value: float, name: str) -> str:
    """The value of a field, in the unit that its name ends with."""
    unit = _UNIT_OF.search(name)
    return _WRITTEN[unit[1]](value) if unit else number(value)


def seconds(value: float) -> str:
    """A bound of a histogram: ``5 ms``, ``2 s``."""
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def _of_seconds(value: float) -> str:
    return span_text(1000 * value)


_WRITTEN = {"bytes": size, "ms": span_text, "s": _of_seconds}
_SHOWN_TIME = re.compile(r"(\d+) ms|(\d{4}-.*\d) (?:UTC|([+-]\d\d:\d\d(?::\d\d)?))", re.ASCII)
"""A time as pages show it, for whoever copies it into a field."""
_UNIT_OF = re.compile(rf"_({'|'.join(_WRITTEN)})(?=(_max)?$)")


def iso(ms: int) -> str:
    """A time in ISO 8601, UTC, without zero milliseconds; as ms since 1970 if it has no date."""
    if not 0 <= ms < _FAR_MS:
        return str(ms)
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace(".000+00:00", "Z").replace("+00:00", "Z")


def time_element(ms: int | None, now_ms: int | None = None) -> Markup:
    """A ``time`` element in UTC. A script makes it local, with the zone's offset, as the night in
    which clocks are put back has one hour twice: typed into a field it is the same time (``when``).
    ``now_ms``: also write how far away the time is from then."""
    if ms is None:
        return escape(NOTHING)
    if ms < 0:
        return Markup('<span class="num">{}</span> ms before 1970').format(-ms)
    if ms >= _FAR_MS:
        return Markup('<span class="num">{}</span> ms').format(ms)
    machine = iso(ms)
    text = machine.replace("T", " ").replace("Z", " UTC")
    element = Markup('<time datetime="{}" title="{}">{}</time>').format(machine, text, text)
    if now_ms is None:
        return element
    away = f"in {span_text(ms - now_ms)}" if ms >= now_ms else f"{span_text(now_ms - ms)} ago"
    return Markup('{} <small class="away">{}</small>').format(element, away)


def when(text: str, now_ms: int, place: str) -> int | None:
    """A time that somebody wrote, or copied from a page; ms since 1970; None: nothing was written.
    Errors: ``HttpError`` 422."""
    text = text.strip()
    if not text:
        return None
    if copied := _SHOWN_TIME.fullmatch(text):
        text = copied[1] or copied[2] + (copied[3] or "")
    try:
        return instant_ms(text, now_ms)
    except InvalidConfiguration as error:
        raise from_slotwheel(error, place) from None


def content(message: Any, name: str, length: int = 0, *, lines: bool = False) -> Markup:
    """The key or the value of a message or a letter: text, or base64 that says so; cut after
    ``length`` characters, 0: whole. ``lines``: as of ``visible_text``."""
    text, raw = getattr(message, name), getattr(message, f"{name}_base64")
    if raw is not None:
        return Markup('<span class="tag">base64</span> ') + _cut(raw, length)
    if text is None:
        return Markup('<span class="none">none</span>')
    return _cut(text, length, lines=lines) if text else Markup('<span class="none">empty</span>')


def header_value(value: Any) -> Markup:
    """The value of a header, as of ``header_values`` in ``gateway/v1/found.py``."""
    if value is None:
        return Markup('<span class="none">none</span>')
    if isinstance(value, str):
        return _cut(value) if value else Markup('<span class="none">empty</span>')
    return Markup('<span class="tag">base64</span> {}').format(value["base64"])


def as_json(value: Any) -> Markup:
    """A value as JSON, to be read and to be copied: characters that nobody would see are written as
    JSON has them, ``\\u200b``, and with all others it stays the same value."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return escape("".join(map(_visible_in_json, text)))


def _visible_in_json(character: str) -> str:
    beside = f"x{character}x"
    is_seen = character in "\n\\" or visible_text(beside) == beside
    return character if is_seen else json.dumps(character)[1:-1]


def _cut(text: str, length: int = 0, *, lines: bool = False) -> Markup:
    if not length or len(text) <= length:
        return escape(visible_text(text, lines=lines))
    return escape(visible_text(text[:length], lines=lines) + "…")
