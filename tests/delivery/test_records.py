"""Small parts of the Kafka sinks that need no broker: hashing, records, the topic book."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from slotwheel.broker import collection
from slotwheel.broker.murmur2 import murmur2, partitions_of
from slotwheel.delivery.kafka.records import to_records
from slotwheel.delivery.kafka.topicbook import (
    ASK_AGAIN_S,
    CROWDED_AFTER_S,
    DOOR_WAIT_S,
    SETTLED_S,
    UNSURE_MAX,
    AnyTopic,
    Found,
    NotYet,
    TopicBook,
    TopicInfo,
    Unreachable,
)
from slotwheel.delivery.sink import split_by_topic
from slotwheel.wheel.schema import FEW_ROWS
from support.deliveries import MINT, ODD_ROWS, Sent, id_of, odd, rows_of

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=30)


@given(KEYS, st.integers(0, 5))
def test_murmur2_is_kafkas(keys: list[bytes | None], skip: int) -> None:
    column = pa.array(keys, pa.binary()).slice(min(skip, len(keys)))
    wanted = [kafka_murmur2(key or b"") for key in column.to_pylist()]
    assert murmur2(column).tolist() == wanted


def test_known_partitions() -> None:
    """Source: the expected values in Apache Kafka's tests of Utils.murmur2."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    for key, value in known.items():
        column = pa.array([key])
        assert murmur2(column).view(np.int32).tolist() == [value]
        assert partitions_of(column, 10).tolist() == [(value & 0x7FFFFFFF) % 10]


def test_records_of_a_slice() -> None:
    records = to_records(rows_of(odd("t") * 2).slice(3, 5), MINT)
    wanted = [ODD_ROWS[n % len(ODD_ROWS)] for n in range(3, 8)]
    assert records.keys == [key for key, _, _ in wanted]
    assert [tuple(h[:-3]) for h in records.headers] == [headers for _, _, headers in wanted]
    assert all(h[-3][0] == "slotwheel-id" for h in records.headers)


@given(st.lists(st.integers(0, 3) | st.integers(0, 1 << 50), max_size=8), st.booleans())
def test_each_record_has_its_own_id_and_times(dues: list[int], many: bool) -> None:
    """Few rows and many go different ways; equal times share a header."""
    sent = [Sent("t", due=due) for due in dues] * (FEW_ROWS if many else 1)
    added = [
        [
            ("slotwheel-id", id_of(one, 7 + number).encode()),
            ("slotwheel-due-ms", b"%d" % one.due),
            ("slotwheel-created-ms", b"%d" % (one.due - 1000)),
        ]
        for number, one in enumerate(sent)
    ]
    assert to_records(rows_of(sent, first_offset=7), MINT).headers == added


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=50))
def test_split_by_topic_keeps_every_row_in_order(topics: list[str]) -> None:
    names, parts = split_by_topic(rows_of([Sent(topic) for topic in topics]))
    assert len(set(names)) == len(names)
    for name, part in zip(names, parts, strict=True):
        assert part.tolist() == [at for at, topic in enumerate(topics) if topic == name]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_missing_topic_needs_to_be_missing_for_a_while() -> None:
    clock = Time()
    asked: list[str] = []

    def fetch(topics: Sequence[str]) -> dict[str, Found]:
        asked.extend(topics)
        return dict.fromkeys(topics)

    book = TopicBook(fetch, 1.0, clock)
    with pytest.raises(NotYet, match="does not exist"):
        book.lookup("t")
    clock.now = 0.9
    with pytest.raises(NotYet):
        book.lookup("t")
    clock.now = 1.1
    assert book.lookup("t") is None
    clock.now = 1.14
    assert book.lookup("t") is None
    assert len(asked) == 3, "it is not asked for with each chunk"
    clock.now = 1.2
    assert book.lookup("t") is None
    assert len(asked) == 4


def test_a_topic_that_was_missing_is_found_as_soon_as_it_is_made() -> None:
    """A message that is redriven at once must not be refused again."""
    clock, kafka = Time(), Kafka()
    book = TopicBook(kafka.fetch, 1.0, clock)
    for clock.now in (0.0, 1.1):
        book.lookup_all(["late"])
    kafka.there.add("late")
    clock.now = 1.2
    assert book.lookup("late") == TopicInfo(1)


def test_a_topic_without_a_leader_is_not_remembered() -> None:
    answers = [TopicInfo(3, leaderless=1), TopicInfo(3)]
    book = TopicBook(lambda topics: dict.fromkeys(topics, answers.pop(0)), 1.0, Time())
    with pytest.raises(NotYet, match="1 partitions without a leader"):
        book.lookup("t")
    assert book.lookup("t") == TopicInfo(3)
    assert book.lookup("t") == TopicInfo(3)
    book.forget("t")
    with pytest.raises(IndexError):
        book.lookup("t")


class Kafka:
    """Answers for many topics at once; ``asked``: each request."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.asked: list[list[str]] = []
        self.away = False

    def fetch(self, topics: Sequence[str]) -> dict[str, Found]:
        if self.away:
            raise Unreachable("away")
        self.asked.append(list(topics))
        return {topic: TopicInfo(1) if topic in self.there else None for topic in topics}


def test_many_topics_are_one_request_and_many_missing_ones_are_soon_sure() -> None:
    good, missing = [f"t{n}" for n in range(800)], [f"m{n}" for n in range(2000)]
    clock, kafka = Time(), Kafka(*good)
    book = TopicBook(kafka.fetch, 1.0, clock)
    found = book.lookup_all(good + missing)
    assert all(found[topic] == TopicInfo(1) for topic in good)
    assert all(isinstance(found[topic], NotYet) for topic in missing)
    for clock.now in (0.2, 3.1):
        assert set(book.lookup_all(missing).values()) == {None}
    assert len(kafka.asked) == 2
    # Those in use are asked for again, by the other thread alone.
    for second in (4, 200, 400, 700, 1000):
        clock.now = float(second)
        book.turn()
        before = len(kafka.asked)
        assert all(book.lookup_all(good).values())
        assert len(kafka.asked) == before


def test_what_is_asked_ahead_costs_nothing_when_it_is_due() -> None:
    clock, kafka = Time(), Kafka("there")
    book = TopicBook(kafka.fetch, 1.0, clock)
    book.ask_ahead(["there", "missing"])
    for clock.now in (0.0, 0.5, 1.0):
        book.turn()
    before = len(kafka.asked)
    assert book.lookup_all(["there", "missing"]) == {"there": TopicInfo(1), "missing": None}
    assert len(kafka.asked) == before


def test_a_topic_is_absent_only_by_an_answer_from_after_the_question() -> None:
    clock, kafka = Time(), Kafka("there")
    book = TopicBook(kafka.fetch, 1.0, clock)
    clock.now = 10.0
    assert book.absent(["there", "new"], 0.0) is None
    book.turn()
    clock.now = 10.4
    book.turn()
    clock.now = 10.5
    book.turn()
    assert book.absent(["there", "new"], 0.5) is None, "it is not sure yet"
    clock.now = 11.0
    book.turn()
    assert book.absent(["there", "new"], 0.4) is None, "the broker may not have known of it yet"
    assert book.absent(["there", "new"], 1.0) == ["new"]
    assert book.knows(["there"])
    assert not book.knows(["there", "new"])
    kafka.there.add("new")  # and a message for it comes a moment later
    clock.now = 11.1
    assert book.absent(["new"], 0.0) is None
    book.turn()
    assert book.absent(["new"], 0.0) == []


def test_a_topic_in_use_is_not_absent_while_a_broker_has_forgotten_it() -> None:
    """As one does that restarts; what was deleted stays away, and is absent then."""
    clock, kafka = Time(), Kafka("used")
    book = TopicBook(kafka.fetch, 1.0, clock)
    assert book.lookup("used")
    kafka.there.clear()
    with pytest.raises(NotYet):
        book.lookup("used", fresh=True)
    for clock.now in (0.5, 1.1, 1.6):
        assert book.absent(["used"], clock.now) is None
        book.turn()
    clock.now = DOOR_WAIT_S + 0.1
    assert book.absent(["used"], clock.now) == [], "the sink decides"
    clock.now = SETTLED_S
    book.turn()
    assert book.absent(["used"], 1.0) == ["used"]


def test_for_what_has_been_missing_for_long_a_delay_topic_does_not_wait() -> None:
    """Each of its batches would, and a second is enough for a topic that is created at last."""
    clock, kafka = Time(), Kafka()
    book = TopicBook(kafka.fetch, 1.0, clock)
    for clock.now in (0.0, 0.5, 1.0):
        assert book.absent(["gone"], 0.0, settled=True) is None, "it is new"
        book.turn()
    clock.now = SETTLED_S
    assert book.absent(["gone"], 0.0, settled=True) is None, "the last answer is too old"
    book.turn()
    clock.now += ASK_AGAIN_S / 2
    assert book.absent(["gone"], 0.0, settled=True) == ["gone"]
    assert book.absent(["gone"], 0.0) is None, "another caller waits"
    kafka.there.add("gone")
    book.turn()
    assert book.absent(["gone"], 0.0, settled=True) == []


def test_messages_to_many_unknown_topics_come_in_when_it_is_known_what_these_are() -> None:
    """They may be due at once, and then the messages of all others would wait for the answer."""
    clock, kafka = Time(), Kafka("t0")
    book = TopicBook(kafka.fetch, 1.0, clock)
    door, many = AnyTopic(book), [f"t{n}" for n in range(1_000)]
    assert door.absent(many[:UNSURE_MAX], 0.0) == [], "few of them hold up nobody"
    assert not door.knows(many)
    for clock.now in (0.0, CROWDED_AFTER_S):
        assert door.absent(many, clock.now) is None
        book.turn()
    assert door.absent(many, clock.now) == []
    asked = len(kafka.asked)
    assert set(book.lookup_all(many).values()) == {TopicInfo(1), None}
    assert len(kafka.asked) == asked, "the hand asks for none of them"
    others = [f"u{n}" for n in range(UNSURE_MAX + 1)]
    assert door.absent(others, DOOR_WAIT_S + 0.1) == []
    assert door.absent(others, 0.0) is None
    kafka.away = True
    book.turn()
    assert door.absent(others, 0.0) == [], "Kafka is away"


@pytest.mark.parametrize("answer", [TopicInfo(3, leaderless=1), NotYet("no rights")])
def test_a_topic_that_cannot_be_used_now_is_not_waited_for(answer: Found) -> None:
    clock = Time()
    book = TopicBook(lambda topics: dict.fromkeys(topics, answer), 1.0, clock)
    assert book.absent(["t"], 0.0) is None
    book.turn()
    assert book.absent(["t"], 0.0) == []
    assert book.knows(["t"])
    with pytest.raises(NotYet):
        book.lookup("t")


@pytest.mark.parametrize("answer", [TopicInfo(3, leaderless=1), NotYet("no leader yet")])
def test_a_topic_that_was_missing_and_has_no_leader_yet_is_there(answer: Found) -> None:
    """As Kafka answers at first for a topic that was just created."""
    clock, answers = Time(), list[Found]([None, None, answer])
    book = TopicBook(lambda topics: dict.fromkeys(topics, answers.pop(0)), 1.0, clock)
    for clock.now in (0.0, 1.5):
        assert book.absent(["t"], 0.0) is None
        book.turn()
    assert book.lookup_all(["t"]) == {"t": None}
    assert book.absent(["t"], 0.0) is None
    book.turn()
    assert book.knows(["t"])
    answers.append(TopicInfo(3))
    assert book.lookup_all(["t"]) == {"t": TopicInfo(3)}


def test_while_kafka_is_away_only_the_first_waits_and_its_return_is_noticed() -> None:
    """However long it is away, also for topics that were forgotten meanwhile."""
    clock, kafka = Time(), Kafka("there")
    book = TopicBook(kafka.fetch, 1.0, clock)
    assert book.lookup("there")
    kafka.away = True
    clock.now = 700.0
    book.turn()
    assert book.absent(["there"], 0.0) is None
    book.turn()
    for second in range(701, 1000, 50):
        clock.now = float(second)
        assert book.absent(["there", "new"], 0.0) == []
    kafka.away = False
    book.turn()
    assert book.absent(["new"], 0.0) is None
    assert book.knows(["there"])


def test_nothing_is_absent_while_kafka_is_away() -> None:
    clock, kafka = Time(), Kafka()
    book = TopicBook(kafka.fetch, 1.0, clock)
    kafka.away = True
    clock.now = 10.0
    assert book.absent(["new"], 0.0) is None
    clock.now = 10.1
    book.turn()
    assert book.absent(["new"], 0.1) == []


def test_the_collector_is_on_again_however_two_readers_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one ends while the second one begins: it must not be off for good."""
    first, second = collection.without_collection(), collection.without_collection()
    running = [first]

    def end_the_first() -> None:
        while running:
            running.pop().__exit__(None, None, None)

    def isenabled() -> bool:
        found = gc.isenabled()
        if not found:
            end_the_first()
        return found

    slow = SimpleNamespace(isenabled=isenabled, enable=gc.enable, disable=gc.disable)
    monkeypatch.setattr(collection, "gc", slow)
    try:
        first.__enter__()
        with second:
            assert not gc.isenabled()
            end_the_first()
            assert not gc.isenabled(), "the second one still reads"
        assert gc.isenabled()
    finally:
        gc.enable()
