"""The tails of embedded topics, as ``reading/tailing.py`` has them.

A topic is read up to where its index reaches, block by block with its checksum; so a damaged block
is named and those behind it are read. A topic that was deleted is another one when it comes again:
read on at the old position, its first records would be passed over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ...wheel.schema import times
from ...wheel.topics.topicfile import TOPICS_DIRECTORY
from ..events import RowsSeen
from ..listing import topic_segments
from ..problems import INTEGRITY, Problem
from ..tailing import TailRows, TailStart
from .parts import TopicPart, read_part
from .positions import TopicAt
from .topics import block_at, delivered_from, look_at_topic, was_deleted

_BYTES_MAX = 32 << 20
"""So much of a topic is read at once, until another one has its turn."""
_LOOK_EVERY_S = 0.05


class EmbeddedTails:
    """``root``: the data directory, which exists."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.at_end = True
        self._starts: dict[str, TailStart] = {}
        self._next: dict[str, TopicAt] = {}

    def follow(self, topic: str, start: TailStart) -> None:
        self._starts.setdefault(topic, start)

    def read(self, wait_s: float = 0.0) -> Iterator[TailRows | Problem]:
        deadline = time.monotonic() + wait_s
        while True:
            nothing = True
            for new in self._read():
                nothing = False
                yield new
            left_s = deadline - time.monotonic()
            if not nothing or left_s <= 0:
                return
            time.sleep(min(_LOOK_EVERY_S, left_s))

    def _read(self) -> Iterator[TailRows | Problem]:
        self.at_end = True
        for topic in list(self._starts):
            known = self._next.get(topic)
            if known is not None and was_deleted(self._root, topic, known):
                del self._next[topic]
                self._starts[topic] = TailStart()
                text = "the topic was deleted; records that were not read yet are gone"
                yield Problem(INTEGRITY, "gap", text, file=topic)
            start = self._begin(topic)
            if start is None:
                continue
            end, whole = look_at_topic(self._root, topic, start, nbytes=_BYTES_MAX)
            assert end is not None
            self.at_end &= whole
            self._next[topic] = end
            if end == start:
                continue
            part = TopicPart(0, self._root.name, str(self._root), topic, start, end)
            for event in read_part(part):
                if isinstance(event, RowsSeen):
                    # A start may be in the middle of a block.
                    first = int((times(event.rows, "position") < start.position).sum())
                    yield TailRows(topic, 0, event.rows.slice(first))
                elif isinstance(event, Problem):
                    yield Problem(event.validator, event.kind, event.text, file=topic)

    def _begin(self, topic: str) -> TopicAt | None:
        """Where reading goes on; None: there is no such topic."""
        if topic in self._next:
            return self._next[topic]
        segments = topic_segments(self._root / TOPICS_DIRECTORY / topic)
        if not segments:
            if self._starts[topic].from_ms is None:  # positions are of another topic, then
                self._starts[topic] = TailStart()
            return None
        first = TopicAt(segments[0], position=segments[0])
        end, _ = look_at_topic(self._root, topic, first)  # before: what comes meanwhile is behind
        assert end is not None
        start = self._starts[topic]
        if start.from_ms is not None:
            return delivered_from(self._root, topic, start.from_ms) or end
        position = start.positions.get(0, 0)
        if position == end.position:
            return end
        return block_at(self._root, topic, position) or first

    def lag(self) -> int:
        positions = 0
        for topic in self._starts:
            start = self._begin(topic)
            if start is not None:
                end, _ = look_at_topic(self._root, topic, start)
                assert end is not None
                positions += max(0, end.position - start.position)
        return positions

    def close(self) -> None:
        """Nothing is kept open."""
