"""Bounds of memory and disk: a batch that would be too much is refused before it is stored.

Theory: memory fills when messages come in faster than slot files are written, and a disk that is
full stops that writing. So a part of the disk is kept in reserve: with it the tail can still be
spilled and marks be written, and delivery goes on, which makes room.
"""

from __future__ import annotations

from .config import WheelConfig
from .errors import NOTHING_STORED, Overloaded, remedy_for
from .files import Files

_DISK_CHECK_MS = 250


class Capacity:
    """Asked under the owner's lock, but ``disk_is_low`` and ``spilled`` by any thread. ``held``:
    bytes of the tail and of what is queued."""

    def __init__(self, files: Files, config: WheelConfig) -> None:
        self._files = files
        self._config = config
        self._disk_checked_ms = -1
        self._spill_failed: tuple[str, str] | None = None
        """The reason and the remedy, if the last spill failed."""
        self.disk_free = 0
        """Free bytes of the disk at the last look."""

    def full(self, held: int) -> bool:
        return held >= self._config.tail_bytes_refuse

    def check(self, held: int, now_ms: int) -> None:
        """Refuse an append, if memory or disk are too full. Errors: ``Overloaded``."""
        if self.full(held):
            slow = "are written more slowly than messages come in", "Send it again in a moment"
            why, remedy = self._spill_failed or slow
            raise Overloaded(
                f"the tail is full: slot files {why}",
                got=f"{held} bytes",
                limit=f"{self._config.tail_bytes_refuse} bytes",
                remedy=f"{NOTHING_STORED} {remedy}",
            )
        if self.disk_is_low(now_ms):
            raise Overloaded(
                "the disk of the data directory is almost full",
                got=f"{self.disk_free} bytes free",
                limit=f"{self._config.disk_reserve_bytes} bytes kept in reserve",
                remedy=f"{NOTHING_STORED} Free disk space on the node, then send again",
            )

    def disk_is_low(self, now_ms: int) -> bool:
        if abs(now_ms - self._disk_checked_ms) >= _DISK_CHECK_MS:
            self.disk_free = self._files.free_bytes()
            self._disk_checked_ms = now_ms
        return self.disk_free < self._config.disk_reserve_bytes

    def spilled(self, error: OSError | None) -> None:
        """Note that a spill has succeeded, or its error. From the thread that spills."""
        failed = None
        if error is not None:
            why = f"cannot be written: {error.strerror or error}"
            failed = why, f"{remedy_for(error)}, then send again"
        self._spill_failed = failed
