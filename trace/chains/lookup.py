"""Answers questions about messages: of a store of events, of a data directory, or of both.

Rules
- What one of the two could say, and is not there, is named in the answer (``Chain.missing``,
  ``problems``).
- A question about a time looks through ``EVENTS_MAX`` events and as many departures at most. With
  more it is refused, as half of them would give false figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ...policy.deadletters import DEAD_LETTER_TOPIC, notes_topic
from ...reading.departures import DepartureReader
from ...reading.problems import Problem
from ...search.fate import MessageFate, MessageState, find
from ...search.pending import PendingReader
from ...search.query import check_order
from ...wheel.errors import InvalidConfiguration
from ..events import EVENT, OWN_TOPICS, STORED, EventKind
from ..store import TraceKey, TracePage, TraceQuery, TraceReader
from .anomalies import LIMITS, AnomalyLimits, anomalies
from .chain import Chain
from .departures import Departures
from .finding import find_chain
from .latency import EVENT_COLUMNS, Latency, latencies

EVENTS_MAX = 5_000_000
LIMIT = 100
STORE_DIRECTORY = "trace"
"""In the data directory, if nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class LatencyFound:
    """``problems``: what kept it from being complete."""

    latencies: list[Latency]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class AnomaliesFound:
    """``rows``: the first ones, schema ``ANOMALY``, in the order of time; ``counts``: of all, by
    kind."""

    rows: pa.Table
    counts: Mapping[str, int]
    problems: tuple[Problem, ...]


class TraceLookup:
    """``store``, ``data``: directories, None: there is none. Not thread-safe."""

    def __init__(
        self, store: Path | None, data: Path | None, dead_letter_topic: str = DEAD_LETTER_TOPIC
    ) -> None:
        """Errors: ``InvalidConfiguration``: neither is given; as of ``PendingReader``."""
        if store is None and data is None:
            raise InvalidConfiguration(
                "no place to look at", remedy="Give a data directory, or a store of events"
            )
        self._data = data
        self._dead_letter_topic = dead_letter_topic
        self._own_topics = OWN_TOPICS | {notes_topic(dead_letter_topic)}
        self._store = None if store is None else TraceReader(store)
        self._store_root = store
        self._closing = ExitStack()
        self._pending: PendingReader | None = None
        if data is not None:
            self._pending = self._closing.enter_context(PendingReader(data))

    def __enter__(self) -> TraceLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.close()

    def chain(self, message_id: str, now_ms: int, limits: AnomalyLimits = LIMITS) -> Chain:
        """Errors: ``UnknownId``: it has not the form of an id."""
        store = self._store if self._has_store() else None
        unread = self._own_topics | {self._dead_letter_topic}
        return find_chain(message_id, store, self._fates, now_ms, limits, unread)

    def _has_store(self) -> bool:
        """A gateway may make it later."""
        return self._store_root is not None and self._store_root.is_dir()

    def _fates(self, ids: Sequence[str]) -> list[MessageFate]:
        if self._pending is None:
            why = "no data directory was given, so the wheel's files say nothing"
            return [MessageFate(one, MessageState.UNKNOWN, why) for one in ids]
        return find(self._pending, ids, self._dead_letter_topic)

    def page(
        self, query: TraceQuery, after: TraceKey | None = None, limit: int = LIMIT
    ) -> TracePage:
        """Errors: ``InvalidConfiguration``: there is no store; as of ``check_order``."""
        check_order(query.from_ms, query.to_ms)
        return self._reader().page(query, after, limit)

    def latency(
        self, interval_ms: int, from_ms: int, to_ms: int, topic: str | None = None
    ) -> LatencyFound:
        """Latency by events and departures of that time; without a ``topic``, of all topics but
        slotwheel's own.
        Errors: ``InvalidConfiguration``: there is no store; it would look through too much; as of
        ``check_order``."""
        check_order(from_ms, to_ms)
        problems: list[Problem] = []
        events = list(self._events(EVENT_COLUMNS, from_ms, to_ms, topic, problems))
        left = self._departures(from_ms, to_ms, topic, problems)
        found = latencies(events, left, interval_ms)
        if topic is None:
            found = [one for one in found if one.topic not in self._own_topics]
        return LatencyFound(found, tuple(problems))

    def anomalies(
        self,
        from_ms: int,
        to_ms: int,
        now_ms: int,
        *,
        topic: str | None = None,
        limits: AnomalyLimits = LIMITS,
        limit: int = LIMIT,
    ) -> AnomaliesFound:
        """Likewise; ``limit``: so many of them at most. With a ``topic`` the gaps of all senders,
        too: what is missing may be of that topic."""
        check_order(from_ms, to_ms)
        problems: list[Problem] = []
        rows = self._events(EVENT.names, from_ms, to_ms, topic, problems)
        schema = pa.schema([STORED.field(name) for name in EVENT.names])
        events = pa.Table.from_batches(rows, schema)
        left = self._departures(from_ms, to_ms, topic, problems)
        found = anomalies(events, left, now_ms, limits)
        counts = Counter(found.column("kind").to_pylist())
        return AnomaliesFound(found.slice(0, limit), dict(sorted(counts.items())), tuple(problems))

    def _reader(self) -> TraceReader:
        if self._store is None or not self._has_store():
            raise InvalidConfiguration(
                "there is no store of events",
                got=None if self._store_root is None else str(self._store_root),
                remedy="Give the directory where a gateway keeps them",
            )
        return self._store

    def _events(
        self,
        columns: Sequence[str],
        from_ms: int,
        to_ms: int,
        topic: str | None,
        problems: list[Problem],
    ) -> Iterator[pa.RecordBatch]:
        count = 0
        for found in self._reader().batches(columns, from_ms, to_ms):
            if isinstance(found, Problem):
                problems.append(found)
                continue
            count = _bounded(count + found.num_rows, "events")
            yield _of_topic(found, topic, pc.equal(found.column("kind"), EventKind.DROPPED))

    def _departures(
        self, from_ms: int, to_ms: int, topic: str | None, problems: list[Problem]
    ) -> Departures:
        if self._data is None or self._pending is None:
            return Departures()
        reader = DepartureReader(self._data)
        rows = list(self._left(reader.batches(from_ms, to_ms), topic))
        problems += reader.problems
        mint = self._pending.view().mint
        return Departures(mint.group, rows, mint)

    def _left(
        self, batches: Iterable[pa.RecordBatch], topic: str | None
    ) -> Iterator[pa.RecordBatch]:
        count = 0
        for batch in batches:
            count = _bounded(count + batch.num_rows, "departures")
            yield _of_topic(batch, topic)


def _of_topic(
    rows: pa.RecordBatch, topic: str | None, others: pa.Array | None = None
) -> pa.RecordBatch:
    """``others``: which rows may be of any topic, as those that say how many are missing."""
    if topic is None:
        return rows
    wanted = pc.fill_null(pc.equal(rows.column("topic"), topic), False)
    return rows.filter(wanted if others is None else pc.or_(wanted, others))


def _bounded(count: int, what: str) -> int:
    """Errors: ``InvalidConfiguration``."""
    if count > EVENTS_MAX:
        raise InvalidConfiguration(
            f"that time has too many {what}",
            got=f"more than {EVENTS_MAX:,}",
            limit=f"{EVENTS_MAX:,}",
            remedy="Ask for one part of the time after the other, or let Spark do it",
        )
    return count
