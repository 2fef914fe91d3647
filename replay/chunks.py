"""Order in a topic, as far as one task sees it.

Theory: rows of a partition must come in the order of their keys ``(due, offset)``. Where a
partition is read in several pieces, each piece (a chunk) says what the others need to know of it:
its highest key, and its lowest ones. A row is out of order if a key before it, in its own chunk or
in an earlier one, is higher; inside a chunk that is found here, at once.

Rules
- Only rows that were accepted well before they were due: others leave when they come.
- A row that is delivered twice comes out of order the second time. Who knows what was repeated
  leaves those out (``order.py``), so all of them are listed here, up to a limit.
- An embedded topic has one log, whatever partition a row asked for.

Source: DESIGN section 7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..wheel.schema import Int64s
from .facts import FORGED, Facts, Seen

IN_TIME_MS = 5_000
"""A row accepted so long before its due time was in its place when it was due."""
LOWEST_MAX = 4_096
OUT_OF_ORDER_MAX = 32_768
_OPEN_MAX = 4_096

Keys = npt.NDArray[np.int64]
"""Shape (n, 3): due, offset, position."""


@dataclass(slots=True)
class OrderChunk:
    """Rows of a partition that one task read, from position ``first`` to ``last``."""

    source: str
    """What positions are counted in: a peer's own topics, or Kafka's."""
    file: str
    topic: str
    partition: int
    first: int
    last: int
    due: int = -1
    offset: int = -1
    """Highest key."""
    lowest: list[list[int]] = field(default_factory=list)
    """The lowest keys as (due, offset, position), in order."""
    out: list[list[int]] = field(default_factory=list)
    """Rows out of order in the chunk itself: their due, offset and position, then due and offset of
    the highest key before them."""
    cut: int = 0
    """Rows out of order that are not listed."""

    def to_json(self) -> str:
        # Not ``asdict``, which copies every number of the lists.
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> OrderChunk:
        return cls(**json.loads(text))


CHUNK_SCHEMA = (
    "source string, topic string, partition int, first bigint, last bigint, due bigint,"
    " offset bigint"
)
"""What Spark needs of a chunk's JSON."""


class _Open:
    """A chunk that grows."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.highest = (-1, -1)
        self.lowest: Keys = np.empty((0, 3), np.int64)
        self.out: list[list[int]] = []
        self.cut = 0

    def add(self, keys: Keys) -> None:
        """Rows in the order of their positions, at least one."""
        due, offset = keys[:, 0], keys[:, 1]
        ascends = (due[1:] > due[:-1]) | ((due[1:] == due[:-1]) & (offset[1:] >= offset[:-1]))
        if ascends.all() and (int(due[0]), int(offset[0])) >= self.highest:
            self.highest = int(due[-1]), int(offset[-1])
            self.lowest = np.concatenate([self.lowest, keys[: LOWEST_MAX - len(self.lowest)]])
            return
        with_highest = np.concatenate([[(*self.highest, -1)], keys])
        order, rank = _ranks(with_highest)
        reached = np.maximum.accumulate(rank)
        late = np.flatnonzero(rank < reached)
        listed = late[: OUT_OF_ORDER_MAX - len(self.out)]
        by_rank = np.zeros(len(rank), np.int64)
        by_rank[rank[order]] = order
        before = with_highest[by_rank[reached[listed]], :2]
        self.out += np.concatenate([with_highest[listed], before], axis=1).tolist()
        self.cut += len(late) - len(listed)
        self.highest = tuple(with_highest[order[-1], :2].tolist())
        merged = np.concatenate([self.lowest, keys])
        self.lowest = merged[np.lexsort((merged[:, 1], merged[:, 0]))[:LOWEST_MAX]]


def _ranks(keys: Keys) -> tuple[Int64s, Int64s]:
    """The keys' order, and each one's rank; equal keys have equal ranks."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order, :2]
    steps = np.concatenate([[0], (ordered[1:] != ordered[:-1]).any(axis=1)])
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.cumsum(steps)
    return order, rank


class OrderTracker:
    """The order of what one task reads of one file or Kafka source. ``embedded``: a topic without
    partitions."""

    def __init__(self, source: str, file: str, *, embedded: bool) -> None:
        self._source = source
        self._file = file
        self._embedded = embedded
        self._open: dict[tuple[int, int], _Open] = {}
        self._names: dict[int, str] = {}

    def add(self, facts: Facts, names: dict[int, str]) -> Iterator[OrderChunk]:
        """Facts of delivered rows, each partition's in the order of positions; ``names``: topics by
        their CRCs. What is finished."""
        self._names.update(names)
        facts = facts[
            (facts["seen"] == Seen.DELIVERED)
            & (facts["flags"] & FORGED == 0)
            & (facts["created"] >= 0)
            & (facts["created"] + IN_TIME_MS < facts["due"])
        ]
        for topic, partition, keys in self._parts(facts):
            chunk = self._open.get((topic, partition))
            if chunk is not None and int(keys[0, 2]) <= chunk.last:
                # Read again from an earlier position: another piece.
                yield self._close(topic, partition)
                chunk = None
            if chunk is None:
                if len(self._open) >= _OPEN_MAX:
                    yield from self.close()
                chunk = self._open[topic, partition] = _Open(int(keys[0, 2]))
            chunk.add(keys)
            chunk.last = int(keys[-1, 2])

    def close(self) -> Iterator[OrderChunk]:
        for topic, partition in list(self._open):
            yield self._close(topic, partition)

    def _close(self, topic: int, partition: int) -> OrderChunk:
        chunk = self._open.pop((topic, partition))
        due, offset = chunk.highest
        return OrderChunk(
            self._source,
            self._file,
            self._names.get(topic, f"{topic:08x}"),
            partition,
            chunk.first,
            chunk.last,
            due,
            offset,
            chunk.lowest.tolist(),
            chunk.out,
            chunk.cut,
        )

    def _parts(self, facts: Facts) -> Iterator[tuple[int, int, Keys]]:
        if not len(facts):
            return
        keys = np.stack([facts["due"], facts["offset"], facts["where"]], axis=1)
        topics = facts["topic"].astype(np.int64)
        partitions = np.full(len(facts), -1) if self._embedded else facts["partition"]
        both = topics << 32 | (partitions.astype(np.int64) & 0xFFFF_FFFF)
        if (both == both[0]).all():
            yield int(topics[0]), int(partitions[0]), _in_order(keys)
            return
        order = np.argsort(both, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(both[order])) + 1).tolist(), len(order)]
        for start, end in pairwise(edges):
            at = order[start]
            yield int(topics[at]), int(partitions[at]), _in_order(keys[order[start:end]])


def _in_order(keys: Keys) -> Keys:
    """By position; usually they are."""
    positions = keys[:, 2]
    if (positions[1:] >= positions[:-1]).all():
        return keys
    return keys[np.argsort(positions, kind="stable")]
