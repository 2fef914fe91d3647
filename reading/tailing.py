"""Reads one topic from known positions on, for as long as somebody asks: its *tail*.

Theory: whoever makes something of a topic's records keeps the positions beside what it made, so
that both are as old after a crash. No group is needed for that, and none is joined.

Rules
- A topic that is not there yet has nothing new; nobody creates it by reading it.
- Positions are of a *source*: a topic that was made anew, or one of another Kafka, is another
  source under the same name, and is read from its begin. So is one whose end a position is behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from ..wheel.files import OsFiles
from ..wheel.schema import times
from .topicreader import TopicReader, extent

_LOOK_EVERY_S = 0.05


class TailRecord(NamedTuple):
    """``next_position``: of the record behind it. ``timestamp_ms``: of an embedded topic, when the
    message was due."""

    partition: int
    next_position: int
    value: bytes | None
    timestamp_ms: int


class TopicTail(Protocol):
    """Not thread-safe."""

    source: str
    """What the records of the last ``read`` are of, by cluster and topic id; empty: not known."""

    def read(self, timeout_s: float) -> list[TailRecord]:
        """The next records; none where nothing has come for so long. Errors: ``Damaged``,
        ``NodeUnreachable``, ``OSError``."""

    def lag(self) -> int:
        """How many positions of the topic are not read yet."""

    def close(self) -> None: ...


class EmbeddedTail:
    """Of an embedded topic, which has one partition, 0. ``root``: the data directory, which is
    there; ``on_damage``: is told which positions are skipped as damaged."""

    source = ""

    def __init__(
        self,
        root: Path | str,
        topic: str,
        positions: Mapping[int, int],
        on_damage: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._files = OsFiles(root)
        self._topic = topic
        position = positions.get(0, 0)
        _, end = extent(self._files, topic) or (0, 0)
        self._reader = TopicReader(
            self._files, topic, position if position <= end else 0, on_damage
        )

    def read(self, timeout_s: float) -> list[TailRecord]:
        deadline = time.monotonic() + timeout_s
        while (batch := self._reader.read()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return []
            time.sleep(min(_LOOK_EVERY_S, left_s))
        first = self._reader.position - batch.num_rows
        rows = zip(batch.column("value").to_pylist(), times(batch, "due").tolist(), strict=True)
        return [
            TailRecord(0, next_position, value, due)
            for next_position, (value, due) in enumerate(rows, first + 1)
        ]

    def lag(self) -> int:
        _, end = extent(self._files, self._topic) or (0, 0)
        return max(0, end - self._reader.position)

    def close(self) -> None:
        self._reader.close()
        self._files.close()
