"""Kafka delay topics: all their partitions, each read exactly once into the journal.

Theory: the wheel's own log has the position of each source (an append carries the last offset that
it took from the source, and both are committed as one entry). So reading always goes on behind that
position, after a start, a failure or a doubt. The offsets stored in Kafka show the lag to Kafka's
tools, and an empty directory begins by them.

    position of the log -> read -> poll -> same topic still? -> rows (or dead letters) -> append
          ^                                                                                 |
          +----- any failure of one source: its reason is shown, back off, begin again -----+

Rules
- One thread and one reader for all sources. Records of a poll are appended source by source
  (``SourceAppender``).
- A problem of one source (no rights, no leader, a codec that is missing, an offset that is gone)
  stops that source only, and makes the node not ready.
- Records are appended only if the topic id is the same after the poll as before the reading began:
  otherwise records of a topic made anew would be taken for those of the old one, and skipped.
- The group agrees on the begin of a source before it is stored in Kafka: a master that finds it
  stored and not agreed would decide by it, and perhaps not as this one did. A source is read only
  after that, so that an empty directory can trust that a source without a stored offset was never
  read.
- A source that has been silent for ``SILENT_CHECKS`` counts as not read, though its client reports
  no error: its leader may answer nobody while all others do.
- While the group is emptied (``slotwheel drain``) nothing is read: in a fleet the other wheels get
  its partitions.
- No exception ends the loop: one bad topic would stop all others for good.
- In a fleet (``fleet.py``) a source is one that the group gave to this wheel, begins anew
  after each sharing, and has its position stored after each append: whoever is given it next begins
  there.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from ...broker.sources import (
    MADE_ANEW,
    MISSED,
    Begin,
    KnownTopic,
    Note,
    NotKnown,
    Place,
    SourceTable,
    StoredOffset,
    Unread,
    as_seen,
    ranges,
    selected,
)
from ...policy.deadletters import DEAD_LETTER_TOPIC
from ...security.principals import Authenticator
from ...wheel.backoff import Backoff
from ...wheel.errors import NotMaster, NotRunning
from ...wheel.texts import counted
from .agreeing import agree
from .appending import ClockInDoubt, SourceAppender
from .beginning import NO_RANGE, decide_begins
from .delay_source import DelaySource, SourceState
from .door import Door
from .fleet import FleetLost, FleetMember, FleetName, FleetPlace, FleetState, disturbance
from .ports import Clock, IntakeEvents, PoliciesPort, WheelPort
from .source_reader import (
    EARLIEST_AT,
    END_AT,
    DescribedTopic,
    SourceOutOfRange,
    SourceReader,
    SourceUnreachable,
    SourceUnreadable,
)

POLL_S = 0.25
COMMIT_INTERVAL_S = 5.0
CHECK_INTERVAL_S = 1.0
WATCH_INTERVAL_S = 10.0
"""The time, s, between two looks at the members of a fleet's group."""
STOP_GRACE_S = 2.0
"""How long, s, a wheel of a fleet waits at its stop for the append under way: what is not finished
then is not stored, and comes again from the next wheel."""
_MEASURE_AGAIN_S = 10.0
SILENT_CHECKS = 20
"""A source whose leader does not answer, or returns none of its records, at so many checks in a row
is not read. Checks are counted and not seconds, as nobody asks while an append waits for room."""
_BUSY_SHARE = 0.1
"""The weight of a check at which other sources gave records: this one may have had no turn."""

_SHARING = "the wheels of the fleet are sharing the partitions out"
_EMPTIED = "the wheel is emptied, and takes no new messages"
_NO_LEADER = "the partition has no leader"
_NO_ANSWER = "the partition's leader does not answer"
_NO_RECORDS = "the partition has records, and its leader returns none"


_OPEN = Authenticator()


class _BeginAnew(Exception):
    """The reading of all sources begins again, as a topic was made anew since it began, or as the
    wheel joins its fleet anew."""


class DelayTopicIntake:
    """Reads delay topics. ``open_reader`` connects a reader; ``run`` is the target of a thread.

    ``partitions``: those of each of ``topics`` that are read; None: all. ``begin_at``: one of
    ``sources.CHOICES``, for sources that are not in the table. ``fleet``: the wheels with which
    this one shares the partitions; None: it reads its ``partitions`` alone. ``door`` knows the
    topics that Kafka has: a record for another one is a dead letter. ``authenticator`` knows the
    rights and the quota of a delay topic's records; by default those of a node without a security
    file.
    """

    def __init__(
        self,
        wheel: WheelPort,
        open_reader: Callable[[], SourceReader],
        *,
        topics: Sequence[str],
        partitions: Sequence[int] | None = None,
        begin_at: str | None = None,
        fleet: FleetPlace | None = None,
        clock: Clock = lambda: time.time_ns() // 1_000_000,
        events: IntakeEvents,
        dead_topic: str = DEAD_LETTER_TOPIC,
        policies: PoliciesPort | None = None,
        door: Door | None = None,
        authenticator: Authenticator = _OPEN,
    ) -> None:
        self._wheel = wheel
        self._open_reader = open_reader
        self._topics = tuple(dict.fromkeys(topics))
        self._partitions = partitions
        self._begin_at = begin_at
        self._fleet = fleet
        self._member: FleetMember | None = None
        self._fleet_state = (
            FleetState("", "") if fleet is None else FleetState(fleet.name, fleet.wheel)
        )
        self._next_watch = 0.0
        self._disturbed = False
        self._generation = -1
        self._begun: set[Place] = set()
        """The sources of which it is decided where they begin, since the group last shared out."""
        self._begins_unstored: set[Place] = set()
        self._clock = clock
        self._events = events
        self._appender = SourceAppender(
            wheel,
            clock,
            events,
            dead_topic=dead_topic,
            policies=policies,
            door=door,
            authenticator=authenticator,
            of_fleet=fleet is not None,
            may_go_on=self._may_append,
            grace_s=STOP_GRACE_S if fleet is not None else 0.0,
        )
        self._backoff = Backoff(0.1)
        self._next_commit = 0.0
        self._next_check = 0.0
        self._next_measure = 0.0
        self._lock = threading.Lock()
        self._sources: dict[Place, DelaySource] = {}
        self._reading: set[Place] = set()
        self._ends: dict[tuple[str, int], int] = {}
        """The last known end, by topic id and source's number, also of topics that are gone."""
        self._topic_problems = dict.fromkeys(self._topics, "Kafka has not been asked yet")
        self._reachable = True
        self._busy = False
        """True when records came since the last check."""
        self._unstored = ""

    # Seen from other threads

    def states(self) -> list[SourceState]:
        """The sources to read, by topic and partition; a topic with a problem has one state more,
        without a partition."""
        with self._lock:
            sources = [replace(source) for _, source in sorted(self._sources.items())]
            problems = dict(self._topic_problems)
        states = [source.state(self._wheel) for source in sources]
        states += [
            SourceState(topic, None, "", -1, None, problem)
            for topic, problem in problems.items()
            if problem
        ]
        return sorted(
            states, key=lambda state: (state.topic, state.partition is not None, state.partition)
        )

    def unready(self) -> list[str]:
        """The reasons for which sources are not read; empty if all are, or none is to be, as the
        group is emptied."""
        if self._wheel.draining:
            return []
        if self._fleet is not None and (problem := self._fleet_state.problem):
            return [f"the fleet {self._fleet.name!r} gives this wheel no partitions: {problem}"]
        reasons: dict[tuple[str, str], list[int]] = {}
        for state in self.states():
            if state.problem:
                numbers = reasons.setdefault((state.topic, state.problem), [])
                numbers += [] if state.partition is None else [state.partition]
        return [
            f"the delay topic {topic!r}{_partitions_text(numbers)} is not read: {problem}"
            for (topic, problem), numbers in reasons.items()
        ]

    @property
    def fleet_state(self) -> FleetState | None:
        """The fleet as this wheel sees it; None: it is in none."""
        return None if self._fleet is None else self._fleet_state

    @property
    def unstored(self) -> str:
        """The reason that positions cannot be stored in Kafka; empty: they can."""
        return self._unstored

    # The thread

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set; returns about half a second later."""
        while not stop.is_set():
            if self._wheel.draining:
                self._stopped(_EMPTIED)
                stop.wait(CHECK_INTERVAL_S)
                continue
            try:
                with ExitStack() as opened:
                    reader = opened.enter_context(closing(self._open_reader()))
                    if self._fleet is not None:
                        self._member = opened.enter_context(closing(self._join(self._fleet, stop)))
                    self._read(reader, stop)
            except _BeginAnew:
                continue
            except FleetLost as error:
                self._stopped(str(error))
                self._events.alarm("delay-fleet-lost", reason=str(error))
                stop.wait(self._backoff.failed())
            except (NotMaster, NotRunning, ClockInDoubt) as error:
                self._stopped(str(error))
                stop.wait(self._backoff.failed())
            except SourceUnreachable as error:
                self._stopped(f"Kafka cannot be reached: {error}")
                if self._reachable:
                    self._reachable = False
                    self._events.event("delay-topic-unreachable", error=str(error))
                stop.wait(self._backoff.failed())
            except Exception as error:
                self._stopped(f"it failed: {error!r}")
                self._events.alarm("delay-topic-failed", error=repr(error))
                stop.wait(self._backoff.failed())

    def _read(self, reader: SourceReader, stop: threading.Event) -> None:
        self._reading.clear()
        self._begun.clear()
        self._disturbed = False
        self._next_check = self._next_commit = 0.0
        whole = True
        while not stop.is_set() and not self._wheel.draining:
            if not self._shared(reader, stop):
                continue
            self._appender.time()
            now = time.monotonic()
            if now >= self._next_check:
                self._look_after(reader, stop)
                self._next_check = time.monotonic() + CHECK_INTERVAL_S
                if now >= self._next_commit:
                    self._next_commit = now + COMMIT_INTERVAL_S
                    self._store(reader)
            polled = reader.poll(POLL_S)
            self._reading -= polled.errors.keys()
            self._busy |= bool(polled.records)
            if polled.records:
                self._check_ids(reader, {place.topic for place in polled.records})
                records = {self._sources[place]: part for place, part in polled.records.items()}
                whole = self._appender.append(records, stop, partial(self._give_up, reader))
                self._backoff.worked()
                if self._member is not None and self._appender.settled:
                    self._member.store(self._positions(polled.records))
                if not whole and not stop.is_set():  # the group shares out again
                    self._let_go(reader)
                    continue
            strayed: dict[str, list[DelaySource]] = {}
            for place, error in polled.errors.items():
                if isinstance(error, SourceOutOfRange):
                    strayed.setdefault(place.topic, []).append(self._sources[place])
                else:
                    self._failed(self._sources[place], str(error))
            for topic, sources in strayed.items():
                self._find_the_way_back(reader, topic, sources, stop)
        if self._member is not None:
            self._part_from(self._member, reader, whole)
        elif whole and not self._unstored:
            self._mark_returned(reader)
            self._store(reader)

    # The fleet

    def _join(self, fleet: FleetPlace, stop: threading.Event) -> FleetMember:
        """Errors: those of ``agree`` and ``FleetMember``."""

        def named(table: SourceTable) -> SourceTable:
            return replace(table, identity=table.identity or secrets.token_hex(8))

        self._next_watch = 0.0
        agree(self._wheel, named, stop)
        return fleet.join(FleetName(fleet.name, fleet.wheel, self._table.identity))

    def _shared(self, reader: SourceReader, stop: threading.Event) -> bool:
        """Take part in the group. Returns True when this wheel may read the partitions that it was
        given; else False, after a moment. Errors: ``FleetLost``."""
        member = self._member
        if member is None:
            return True
        if time.monotonic() >= self._next_watch:
            self._next_watch = time.monotonic() + WATCH_INTERVAL_S
            self._watch(member)
        if self._disturbed:
            self._let_go(reader)
            if member.generation < 0 or member.turn(POLL_S):
                stop.wait(POLL_S)
            return False
        goes_on = member.shared and member.generation >= 0
        if not member.turn(0 if goes_on else POLL_S):
            self._let_go(reader)
            self._fleet_state = replace(self._fleet_state, problem=_SHARING)
            return False
        if self._generation != member.generation or self._fleet_state.problem:
            self._let_go(reader)
            self._begin_share(member)
        return True

    def _watch(self, member: FleetMember) -> None:
        """Look who is in the group. Errors: ``_BeginAnew`` when somebody who disturbed it is gone:
        this wheel may have been put out meanwhile."""
        assert self._fleet is not None
        seen = member.watch()
        name = FleetName(self._fleet.name, self._fleet.wheel, self._table.identity)
        problem = disturbance(seen, name)
        if problem and problem != self._fleet_state.problem:
            self._events.alarm("delay-fleet-disturbed", fleet=name.fleet, reason=problem)
        if self._disturbed and not problem and member.generation >= 0:
            raise _BeginAnew
        self._disturbed = bool(problem)
        self._fleet_state = replace(
            self._fleet_state,
            members=tuple(sorted(other.instance for other in seen)),
            problem=problem or self._fleet_state.problem,
        )

    def _begin_share(self, member: FleetMember) -> None:
        self._generation = member.generation
        state = self._fleet_state
        self._fleet_state = replace(
            state,
            partitions=len(member.places),
            shared=state.shared + 1,
            shared_at_ms=self._clock(),
            problem="",
        )
        given = {topic: ranges(self._given(topic)) for topic in self._topics}
        self._events.event(
            "delay-fleet-shared",
            fleet=state.fleet,
            generation=member.generation,
            partitions=", ".join(f"{topic}/{text}" for topic, text in given.items() if text),
        )

    def _given(self, topic: str) -> list[int]:
        """The partitions of a topic that the fleet gave to this wheel."""
        places = () if self._member is None else self._member.places
        return sorted(place.partition for place in places if place.topic == topic)

    def _let_go(self, reader: SourceReader) -> None:
        """Read nothing any more. What was read and not appended is read again by whoever is given
        its source."""
        if self._reading:
            reader.leave(list(self._reading))
        self._reading.clear()
        self._begun.clear()
        self._next_check = 0.0
        with self._lock:
            self._sources.clear()

    def _may_append(self) -> bool:
        """Returns False when the fleet shares out, so that reading has to end. Errors:
        ``FleetLost`` unless it is certain that this wheel is a member."""
        if self._member is None:
            return True
        self._member.confirm(self._positions(self._begun))
        return self._member.shared

    def _positions(self, places: Iterable[Place]) -> dict[Place, StoredOffset]:
        sources = [self._sources[place] for place in places if place in self._sources]
        return {
            source.place: StoredOffset(source.next_offset(self._wheel), source.topic_id)
            for source in sources
        }

    def _part_from(self, member: FleetMember, reader: SourceReader, whole: bool) -> None:
        """Store where this wheel has come to, and leave the group if it has no peers, or is
        emptied."""
        assert self._fleet is not None
        if self._appender.settled and member.generation >= 0 and member.shared:
            if whole:
                self._mark_returned(reader)
            member.store(self._positions(self._reading))
        if self._fleet.alone or self._wheel.draining:
            member.leave()

    # What there is to read

    def _look_after(self, reader: SourceReader, stop: threading.Event) -> None:
        """Find new partitions, begin to read sources that wait, measure the lag."""
        waiting: list[DelaySource] = []
        described = reader.describe(self._topics)
        self._reachable = True
        for topic, description in described.items():
            try:
                if isinstance(description, SourceUnreadable):
                    raise description
                waiting += self._waiting(reader, topic, description, stop)
            except (SourceUnreadable, NotKnown) as error:
                reader.leave([place for place in self._reading if place.topic == topic])
                self._reading = {place for place in self._reading if place.topic != topic}
                self._forget(topic)
                self._set_topic_problem(topic, str(error))
        if waiting:
            for source in waiting:
                source.silent = 0
            offsets = {source.place: source.position(self._wheel) + 1 for source in waiting}
            reader.read(offsets)
            self._reading |= offsets.keys()
        self._measure(reader)

    def _waiting(
        self, reader: SourceReader, topic: str, described: DescribedTopic, stop: threading.Event
    ) -> list[DelaySource]:
        """The sources of a topic whose reading begins now. Errors: ``SourceUnreadable``,
        ``NotKnown``; ``_BeginAnew`` if another topic of this name is being read."""
        before, count = self._table.find(reader.cluster, topic), len(described.led)
        member = self._member
        known, anew = as_seen(before, reader.cluster, topic, described.topic_id)
        if known != before and any(place.topic == topic for place in self._reading):
            raise _BeginAnew
        chosen, missing = self._chosen(topic, count)
        if anew:
            self._forget(topic)
        fresh = [number for number in chosen if not self._has_begun(known, number)]
        for number in fresh:
            if not described.led[number]:
                self._name(self._source(known, number), _NO_LEADER)
        fresh = [number for number in fresh if described.led[number]]
        if (
            known != before
            or (count != known.partitions and not fresh)
            or any(map(self._is_due, places_of(topic, fresh)))
        ):
            known = self._begin(reader, known, anew, count, fresh, stop)
        lost = ", ".join(map(str, missing))
        self._set_topic_problem(
            topic,
            f"there is no partition {lost}: it has {counted(count, 'partition')}" if lost else "",
        )
        begun = [number for number in chosen if self._has_begun(known, number)]
        ready = [
            source
            for number in begun
            for source in self._ready(reader, known, number, led=described.led[number])
        ]
        if member is not None:
            # An offset that the group has stored already stays: this one may be of an append that
            # is not committed yet.
            first = [source for source in ready if source.place in self._begins_unstored]
            member.store(self._positions(source.place for source in first))
            self._begins_unstored.difference_update(source.place for source in first)
            return ready
        # A source with a position was read before, so its begin is stored.
        first = [source for source in ready if self._wheel.source_position(source.number) < 0]
        if first:
            begins = {source.place: StoredOffset(source.begin, source.topic_id) for source in first}
            try:
                reader.store(begins)
            except SourceUnreadable as error:
                for source in first:
                    self._failed(source, f"where it begins cannot be stored in Kafka: {error}")
                ready = [source for source in ready if source not in first]
        return ready

    def _chosen(self, topic: str, count: int) -> tuple[list[int], list[int]]:
        """The partitions of a topic of ``count`` that this wheel reads, and those that it was told
        to read and that are missing."""
        if self._member is None:
            return selected(self._partitions, count)
        self._member.count(topic, count)
        return [number for number in self._given(topic) if number < count], []

    def _has_begun(self, known: KnownTopic, partition: int) -> bool:
        """Returns True when it is decided where a partition begins."""
        if self._member is not None and Place(known.topic, partition) not in self._begun:
            return False
        return partition in known.begins

    def _is_due(self, place: Place) -> bool:
        source = self._sources.get(place)
        return source is None or time.monotonic() >= source.retry_at

    def _ready(
        self, reader: SourceReader, known: KnownTopic, partition: int, *, led: bool
    ) -> list[DelaySource]:
        """The source, if its reading begins now, in a list; else an empty list."""
        place, source = Place(known.topic, partition), self._source(known, partition)
        if not led:
            if place in self._reading:
                reader.leave([place])
                self._reading.discard(place)
            self._name(source, _NO_LEADER)
            return []
        return [] if place in self._reading or not self._is_due(place) else [source]

    def _source(self, known: KnownTopic, partition: int) -> DelaySource:
        place = Place(known.topic, partition)
        source = self._sources.get(place)
        if source is None or source.topic_id != known.topic_id:
            begin = known.begins.get(partition, 0)
            source = DelaySource(place, known.topic_id, known.number(partition), begin)
            with self._lock:
                self._sources[place] = source
        return source

    def _forget(self, topic: str) -> None:
        with self._lock:
            self._sources = {
                place: source for place, source in self._sources.items() if place.topic != topic
            }

    def _check_ids(self, reader: SourceReader, topics: set[str]) -> None:
        """Errors: ``_BeginAnew`` unless Kafka has the same topics as when their reading began."""
        for topic, described in reader.describe(topics).items():
            known = self._table.find(reader.cluster, topic)
            if isinstance(described, SourceUnreadable) or known is None:
                raise _BeginAnew
            if described.topic_id and described.topic_id != known.topic_id:
                raise _BeginAnew

    # Where reading begins

    @property
    def _table(self) -> SourceTable:
        return SourceTable.from_dict(self._wheel.sources)

    def _begin(
        self,
        reader: SourceReader,
        known: KnownTopic,
        anew: bool,
        count: int,
        fresh: Sequence[int],
        stop: threading.Event,
    ) -> KnownTopic:
        """Decide where the partitions ``fresh`` begin, as far as that can be known, and have the
        group agree. Returns the topic as it is in the table then. ``count``: the number of its
        partitions. Errors: ``SourceUnreadable``."""
        before = self._table.find(reader.cluster, known.topic)
        new = range(0 if anew else count if before is None else before.partitions, count)
        seen = replace(known, partitions=count)
        decided = decide_begins(
            reader,
            self._wheel,
            seen,
            fresh,
            new,
            self._begin_at,
            self._clock(),
            of_fleet=self._member is not None,
        )
        begins: dict[int, Begin] = {}
        for number, begin in decided.items():
            if isinstance(begin, Begin):
                begins[number] = begin
            else:
                self._failed(self._source(known, number), f"where to begin is not known: {begin}")
        # A begin that this wheel's own log has passed stays: the table need not change for it.
        offsets = dict(known.begins)
        for number, begin in begins.items():
            if begin.offset > self._source(known, number).position(self._wheel) + 1:
                offsets[number] = begin.offset
            offsets.setdefault(number, begin.offset)
        chosen, _ = self._chosen(known.topic, count)
        # A new partition stays new until its first offset is known.
        partitions = min(
            (number for number in chosen if number in new and number not in offsets), default=count
        )
        known = replace(known, partitions=partitions, begins=offsets)
        note = self._note_of_old(before) if anew and before is not None else None
        claims = {number for number, begin in begins.items() if begin.claims}

        def change(table: SourceTable) -> SourceTable:
            table = replace(table.with_topic(known), claimed=table.claimed | claims)
            return table if note is None else table.with_note(note)

        # In a fleet, also where nothing changes: what was appended before is committed then, and no
        # position is stored that another master would not have.
        agree(self._wheel, change, stop, always=self._member is not None)
        with self._lock:
            for place in places_of(known.topic, begins):
                self._sources.pop(place, None)
        if self._member is not None:
            self._begun.update(places_of(known.topic, begins))
            self._begins_unstored.update(places_of(known.topic, begins))
        if note is not None:
            self._alarm(note)
        self._report_begins(known, begins)
        return known

    def _report_begins(self, known: KnownTopic, begins: Mapping[int, Begin]) -> None:
        alike: dict[tuple[int, str], list[int]] = {}
        for number, begin in begins.items():
            alike.setdefault((begin.offset, begin.why), []).append(number)
        for (offset, why), numbers in alike.items():
            self._events.event(
                "delay-topic-begins",
                topic=known.topic,
                partitions=ranges(numbers),
                offset=offset,
                why=why,
            )

    def _note_of_old(self, old: KnownTopic) -> Note:
        """A note on the unread offsets of a topic that was made anew, as far as they are known."""
        unread = []
        for partition, begin in sorted(old.begins.items()):
            number = old.number(partition)
            first = max(self._wheel.source_position(number) + 1, begin)
            end = self._ends.pop((old.topic_id, number), None)
            if end is None and self._member is not None:
                continue  # another wheel of the fleet has read it since
            if end is None or end > first:
                unread.append(Unread(partition, first, None if end is None else end - 1))
        return Note(MADE_ANEW, self._clock(), old.topic, old.topic_id, tuple(unread))

    # What cannot be read

    def _find_the_way_back(
        self,
        reader: SourceReader,
        topic: str,
        sources: Sequence[DelaySource],
        stop: threading.Event,
    ) -> None:
        """Go on with sources of ``topic`` whose next offset Kafka does not have. Where retention
        has deleted records, the gap is noted and reading goes on behind it. A partition that has
        become shorter is not read. Errors: ``_BeginAnew``; those of ``agree``."""
        self._check_ids(reader, {topic})
        places = [source.place for source in sources]
        earliest, end = reader.offsets(places, EARLIEST_AT), reader.offsets(places, END_AT)
        passed: dict[int, int] = {}
        again: dict[Place, int] = {}
        unread: list[Unread] = []
        topic_id = sources[0].topic_id
        noted = [
            gap
            for note in self._table.notes
            if (note.topic, note.topic_id) == (topic, topic_id)
            for gap in note.unread
        ]
        for source in sources:
            place, position = source.place, source.position(self._wheel) + 1
            if place not in earliest or place not in end:
                self._failed(source, NO_RANGE)
            elif position > end[place]:
                self._failed(
                    source,
                    f"it ends at offset {end[place]}, and the node has read all below {position}:"
                    " Kafka has lost records, and new ones get their offsets and would be passed"
                    " over. Make the topic anew: then it is read from its first record",
                )
                # It is noted now: once the partition is longer again, nothing shows the gap.
                # Until then its end moves up, within the gap that was noted first.
                gap = Unread(place.partition, end[place], position - 1)
                if not any(earlier.contains(gap) for earlier in noted):
                    unread.append(gap)
            else:
                again[place] = max(position, earliest[place])
                if position < earliest[place]:
                    passed[place.partition] = earliest[place]
                    unread.append(Unread(place.partition, position, earliest[place] - 1))
        if unread:
            note = Note(MISSED, self._clock(), topic, topic_id, tuple(unread))

            def change(table: SourceTable) -> SourceTable:
                known = table.find(reader.cluster, topic)
                assert known is not None, "a topic that is read is in the table"
                begins = {**known.begins, **passed}
                return table.with_topic(replace(known, begins=begins)).with_note(note)

            agree(self._wheel, change, stop)
            for source in sources:
                source.begin = passed.get(source.place.partition, source.begin)
            self._alarm(note)
        if again:
            reader.read(again)
            self._reading |= again.keys()

    def _alarm(self, note: Note) -> None:
        known = [gap.last - gap.first + 1 for gap in note.unread if gap.last is not None]
        self._events.alarm(
            note.what,
            topic=note.topic,
            topic_id=note.topic_id,
            partitions=ranges(gap.partition for gap in note.unread),
            offsets=sum(known),
            unknown=len(note.unread) - len(known),
        )

    def _name(self, source: DelaySource, problem: str) -> None:
        """Note that a source cannot be read now, with an alarm if the problem is new."""
        if problem != source.problem:
            self._events.alarm("delay-topic-not-read", source=str(source.place), reason=problem)
        source.problem = problem

    def _failed(self, source: DelaySource, problem: str) -> None:
        """Note that a source cannot be read; it is tried again, less and less often."""
        self._name(source, problem)
        source.retry_at = time.monotonic() + source.backoff.failed()

    def _set_topic_problem(self, topic: str, problem: str) -> None:
        if problem and problem != self._topic_problems[topic]:
            self._events.alarm("delay-topic-not-read", source=topic, reason=problem)
        with self._lock:
            self._topic_problems[topic] = problem

    def _stopped(self, problem: str) -> None:
        self._member = None
        self._disturbed = False
        self._fleet_state = replace(self._fleet_state, partitions=0, problem=problem)
        with self._lock:
            self._sources.clear()
            self._topic_problems = dict.fromkeys(self._topics, problem)

    def _give_up(self, reader: SourceReader, source: DelaySource, error: Exception) -> None:
        """Leave a source whose records cannot be appended: they are read again later."""
        reader.leave([source.place])
        self._reading.discard(source.place)
        self._failed(source, f"its records could not be appended: {error!r}")

    # Lag, and Kafka's own copy of the positions

    def _measure(self, reader: SourceReader) -> None:
        self._mark_returned(reader)
        now = time.monotonic()
        if self._reading and now >= self._next_measure:
            ends = reader.offsets(self._reading, END_AT)
            if len(ends) < len(self._reading):
                # Waiting for a leader that does not answer takes time from all others.
                self._next_measure = now + _MEASURE_AGAIN_S
            for place in self._reading:
                source = self._sources[place]
                source.end = ends.get(place)
                if source.end is not None:
                    self._ends[source.topic_id, source.number] = source.end
        for place in self._reading:
            source = self._sources[place]
            source.silent += _BUSY_SHARE if self._busy and source.end is not None else 1
            if source.silent > SILENT_CHECKS:
                self._name(source, _NO_ANSWER if source.end is None else _NO_RECORDS)
        self._busy = False

    def _mark_returned(self, reader: SourceReader) -> None:
        """Note the positions up to which sources were read. Call it when every record that ``poll``
        returned is in the log, or its source was left."""
        again: dict[str, list[int]] = {}
        for place in self._reading & (positions := reader.positions()).keys():
            source = self._sources[place]
            moved = positions[place] != source.returned
            source.returned = positions[place]
            if not moved and (source.end is None or source.end > source.returned):
                continue
            source.silent = 0
            if source.problem:
                source.problem = ""
                source.backoff.worked()
                again.setdefault(place.topic, []).append(place.partition)
        for topic, numbers in again.items():
            self._backoff.worked()
            self._events.event("delay-topic-read", topic=topic, partitions=ranges(numbers))

    def _store(self, reader: SourceReader) -> None:
        """Store all positions in Kafka, also unchanged ones, which would expire otherwise."""
        offsets = self._positions(self._reading)
        if not offsets:
            return
        if self._member is not None:
            self._member.store(offsets)
            return
        try:
            reader.store(offsets, wait=False)
            self._unstored = ""
        except (SourceUnreadable, SourceUnreachable) as error:
            if not self._unstored:
                self._events.alarm("delay-topic-not-stored", reason=str(error))
            self._unstored = str(error)


def places_of(topic: str, partitions: Iterable[int]) -> list[Place]:
    return [Place(topic, number) for number in partitions]


def _partitions_text(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f" (partition{'s' if len(numbers) > 1 else ''} {ranges(numbers)})"
