"""What the hand asks of a wheel, what it reports to the node, and how long it waits between tries.

The ``Dispatcher`` of one epoch fits as ``DuePort``: nothing that a sink answers after the epoch is
lost can be booked in the next one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..wheel.due.lines import Chunk
from ..wheel.schema import Int64s


class DuePort(Protocol):
    """See ``wheel.dispatcher.Dispatcher`` for what each says."""

    def next_chunk(self, now_ms: int) -> Chunk | None: ...
    def next_topic_chunk(self, topic: str, now_ms: int) -> Chunk | None: ...
    def answer(
        self,
        chunk: Chunk,
        answered: npt.NDArray[np.bool_],
        dead: int = 0,
        *,
        unknown: npt.NDArray[np.bool_] | None = None,
        sink_down: bool = False,
    ) -> None: ...
    def held_topics(self) -> list[str]: ...
    def next_due_ms(self) -> int | None: ...
    def wait_for_due(self, until_ms: int | None, now_ms: int, timeout_s: float) -> None: ...


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


class NoDeliveryEvents:
    """Tells nobody."""

    def delivered(self, lateness_ms: Int64s) -> None: ...
    def dead(self, count: int, reason: str) -> None: ...
    def held(self, topic: str, reason: str) -> None: ...
    def released(self, topic: str) -> None: ...
    def sink_down(self, reason: str) -> None: ...
    def sink_up(self) -> None: ...
    def alarm(self, kind: str, text: str) -> None: ...
