"""Times and numbers as texts, for people."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2 files``, ``1,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def error_text(error: object) -> str:
    """What an error says of itself; its class where it cannot say it: an application's error may
    raise another one for its text."""
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
