"""What the hand tells the node while it works, and how long it waits between tries."""

from __future__ import annotations

from typing import Protocol

from ..wheel.schema import Int64s


class DeliveryEvents(Protocol):
    """Called from the hand's thread; must return at once and not raise."""

    def delivered(self, lateness_ms: Int64s) -> None:
        """Rows that a sink accepted; how late each was, shape (rows,)."""

    def dead(self, count: int, reason: str) -> None:
        """Rows that became dead letters."""

    def held(self, topic: str, reason: str) -> None:
        """A topic is held back from now on."""

    def released(self, topic: str) -> None:
        """A held-back topic has caught up."""

    def sink_down(self, reason: str) -> None:
        """The sink as a whole cannot be reached; delivery pauses."""

    def sink_up(self) -> None:
        """The sink can be reached again."""

    def alarm(self, kind: str, text: str) -> None:
        """Something a person has to look at: ``clock-behind``, ``delivery-error``."""


class NoEvents:
    """Tells nobody."""

    def delivered(self, lateness_ms: Int64s) -> None: ...
    def dead(self, count: int, reason: str) -> None: ...
    def held(self, topic: str, reason: str) -> None: ...
    def released(self, topic: str) -> None: ...
    def sink_down(self, reason: str) -> None: ...
    def sink_up(self) -> None: ...
    def alarm(self, kind: str, text: str) -> None: ...
