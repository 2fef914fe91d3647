"""Follows topics, of Kafka or embedded ones: the rows that are new in each, again and again.

Rules
- A topic that is to be followed need not exist yet: it is looked for again and again.
- Nobody else feels it: no group, nothing committed, no topic made.
- A topic that is made anew is read from its first record. A broker whose metadata is not up to date
  may still name the old one: that is no third one, which would be read and counted once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from ...reading.events import RowsSeen
from ...reading.growing.parts import TopicPart, read_part
from ...reading.growing.positions import TopicAt
from ...reading.growing.topics import delivered_from, look_at_topic
from ...reading.problems import Problem
from ...wheel.schema import times
from .delivered import TopicRows

_BYTES_MAX = 32 << 20

TailRows = TopicRows | Problem


class Tails(Protocol):
    """Topics that are followed. ``Problem``: of a topic, ``file`` is its name."""

    at_end: bool
    """Whether the last ``read`` has read all that was there when it began."""

    def follow(self, topic: str, from_ms: int, *, whole: bool = False) -> None:
        """Follow a topic, too, with what it got from that time on; ``whole``: also with records
        that no wheel delivered, of which only the value is given."""

    def read(self) -> Iterator[TailRows]:
        """What is new. Errors: ``NodeUnreachable``."""

    def close(self) -> None: ...


class EmbeddedTails:
    def __init__(self, root: Path, wheel: str) -> None:
        self._root, self._wheel = root, wheel
        self.at_end = True
        self._at: dict[str, TopicAt | None] = {}
        self._since: dict[str, int] = {}

    def follow(self, topic: str, from_ms: int, *, whole: bool = False) -> None:  # noqa: ARG002
        if topic not in self._at:
            self._at[topic], self._since[topic] = None, from_ms

    def read(self) -> Iterator[TailRows]:
        self.at_end = True
        for topic, at in list(self._at.items()):
            start = at or self._first(topic)
            end, whole = look_at_topic(self._root, topic, start, nbytes=_BYTES_MAX)
            self.at_end &= whole
            self._at[topic] = end
            if end is None or end == start:
                continue
            part = TopicPart(0, self._root.name, str(self._root), topic, start, end)
            for event in read_part(part):
                if isinstance(event, RowsSeen):
                    yield self._rows(topic, event.rows)
                elif isinstance(event, Problem):
                    yield Problem(event.validator, event.kind, event.text, file=topic)

    def _rows(self, topic: str, rows: pa.RecordBatch) -> TopicRows:
        return TopicRows(
            topic=topic,
            partition=0,
            position=times(rows, "position"),
            due=times(rows, "due"),
            offset=times(rows, "offset"),
            created=times(rows, "created"),
            delivered=times(rows, "delivered"),
            headers=rows.column("headers"),
            value=rows.column("value"),
        )

    def _first(self, topic: str) -> TopicAt | None:
        """The first block from the time on; the end if there is none. None: there is no topic."""
        end = look_at_topic(self._root, topic, None)[0]  # first: what comes meanwhile is behind it
        return delivered_from(self._root, topic, self._since[topic]) or end

    def close(self) -> None:
        """Nothing is kept open."""
