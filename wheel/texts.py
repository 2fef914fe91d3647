"""Times and numbers as texts, and texts of others, for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from unicodedata import category

_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\ufffc"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Characters that Python calls printable, and of which nobody sees anything."""
_ESCAPED = re.compile(r"\\u\{([0-9a-fA-F]{1,6})\}")
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2 files``, ``1,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def error_text(error: object) -> str:
    """An error's text. The name of its class if it has none: the ``__str__`` of an application's
    error may itself raise an error."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def time_text(ms: int) -> str:
    """A time in ms since the epoch, for people."""
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span_text(ms: float) -> str:
    """A length of time in two units at most: ``1 h 12 min``."""
    ms = abs(ms)
    if 0 < ms < 1:
        return f"{ms:.2g} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    rest = int(ms)
    parts = []
    for unit, name in _UNITS:
        many, rest = divmod(rest, unit)
        if many:
            parts.append(f"{many:,} {name}")
        if many and len(parts) == 1 and name == "s":
            break
        if len(parts) == 2 or (parts and not many):
            break
    return " ".join(parts)


def visible_text(text: str, *, lines: bool = False) -> str:
    """Somebody's text with nothing in it that nobody sees: ``a\\u{0}b`` for one with a NUL. So are
    written controls, marks of direction, characters without width or without a meaning, blanks but
    the plain one, and this one at either end or behind another. ``lines``: it is shown with its
    lines and indents, so these stay. ``typed_text`` gives the text back."""
    if text.isascii() and text.isprintable() and _has_plain_blanks(text) and "\\u{" not in text:
        return text
    if lines:
        return "\n".join(_visible_line(one, indents=True) for one in text.split("\n"))
    return _visible_line(text)


def _has_plain_blanks(text: str) -> bool:
    return "  " not in text and text[:1] != " " and text[-1:] != " "


def _visible_line(text: str, *, indents: bool = False, typed: bool = True) -> str:
    last = len(text.rstrip(" "))
    found = []
    before = " " if not indents else ""
    for number, one in enumerate(text):
        if one == " ":
            seen = number < last and (indents or before != " ")
        elif one == "\\":
            seen = not typed or not text.startswith("u{", number + 1)
        else:
            seen = one.isprintable() and one not in _BLANK
            if seen and before in ("", " "):  # a mark without the letter that it belongs to
                seen = category(one)[0] != "M"
        found.append(one if seen else f"\\u{{{ord(one):x}}}")
        before = one
    return "".join(found)


def shown_text(text: str, *, lines: bool = True) -> str:
    """Text of many hands for a terminal or a log: what is visible already (``visible_text``) stays
    as it is, so that nobody has to know whether it is, and so do indents and, with ``lines``, lines
    and tabs. It cannot be typed back."""
    if text.isascii() and text.isprintable():
        return text
    if not lines:
        return _shown_part(text)
    return "\n".join("\t".join(map(_shown_part, one.split("\t"))) for one in text.split("\n"))


def _shown_part(text: str) -> str:
    end = len(text.rstrip(" "))
    return _visible_line(text[:end], indents=True, typed=False) + text[end:]


def typed_text(text: str) -> str:
    """What somebody means who types a text as ``visible_text`` shows it. Errors: ``ValueError``."""
    return _ESCAPED.sub(_typed_character, text)


def _typed_character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"{found[0]} is no character")
    return chr(number)
