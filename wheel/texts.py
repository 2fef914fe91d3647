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


def is_utf8(text: str) -> bool:
    """False for half of a surrogate pair, which JSON and command lines can have, but no message."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def error_text(error: object) -> str:
    """An error's text, or its class: an application's ``__str__`` may itself raise an error."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def time_text(ms: int) -> str:
    """A time in ms since the epoch, for people."""
    try:
        time = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    """A text from outside with its invisible parts written out: ``a\\u{0}b`` for one with a NUL.
    Written out are controls, marks of direction, characters without width or meaning, blanks but
    the plain one, and this one at either end or behind another. ``lines``: the text is shown with
    its lines and indents, so these stay. ``typed_text`` gives the text back."""
    if text.isascii() and text.isprintable() and _has_plain_blanks(text) and "\\u{" not in text:
        return text
    if lines:
        return "\n".join(_visible_line(line, indents=True) for line in text.split("\n"))
    return _visible_line(text)


def _has_plain_blanks(text: str) -> bool:
    return "  " not in text and text[:1] != " " and text[-1:] != " "


def _visible_line(text: str, *, indents: bool = False, typed: bool = True) -> str:
    last = len(text.rstrip(" "))
    shown = []
    before = " " if not indents else ""
    for number, character in enumerate(text):
        if character == " ":
            seen = number < last and (indents or before != " ")
        elif character == "\\":
            seen = not typed or not text.startswith("u{", number + 1)
        else:
            seen = character.isprintable() and character not in _BLANK
            if seen and before in ("", " "):  # a mark without the letter that it belongs to
                seen = category(character)[0] != "M"
        shown.append(character if seen else f"\\u{{{ord(character):x}}}")
        before = character
    return "".join(shown)


def shown_text(text: str, *, lines: bool = True) -> str:
    """A text of any origin for a terminal or a log. What ``visible_text`` has written out already
    stays as it is, so that nobody has to know whether it has; indents stay and, with ``lines``,
    lines and tabs. The text cannot be typed back."""
    if text.isascii() and text.isprintable():
        return text
    if not lines:
        return _shown_part(text)
    return "\n".join("\t".join(map(_shown_part, line.split("\t"))) for line in text.split("\n"))


def _shown_part(text: str) -> str:
    end = len(text.rstrip(" "))
    return _visible_line(text[:end], indents=True, typed=False) + text[end:]


def typed_text(text: str) -> str:
    """The text that is meant by one typed as ``visible_text`` shows it. Errors: ``ValueError``."""
    return _ESCAPED.sub(_typed_character, text)


def _typed_character(escape: re.Match[str]) -> str:
    number = int(escape[1], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"{escape[0]} is no character")
    return chr(number)
