"""Times and numbers as texts, for people."""

from __future__ import annotations

from datetime import UTC, datetime


def counted(count: int, noun: str) -> str:
    """``1 file``, ``2 files``, ``1,000 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def time_text(ms: int) -> str:
    """A time in ms since the epoch, for people."""
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
