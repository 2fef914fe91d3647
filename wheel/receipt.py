"""What callers of the wheel get back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .schema import Int64s


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry is committed. Row ``i`` has offset ``base_offset + i``.

    ``due``: due times in ms, shape (count,); with the offsets they make the messages' ids.
    """

    base_offset: int
    count: int
    created_ms: int
    due: Int64s


class CancelAnswer(StrEnum):
    """The truth about a cancel."""

    CANCELLED = "cancelled"
    """It will not be delivered (or was cancelled before)."""
    DELIVERED = "already delivered"
    """The sink has answered for it: delivered, or a dead letter."""
    UNKNOWN = "unknown"
    """Not an id of this group, or nothing certain is known of it any more."""
