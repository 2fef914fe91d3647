"""The tails of topics: records that are new in each, again and again, from given starts on.

Theory: whoever makes something of a topic's records keeps the positions beside what was made, so
that both are as old after a crash. No group is needed for that, and none is joined: nobody else
feels it, nothing is committed, and no topic is made by reading it.

Rules, of embedded topics (``growing/tails.py``) and those of Kafka (``kafka/tails.py``)
- A topic that does not exist yet is looked for again and again.
- Positions are of a *source*: a topic that was made anew, or one of another Kafka, is another
  source under the same name, and is read from its begin. So is one whose end a position is behind;
  otherwise a store with position 1000 would wait for record 1000 of a topic that has 12.
- What was deleted before it was read, or is damaged, is a ``Problem`` with the topic as its file,
  and what follows is read.
- Memory is bounded, however far behind a reader is: rows come batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from .problems import Problem


@dataclass(frozen=True, slots=True)
class TailStart:
    """Where a topic is followed from: what it got from a time on, or positions."""

    from_ms: int | None = None
    """Time in ms since the epoch; None: ``positions`` say it."""
    positions: Mapping[int, int] = field(default_factory=dict)
    """Position of the next record by partition; a partition without one is read from its begin."""
    source: str = ""
    """The source that ``positions`` are of; empty: whichever has the name."""
    earlier: bool = True
    """Whether records are missed that Kafka had deleted before the first look. A reader that wants
    only what comes from now on does not miss them."""


@dataclass(frozen=True, slots=True)
class TailRows:
    """Consecutive rows of one partition, among them ``position`` and ``value``. ``rows``: of an
    embedded topic, whose partition is 0, in its own schema; of Kafka's in the schema ``DUMP``.
    ``source``: of the rows, by cluster and topic id; empty: not known, and of embedded topics."""

    topic: str
    partition: int
    rows: pa.RecordBatch
    source: str = ""


class TopicTails(Protocol):
    """Not thread-safe."""

    at_end: bool
    """Whether the last ``read`` has read all that was there when it began."""

    def follow(self, topic: str, start: TailStart) -> None:
        """Follow a topic, too; nothing changes for one that is followed already."""

    def read(self, wait_s: float = 0.0) -> Iterator[TailRows | Problem]:
        """The rows that are new; where there are none, those that come within ``wait_s``, in
        seconds. It has to be read to its end: rows that nobody took would not come again. Errors:
        ``NodeUnreachable``; the next call goes on behind the rows that were given."""

    def lag(self) -> int:
        """How many positions are not read yet. Errors: ``NodeUnreachable``."""

    def close(self) -> None: ...
