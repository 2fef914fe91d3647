"""The table of producers: a duplicate is recognised, an old sequence is not guessed about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.errors import SequenceTooOld
from slotwheel.wheel.journal.producers import SOURCE_PRODUCER, Producers
from slotwheel.wheel.protocol import IN_FLIGHT_MAX
from slotwheel.wheel.state import ProducerEntry


def sent(sequence: int, index: int | None = None) -> ProducerEntry:
    return ProducerEntry(sequence, sequence * 10, 1000, sequence if index is None else index, 3)


def table(*sequences: int, producers_max: int = 10) -> Producers:
    producers = Producers(producers_max, 10)
    for sequence in sequences:
        producers.record(1, sent(sequence))
    return producers


def test_a_known_sequence_gives_the_first_answer() -> None:
    producers = table(1, 2, 3)
    assert producers.find(1, 2) == sent(2)
    assert producers.find(1, 4) is None
    assert producers.find(2, 2) is None
    assert producers.last_sequence(1) == 3
    assert producers.last_sequence(2) == -1


def test_one_that_is_too_old_is_refused_not_stored_again() -> None:
    producers = table(1, 2, 3, 4, 5, 6)
    with pytest.raises(SequenceTooOld, match="got 1; limit 2"):
        producers.find(1, 1)
    assert producers.find(1, 2) == sent(2)


def test_in_flight_entries_may_come_in_any_order() -> None:
    producers = table(10, 13)
    assert producers.find(1, 12) is None
    producers.record(1, sent(12))
    assert producers.find(1, 12) == sent(12)
    assert producers.last_sequence(1) == 13
    with pytest.raises(SequenceTooOld):
        producers.find(1, 8)


@given(st.lists(st.integers(1, 60), unique=True, min_size=1, max_size=40))
def test_the_highest_five_are_kept(sequences: list[int]) -> None:
    producers = table(*sequences)
    for sequence in sorted(sequences)[-IN_FLIGHT_MAX:]:
        assert producers.find(1, sequence) == sent(sequence)


def test_the_longest_unused_goes_first_but_never_a_source_partition() -> None:
    producers = Producers(2, 10)
    source = SOURCE_PRODUCER | 4
    producers.record(source, sent(7))
    producers.record(1, sent(1))
    producers.record(2, sent(1))
    assert len(producers) == 2
    assert producers.last_sequence(source) == 7
    assert producers.last_sequence(1) == -1
    changed, gone = producers.unsaved(100)
    assert set(changed) == {source, 2}
    assert gone == [1]
    producers.record(1, sent(9))  # it comes back, and is not deleted from the state any more
    assert 1 not in producers.unsaved(100)[1]


def test_source_partitions_alone_may_exceed_the_bound() -> None:
    producers = Producers(1, 10)
    for partition in range(3):
        producers.record(SOURCE_PRODUCER | partition, sent(1))
    assert len(producers) == 3


def test_what_was_never_written_is_forgotten() -> None:
    producers = table(1, 2, 3)
    producers.record(2, sent(1, index=3))
    producers.roll_back(after_index=2)
    assert producers.find(1, 3) is None
    assert producers.find(1, 2) == sent(2)
    assert producers.last_sequence(2) == -1
    assert producers.unsaved(100) == ({1: [sent(1), sent(2)]}, [2])


def test_only_committed_entries_are_saved() -> None:
    producers = table(1, 2, 3)
    changed, gone = producers.unsaved(upto_index=2)
    assert changed == {1: [sent(1), sent(2)]}
    producers.saved(changed, gone)
    assert producers.unsaved(3)[0] == {1: [sent(1), sent(2), sent(3)]}  # the third is still unsaved
    producers.saved(*producers.unsaved(3))
    assert producers.unsaved(3) == ({}, [])


def test_loading_keeps_the_order_of_use() -> None:
    producers = Producers(2, 10)
    producers.load({5: [sent(1, index=9)], 6: [sent(1, index=4)], 7: []})
    assert producers.find(5, 1) == sent(1, index=9)
    assert producers.find(7, 1) is None
    producers.record(8, sent(1, index=10))
    assert producers.last_sequence(5) == 1


def test_an_entry_met_again_at_recovery_is_not_one_more() -> None:
    producers = table(1, 2, 3, 4, 5)
    producers.record(1, sent(5))
    assert producers.find(1, 1) == sent(1)


def test_what_is_rolled_back_leaves_the_committed_ones_in_place() -> None:
    producers = Producers(10, 10)
    source = SOURCE_PRODUCER | 1
    for sequence in range(1, 21):  # the first ten are committed, ten more are in flight
        producers.record(source, sent(sequence), committed_index=min(10, sequence))
    assert producers.last_sequence(source) == 20
    assert [one.sequence for one in producers.unsaved(10)[0][source]] == [6, 7, 8, 9, 10]
    producers.roll_back(10)
    assert producers.last_sequence(source) == 10, "the intake would read from the start again"
    assert producers.find(source, 7) == sent(7)
    producers.record(source, sent(11), committed_index=11)
    with pytest.raises(SequenceTooOld):
        producers.find(source, 6)
