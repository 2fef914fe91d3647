"""Decides where the reading of partitions begins that are not in the table yet: it collects facts
from Kafka and the log, by which ``begin_of`` decides."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...broker.sources import (
    OFFSETS_KEPT_MS,
    Begin,
    KnownTopic,
    NotKnown,
    Place,
    SourceFacts,
    SourceTable,
    StoredOffset,
    begin_in_fleet,
    begin_of,
)
from ...broker.topicids import is_topic_id
from .ports import WheelPort
from .source_reader import EARLIEST_AT, END_AT, SourceReader

NO_RANGE = "Kafka does not tell its range of offsets"


def decide_begins(
    reader: SourceReader,
    wheel: WheelPort,
    known: KnownTopic,
    fresh: Sequence[int],
    new: Collection[int],
    choice: str | None,
    now_ms: int,
    *,
    of_fleet: bool = False,
) -> dict[int, Begin | NotKnown]:
    """Decide where each of the partitions ``fresh`` of the topic ``known`` begins; ``NotKnown`` for
    those where that cannot be known. ``new``: partitions that were added after the others were
    read. ``choice``: as of ``begin_of``. ``of_fleet``: they were given to this wheel by its fleet,
    and it may have read them before. Errors: ``SourceUnreadable``, ``SourceUnreachable``."""
    if not fresh:
        return {}
    table, topic = SourceTable.from_dict(wheel.sources), known.topic
    # If the topic is in the table, this group may have stored the other partitions' offsets itself.
    first_seen = table.find(reader.cluster, topic) is None
    places = [Place(topic, number) for number in fresh]
    earliest, end = reader.offsets(places, EARLIEST_AT), reader.offsets(places, END_AT)
    young = reader.offsets(places, now_ms - OFFSETS_KEPT_MS)
    stored = reader.stored([Place(topic, number) for number in range(known.partitions)])
    unclaimed = [number for number in fresh if number not in table.claimed]
    old = {number: wheel.source_position(number) for number in unclaimed}
    rivals = _rivals(reader, topic, {number for number, at in old.items() if at >= 0})

    def decide(place: Place) -> Begin:
        if place not in earliest or place not in end:
            raise NotKnown(NO_RANGE)
        if place.partition in new and not of_fleet:
            return Begin(earliest[place], "it is new")
        offset = stored.get(place)
        # An offset of a former topic of this name: the group has not read this one.
        former = offset is not None and offset.topic_id not in ("", known.topic_id)
        if of_fleet and offset is not None:  # a stranger's offset may have any text
            former = former and is_topic_id(offset.topic_id)
        siblings = first_seen and any(sibling != place for sibling in stored)
        at = old.get(place.partition, -1)
        claims = (
            claim.offset
            for rival, claim in rivals.items()
            if rival.partition == place.partition and claim.offset <= at + 1
        )
        facts = SourceFacts(
            earliest[place],
            end[place],
            stored=None if former else offset,
            old_position=at,
            rival=max(claims, default=-1),
            others_stored=former or siblings,
            elsewhere=table.elsewhere(reader.cluster, topic),
            young=young.get(place),
        )
        if not of_fleet:
            return begin_of(facts, choice)
        position = wheel.source_position(known.number(place.partition))
        own = max(known.begins.get(place.partition, -1), position + 1 or -1)
        next_offset = None if own < 0 else own
        return begin_in_fleet(
            facts, choice, known.topic_id, next_offset, new=place.partition in new
        )

    decided: dict[int, Begin | NotKnown] = {}
    for place in places:
        try:
            decided[place.partition] = decide(place)
        except NotKnown as error:
            decided[place.partition] = error
    return decided


def _rivals(reader: SourceReader, topic: str, partitions: set[int]) -> dict[Place, StoredOffset]:
    """The offsets that an earlier version may have stored for the same partitions of other topics:
    those without a topic id."""
    if not partitions:
        return {}
    others = (name for name in reader.every_topic() if name != topic)
    stored = reader.stored([Place(name, number) for name in others for number in partitions])
    return {place: offset for place, offset in stored.items() if not offset.topic_id}
