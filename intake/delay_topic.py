"""Kafka delay topics: all their partitions, each read exactly once into the journal.

Theory: the wheel's own log has the position of each source (an append carries the last offset that
it took from the source, and both are committed as one entry). So reading always starts behind that
position, after a start, a failure or a doubt. The offsets stored in Kafka show the lag, and tell
an empty directory where to begin.

    position of the log -> read -> poll -> same topic still? -> rows (or dead letters) -> append
          ^                                                                                 |
          +----- any failure of one source: its reason is shown, back off, begin again -----+

Rules
- One thread and one reader for all sources. Records of a poll are appended source by source, side
  by side; of one source an append is waited for before the next.
- What is wrong with one source (no rights, no leader, a codec that is missing, an offset that is
  gone) stops that source only, and is a reason why the node is not ready.
- Records are taken only if the topic id is the same after the poll as before the reading began:
  otherwise records of a topic made anew would be taken for those of the old one, and skipped.
- Where a source begins is agreed first and stored in Kafka then: another master would decide by
  what is stored, and not as this one did. Nothing is read of it before it is stored, so that an
  empty directory can trust that what has no offset there was not read.
- A source of which nothing is heard at ``SILENT_CHECKS`` is not read, whatever the client says:
  its leader may answer nobody while all others do.
- No exception ends the loop; an append that the wheel cannot accept now is tried again, unchanged,
  until it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.backoff import Backoff
from ..wheel.errors import NotMaster, NotRunning, Overloaded
from ..wheel.texts import counted
from .ports import Clock, IntakeEvents, PoliciesPort, WheelPort
from .records import ConsumerRecords, rows_of
from .source_reader import (
    EARLIEST_AT,
    END_AT,
    DescribedTopic,
    SourceOutOfRange,
    SourceReader,
    SourceUnreachable,
    SourceUnreadable,
)
from .sources import (
    MADE_ANEW,
    MISSED,
    OFFSETS_KEPT_MS,
    Begin,
    KnownTopic,
    Note,
    NotKnown,
    Place,
    SourceFacts,
    SourceTable,
    StoredOffset,
    Unread,
    as_seen,
    begin_of,
    ranges,
    selected,
)

POLL_S = 0.25
COMMIT_INTERVAL_S = 5.0
CHECK_INTERVAL_S = 1.0
OFF_INTERVAL_S = 60.0
"""So often at most, s, it is said that timestamps are far from the node's clock."""
SLOW_COMMIT_S = 60.0
"""An append that is not committed after this time, s, is an alarm, once."""
_ROOM_WAIT_S = 0.5
_AGREE_S = 10.0
_AGAIN_S = 0.05
_MEASURE_AGAIN_S = 10.0
SILENT_CHECKS = 20
"""A source whose leader says nothing, or gives nothing of what there is, at so many checks in a row
is not read. Checks and not seconds: while an append waits for room nobody asks."""

_NO_RANGE = "Kafka does not tell its range of offsets"
_NO_LEADER = "the partition has no leader"
_NO_ANSWER = "the partition's leader does not answer"
_NO_RECORDS = "Kafka has records of it, and gives none"


class _MadeAnew(Exception):
    """A topic is another one than when its reading began: everything begins again."""


@dataclass(slots=True, eq=False)
class DelaySource:
    """A source of this node. ``begin``: the first offset that was to be read; ``returned``:
    everything below was read, -1: not known; ``end``: of the partition, when last asked, None: not
    known. ``silent``: checks since records came, or there were none to come. ``problem``: why it is
    not read; empty: it is."""

    place: Place
    topic_id: str
    number: int
    begin: int
    problem: str = "it was not read yet"
    returned: int = -1
    end: int | None = None
    silent: int = 0
    retry_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.5, 15.0))


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source as it is shown. ``position``: its last offset in the log, -1: none. ``lag``: offsets
    that can be read and are not in the log; None: not known. ``problem``: as of ``DelaySource``."""

    topic: str
    partition: int | None
    """None: which partitions the topic has is not known."""
    topic_id: str
    position: int
    lag: int | None
    problem: str


class DelayTopicIntake:
    """Reads delay topics. ``open_reader``: connects a reader; ``run``: a thread's target.

    ``topics``, ``partitions``: what is to be read; None: all partitions. ``begin_at``: one of
    ``sources.CHOICES`` for sources of which nothing is known.
    """

    def __init__(
        self,
        wheel: WheelPort,
        open_reader: Callable[[], SourceReader],
        *,
        topics: Sequence[str],
        partitions: Sequence[int] | None = None,
        begin_at: str | None = None,
        clock: Clock = lambda: time.time_ns() // 1_000_000,
        events: IntakeEvents,
        dead_topic: str = DEAD_LETTER_TOPIC,
        policies: PoliciesPort | None = None,
    ) -> None:
        self._wheel = wheel
        self._open_reader = open_reader
        self._topics = tuple(dict.fromkeys(topics))
        self._partitions = partitions
        self._begin_at = begin_at
        self._clock = clock
        self._events = events
        self._dead_topic = dead_topic
        self._policies = policies
        self._backoff = Backoff(0.1)
        self._next_commit = 0.0
        self._next_check = 0.0
        self._next_off = 0.0
        self._next_measure = 0.0
        self._lock = threading.Lock()
        self._sources: dict[Place, DelaySource] = {}
        self._reading: set[Place] = set()
        self._ends: dict[tuple[str, int], int] = {}
        """By topic id and source: the end that was seen last, also of topics that are gone."""
        self._topic_problems = dict.fromkeys(self._topics, "Kafka was not asked yet")
        self._reachable = True
        self._unstored = ""
        """Why positions cannot be stored in Kafka; empty: they can."""

    # Seen from other threads

    def states(self) -> list[SourceState]:
        """What is to be read, by topic and partition."""
        with self._lock:
            sources = [replace(one) for _, one in sorted(self._sources.items())]
            problems = dict(self._topic_problems)
        found = [
            SourceState(*one.place, one.topic_id, self._position(one), self._lag(one), one.problem)
            for one in sources
        ]
        found += [
            SourceState(topic, None, "", -1, None, why) for topic, why in problems.items() if why
        ]
        return sorted(found, key=lambda one: (one.topic, one.partition is not None, one.partition))

    def unready(self) -> list[str]:
        """Why not all is read; empty if it is."""
        reasons: dict[tuple[str, str], list[int]] = {}
        for one in self.states():
            if one.problem:
                numbers = reasons.setdefault((one.topic, one.problem), [])
                numbers += [] if one.partition is None else [one.partition]
        return [
            f"the delay topic {topic!r}{_partitions_text(numbers)} is not read: {why}"
            for (topic, why), numbers in reasons.items()
        ]

    @property
    def unstored(self) -> str:
        """Why positions cannot be stored in Kafka; empty: they can."""
        return self._unstored

    def _position(self, source: DelaySource) -> int:
        return max(self._wheel.source_position(source.number), source.begin - 1)

    def _lag(self, source: DelaySource) -> int | None:
        if source.problem or source.end is None:
            return None
        return max(0, source.end - max(source.returned, self._position(source) + 1))

    # The thread

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set; then returns within about half a second."""
        while not stop.is_set():
            try:
                with closing(self._open_reader()) as reader:
                    self._read(reader, stop)
            except _MadeAnew:
                continue
            except (NotMaster, NotRunning) as error:
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
        self._next_check = self._next_commit = 0.0
        whole = True
        while not stop.is_set():
            now = time.monotonic()
            if now >= self._next_check:
                self._look_after(reader, stop)
                self._next_check = time.monotonic() + CHECK_INTERVAL_S
                if now >= self._next_commit:
                    self._next_commit = now + COMMIT_INTERVAL_S
                    self._store(reader)
            polled = reader.poll(POLL_S)
            self._reading -= polled.errors.keys()
            if polled.records:
                self._check_ids(reader, {place.topic for place in polled.records})
                whole = self._append(reader, polled.records, stop)
            strayed: dict[str, list[DelaySource]] = {}
            for place, error in polled.errors.items():
                if isinstance(error, SourceOutOfRange):
                    strayed.setdefault(place.topic, []).append(self._sources[place])
                else:
                    self._failed(self._sources[place], str(error))
            for topic, sources in strayed.items():
                self._find_the_way_back(reader, topic, sources, stop)
        if whole and not self._unstored:
            self._mark_returned(reader)
            self._store(reader)

    # What there is to read

    def _look_after(self, reader: SourceReader, stop: threading.Event) -> None:
        """Regularly: find new partitions, begin what waits, measure the lag."""
        waiting: list[DelaySource] = []
        described = reader.describe(self._topics)
        self._reachable = True
        for topic, found in described.items():
            try:
                if isinstance(found, SourceUnreadable):
                    raise found
                waiting += self._waiting(reader, topic, found, stop)
            except (SourceUnreadable, NotKnown) as error:
                reader.leave([place for place in self._reading if place.topic == topic])
                self._reading = {place for place in self._reading if place.topic != topic}
                self._forget(topic)
                self._set_topic_problem(topic, str(error))
        if waiting:
            for one in waiting:
                one.silent = 0
            offsets = {one.place: self._position(one) + 1 for one in waiting}
            reader.read(offsets)
            self._reading |= offsets.keys()
        self._measure(reader)

    def _waiting(
        self, reader: SourceReader, topic: str, found: DescribedTopic, stop: threading.Event
    ) -> list[DelaySource]:
        """A topic's sources that are to be read from now on. Errors: ``SourceUnreadable``,
        ``NotKnown``; ``_MadeAnew`` while the topic that went by this name is read."""
        before, count = self._table.find(reader.cluster, topic), len(found.led)
        known, anew = as_seen(before, reader.cluster, topic, found.topic_id)
        if known != before and any(place.topic == topic for place in self._reading):
            raise _MadeAnew
        chosen, missing = selected(self._partitions, count)
        if anew:
            self._forget(topic)
        fresh = [one for one in chosen if one not in known.begins]
        for one in fresh:
            if not found.led[one]:
                self._failed(self._source(known, one), _NO_LEADER)
        fresh = [one for one in fresh if found.led[one]]
        if (
            known != before
            or count != known.partitions
            or any(map(self._is_due, places_of(topic, fresh)))
        ):
            known = self._begin(reader, replace(known, partitions=count), anew, fresh, stop)
        lost = ", ".join(map(str, missing))
        self._set_topic_problem(
            topic,
            f"there is no partition {lost}: it has {counted(count, 'partition')}" if lost else "",
        )
        begun = [one for one in chosen if one in known.begins]
        ready = [
            one
            for number in begun
            for one in self._ready(reader, known, number, led=found.led[number])
        ]
        # What has a position was read, and so it was stored.
        first = [one for one in ready if self._wheel.source_position(one.number) < 0]
        if first:
            reader.store({one.place: StoredOffset(one.begin, one.topic_id) for one in first})
        return ready

    def _is_due(self, place: Place) -> bool:
        """Whether it is time to try again what failed."""
        source = self._sources.get(place)
        return source is None or time.monotonic() >= source.retry_at

    def _ready(
        self, reader: SourceReader, known: KnownTopic, partition: int, *, led: bool
    ) -> list[DelaySource]:
        """The source, if it is to be read from now on."""
        place, source = Place(known.topic, partition), self._source(known, partition)
        if not led:
            if place in self._reading:
                reader.leave([place])
                self._reading.discard(place)
            self._failed(source, _NO_LEADER)
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
                place: one for place, one in self._sources.items() if place.topic != topic
            }

    def _check_ids(self, reader: SourceReader, topics: set[str]) -> None:
        """Errors: ``_MadeAnew`` unless they are the topics whose reading began."""
        for topic, found in reader.describe(topics).items():
            known = self._table.find(reader.cluster, topic)
            if isinstance(found, SourceUnreadable) or known is None:
                raise _MadeAnew
            if found.topic_id and found.topic_id != known.topic_id:
                raise _MadeAnew

    # Where reading begins

    @property
    def _table(self) -> SourceTable:
        return SourceTable.from_dict(self._wheel.sources)

    def _begin(
        self,
        reader: SourceReader,
        known: KnownTopic,
        anew: bool,
        fresh: Sequence[int],
        stop: threading.Event,
    ) -> KnownTopic:
        """Decide where those of ``fresh`` begin of which that can be known, and remember it; the
        topic as it is remembered. Errors: ``SourceUnreadable``."""
        before = self._table.find(reader.cluster, known.topic)
        begins = (
            self._decide(reader, known, places_of(known.topic, fresh), before, anew)
            if fresh
            else {}
        )
        offsets = {one: begin.offset for one, begin in begins.items()}
        note = self._note_of_old(before) if anew and before is not None else None
        known = replace(known, begins={**known.begins, **offsets})
        claims = {one for one, begin in begins.items() if begin.claims}

        def change(table: SourceTable) -> SourceTable:
            table = replace(table.with_topic(known), claimed=table.claimed | claims)
            return table if note is None else table.with_note(note)

        agree(self._wheel, change, stop)
        with self._lock:
            for one in begins:
                self._sources.pop(Place(known.topic, one), None)
        if note is not None:
            self._alarm(note)
        self._tell_begins(known, begins)
        return known

    def _decide(
        self,
        reader: SourceReader,
        known: KnownTopic,
        places: Sequence[Place],
        before: KnownTopic | None,
        anew: bool,
    ) -> dict[int, Begin]:
        """Where each begins of which that can be known; of the others the reason is shown.
        ``before``: what the table has of the name."""
        table, topic = self._table, known.topic
        earliest, end = reader.offsets(places, EARLIEST_AT), reader.offsets(places, END_AT)
        young = reader.offsets(places, self._clock() - OFFSETS_KEPT_MS)
        stored = reader.stored(places_of(topic, range(known.partitions)))
        old = {
            one.partition: self._wheel.source_position(one.partition)
            for one in places
            if one.partition not in table.claimed
        }
        rivals = self._rivals(reader, topic, {one for one, at in old.items() if at >= 0})
        decided: dict[int, Begin] = {}
        for place in places:
            partition = place.partition
            try:
                if place not in earliest or place not in end:
                    raise NotKnown(_NO_RANGE)
                if anew or (before is not None and partition >= before.partitions):
                    decided[partition] = Begin(earliest[place], "it is new")
                    continue
                mine = stored.get(place)
                # One of the topic that went by this name before says that this one is unread.
                other = mine is not None and mine.topic_id not in ("", known.topic_id)
                # With something of this topic in the table, it may be this node that stored them.
                others = before is None and any(one != place for one in stored)
                at = old.get(partition, -1)
                theirs = (
                    one.offset for where, one in rivals.items() if where.partition == partition
                )
                facts = SourceFacts(
                    earliest[place],
                    end[place],
                    stored=None if other else mine,
                    old_position=at,
                    rival=max((one for one in theirs if one <= at + 1), default=-1),
                    others_stored=other or others,
                    elsewhere=table.elsewhere(reader.cluster, topic),
                    young=young.get(place),
                )
                decided[partition] = begin_of(facts, self._begin_at)
            except NotKnown as error:
                source = self._source(known, partition)
                self._failed(source, f"where to begin is not known: {error}")
        return decided

    def _rivals(
        self, reader: SourceReader, topic: str, partitions: set[int]
    ) -> dict[Place, StoredOffset]:
        """What an earlier version may have stored for partitions of those numbers of other
        topics."""
        if not partitions:
            return {}
        others = (one for one in reader.every_topic() if one != topic)
        stored = reader.stored([Place(one, number) for one in others for number in partitions])
        return {place: one for place, one in stored.items() if not one.topic_id}

    def _tell_begins(self, known: KnownTopic, begins: Mapping[int, Begin]) -> None:
        alike: dict[tuple[int, str], list[int]] = {}
        for one, begin in begins.items():
            alike.setdefault((begin.offset, begin.why), []).append(one)
        for (offset, why), numbers in alike.items():
            self._events.event(
                "delay-topic-begins",
                topic=known.topic,
                partitions=ranges(numbers),
                offset=offset,
                why=why,
            )

    def _note_of_old(self, old: KnownTopic) -> Note:
        """What is known of the rest of a topic that was made anew."""
        unread = []
        for one, begin in sorted(old.begins.items()):
            number = old.number(one)
            first = max(self._wheel.source_position(number) + 1, begin)
            end = self._ends.pop((old.topic_id, number), None)
            if end is None or end > first:
                unread.append(Unread(one, first, None if end is None else end - 1))
        return Note(MADE_ANEW, self._clock(), old.topic, old.topic_id, tuple(unread))

    # What cannot be read

    def _find_the_way_back(
        self,
        reader: SourceReader,
        topic: str,
        sources: Sequence[DelaySource],
        stop: threading.Event,
    ) -> None:
        """The offsets behind the positions of a topic's sources are not there."""
        self._check_ids(reader, {topic})
        places = [one.place for one in sources]
        earliest, end = reader.offsets(places, EARLIEST_AT), reader.offsets(places, END_AT)
        passed: dict[int, int] = {}
        again: dict[Place, int] = {}
        unread: list[Unread] = []
        for source in sources:
            place, wanted = source.place, self._position(source) + 1
            if place not in earliest or place not in end:
                self._failed(source, _NO_RANGE)
            elif wanted > end[place]:
                self._failed(
                    source,
                    f"it ends at offset {end[place]}, and offsets below {wanted} were read: Kafka"
                    " has lost records, and would give their offsets to others",
                )
            else:
                again[place] = max(wanted, earliest[place])
                if wanted < earliest[place]:
                    passed[place.partition] = earliest[place]
                    unread.append(Unread(place.partition, wanted, earliest[place] - 1))
        if unread:
            note = Note(MISSED, self._clock(), topic, sources[0].topic_id, tuple(unread))

            def change(table: SourceTable) -> SourceTable:
                known = table.find(reader.cluster, topic)
                assert known is not None, "what is read is known"
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
        known = [one.last - one.first + 1 for one in note.unread if one.last is not None]
        self._events.alarm(
            note.what,
            topic=note.topic,
            topic_id=note.topic_id,
            partitions=ranges(one.partition for one in note.unread),
            offsets=sum(known),
            unknown=len(note.unread) - len(known),
        )

    def _failed(self, source: DelaySource, why: str) -> None:
        """A source cannot be read now."""
        if why != source.problem:
            self._events.alarm("delay-topic-not-read", source=str(source.place), reason=why)
        source.problem = why
        source.retry_at = time.monotonic() + source.backoff.failed()

    def _set_topic_problem(self, topic: str, why: str) -> None:
        if why and why != self._topic_problems[topic]:
            self._events.alarm("delay-topic-not-read", source=topic, reason=why)
        with self._lock:
            self._topic_problems[topic] = why

    def _stopped(self, why: str) -> None:
        """Nothing is read now."""
        with self._lock:
            self._sources.clear()
            self._topic_problems = dict.fromkeys(self._topics, why)

    # Appending

    def _append(
        self,
        reader: SourceReader,
        records: Mapping[Place, ConsumerRecords],
        stop: threading.Event,
    ) -> bool:
        """Append all records, each source's cut so that each batch is within its limits. Returns
        whether that was done before ``stop``."""
        pending = {self._sources[place]: [found] for place, found in records.items()}
        while pending and not stop.is_set():
            queued: list[_Queued] = []
            for source, parts in list(pending.items()):
                try:
                    one = self._queue_next(source, parts)
                except (NotMaster, NotRunning):
                    raise
                except Overloaded as error:
                    self._events.refused(error.code, len(parts[-1].offsets))
                    # A stop between two tries: what was not appended is read again.
                    if self._wheel.wait_for_room(_ROOM_WAIT_S):
                        stop.wait(0.02)
                    break
                except Exception as error:
                    self._give_up(reader, source, error)
                    del pending[source]
                else:
                    if one is not None:
                        queued.append(one)
                    elif not parts:
                        del pending[source]
            for one in queued:
                self._wait_for(reader, one, pending, stop)
        return not pending

    def _queue_next(self, source: DelaySource, parts: list[ConsumerRecords]) -> _Queued | None:
        """Append the source's next part; None if there is none, or it was cut in two."""
        part = self._trimmed(source, parts[-1])
        if not part.offsets:
            parts.pop()
            return None
        config = self._wheel.config
        count = len(part.offsets)
        started = time.perf_counter()
        now_ms = self._clock()
        settings = None if self._policies is None else self._policies.current
        rows, dead, off = rows_of(
            part, str(source.place), config, now_ms, self._dead_topic, settings
        )
        too_much = rows.num_rows > config.batch_rows_max or rows.nbytes > config.batch_bytes_max
        if too_much and count > 1:
            parts[-1:] = [part.part(count // 2), part.part(0, count // 2)]
            return None
        future = self._wheel.append_source(
            rows, now_ms, source=source.number, first=part.offsets[0], last=part.offsets[-1]
        )
        parts.pop()
        return _Queued(source, part, future, count, rows.nbytes, dead, off, started)

    def _wait_for(
        self,
        reader: SourceReader,
        one: _Queued,
        pending: dict[DelaySource, list[ConsumerRecords]],
        stop: threading.Event,
    ) -> None:
        try:
            if not self._committed(one.future, stop):
                return  # what was not stored is read again after the start
        except (NotMaster, NotRunning):
            raise
        except Overloaded as error:
            self._events.refused(error.code, one.rows)
            pending[one.source].append(one.part)
            return
        except Exception as error:
            self._give_up(reader, one.source, error)
            del pending[one.source]
            return
        self._backoff.worked()
        one.source.backoff.worked()
        self._events.appended(one.rows, one.nbytes, time.perf_counter() - one.started)
        if one.dead:
            self._events.event(
                "delay-topic-dead-letters", source=str(one.source.place), count=one.dead
            )
        if one.off and time.monotonic() >= self._next_off:
            self._next_off = time.monotonic() + OFF_INTERVAL_S
            self._events.event(
                "delay-topic-timestamps-far",
                source=str(one.source.place),
                count=len(one.off),
                behind_ms=max(0, -min(one.off)),
                ahead_ms=max(0, *one.off),
            )
        if not pending[one.source]:
            del pending[one.source]

    def _give_up(self, reader: SourceReader, source: DelaySource, error: Exception) -> None:
        """A source's records cannot be appended: they are read again later."""
        reader.leave([source.place])
        self._reading.discard(source.place)
        self._failed(source, f"its records could not be appended: {error!r}")

    def _committed(self, future: Future[Any], stop: threading.Event) -> bool:
        """Wait until an append is committed, however long; False on ``stop``. To read on without a
        result could leave a gap, which nothing would show if the append failed later."""
        slow_at = time.monotonic() + SLOW_COMMIT_S
        while not stop.is_set():
            if _is_done(future):
                return True
            if time.monotonic() >= slow_at:
                slow_at = float("inf")
                self._events.alarm("delay-topic-commit-slow")
        return False

    def _trimmed(self, source: DelaySource, records: ConsumerRecords) -> ConsumerRecords:
        position, start = self._position(source), 0
        while start < len(records.offsets) and records.offsets[start] <= position:
            start += 1
        return records.part(start) if start else records

    # Lag, and Kafka's own copy of the positions

    def _measure(self, reader: SourceReader) -> None:
        self._mark_returned(reader)
        now = time.monotonic()
        if self._reading and now >= self._next_measure:
            ends = reader.offsets(self._reading, END_AT)
            if len(ends) < len(self._reading):
                # A leader that does not answer takes time from all others.
                self._next_measure = now + _MEASURE_AGAIN_S
            for place in self._reading:
                source = self._sources[place]
                source.end = ends.get(place)
                if source.end is not None:
                    self._ends[source.topic_id, source.number] = source.end
        for place in self._reading:
            source = self._sources[place]
            source.silent += 1
            why = _NO_ANSWER if source.end is None else _NO_RECORDS
            if source.silent > SILENT_CHECKS and why != source.problem:
                self._failed(source, why)

    def _mark_returned(self, reader: SourceReader) -> None:
        """Everything that ``poll`` has returned is in the log now, or its source was left."""
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
        """Store the positions in Kafka, all of them, so that none expires while it is read."""
        offsets = {
            place: StoredOffset(
                max(self._sources[place].returned, self._position(self._sources[place]) + 1),
                self._sources[place].topic_id,
            )
            for place in self._reading
        }
        if not offsets:
            return
        try:
            reader.store(offsets, wait=False)
            self._unstored = ""
        except (SourceUnreadable, SourceUnreachable) as error:
            if not self._unstored:
                self._events.alarm("delay-topic-not-stored", reason=str(error))
            self._unstored = str(error)


def agree(
    wheel: WheelPort, change: Callable[[SourceTable], SourceTable], stop: threading.Event
) -> None:
    """Change what the whole group knows of its sources, and wait until that is committed. Errors:
    ``NotMaster``; ``NotRunning`` when it is not committed in time."""
    end = time.monotonic() + _AGREE_S
    while time.monotonic() < end and not stop.is_set():
        before = wheel.sources
        wanted = change(SourceTable.from_dict(before)).to_dict()
        if wanted == before:
            return
        try:
            future = wheel.change_sources(before, wanted)
            while time.monotonic() < end and not stop.is_set():
                if _is_done(future):
                    return
        except Overloaded:
            stop.wait(_AGAIN_S)
    raise NotRunning("what is known of the sources was not committed", remedy="It is tried again")


def acknowledge_unread(wheel: WheelPort) -> None:
    """Take out the notes of what was not read. Errors: as of ``agree``."""
    agree(wheel, SourceTable.acknowledged, threading.Event())


def _is_done(future: Future[Any]) -> bool:
    """Wait a moment for it. Errors: those of the future."""
    try:
        error = future.exception(POLL_S)
    except TimeoutError:
        return False
    if error is not None:
        raise copy(error)  # the future's own would refer to these frames, and they to it
    return True


class _Queued(NamedTuple):
    source: DelaySource
    part: ConsumerRecords
    future: Future[Any]
    rows: int
    nbytes: int
    dead: int
    off: tuple[int, ...]
    started: float


def places_of(topic: str, partitions: Iterable[int]) -> list[Place]:
    return [Place(topic, one) for one in partitions]


def _partitions_text(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f" (partition{'s' if len(numbers) > 1 else ''} {ranges(numbers)})"
