"""How the values of a question are written: by people, and by programs.

Each type has one reader, an annotation of the type, for all ways in. Example: an ``Instant`` is
``-10m`` or ``2026-11-20T18:00:00Z`` on a command line and in a form, and ``1790000000000`` in a
URL; in each of them 1790000000, which is in seconds, gets the same error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from ..wheel.errors import InvalidConfiguration
from .levels import SPAN_EXAMPLES, check_instant, instant_ms, span_of

_WHOLE_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_SPAN_FORMS = f"a time span as {SPAN_EXAMPLES}"


def unusable(message: str, text: str, limit: str, remedy: str) -> InvalidConfiguration:
    """The error of a text that cannot be read. ``limit``: what could be."""
    return InvalidConfiguration(message, got=repr(text[:80]), limit=limit, remedy=remedy)


def whole_number(text: str) -> int:
    """Errors: ``InvalidConfiguration``."""
    if not _WHOLE_NUMBER.fullmatch(text):
        remedy = "Write it in the digits 0 to 9"
        raise unusable("not a whole number", text, "19 digits at most", remedy)
    return int(text)


@dataclass(frozen=True, slots=True)
class WayIn:
    """By which way a question comes. ``now_ms``: when people wrote it, ms since 1970, from which
    ``-10m`` counts; None: a program wrote it, and times and spans are whole milliseconds.
    ``between``: what stands between a name and its value."""

    now_ms: int | None = None
    between: str = ":"


@dataclass(frozen=True, slots=True)
class Written:
    """How a value of a type is written, as an annotation of the type.

    ``read``: makes a text the value, and raises ``SlotwheelError``; None: as of the type itself.
    ``value_name``: what a help page calls the value; empty: by the last word of the field's name.
    ``unit``: the ending of the field's name that people do not write; programs write a number then.
    ``in_queries``: False: programs name it in the path of a URL, so no query has it.
    """

    read: Callable[[str, WayIn], Any] | None = None
    value_name: str = ""
    unit: str = ""
    in_queries: bool = True


def _read_instant(text: str, way: WayIn) -> int:
    if way.now_ms is not None:
        return instant_ms(text, way.now_ms)
    ms = whole_number(text)
    check_instant(ms)
    return ms


def _read_span(text: str, way: WayIn) -> int:
    if way.now_ms is None:
        return whole_number(text)
    span = span_of(text)
    if span is None:
        raise unusable("not a time span", text, _SPAN_FORMS, "Write a number and its unit")
    return round(span)


def as_bytes(text: str) -> bytes:
    """A text as it is typed; what a command line had that is no UTF-8 becomes these bytes again."""
    return text.encode("utf-8", "surrogateescape")


def _read_bytes(text: str, _: WayIn) -> bytes:
    return as_bytes(text)


INSTANT = Written(_read_instant, "TIME", "_ms")
SPAN = Written(_read_span, "SPAN", "_ms")
Instant = Annotated[int, Meta(ge=0, lt=1 << 62), INSTANT]
"""Milliseconds since 1970, UTC. People write ``2026-11-20T18:00:00Z`` or ``-10m``, too."""
TimeSpan = Annotated[int, Meta(ge=0, lt=1 << 62), SPAN]
"""Milliseconds. People write ``500ms``, ``30s``, ``5m`` or ``2h``; ``3`` is seconds then."""
Text = Annotated[str, Written(value_name="TEXT")]
TextBytes = Annotated[bytes, Written(_read_bytes, "TEXT")]
"""Bytes that are written as text, in UTF-8."""
