"""The demo's proof: the sent messages, by the receipts alone, against the topics' files.

Pure arithmetic over arrays, so that a test can plant each violation. A message is identified by its
number, which is in its value; offset and due time must be those of its receipt.

Lateness is ``delivered - max(due, created)``. Messages that had to wait because no node delivered
are counted apart: they arrived after a kill and were ready before its backlog was gone. For
example, deliveries end at 10.0 s, begin again at 12.0 s, and have caught up at 12.3 s: a message
that is due at 12.1 s has waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...wheel.schema import Int64s, Mask


@dataclass(frozen=True, slots=True)
class Promises:
    """The receipts of messages and the answers to their cancels, by number, shape (messages,).
    ``offset`` -1: no receipt."""

    due: Int64s
    offset: Int64s
    cancelled: Mask
    """Messages whose cancel was answered with "cancelled"."""
    uncertain: Mask
    """Messages whose cancel got no certain answer: they may have arrived, or not."""
    kept: Mask
    """Messages that are due long after the demo: they must not have arrived."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The records in the topics, one entry each; times in ms."""

    number: Int64s
    offset: Int64s
    due: Int64s
    created: Int64s
    delivered: Int64s


@dataclass(frozen=True, slots=True)
class Outage:
    """No node delivered between these two times, ms since the epoch, as ``killed`` was dead."""

    killed_ms: int
    ready_ms: int
    killed: str = ""

    @property
    def seconds(self) -> float:
        return (self.ready_ms - self.killed_ms) / 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """Lateness of ``count`` messages, ms; -1 when there is none."""

    count: int = 0
    p50: float = -1
    p99: float = -1
    max: float = -1

    @classmethod
    def of(cls, lateness: Int64s) -> Spread:
        if not len(lateness):
            return cls()
        p50, p99 = (float(value) for value in np.percentile(lateness, [50, 99]))
        return cls(len(lateness), p50, p99, float(lateness.max()))


@dataclass(slots=True)
class Proof:
    sent: int
    kept: int
    refused: int
    delivered: int
    """Different messages that arrived."""
    repeated: int
    """Arrivals beyond the first of a message."""
    cancelled: int
    early: int
    lost: int
    cancelled_but_delivered: int
    foreign: int
    """Arrivals that were never sent, or with another id or due time than the receipt has."""
    lateness: Spread = field(default_factory=Spread)
    waited: Spread = field(default_factory=Spread)
    """Lateness of messages that had to wait because no node delivered."""

    @property
    def holds(self) -> bool:
        return not (self.early or self.lost or self.cancelled_but_delivered or self.foreign)


def prove(sent: Promises, arrived: Arrivals, outages: Sequence[Outage]) -> Proof:
    """Compare arrivals, in any order, with the sent messages."""
    total = len(sent.due)
    is_known = (arrived.number >= 0) & (arrived.number < total)
    number = arrived.number[is_known]
    matches = (arrived.due[is_known] == sent.due[number]) & (
        (arrived.offset[is_known] == sent.offset[number]) | (sent.offset[number] < 0)
    )
    arrivals = np.bincount(number, minlength=total)
    promised = (sent.offset >= 0) & ~sent.cancelled & ~sent.uncertain & ~sent.kept
    proof = Proof(
        sent=total,
        kept=int(np.count_nonzero(sent.kept)),
        refused=int(np.count_nonzero(sent.offset < 0)),
        delivered=int(np.count_nonzero(arrivals)),
        repeated=int(np.sum(arrivals[arrivals > 1] - 1)),
        cancelled=int(np.count_nonzero(sent.cancelled)),
        early=int(np.count_nonzero(arrived.delivered < arrived.due)),
        lost=int(np.count_nonzero(promised & (arrivals == 0))),
        cancelled_but_delivered=int(np.count_nonzero(sent.cancelled & (arrivals > 0))),
        foreign=int(np.count_nonzero(~is_known) + np.count_nonzero(~matches)),
    )
    first = _first_arrivals(arrived)
    ready = np.maximum(arrived.due, arrived.created)[first]
    delivered = arrived.delivered[first]
    in_outage = np.zeros(len(delivered), np.bool_)
    for outage in outages:
        waited = delivered > outage.killed_ms
        backlog = delivered[waited & (ready <= outage.ready_ms)]
        backlog_end_ms = int(backlog.max()) if len(backlog) else outage.ready_ms
        in_outage |= waited & (ready <= backlog_end_ms)
    proof.lateness = Spread.of((delivered - ready)[~in_outage])
    proof.waited = Spread.of((delivered - ready)[in_outage])
    return proof


def _first_arrivals(arrived: Arrivals) -> Int64s:
    """The row of each message's first arrival."""
    order = np.lexsort((arrived.delivered, arrived.number))
    first = np.unique(arrived.number[order], return_index=True)[1]
    return order[first].astype(np.int64)
