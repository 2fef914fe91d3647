"""Where the reading of a source begins, by what is known; and what is remembered of sources."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.broker.sources import (
    CHOICES,
    EARLIEST,
    LATEST,
    MISSED,
    STORED,
    KnownTopic,
    Note,
    NotKnown,
    SourceFacts,
    SourceTable,
    StoredOffset,
    Unread,
    as_seen,
    begin_in_fleet,
    begin_of,
    parse_partitions,
    ranges,
    selected,
)
from slotwheel.wheel.journal.producers import SOURCE_PRODUCER
from slotwheel.wheel.request import is_request

YOUNG = SourceFacts(10, 50, young=10)
OLD = SourceFacts(10, 50, young=30)
EMPTY = SourceFacts(10, 10)
OF_EARLIER = SourceFacts(0, 50, StoredOffset(41, ""), old_position=40)


@pytest.mark.parametrize(
    ("facts", "choice", "begin"),
    [
        # Nothing stored: certain only where no other directory can have read anything.
        (YOUNG, None, 10),
        (EMPTY, None, 10),
        (replace(EMPTY, elsewhere=True), None, 10),
        (OLD, None, "older than 7 days.*--delay-from"),
        (SourceFacts(10, 50), None, "--delay-from"),
        (replace(OLD, others_stored=True), None, 10),
        (replace(YOUNG, elsewhere=True), None, "another Kafka.*--delay-from"),
        (OLD, EARLIEST, 10),
        (YOUNG, LATEST, 50),
        (YOUNG, STORED, "no offset stored.*--delay-from"),
        # StoredOffset
        (replace(OLD, stored=StoredOffset(20, "id")), None, 20),
        (replace(OLD, stored=StoredOffset(20, "")), STORED, 20),
        (replace(OLD, stored=StoredOffset(50, "id")), None, 50),
        (replace(OLD, stored=StoredOffset(5, "id")), None, 5),
        (replace(OLD, stored=StoredOffset(51, "id")), None, "51 .*50.*--delay-from"),
        (replace(OLD, stored=StoredOffset(20, "id")), EARLIEST, 10),
        (replace(OLD, stored=StoredOffset(20, "id")), LATEST, 50),
        # A position of an earlier version, kept by the partition's number alone
        (OF_EARLIER, None, 41),
        (OF_EARLIER, EARLIEST, 41),
        (OF_EARLIER, LATEST, 41),
        (replace(OF_EARLIER, stored=StoredOffset(30, "")), None, 41),  # it was killed
        (replace(OF_EARLIER, stored=StoredOffset(30, ""), rival=41), None, 30),  # another topic's
        (replace(OF_EARLIER, stored=StoredOffset(30, ""), rival=20), None, 30),  # or another's
        (replace(OF_EARLIER, stored=StoredOffset(45, "")), None, 45),
        (replace(OF_EARLIER, stored=None), None, "position 40.*--delay-from stored"),
        (replace(OF_EARLIER, stored=None), STORED, 41),
        (replace(OF_EARLIER, stored=None), EARLIEST, 0),
        (replace(OF_EARLIER, stored=None), LATEST, 50),
        (replace(OF_EARLIER, stored=None, end=40, young=0), None, 0),  # too short to be its
        (replace(OF_EARLIER, stored=StoredOffset(20, "id")), None, 20),
    ],
)
def test_where_reading_begins(facts: SourceFacts, choice: str | None, begin: int | str) -> None:
    if isinstance(begin, int):
        assert begin_of(facts, choice).offset == begin
    else:
        with pytest.raises(NotKnown, match=begin):
            begin_of(facts, choice)


OURS, THEIRS = StoredOffset(20, "id"), StoredOffset(20, "")


@pytest.mark.parametrize(
    ("facts", "choice", "next_offset", "begin"),
    [
        # Stored by a wheel of the fleet: the further of both, whatever is chosen.
        (replace(OLD, stored=OURS), None, None, 20),
        (replace(OLD, stored=OURS), EARLIEST, None, 20),
        (replace(OLD, stored=OURS), LATEST, 15, 20),
        (replace(OLD, stored=OURS), None, 31, 31),  # appended, and died before it was stored
        # Stored by a stranger
        (replace(OLD, stored=THEIRS), None, None, "20 .*of no wheel.*--delay-from"),
        (replace(OLD, stored=THEIRS), None, 31, "20 .*of no wheel.*--delay-from"),
        (replace(OLD, stored=THEIRS), STORED, None, 20),
        (replace(OLD, stored=THEIRS), STORED, 31, 31),
        (replace(OLD, stored=THEIRS), EARLIEST, 31, 31),
        (replace(OLD, stored=THEIRS), LATEST, 31, 50),
        # Nothing stored, and this wheel has read it: a wheel that makes a fleet
        (YOUNG, None, 31, 31),
        (OLD, None, 50, 50),
        (OLD, None, 30, 30),
        (OLD, None, 29, "no offset of the fleet any more.*--delay-from stored"),
        (OLD, STORED, 29, 29),
        (OLD, EARLIEST, 29, 29),
        (OLD, LATEST, 29, 50),
        # Nothing stored, and it has not
        (YOUNG, None, None, 10),
        (OLD, None, None, "older than 7 days"),
        (OLD, EARLIEST, None, 10),
        (OLD, LATEST, None, 50),
    ],
)
def test_where_a_wheel_of_a_fleet_begins(
    facts: SourceFacts, choice: str | None, next_offset: int | None, begin: int | str
) -> None:
    if isinstance(begin, int):
        assert begin_in_fleet(facts, choice, "id", next_offset, new=False).offset == begin
    else:
        with pytest.raises(NotKnown, match=begin):
            begin_in_fleet(facts, choice, "id", next_offset, new=False)


def test_a_new_partition_is_begun_at_its_first_record_unless_a_wheel_has_stored() -> None:
    assert begin_in_fleet(OLD, LATEST, "id", None, new=True).offset == 10
    stored = replace(OLD, stored=OURS)
    assert begin_in_fleet(stored, LATEST, "id", None, new=True).offset == 20


_OFFSETS = st.integers(0, 60)
_FACTS = st.builds(
    SourceFacts,
    st.integers(0, 20),
    st.integers(20, 60),
    st.none() | st.builds(StoredOffset, _OFFSETS, st.sampled_from(["", "id"])),
    st.integers(-1, 60),
    st.integers(-1, 60),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 60),
)


@given(_FACTS, st.sampled_from([None, *CHOICES]))
def test_it_begins_at_something_that_is_known(facts: SourceFacts, choice: str | None) -> None:
    try:
        begin = begin_of(facts, choice)
    except NotKnown:
        assert choice in (None, STORED)
        return
    known = {facts.earliest, facts.end, facts.old_position + 1}
    assert begin.offset in known | ({facts.stored.offset} if facts.stored else set())
    assert 0 <= begin.offset <= facts.end


def test_a_source_is_found_by_cluster_topic_id_and_partition() -> None:
    one = KnownTopic("cluster", "delays", "id")
    others = [
        one.number(1),
        replace(one, topic_id="another").number(0),
        replace(one, cluster="another").number(0),
        replace(one, named=True).number(0),
    ]
    assert len({one.number(0), *others}) == 5
    for number in (one.number(0), *others):
        assert number >> 61 == 1, "told from a bare partition number"
        assert not is_request(SOURCE_PRODUCER | number)
    assert replace(one, topic="renamed").number(0) == one.number(0)


def test_a_topic_by_its_name() -> None:
    first, anew = as_seen(None, "c", "delays", "one")
    assert (first.topic_id, anew) == ("one", False)
    assert as_seen(first, "c", "delays", "one") == (first, False)
    second, anew = as_seen(first, "c", "delays", "two")
    assert (second.topic_id, second.begins, anew) == ("two", {}, True)
    with pytest.raises(NotKnown, match="not up to date"):
        as_seen(second, "c", "delays", "one")
    # A broker that told no ids is upgraded: the topic is the same, and so are its sources.
    old, _ = as_seen(None, "c", "delays", "")
    upgraded, anew = as_seen(old, "c", "delays", "one")
    assert (upgraded.number(3), anew) == (old.number(3), False)


def test_the_table_is_what_was_written() -> None:
    known = KnownTopic("c", "delays", "two", 3, {0: 5, 2: 0}, retired=("one",))
    note = Note(MISSED, 7, "delays", "two", (Unread(0, 3, 9), Unread(1, 4, None)))
    table = SourceTable((known,), frozenset({0}), (note,), 2)
    assert SourceTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    assert SourceTable.from_dict({}) == SourceTable()
    assert table.acknowledged().topics == (known,)


def test_notes_are_bounded_and_say_how_many_are_not_kept() -> None:
    table = SourceTable()
    for number in range(3000):
        note = Note(MISSED, number, "delays", "id", (Unread(number, 0, 1),))
        table = table.with_note(note)
    assert len(table.notes) == 1
    assert len(table.notes[0].unread) + table.dropped == 3000
    for number in range(150):
        table = table.with_note(Note(MISSED, number, f"t{number}", "id", (Unread(0, 0, 1),)))
    assert len(table.notes) == 100
    assert sum(len(one.unread) for one in table.notes) + table.dropped == 3150


@given(st.sets(st.integers(0, 300), min_size=1))
def test_partitions_are_read_as_they_are_shown(numbers: set[int]) -> None:
    assert parse_partitions(ranges(numbers)) == tuple(sorted(numbers))


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "1-", "1,,2", "0-100000"])
def test_partitions_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|^.+$"):
        parse_partitions(text)


def test_which_partitions_are_read() -> None:
    assert selected(None, 3) == ([0, 1, 2], [])
    assert selected((0, 2, 7), 3) == ([0, 2], [7])
