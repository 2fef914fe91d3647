"""Events of a trace store as facts: what clients sent and what consumers answered for.

Positions that groups have committed, and which events are missing, are no facts of one message:
they come as a ``TraceSummary``. A sender numbers its events, so a number that is not there is an
event that is missing: a message that it may have been about is not known to be unanswered.

Rules
- What has an id of another group, or one that this group's key did not make, is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...trace.events import EventKind
from ...wheel.digest import key_hashes, topic_crcs
from ...wheel.schema import times
from .fact import BURIED, FACT, NO_DIGEST, Facts, Seen
from .making import FactBatch, GroupTerms, names_of

SENDERS_MAX = 10_000
"""Senders that are known, the last that were seen."""
RANGES_MAX = 64
"""Ranges of numbers of one sender that are known, the newest. All gaps between older ones become
one gap before the first of these."""
LATER_MS = 500
"""Events of one sender that lie so close together, ms, may have numbers in another order."""
READINGS_MAX = 10_000
"""Pairs of a group and a topic that are known; events of further ones do not count."""
_ANSWERS = pa.array([EventKind.PROCESSED, EventKind.DEAD])
_OF_GROUPS = pa.array([EventKind.PROCESSED, EventKind.DEAD, EventKind.COMMITTED])
_NO_FILE = 0xFFFF_FFFF


@dataclass(slots=True)
class GroupReading:
    """How far a group of consumers is with a topic. ``since_ms``: the time of its first event;
    ``committed``: the position up to which it is done, by partition (as text, for JSON)."""

    group: str
    topic: str
    since_ms: int
    committed: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class SenderSeen:
    """One sender. ``ranges``: ascending and apart, each the first and the last number of its
    events, and when the first of these had ended, ms; ``groups``: of the consumers in it."""

    ranges: list[list[int]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    @property
    def missing_ms(self) -> int:
        """The time by which all missing events had happened; -1: none is missing between the
        sender's events, nor before the first of them."""
        behind = [ms for number, (first, _, ms) in enumerate(self.ranges) if number or first > 0]
        return max(behind, default=-1 - LATER_MS) + LATER_MS

    def add(self, other: SenderSeen) -> None:
        self.ranges = _united([*self.ranges, *other.ranges])
        self.groups = sorted({*self.groups, *other.groups})


@dataclass(slots=True)
class TraceSummary:
    """What events say of groups of consumers, and which of them are missing. ``readings``: by group
    and topic. ``dropped_ms``: when a sender last had to drop events; -1: never. ``unread_ms``: what
    happened up to then may stand in a segment that is missing or damaged; -1: none is. ``own``,
    ``foreign``: the number of events of this wheel's messages, and of others."""

    readings: dict[str, GroupReading] = field(default_factory=dict)
    dropped_ms: int = -1
    unread_ms: int = -1
    own: int = 0
    foreign: int = 0
    senders: dict[str, SenderSeen] = field(default_factory=dict)

    def missing_ms(self, group: str | None = None) -> int:
        """The time up to which events of a group of consumers (None: of any program) may be
        missing; -1: none are."""
        times_ms = [
            sender.missing_ms
            for sender in self.senders.values()
            if group is None or not sender.groups or group in sender.groups
        ]
        return max(self.dropped_ms, self.unread_ms, *times_ms, -1)

    @property
    def is_foreign(self) -> bool:
        """True if all of it is about another wheel: its groups' positions are in other topics."""
        return not self.own and self.foreign > 0

    @property
    def incomplete(self) -> int:
        """The number of senders of which events are missing."""
        return sum(sender.missing_ms >= 0 for sender in self.senders.values())

    def add(self, other: TraceSummary) -> None:
        self.dropped_ms = max(self.dropped_ms, other.dropped_ms)
        self.unread_ms = max(self.unread_ms, other.unread_ms)
        self.own += other.own
        self.foreign += other.foreign
        for name, seen in other.senders.items():
            if name in self.senders:
                self.senders[name].add(seen)
            else:
                self.senders[name] = seen
        while len(self.senders) > SENDERS_MAX:
            self.senders.pop(next(iter(self.senders)))
        for key, reading in other.readings.items():
            known = self.readings.get(key)
            if known is None:
                if len(self.readings) < READINGS_MAX:
                    self.readings[key] = reading
                continue
            known.since_ms = min(known.since_ms, reading.since_ms)
            for partition, position in reading.committed.items():
                known.committed[partition] = max(known.committed.get(partition, -1), position)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> TraceSummary:
        """From the value of ``to_json``."""
        summary = cls(**fields)  # type: ignore[arg-type]
        readings = summary.readings.items()
        summary.readings = {key: GroupReading(**values) for key, values in readings}  # type: ignore[arg-type]
        senders = summary.senders.items()
        summary.senders = {name: SenderSeen(**values) for name, values in senders}  # type: ignore[arg-type]
        return summary

    def by_group(self) -> Iterator[tuple[str, list[GroupReading]]]:
        groups: dict[str, list[GroupReading]] = {}
        if self.is_foreign:
            return
        for reading in self.readings.values():
            groups.setdefault(reading.group, []).append(reading)
        yield from sorted(groups.items())


def event_facts(batch: pa.RecordBatch, terms: GroupTerms) -> FactBatch:
    """Facts of events (schema ``STORED``)."""
    kind = batch.column("kind")
    produced = pc.and_(pc.equal(kind, EventKind.PRODUCED), pc.is_null(batch.column("error")))
    wanted = pc.or_(produced, pc.is_in(kind, _ANSWERS))
    rows = batch.filter(pc.and_(wanted, batch.column("id").is_valid()))
    ids = pa.RecordBatch.from_struct_array(rows.column("id"))
    due, offset = times(ids, "due"), times(ids, "offset")
    check = np.asarray(ids.column("check"))
    own = np.asarray(pc.equal(ids.column("group"), terms.group)) & ~terms.forged(due, offset, check)
    own &= (offset >= 0) & (due >= 0)
    rows = rows.filter(pa.array(own))
    sent = np.asarray(pc.equal(rows.column("kind"), EventKind.PRODUCED))
    facts = np.zeros(rows.num_rows, FACT)
    facts["offset"], facts["due"], facts["at"] = offset[own], due[own], times(rows, "at")
    facts["created"] = np.where(sent, -1, topic_crcs(rows.column("group")).astype(np.int64))
    facts["where"] = key_hashes(rows.column("sender").cast(pa.utf8())).view(np.int64)
    facts["digest"] = times(rows, "number").view(np.uint64)
    facts["topic"] = topic_crcs(rows.column("topic"))
    facts["partition"], facts["file"], facts["peer"] = -1, _NO_FILE, 0xFFFF
    facts["seen"] = np.where(sent, Seen.PRODUCED, Seen.CONSUMED)
    buried = np.asarray(pc.equal(rows.column("kind"), EventKind.DEAD))
    facts["flags"] = np.where(buried, NO_DIGEST | BURIED, NO_DIGEST)
    foreign = int((~own).sum())
    return FactBatch(facts, names_of(rows.column("topic")), foreign=foreign)


def summary_of(batch: pa.RecordBatch) -> TraceSummary:
    """Sum up what events (schema ``STORED``) say of groups, and which events are missing."""
    summary = TraceSummary(senders=_senders(batch))
    kind = batch.column("kind")
    dropped = batch.filter(pc.equal(kind, EventKind.DROPPED))
    if dropped.num_rows:
        summary.dropped_ms = int(times(dropped, "at").max())
    known = pc.and_(batch.column("group").is_valid(), batch.column("topic").is_valid())
    rows = batch.filter(pc.and_(known, pc.is_in(kind, _OF_GROUPS)))
    columns = {name: rows.column(name) for name in ("group", "topic")}
    moved = pc.equal(rows.column("kind"), EventKind.COMMITTED)
    none = pa.scalar(None, pa.int64())
    columns["position"] = pc.if_else(moved, rows.column("offset"), none)
    columns["partition"] = pc.fill_null(rows.column("partition"), 0)
    columns["at"] = rows.column("at").cast(pa.int64())
    by = pa.table(columns).group_by(["group", "topic", "partition"], use_threads=False)
    for row in by.aggregate([("position", "max"), ("at", "min")]).to_pylist():
        committed = {}
        if row["position_max"] is not None:
            committed[str(row["partition"])] = row["position_max"]
        reading = GroupReading(row["group"], row["topic"], row["at_min"], committed)
        key = json.dumps([row["group"], row["topic"]])
        summary.add(TraceSummary({key: reading}))
    return summary


def _senders(batch: pa.RecordBatch) -> dict[str, SenderSeen]:
    took_ms = pc.fill_null(batch.column("took_us"), 0).cast(pa.int64())
    ended = times(batch, "at") + np.asarray(took_ms) // 1000
    number, column = times(batch, "number"), batch.column("sender")
    senders = {}
    for name in column.unique().to_pylist():
        of_sender = pc.equal(column.cast(pa.utf8()), name)
        mask = np.asarray(of_sender)
        rows = np.stack([number[mask], number[mask], ended[mask]], axis=1)
        groups = batch.column("group").filter(of_sender).drop_null().unique().to_pylist()
        senders[name] = SenderSeen(_united(rows.tolist()), sorted(groups))
    return senders


def _united(ranges: list[list[int]]) -> list[list[int]]:
    """Ranges in any order as ascending ranges that do not touch, the newest ``RANGES_MAX``."""
    rows = np.array(ranges, np.int64).reshape(-1, 3)
    rows = rows[np.lexsort((rows[:, 2], rows[:, 0]))]
    if not len(rows):
        return []
    ends = np.maximum.accumulate(rows[:, 1])
    begins = np.concatenate([[0], np.flatnonzero(rows[1:, 0] > ends[:-1] + 1) + 1])
    lasts = ends[np.concatenate([begins[1:] - 1, [len(rows) - 1]])]
    united = np.stack([rows[begins, 0], lasts, rows[begins, 2]], axis=1)
    newest: list[list[int]] = united[-RANGES_MAX:].tolist()
    return newest


def distinct_events(facts: Facts) -> Facts:
    """Facts with each event once, behind all others: a store may be read twice where segments were
    merged, and what is answered for once would be called repeated."""
    is_event = (facts["seen"] == Seen.PRODUCED) | (facts["seen"] == Seen.CONSUMED)
    if not is_event.any():
        return facts
    events = facts[is_event]
    keys = [events[name] for name in ("digest", "where", "created", "seen", "offset")]
    order = np.lexsort(keys)
    again = np.zeros(len(events), np.bool_)
    again[order[1:]] = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    return np.concatenate([facts[~is_event], events[~again]])
