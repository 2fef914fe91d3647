"""The hand's view of a wheel, and the events that it reports to the node.

The ``Dispatcher`` of one epoch implements ``DuePort``: an answer of a sink after the end of the
epoch cannot be counted in the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..wheel.due.chunk import Chunk
from ..wheel.mark import Marks
from ..wheel.schema import Int64s


class DuePort(Protocol):
    """The part of ``wheel.dispatcher.Dispatcher`` that the hand uses."""

    def next_chunk(self, now_ms: int) -> Chunk | None: ...
    def next_topic_chunk(self, topic: str, now_ms: int) -> Chunk | None: ...
    def prepare_topic(self, topic: str) -> None: ...
    def has_to_read(self, topic: str, now_ms: int) -> bool: ...
    def large_topics(self) -> set[str]: ...
    def answer(
        self,
        chunk: Chunk,
        answered: npt.NDArray[np.bool_],
        dead: int = 0,
        *,
        expired: int = 0,
        unknown: npt.NDArray[np.bool_] | None = None,
        sink_down: bool = False,
    ) -> None: ...
    def after(
        self,
        chunk: Chunk,
        answered: npt.NDArray[np.bool_],
        dead: int = 0,
        *,
        expired: int = 0,
        sink_down: bool = False,
    ) -> Marks: ...
    @property
    def marks(self) -> Marks: ...
    @property
    def room(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def settle(self, now_ms: int) -> bool: ...
    def resume(
        self, now_ms: int, marks: Marks | None = None, *, exact: int, certain: bool = True
    ) -> None: ...
    def may_have_left(self) -> bool: ...
    def uncovered(self, topic: str, due: Int64s, offset: Int64s) -> npt.NDArray[np.bool_]: ...
    def answered_before(
        self,
        topic: str,
        due: Int64s,
        offset: Int64s,
        *,
        dead: bool = False,
        expired: bool = False,
    ) -> None: ...
    def mark_first(self, chunk: Chunk, now_ms: int) -> bool: ...
    def hold(self, topics: Iterable[str], now_ms: int) -> None: ...
    def held_topics(self) -> list[str]: ...
    def next_due_ms(self) -> int | None: ...
    def wait_for_due(self, until_ms: int | None, now_ms: int, timeout_s: float) -> None: ...


class DeliveryEvents:
    """Receives the events of the hand, and ignores them. Methods of subclasses are called in the
    hand's thread, and must return at once and not raise."""

    def delivered(self, lateness_ms: Int64s) -> None:
        """A sink accepted rows; ``lateness_ms`` has the lateness of each, shape (rows,)."""

    def dead(self, count: int, reason: str) -> None:
        """``count`` rows became dead letters."""

    def not_kept(self, count: int, reason: str) -> None:
        """``count`` rows left whose departure could not be kept."""

    def expired(self, count: int) -> None:
        """``count`` rows had expired when they would have been delivered."""

    def held(self, topic: str, reason: str) -> None:
        """A topic is held back from now on."""

    def set_aside(self, topic: str) -> None:
        """A topic has too many bytes in one slot: it is delivered beside the others."""

    def released(self, topic: str) -> None:
        """A topic that was held back, or set aside, has caught up."""

    def sink_down(self, reason: str) -> None:
        """The sink as a whole cannot be reached; delivery pauses."""

    def sink_up(self) -> None:
        """The sink can be reached again."""

    def alarm(self, name: str, **fields: object) -> None:
        """A person has to act; ``name`` is the kind of trouble, such as ``clock-behind``."""
