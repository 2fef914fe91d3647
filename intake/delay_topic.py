"""Kafka delay topics: all their partitions, each read exactly once into the journal.

Theory: the wheel's own log has the position of each source (an append carries the last offset that
it took from the source, and both are committed as one entry). So reading always starts behind that
position, after a start, a failure or a doubt. The offsets stored in Kafka show the lag, and tell
an empty directory where to begin.

    position of the log -> read -> poll -> same topic still? -> rows (or dead letters) -> append
          ^                                                                                 |
          +----- any failure of one source: its reason is shown, back off, begin again -----+

Rules
- One thread and one reader for all sources. Records of a poll are appended source by source
  (``SourceAppender``).
- What is wrong with one source (no rights, no leader, a codec that is missing, an offset that is
  gone) stops that source only, and is a reason why the node is not ready.
- Records are taken only if the topic id is the same after the poll as before the reading began:
  otherwise records of a topic made anew would be taken for those of the old one, and skipped.
- The group agrees on where a source begins before that is stored in Kafka: a master that finds it
  stored and not agreed would decide by it, and perhaps not as this one did. A source is read only
  after that, so that an empty directory can trust that a source without a stored offset was never
  read.
- A source of which nothing is heard at ``SILENT_CHECKS`` is not read, whatever the client says:
  its leader may answer nobody while all others do.
- No exception ends the loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from ..policy.deadletters import DEAD_LETTER_TOPIC
from ..wheel.backoff import Backoff
from ..wheel.errors import NotMaster, NotRunning
from ..wheel.texts import counted
from .agreeing import agree
from .appending import ClockInDoubt, SourceAppender
from .beginning import NO_RANGE, decide_begins
from .delay_source import DelaySource, SourceState
from .door import Door
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
from .sources import (
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

POLL_S = 0.25
COMMIT_INTERVAL_S = 5.0
CHECK_INTERVAL_S = 1.0
_MEASURE_AGAIN_S = 10.0
SILENT_CHECKS = 20
"""A source whose leader says nothing, or gives nothing of what there is, at so many checks in a row
is not read. Checks and not seconds: while an append waits for room nobody asks."""
_BUSY_SHARE = 0.1
"""What a check counts at which others gave records: the source may only not have had its turn."""

_NO_LEADER = "the partition has no leader"
_NO_ANSWER = "the partition's leader does not answer"
_NO_RECORDS = "the partition has records, and its leader returns none"


class _MadeAnew(Exception):
    """A topic is another one than when its reading began: everything begins again."""


class DelayTopicIntake:
    """Reads delay topics. ``open_reader``: connects a reader; ``run``: a thread's target.

    ``topics``, ``partitions``: what is to be read; None: all partitions. ``begin_at``: one of
    ``sources.CHOICES`` for sources of which nothing is known. ``door``: what refuses messages to
    topics that Kafka does not have.
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
        door: Door | None = None,
    ) -> None:
        self._wheel = wheel
        self._open_reader = open_reader
        self._topics = tuple(dict.fromkeys(topics))
        self._partitions = partitions
        self._begin_at = begin_at
        self._clock = clock
        self._events = events
        self._appender = SourceAppender(
            wheel, clock, events, dead_topic=dead_topic, policies=policies, door=door
        )
        self._backoff = Backoff(0.1)
        self._next_commit = 0.0
        self._next_check = 0.0
        self._next_measure = 0.0
        self._lock = threading.Lock()
        self._sources: dict[Place, DelaySource] = {}
        self._reading: set[Place] = set()
        self._ends: dict[tuple[str, int], int] = {}
        """By topic id and source: the end that was seen last, also of topics that are gone."""
        self._topic_problems = dict.fromkeys(self._topics, "Kafka has not been asked yet")
        self._reachable = True
        self._busy = False
        """Whether records came since the last check."""
        self._unstored = ""
        """Why positions cannot be stored in Kafka; empty: they can."""

    # Seen from other threads

    def states(self) -> list[SourceState]:
        """What is to be read, by topic and partition."""
        with self._lock:
            sources = [replace(one) for _, one in sorted(self._sources.items())]
            problems = dict(self._topic_problems)
        found = [one.state(self._wheel) for one in sources]
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

    # The thread

    def run(self, stop: threading.Event) -> None:
        """Read until ``stop`` is set; then returns within about half a second."""
        while not stop.is_set():
            try:
                with closing(self._open_reader()) as reader:
                    self._read(reader, stop)
            except _MadeAnew:
                continue
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
        self._next_check = self._next_commit = 0.0
        whole = True
        while not stop.is_set():
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
                found = {self._sources[place]: one for place, one in polled.records.items()}
                whole = self._appender.append(found, stop, partial(self._give_up, reader))
                self._backoff.worked()
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
            offsets = {one.place: one.position(self._wheel) + 1 for one in waiting}
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
                self._name(self._source(known, one), _NO_LEADER)
        fresh = [one for one in fresh if found.led[one]]
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
        begun = [one for one in chosen if one in known.begins]
        ready = [
            one
            for number in begun
            for one in self._ready(reader, known, number, led=found.led[number])
        ]
        # What has a position was read, and so it was stored.
        first = [one for one in ready if self._wheel.source_position(one.number) < 0]
        if first:
            try:
                reader.store({one.place: StoredOffset(one.begin, one.topic_id) for one in first})
            except SourceUnreadable as error:
                for source in first:
                    self._failed(source, f"where it begins cannot be stored in Kafka: {error}")
                ready = [one for one in ready if one not in first]
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
        count: int,
        fresh: Sequence[int],
        stop: threading.Event,
    ) -> KnownTopic:
        """Decide where the partitions ``fresh`` begin, as far as that can be known, and agree on
        it. Returns the topic as the group knows it then. ``count``: how many partitions it has.
        Errors: ``SourceUnreadable``."""
        before = self._table.find(reader.cluster, known.topic)
        new = range(0 if anew else count if before is None else before.partitions, count)
        seen = replace(known, partitions=count)
        decided = decide_begins(
            reader, self._wheel, seen, fresh, new, self._begin_at, self._clock()
        )
        begins: dict[int, Begin] = {}
        for one, begin in decided.items():
            if isinstance(begin, Begin):
                begins[one] = begin
            else:
                self._failed(self._source(known, one), f"where to begin is not known: {begin}")
        offsets = {**known.begins, **{one: begin.offset for one, begin in begins.items()}}
        chosen, _ = selected(self._partitions, count)
        # New ones stay so until their first offset is known.
        partitions = min(
            (one for one in chosen if one in new and one not in offsets), default=count
        )
        known = replace(known, partitions=partitions, begins=offsets)
        note = self._note_of_old(before) if anew and before is not None else None
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
        """Kafka has no records at the offsets where these sources go on: retention has deleted
        them, or the partition has become shorter."""
        self._check_ids(reader, {topic})
        places = [one.place for one in sources]
        earliest, end = reader.offsets(places, EARLIEST_AT), reader.offsets(places, END_AT)
        passed: dict[int, int] = {}
        again: dict[Place, int] = {}
        unread: list[Unread] = []
        topic_id = sources[0].topic_id
        notes = [one for one in self._table.notes if (one.topic, one.topic_id) == (topic, topic_id)]
        noted = [gap for note in notes for gap in note.unread]
        for source in sources:
            place, wanted = source.place, source.position(self._wheel) + 1
            if place not in earliest or place not in end:
                self._failed(source, NO_RANGE)
            elif wanted > end[place]:
                self._failed(
                    source,
                    f"it ends at offset {end[place]}, and the node has read all below {wanted}:"
                    " Kafka has lost records, and new ones get their offsets and would be passed"
                    " over. Make the topic anew: then it is read from its first record",
                )
                # Noted while it is seen: once the partition is longer again, nothing tells.
                # Meanwhile its end moves up, within what was noted first.
                gap = Unread(place.partition, end[place], wanted - 1)
                if not any(one.contains(gap) for one in noted):
                    unread.append(gap)
            else:
                again[place] = max(wanted, earliest[place])
                if wanted < earliest[place]:
                    passed[place.partition] = earliest[place]
                    unread.append(Unread(place.partition, wanted, earliest[place] - 1))
        if unread:
            note = Note(MISSED, self._clock(), topic, topic_id, tuple(unread))

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

    def _name(self, source: DelaySource, why: str) -> None:
        """A source cannot be read now: show why, with an alarm if that is new."""
        if why != source.problem:
            self._events.alarm("delay-topic-not-read", source=str(source.place), reason=why)
        source.problem = why

    def _failed(self, source: DelaySource, why: str) -> None:
        """A source cannot be read; it is tried again, less and less often."""
        self._name(source, why)
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

    def _give_up(self, reader: SourceReader, source: DelaySource, error: Exception) -> None:
        """A source's records cannot be appended: they are read again later."""
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
                # A leader that does not answer takes time from all others.
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
            place: StoredOffset(source.next_offset(self._wheel), source.topic_id)
            for place, source in self._sources.items()
            if place in self._reading
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


def places_of(topic: str, partitions: Iterable[int]) -> list[Place]:
    return [Place(topic, one) for one in partitions]


def _partitions_text(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    return f" (partition{'s' if len(numbers) > 1 else ''} {ranges(numbers)})"
