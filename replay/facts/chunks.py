"""Order in a topic, as far as one task sees it.

Theory: rows of a partition must come in the order of their keys ``(due, offset)``. A row is out of
order if a key before it is higher: of the due times 10, 30, 20, 25, 40 those are 20 and 25. Where a
partition is read in several pieces (chunks), rows behind one of their own chunk are flagged here;
for the others each chunk has its highest and its lowest key (``behind.py``).

Rules
- Only rows that were accepted well before they were due are judged: others leave when they arrive.
- A row that is delivered twice is out of order the second time. Repeats are left out later
  (``order.py``); here all of them are marked.
- An embedded topic has one log, whatever partition a row asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...wheel.schema import Int64s, Mask
from .fact import FORGED, OUT_OF_ORDER, Facts, Seen

IN_TIME_MS = 5_000
"""A row that was accepted so long before its due time, ms, was in its place when it was due."""
NAMED_MAX = 100
"""Rows out of order of a chunk for which the key before them is kept."""
_OPEN_MAX = 4_096

Keys = npt.NDArray[np.int64]
"""Shape (n, 3): due, offset, position."""


@dataclass(slots=True)
class OrderChunk:
    """Rows of a partition that one task read, from position ``first`` to ``last``. Its size does
    not depend on the number of rows. Before the first row is added, all keys are -1."""

    source: str
    """The log that positions are of: a peer's embedded topics, or Kafka's."""
    number: int
    """``File.number``; ``file``: the file's name."""
    file: str
    crc: int
    """CRC-32C of the topic's name."""
    topic: str
    partition: int
    """-1: the topic has one log."""
    first: int
    last: int
    due: int = -1
    offset: int = -1
    """``due`` and ``offset`` are the highest key."""
    low_due: int = -1
    low_offset: int = -1
    """``low_due`` and ``low_offset`` are the lowest key."""
    late: int = 0
    """The number of rows that are out of order within the chunk."""
    named: list[list[int]] = field(default_factory=list)
    """The first of these: position, then due and offset of the highest key before it."""

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> OrderChunk:
        return cls(**json.loads(text))

    def add(self, keys: Keys) -> Int64s:
        """Add rows in the order of their positions, at least one. Returns which of them are out of
        order, as numbers of rows."""
        due, offset = keys[:, 0], keys[:, 1]
        highest = self.due, self.offset
        self.last = int(keys[-1, 2])
        ascends = (due[1:] > due[:-1]) | ((due[1:] == due[:-1]) & (offset[1:] >= offset[:-1]))
        if ascends.all() and (int(due[0]), int(offset[0])) >= highest:
            self._lowest(keys[0])
            self.due, self.offset = int(due[-1]), int(offset[-1])
            return np.zeros(0, np.int64)
        with_highest = np.concatenate([[(*highest, -1)], keys])
        order, rank = _ranks(with_highest)
        reached = np.maximum.accumulate(rank)
        late = np.flatnonzero(rank < reached)
        by_rank = np.zeros(len(rank), np.int64)
        by_rank[rank[order]] = order
        named = late[: NAMED_MAX - len(self.named)]
        before = with_highest[by_rank[reached[named]], :2]
        self.named += np.concatenate([with_highest[named, 2:], before], axis=1).tolist()
        self.late += len(late)
        self.due, self.offset = with_highest[order[-1], :2].tolist()
        self._lowest(keys[np.lexsort((offset, due))[0]])
        return late - 1

    def _lowest(self, key: Int64s) -> None:
        due, offset, _ = key.tolist()
        if self.low_due < 0 or (due, offset) < (self.low_due, self.low_offset):
            self.low_due, self.low_offset = due, offset


def _ranks(keys: Keys) -> tuple[Int64s, Int64s]:
    """The keys' order, and each one's rank; equal keys have equal ranks."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order, :2]
    steps = np.concatenate([[0], (ordered[1:] != ordered[:-1]).any(axis=1)])
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.cumsum(steps)
    return order, rank


def in_time(facts: Facts) -> Mask:
    """True for facts that are judged for order: delivered rows, accepted well before their time."""
    judged: Mask = (facts["seen"] == Seen.DELIVERED) & (facts["flags"] & FORGED == 0)
    return judged & well_before(facts["created"], facts["due"])


def well_before(created: Int64s, due: Int64s) -> Mask:
    mask: Mask = (created >= 0) & (created + IN_TIME_MS < due)
    return mask


class OrderTracker:
    """Finds rows out of order in what one task reads of a file or a Kafka source. ``embedded``:
    topics without partitions."""

    def __init__(self, source: str, number: int, file: str, *, embedded: bool) -> None:
        self._source = source
        self._number = number
        self._file = file
        self._embedded = embedded
        self._open: dict[tuple[int, int], OrderChunk] = {}

    def add(self, facts: Facts, names: dict[int, str]) -> Iterator[OrderChunk]:
        """Flag facts of delivered rows that are out of order; those of a partition come in the
        order of positions. ``names``: topics by their CRCs. Yields chunks that are finished."""
        judged = np.flatnonzero(in_time(facts))
        where = facts["where"][judged]
        if not (where[1:] >= where[:-1]).all():  # usually they are in the order of positions
            judged = judged[np.argsort(where, kind="stable")]
        for topic, partition, rows in self._parts(facts, judged):
            keys = np.stack([facts[name][rows] for name in ("due", "offset", "where")], axis=1)
            chunk = self._open.get((topic, partition))
            if chunk is not None and int(keys[0, 2]) <= chunk.last:
                # The same partition from an earlier position is another chunk.
                yield self._open.pop((topic, partition))
                chunk = None
            if chunk is None:
                if len(self._open) >= _OPEN_MAX:
                    yield from self.close()
                name, first = names.get(topic, f"{topic:08x}"), int(keys[0, 2])
                chunk = OrderChunk(
                    source=self._source,
                    number=self._number,
                    file=self._file,
                    crc=topic,
                    topic=name,
                    partition=partition,
                    first=first,
                    last=first,
                )
                self._open[topic, partition] = chunk
            facts["flags"][rows[chunk.add(keys)]] |= OUT_OF_ORDER

    def close(self) -> Iterator[OrderChunk]:
        chunks, self._open = self._open, {}
        yield from chunks.values()

    def _parts(self, facts: Facts, judged: Int64s) -> Iterator[tuple[int, int, Int64s]]:
        if not len(judged):
            return
        topics = facts["topic"][judged].astype(np.int64)
        none = np.full(len(judged), -1)
        partitions = none if self._embedded else facts["partition"][judged].astype(np.int64)
        both = topics << 32 | (partitions & 0xFFFF_FFFF)
        if (both == both[0]).all():
            yield int(topics[0]), int(partitions[0]), judged
            return
        order = np.argsort(both, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(both[order])) + 1).tolist(), len(order)]
        for start, end in pairwise(edges):
            at = order[start]
            yield int(topics[at]), int(partitions[at]), judged[order[start:end]]
