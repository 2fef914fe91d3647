"""Whose fault an error of Kafka is: the record's own, and it becomes a dead letter; or a condition
of the surroundings, and it waits."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from cachetools import TTLCache
from kafka import errors as kafka_errors

from slotwheel.delivery.kafka import confluent_client, kafka_python_client
from slotwheel.delivery.kafka.clocks import ClockAlarms
from slotwheel.delivery.kafka.plan import SendFailure
from slotwheel.delivery.kafka.topicbook import TopicInfo
from slotwheel.delivery.sink import Answer

OF_THE_RECORD = {10, 17, 18, 87}
"""Too large, alone or as a batch; a topic of Kafka's own; not a record that the topic takes."""
CERTAINLY_NOT_TAKEN = {21, 29, 31, 32, 35, 43, 53, 76}
"""Settings, rights, clocks: each try would have been refused."""


def by_kafka_python() -> Iterator[tuple[int | None, SendFailure]]:
    for kind in vars(kafka_errors).values():
        if isinstance(kind, type) and issubclass(kind, kafka_errors.KafkaError):
            code = getattr(kind, "errno", None)
            if kind is kafka_errors.KafkaError:
                continue  # stands for a neighbour in the batch
            error: Exception = Exception.__new__(kind)
            yield code if isinstance(code, int) else None, kafka_python_client.classify(error)


def by_confluent() -> Iterator[tuple[int | None, SendFailure]]:
    ck = confluent_client.ck
    for code in range(-200, 200):
        error = ck.KafkaError(code)
        if error.name() != "_INVALID_DIFFERENT_RECORD":
            yield code, confluent_client.classify(error)


@pytest.mark.parametrize(
    "all_errors",
    [
        by_kafka_python,
        pytest.param(
            by_confluent,
            marks=pytest.mark.skipif(
                not importlib.util.find_spec("confluent_kafka"), reason="without the extra"
            ),
        ),
    ],
)
def test_only_the_records_own_faults_are_deaths(all_errors: object) -> None:
    assert callable(all_errors)
    seen = set()
    for code, failure in all_errors():
        if code in OF_THE_RECORD:
            wanted = Answer.REFUSED
        elif code in CERTAINLY_NOT_TAKEN:
            wanted = Answer.NOT_NOW
        else:  # also what neither we nor the client knows
            wanted = Answer.UNKNOWN
        assert failure.answer is wanted, (code, failure)
        seen.add(code)
    assert seen > OF_THE_RECORD | CERTAINLY_NOT_TAKEN


def test_the_range_that_a_broker_names_tells_its_clock() -> None:
    said = "Timestamp 5 of message with offset 0 is out of range. The timestamp should be within"
    text = ClockAlarms(lambda: 10**12).refused(
        "a", TopicInfo(1, ahead_max_ms=3_600_000), f"{said} [-9, {10**12 - 3_600_000}]"
    )
    assert "the broker's clock 2001-09-08T23:46:40.000Z" in text


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (None, "the broker's clock another time"),
        (
            TopicInfo(1, ahead_max_ms=3_600_000),
            "broker's clock before 2001-09-09T00:46:40.000Z",
        ),
        (
            TopicInfo(1, ahead_max_ms=1000, behind_max_ms=2000),
            "before 2001-09-09T01:46:39.000Z or after 2001-09-09T01:46:42.000Z",
        ),
        (TopicInfo(1, ahead_max_ms=2**63 - 1, behind_max_ms=0), "after 2001-09-09T01:46:40.000Z"),
    ],
)
def test_an_alarm_names_both_clocks(info: TopicInfo | None, said: str) -> None:
    clocks = ClockAlarms(lambda: 10**12)
    alarms: list[str] = []
    clocks.alarm = alarms.append
    for topic in ("a", "a", "b"):
        assert said in clocks.refused(topic, info)
    assert len(alarms) == 1, "once a minute"
    assert "the node's clock says 2001-09-09T01:46:40.000Z" in alarms[0]
    assert sorted(clocks.problems) == ["a", "b"]
    clocks.taken(["a"])
    assert sorted(clocks.problems) == ["b"]
    clocks.taken(["b"])
    clocks.refused("a", info)
    assert len(alarms) == 2, "it was over meanwhile"


def test_topics_whose_clocks_differ_are_looked_at_by_one_thread_at_a_time() -> None:
    """A cache that forgets by time changes when it is asked how much it has: two threads whose
    records were taken would both forget the same topic, and one of them fails."""
    clocks = ClockAlarms(lambda: 10**12)

    class Watched(TTLCache[str, str]):
        def expire(self, time: float | None = None) -> Any:
            assert clocks._lock.locked()
            return super().expire(time)

    clocks._topics = Watched(9, 60)
    clocks.taken(["a"])
    clocks.refused("a", None)
    assert list(clocks.problems) == ["a"]
    clocks.taken(["a"])
    assert not clocks.problems
