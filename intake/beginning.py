"""Where the reading of partitions begins that are not in the table yet: collects from Kafka and
the log what ``begin_of`` has to know to decide."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .ports import WheelPort
from .source_reader import EARLIEST_AT, END_AT, SourceReader
from .sources import (
    OFFSETS_KEPT_MS,
    Begin,
    KnownTopic,
    NotKnown,
    Place,
    SourceFacts,
    SourceTable,
    StoredOffset,
    begin_of,
)

NO_RANGE = "Kafka does not tell its range of offsets"


def decide_begins(
    reader: SourceReader,
    wheel: WheelPort,
    known: KnownTopic,
    fresh: Sequence[int],
    new: Collection[int],
    choice: str | None,
    now_ms: int,
) -> dict[int, Begin | NotKnown]:
    """Where each of the partitions ``fresh`` begins, or why that is not known. ``known``: their
    topic as it is now; ``new``: partitions that were added after the others were read; ``choice``:
    as of ``begin_of``. Errors: ``SourceUnreadable``, ``SourceUnreachable``."""
    if not fresh:
        return {}
    table, topic = SourceTable.from_dict(wheel.sources), known.topic
    # If the topic is in the table, this group may have stored the others' offsets itself.
    first_seen = table.find(reader.cluster, topic) is None
    places = [Place(topic, one) for one in fresh]
    earliest, end = reader.offsets(places, EARLIEST_AT), reader.offsets(places, END_AT)
    young = reader.offsets(places, now_ms - OFFSETS_KEPT_MS)
    stored = reader.stored([Place(topic, one) for one in range(known.partitions)])
    unclaimed = [one for one in fresh if one not in table.claimed]
    old = {one: wheel.source_position(one) for one in unclaimed}
    rivals = _rivals(reader, topic, {one for one, at in old.items() if at >= 0})

    def decide(place: Place) -> Begin:
        if place not in earliest or place not in end:
            raise NotKnown(NO_RANGE)
        if place.partition in new:
            return Begin(earliest[place], "it is new")
        mine = stored.get(place)
        # An offset of a former topic of this name: the group has not read this one.
        other = mine is not None and mine.topic_id not in ("", known.topic_id)
        others = first_seen and any(one != place for one in stored)
        at = old.get(place.partition, -1)
        theirs = (one.offset for of, one in rivals.items() if of.partition == place.partition)
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
        return begin_of(facts, choice)

    decided: dict[int, Begin | NotKnown] = {}
    for place in places:
        try:
            decided[place.partition] = decide(place)
        except NotKnown as why:
            decided[place.partition] = why
    return decided


def _rivals(reader: SourceReader, topic: str, partitions: set[int]) -> dict[Place, StoredOffset]:
    """What an earlier version may have stored for partitions of those numbers of other topics."""
    if not partitions:
        return {}
    others = (one for one in reader.every_topic() if one != topic)
    stored = reader.stored([Place(one, number) for one in others for number in partitions])
    return {place: one for place, one in stored.items() if not one.topic_id}
