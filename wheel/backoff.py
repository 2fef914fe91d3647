"""Waiting times before something that has failed is tried again."""

from __future__ import annotations


class Backoff:
    """Waiting times that double from ``first_s`` to ``most_s``, until something succeeds."""

    def __init__(self, first_s: float = 0.05, most_s: float = 5.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def failed(self) -> float:
        """The time to wait now, in seconds; the next one is twice as long."""
        wait = self._next_s
        self._next_s = min(self._most_s, wait * 2)
        return wait

    def worked(self) -> None:
        self._next_s = self._first_s
