"""What the hand asks of a wheel: what is due, and where to book the answers.

A ``Wheel`` fits, and so does the ``Master`` of one epoch: then nothing that a sink answers after
the epoch is lost can be booked in the next one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..wheel.due import Chunk


class DuePort(Protocol):
    """See ``wheel.master.Master`` for what each says."""

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
