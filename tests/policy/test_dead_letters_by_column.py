"""Which rows of a dead-letter topic the sink made, in the format of today and in the former one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.deadletters import (
    BAD_RECORD,
    CONSUMER,
    DELIVERY,
    INTAKE,
    REFUSED,
    RETRIES_USED_UP,
    letter_headers,
)
from slotwheel.policy.lettercolumns import SinkLetters, sink_letters
from slotwheel.wheel.checks import is_reserved
from slotwheel.wheel.rows import Header, header_column

OWN: list[Header] = [("a", b"1"), ("slotwheel-dead-topic", b"mine"), ("b", None)]
INTAKE_MADE = letter_headers(INTAKE, BAD_RECORD, "no topic", None, source=("delays", 3, 7))
BY_CONSUMER = letter_headers(CONSUMER, RETRIES_USED_UP, "boom", b"orders", group="billing")


Make = Callable[[str, int | None], list[Header]]


def added(topic: str, partition: int | None) -> list[Header]:
    return letter_headers(DELIVERY, REFUSED, "too large", topic.encode(), partition=partition)


def former(topic: str, partition: int | None) -> list[Header]:
    found: list[Header] = [
        ("slotwheel-dead-reason", b"MSG_SIZE_TOO_LARGE: of a sink"),
        ("slotwheel-dead-topic", topic.encode()),
    ]
    asked = [("slotwheel-dead-partition", b"%d" % partition)] if partition is not None else []
    return [*found, *asked]


def find(rows: list[list[Header]], cut: int = 0) -> SinkLetters:
    column = header_column(rows).slice(cut)
    counts = np.asarray(pc.list_value_length(column), np.int64)
    ends = np.cumsum(counts)
    return sink_letters(column.flatten(), ends - counts, ends, np.arange(len(column)))


ROW = st.tuples(
    st.lists(st.sampled_from(OWN + INTAKE_MADE + BY_CONSUMER), max_size=4),
    st.sampled_from([None, added, former]),
    st.sampled_from(["orders", "bills"]),
    st.sampled_from([None, 0, 12]),
)


@given(st.lists(ROW, max_size=12), st.integers(0, 2))
def test_each_letter_is_found_with_what_it_was_for(
    rows: list[tuple[list[Header], Make | None, str, int | None]], cut: int
) -> None:
    made: list[list[Header]] = []
    wanted: list[tuple[int, int, bytes, int | None]] = []
    for own, make, topic, partition in rows:
        # In the former format letters had no text of their own, and messages no such headers.
        kept = own if make is added else [one for one in own if one[0] != "slotwheel-dead-error"]
        if make is None:
            made.append([*kept, ("c", b"")])
            continue
        if len(made) >= cut:
            before = sum(map(len, made[cut:]))
            wanted.append((len(made) - cut, before + len(kept), topic.encode(), partition))
        made.append([*kept, *make(topic, partition)])
    found = find(made, cut)
    partitions = [None if one is None else int(one) for one in found.partition.to_pylist()]
    first, topics = found.first.tolist(), found.topic.to_pylist()
    assert list(zip(found.rows.tolist(), first, topics, partitions, strict=True)) == wanted


@pytest.mark.parametrize("headers", [[], OWN, INTAKE_MADE, BY_CONSUMER, OWN + BY_CONSUMER])
def test_what_was_sent_to_the_topic_is_no_letter_of_the_sink(headers: list[Header]) -> None:
    assert not len(find([headers, []]).rows)
    assert find([headers + added("orders", 1)]).topic.to_pylist() == [b"orders"]


def test_a_letter_of_the_sink_that_intake_buries_again_is_the_sinks_no_more() -> None:
    """A consumer has sent it to the delay topic, with all its headers, and in an unusable way; or
    an application has made up the stage, for which its record was refused."""
    twice = [*OWN, *added("orders", 1), *INTAKE_MADE]
    assert not len(find([twice]).rows)
    (first,) = find([[*twice, *added("slotwheel-dead-letters", None)]]).first.tolist()
    assert first == len(twice)


def test_only_rows_that_are_asked_for() -> None:
    column = header_column([added("a", None), added("b", None)])
    counts = np.asarray(pc.list_value_length(column), np.int64)
    ends = np.cumsum(counts)
    found = sink_letters(column.flatten(), ends - counts, ends, np.array([1]))
    assert found.topic.equals(pa.array([b"b"], pa.binary()))


def test_nobody_can_send_the_stage_and_everybody_the_rest() -> None:
    for made in (added("orders", 1), INTAKE_MADE):
        names = [name for name, _ in made if is_reserved(name)]
        assert names == ["slotwheel-dead-stage"]
    assert not [name for name, _ in BY_CONSUMER if is_reserved(name)]
    assert dict(BY_CONSUMER)["__connect.errors.stage"] == b"consumer"


def test_the_headers_of_kafka_connect_stand_beside_ours() -> None:
    made = dict(letter_headers(INTAKE, BAD_RECORD, "x" * 900, b"t", source=("delays", 3, 7)))
    assert made["__connect.errors.topic"] == b"delays"
    assert made["__connect.errors.partition"] == b"3"
    assert made["__connect.errors.offset"] == b"7"
    assert made["__connect.errors.connector.name"] == b"slotwheel"
    assert made["__connect.errors.stage"] == b"intake"
    assert made["__connect.errors.exception.class.name"] == b"bad-record"
    assert made["__connect.errors.exception.message"] == b"x" * 500
    assert made["slotwheel-dead-source"] == b"delays/3/7"
    named = letter_headers(CONSUMER, RETRIES_USED_UP, "", b"t", exception="ValueError")
    assert dict(named)["__connect.errors.exception.class.name"] == b"ValueError"
