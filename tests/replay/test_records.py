"""Facts of Kafka records: what their headers say, and what they must not be taken for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.broker.murmur2 import partitions_of
from slotwheel.delivery.deadletters import DeadLetters
from slotwheel.reading.files import NO_PEER, File
from slotwheel.replay.facts.fact import ELSEWHERE, EXPIRED, FORGED, IN_FLIGHT_MS, Seen
from slotwheel.replay.facts.making import GroupTerms, journal_facts
from slotwheel.replay.facts.records import facts_of_records, parse_ids
from slotwheel.wheel.errors import UnknownId
from slotwheel.wheel.expiry import EXPIRES_HEADER
from slotwheel.wheel.ids import IdMint, MessageId
from support.factrows import EPOCH_MS, MINT, TERMS, Keeps, as_spark, dump, kafka_rows, rows

FILE = File(3, "dump", "/d", "d", 0)
SENT = rows(
    {"offset": 5, "key": b"k", "headers": [("a", b"1"), ("a", None)]},
    {"offset": 700, "topic": "bills"},
    {"offset": 6, "value": None, "headers": [("slotwheel-id", b"lab.1.2.00000000")]},
)


@pytest.mark.parametrize("shape", [lambda batch: batch, as_spark])
def test_records_are_what_was_accepted(
    shape: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:
    made = facts_of_records(shape(kafka_rows(SENT, first=50, partition=2)), FILE, TERMS)
    accepted = journal_facts(FILE, SENT, 1, 1).facts
    for name in ("offset", "due", "created", "digest", "topic"):
        assert made.facts[name].tolist() == accepted[name].tolist()
    assert made.facts["where"].tolist() == [50, 51, 52]
    assert made.facts["at"].tolist() == [EPOCH_MS + 8, EPOCH_MS + 703, EPOCH_MS + 9]
    assert made.facts["seen"].tolist() == [Seen.DELIVERED] * 3
    assert made.facts["partition"].tolist() == [2] * 3
    assert made.facts["peer"].tolist() == [NO_PEER] * 3
    assert not made.facts["flags"].any()
    assert (made.foreign, made.unreadable) == (0, [])
    assert set(made.topics.values()) == {"orders", "bills"}


def test_a_record_in_another_partition_than_its_keys() -> None:
    """Known where the topic's number of partitions is. Without a key it may be in any."""
    sent = rows(
        {"offset": 1, "key": b"some key"},
        {"offset": 2, "key": None},
        {"offset": 3, "key": b""},
        {"offset": 4, "key": b"some key", "topic": "bills"},
    )
    (home,) = partitions_of(pa.array([b"some key"]), 5).tolist()
    for partition in range(5):
        batch = as_spark(kafka_rows(sent, partition=partition))
        made = facts_of_records(batch, FILE, replace(TERMS, partitions={"orders": 5}))
        assert (made.facts["flags"] == ELSEWHERE).tolist() == [partition != home] + [False] * 3
        assert not facts_of_records(batch, FILE, TERMS).facts["flags"].any()
    strangers = as_spark(dump([record(key=b"some key", headers=[])]))
    made = facts_of_records(strangers, FILE, replace(TERMS, partitions={"orders": 5}))
    assert (len(made.facts), made.foreign) == (0, 1)


@pytest.mark.parametrize("shape", [lambda batch: batch, as_spark])
def test_a_record_that_got_there_long_after_it_had_expired(
    shape: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> None:
    """Among records of others, which may have any header of that name."""
    arrived = EPOCH_MS + 1 + 3
    times = [arrived - IN_FLIGHT_MS, arrived - IN_FLIGHT_MS + 1, None, 10**18 - 1]
    sent = [
        rows({"offset": 1, "headers": [] if at is None else [(EXPIRES_HEADER, b"%d" % at)]})
        for at in times
    ]
    stranger = dump([record(headers=[(EXPIRES_HEADER, b"0")])])
    parts = [part for one in sent for part in (stranger, kafka_rows(one))]
    batch = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    made = facts_of_records(shape(batch), FILE, TERMS)
    assert made.facts["flags"].tolist() == [EXPIRED, 0, 0, 0]
    assert made.foreign == 4


def test_a_slice_gives_what_the_whole_gives() -> None:
    batch = kafka_rows(SENT)
    whole = facts_of_records(batch, FILE, TERMS).facts.tolist()
    for start in range(4):
        for end in range(start, 4):
            part = facts_of_records(batch.slice(start, end - start), FILE, TERMS)
            assert part.facts.tolist() == whole[start:end]


def record(**more: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "record_partition": 0,
        "position": 1,
        "delivered": EPOCH_MS,
        "key": None,
        "value": b"v",
        "headers": [],
        **more,
    }


def three(id_: str, due: bytes = b"7", created: bytes = b"3") -> list[tuple[str, bytes | None]]:
    return [
        ("slotwheel-id", id_.encode()),
        ("slotwheel-due-ms", due),
        ("slotwheel-created-ms", created),
    ]


def test_what_is_not_of_this_group_is_left_out() -> None:
    other = IdMint("other", bytes(16))
    mine = str(MINT.one(7, 1))
    batch = dump(
        [
            record(),
            record(headers=[("a", b"b")]),
            record(headers=three(str(other.one(7, 1)))),
            record(headers=three("labour.7.1.00000000")),
            record(headers=three(mine)[:1]),  # no due time: not one that we sent
            record(headers=[*three(mine)[::-1]]),
            record(position=9, headers=three(mine)),
        ]
    )
    made = facts_of_records(batch, FILE, TERMS)
    assert made.facts["where"].tolist() == [9]
    assert made.facts["due"].tolist() == [7]
    assert made.foreign == 6


def test_headers_behind_ours_belong_to_the_content() -> None:
    mine = str(MINT.one(7, 1))
    batch = dump(
        [
            record(headers=[("a", b"1"), ("b", b"2"), *three(mine)]),
            record(headers=[("a", b"1"), *three(mine), ("b", b"2")]),
            record(headers=[*three("lab.1.2.00000000"), *three(mine)]),
        ]
    )
    made = facts_of_records(batch, FILE, TERMS)
    assert made.facts["offset"].tolist() == [1, 1, 1]
    assert made.facts["digest"][0] == made.facts["digest"][1] != made.facts["digest"][2]


def test_times_are_those_of_the_headers_and_the_check_is_that_of_the_id() -> None:
    mine = str(MINT.one(7, 1))
    batch = dump(
        [
            record(headers=three(mine, b"8", b"4")),
            record(headers=three(mine, b"soon", b"")),
            record(headers=three(mine[:-1] + ("0" if mine[-1] != "0" else "1"))),
        ]
    )
    facts = facts_of_records(batch, FILE, TERMS).facts
    assert facts["due"].tolist() == [8, -1, 7]
    assert facts["created"].tolist() == [4, -1, 3]
    assert facts["flags"].tolist() == [0, 0, FORGED]


def test_a_text_that_is_no_id() -> None:
    texts = ["lab.7.1", "lab.07.1.00000000", "lab.7.1.0000000G", "lab.7.1.00000000.", "lab.", "lab"]
    batch = dump([record(position=at, headers=three(text)) for at, text in enumerate(texts)])
    made = facts_of_records(batch, FILE, TERMS)
    assert made.unreadable == list(enumerate(texts[:5]))
    assert (len(made.facts), made.foreign) == (0, 1)


def test_dead_letters_in_kafka() -> None:
    sent = rows(
        {"offset": 1, "headers": [("a", b"1")], "partition": 6},
        {"offset": 2, "topic": "bills"},
        {"offset": 3, "topic": TERMS.dead_letter_topic},
    )
    sink = Keeps()
    DeadLetters(sink, None).bury(sent.slice(0, 2), ["too large", "no such topic"], [])
    batch = kafka_rows(pa.concat_batches([rows({"offset": 9}), *sink.rows, sent.slice(2)]))
    made = facts_of_records(batch, FILE, TERMS)
    assert made.facts["seen"].tolist() == [
        Seen.DELIVERED,
        Seen.DEAD,
        Seen.DEAD,
        Seen.DELIVERED,
    ]
    accepted = journal_facts(FILE, sent, 1, 1).facts
    for name in ("offset", "due", "created", "digest", "topic"):
        assert made.facts[name].tolist()[1:] == accepted[name].tolist()
    assert made.facts["partition"].tolist() == [0, 6, -1, 0]


IDS = st.one_of(
    st.builds(
        lambda due, offset, check, digits: f"lab.{due}.{offset}.{check:0{digits}x}",
        st.integers(-2, 1 << 63),
        st.integers(-2, 1 << 63),
        st.integers(0, 0xFFFFFFFF) | st.integers(0, (1 << 64) - 1),
        st.sampled_from([8, 16]),
    ),
    st.text("0123456789abcdefABCG.+- ", max_size=30).map("lab.".__add__),
    st.text(max_size=8),
)


@given(st.lists(IDS, max_size=6))
def test_ids_are_read_as_the_wheel_reads_them(texts: list[str]) -> None:
    found = parse_ids(pa.array([text.encode() for text in texts], pa.binary()), "lab")
    expected = {}
    for row, text in enumerate(texts):
        try:
            one = MessageId.parse(text)
        except UnknownId:
            continue
        if one.group == "lab" and one.due >= 0:
            expected[row] = (one.due, one.offset, one.check)
    columns = (found.due.tolist(), found.offset.tolist(), found.check.tolist())
    assert dict(zip(found.rows.tolist(), zip(*columns, strict=True), strict=True)) == expected
    ours = [row for row, text in enumerate(texts) if text.startswith("lab.")]
    assert found.unreadable.tolist() == [row for row in ours if row not in expected]


def test_one_number_that_does_not_fit_spoils_no_other() -> None:
    large, beyond = "lab.1000000000000000000.0.00000000", f"lab.{1 << 63}.0.00000000"
    found = parse_ids(pa.array([large.encode(), beyond.encode()], pa.binary()), "lab")
    assert (found.due.tolist(), found.unreadable.tolist()) == ([10**18], [1])


def test_ids_of_any_group() -> None:
    ids = pa.array([b"a.1.2.00000003", b"b.1.2.00000003"], pa.binary())
    assert parse_ids(ids, "").rows.tolist() == [0, 1]
    assert GroupTerms().id_of(1, 2) == ".1.2"
