"""Answers questions about messages from a store of events, a data directory, or both.

Rules
- The answer names what is missing (``Chain.missing``, ``problems``): without the store, a message
  that was processed looks as if it waited on its topic.
- A question about a time looks through ``EVENTS_MAX`` events and as many departures at most. With
  more it is refused, as half of them would give false figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta

from ...policy.deadletters import DEAD_LETTER_TOPIC, notes_topic
from ...policy.levels import check_order
from ...policy.parameters import Question
from ...policy.written import SPAN, Instant, TimeSpan, WayIn, Written
from ...reading.departures import DepartureReader
from ...reading.problems import Problem
from ...reading.search.fate import MessageFate, MessageState, find
from ...reading.search.pending import PendingReader
from ...reading.search.query import LIMIT, LIMIT_MAX
from ...reading.visible import MayTopic
from ...wheel.errors import InvalidConfiguration
from ..events import EVENT, OWN_TOPICS, STORED, EventKind
from ..store import TraceKey, TracePage, TraceQuery, TraceReader
from .anomalies import LIMITS, AnomalyLimits, anomalies
from .chain import Chain
from .departures import Departures
from .finding import find_chain
from .latency import EVENT_COLUMNS, Latency, latencies

_HOUR_MS = 3_600_000
EVENTS_MAX = 5_000_000
STORE_DIRECTORY = "trace"
"""The name of the store in a data directory, by default."""


def _read_place(text: str, _: WayIn) -> TraceKey | None:
    return TraceKey.parse(text) if text else None


class EventsQuery(TraceQuery, frozen=True):
    """Which events, and how many."""

    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT
    """Events of a page, or anomalies, at most."""
    page: Annotated[TraceKey, Written(_read_place, "PLACE")] | None = None
    """Go on behind an earlier page. `next` of that page."""


class TimeQuery(Question, frozen=True):
    """What happened in a time is asked for; by default in the last hour."""

    topic: str | None = None
    from_ms: Instant | None = None
    to_ms: Instant | None = None

    def between(self, now_ms: int) -> tuple[int, int]:
        """The begin, and the end, which is left out. Errors: ``InvalidConfiguration``: as of
        ``check_order``."""
        to_ms = now_ms if self.to_ms is None else self.to_ms
        from_ms = to_ms - _HOUR_MS if self.from_ms is None else self.from_ms
        check_order(from_ms, to_ms)
        return from_ms, to_ms


class LatencyQuery(TimeQuery, frozen=True):
    """How long each step took, for messages that are counted together."""

    interval_ms: Annotated[int, Meta(ge=1, lt=1 << 42), SPAN] = 60_000
    """For latency: messages due in so much time are counted together."""


class AnomalyQuery(TimeQuery, frozen=True):
    """From when on something is an anomaly."""

    late_ms: TimeSpan = LIMITS.late_ms
    backlog_ms: TimeSpan = LIMITS.backlog_ms
    stuck_ms: TimeSpan = LIMITS.stuck_ms
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT


@dataclass(frozen=True, slots=True)
class LatencyFound:
    """``problems``: what could not be read."""

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
    """``store``, ``data``: directories, or None. Not thread-safe."""

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

    def chain(
        self,
        message_id: str,
        now_ms: int,
        limits: AnomalyLimits = LIMITS,
        may: MayTopic | None = None,
    ) -> Chain:
        """The chain of a message. ``may``: as of ``find_chain``. Errors: ``UnknownId``: it has not
        the form of an id."""
        store = self._store if self._has_store() else None
        unread = self._own_topics | {self._dead_letter_topic}
        return find_chain(message_id, store, self._fates, now_ms, limits, unread, may)

    def _has_store(self) -> bool:
        # A gateway may make the directory later.
        return self._store_root is not None and self._store_root.is_dir()

    def _fates(self, ids: Sequence[str]) -> list[MessageFate]:
        if self._pending is None:
            why = "no data directory was given, so the wheel's files say nothing"
            return [MessageFate(message_id, MessageState.UNKNOWN, why) for message_id in ids]
        return find(self._pending, ids, self._dead_letter_topic)

    def page(self, query: EventsQuery, may: MayTopic | None = None) -> TracePage:
        """The events of a query. ``may``: as of ``TraceReader.page``. Errors:
        ``InvalidConfiguration``: there is no store."""
        return self._reader().page(query, query.page, query.limit, may=may)

    def latency(self, query: LatencyQuery, now_ms: int) -> LatencyFound:
        """Latency by events and departures of a time; without a topic, of all topics but
        slotwheel's own. Errors: ``InvalidConfiguration``: there is no store, or the time has too
        many rows; as of ``TimeQuery.between``."""
        between = query.between(now_ms)
        problems: list[Problem] = []
        events = list(self._events(EVENT_COLUMNS, *between, query.topic, problems))
        left = self._departures(*between, query.topic, problems)
        figures = latencies(events, left, query.interval_ms)
        if query.topic is None:
            figures = [figure for figure in figures if figure.topic not in self._own_topics]
        return LatencyFound(figures, tuple(problems))

    def anomalies(self, query: AnomalyQuery, now_ms: int) -> AnomaliesFound:
        """Anomalies of a time, with a topic also the gaps of all senders: missing events may be of
        that topic. Errors: as of ``latency``."""
        between = query.between(now_ms)
        problems: list[Problem] = []
        rows = self._events(EVENT.names, *between, query.topic, problems)
        schema = pa.schema([STORED.field(name) for name in EVENT.names])
        events = pa.Table.from_batches(rows, schema)
        left = self._departures(*between, query.topic, problems)
        limits = AnomalyLimits(query.late_ms, query.backlog_ms, query.stuck_ms)
        every = anomalies(events, left, now_ms, limits)
        counts = Counter(every.column("kind").to_pylist())
        first = every.slice(0, query.limit)
        return AnomaliesFound(first, dict(sorted(counts.items())), tuple(problems))

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
        for batch in self._reader().batches(columns, from_ms, to_ms):
            if isinstance(batch, Problem):
                problems.append(batch)
                continue
            count = _bounded(count + batch.num_rows, "events")
            yield _of_topic(batch, topic, pc.equal(batch.column("kind"), EventKind.DROPPED))

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
    """``others``: a mask of rows that may be of any topic, as those that say how many are
    missing."""
    if topic is None:
        return rows
    wanted = pc.fill_null(pc.equal(rows.column("topic"), topic), False)
    return rows.filter(wanted if others is None else pc.or_(wanted, others))


def _bounded(count: int, rows: str) -> int:
    if count > EVENTS_MAX:
        raise InvalidConfiguration(
            f"that time has too many {rows}",
            got=f"more than {EVENTS_MAX:,}",
            limit=f"{EVENTS_MAX:,}",
            remedy="Ask for one part of the time after the other, or let Spark do it",
        )
    return count
