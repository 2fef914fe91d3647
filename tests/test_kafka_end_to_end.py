"""The whole way with a real Kafka: three ways in, a node as a process, several topics out.

Each message arrives once, byte for byte, in the partition it belongs to, in order, none early.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from support import kafkaload
from support.broker import Cluster, TopicFactory
from support.deliveries import Sent
from support.kafkaread import (
    assert_none_early,
    assert_order,
    assert_partitions,
    held,
    percentiles,
    read_all,
)
from support.nodeprocess import NodeProcess
from support.waiting import eventually, now_ms

TOPICS, PARTITIONS = 4, 3
FIRST_S, LAST_S = 4.0, 9.0
"""Due times of most messages, from the start of sending on."""


def test_every_message_arrives_once(
    broker: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    figure: Callable[[str], None],
    sink: str,
    count: int,
) -> None:
    targets = [topic(f"target-{number}", PARTITIONS) for number in range(TOPICS)]
    delays = topic("delays", 1, message_timestamp_type="CreateTime")
    dead = topic("dead")
    options = ("--sink", sink, "--bootstrap", broker.bootstrap, "--dead-letter-topic", dead)
    with NodeProcess(tmp_path / "data", *options, "--delay-topic", delays) as node:
        start_ms = now_ms()
        third = count // 3
        due = _due_times(start_ms)
        by_client = kafkaload.make(count - 2 * third, targets, PARTITIONS, due, 1)
        by_python = kafkaload.make(third, targets, PARTITIONS, due, 2, plain_client=True)
        by_librdkafka = kafkaload.make(third, targets, PARTITIONS, due, 3)
        with ThreadPoolExecutor(3) as threads:
            at_broker = broker.bootstrap, delays
            client = threads.submit(kafkaload.send_by_client, node.address, by_client)
            others = [
                threads.submit(kafkaload.send_by_librdkafka, *at_broker, by_librdkafka),
                threads.submit(kafkaload.send_by_kafka_python, *at_broker, by_python),
            ]
            ids = client.result(60)
            for other in others:
                other.result(60)
        sending_s = time.time_ns() / 1e9 - start_ms / 1000
        arrived = read_all(broker.bootstrap, targets, count)
        # A message is counted behind the mark, which is set behind the topic.
        eventually(lambda: node.metric("slotwheel_delivered_total") == count)
        assert node.metric("slotwheel_dead_total") == 0
        assert node.metric("slotwheel_pending") == 0
        assert node.metric("slotwheel_early_rows_total") == 0
        assert node.signal() < 2.0
        assert node.running.returncode == 0
    assert held(broker.bootstrap, targets) == count, "some came twice"
    assert held(broker.bootstrap, [dead]) == 0

    assert len({one.id for one in arrived}) == count
    expected = Counter(_plain(one) for one in by_client + by_python + by_librdkafka)
    assert Counter(_plain(one.content()) for one in arrived) == expected
    by_id = {one.id: one.content() for one in arrived}
    for id_, sent in zip(ids, by_client, strict=True):
        assert _plain(by_id[id_]) == _plain(sent)
    assert_partitions(arrived, PARTITIONS)
    assert_none_early(arrived)
    order = assert_order(arrived)
    assert order.late > 0, (
        "no message came in after its due time: the load is not what it should be"
    )
    figure(
        f"end to end, {sink}: {count} sent in {sending_s:.1f} s by three ways, {len(arrived)}"
        f" arrived once each, 0 early, {order.late} overtaken as they came in late,"
        f" {percentiles(arrived)}"
    )


def _due_times(start_ms: int) -> Callable[[Random], int]:
    """Most are spread over some seconds; some share a millisecond; some are due already."""
    first, last = start_ms + int(FIRST_S * 1000), start_ms + int(LAST_S * 1000)

    def due(rng: Random) -> int:
        match rng.randrange(40):
            case 0:
                return start_ms - rng.randrange(1, 20_000)
            case 1:
                return start_ms + rng.randrange(4000)
            case 2:
                return first + 1000 * rng.randrange(1, 5)
            case _:
                return rng.randrange(first, last)

    return due


def _plain(sent: Sent) -> tuple[object, ...]:
    """Without the partition: what arrived does not tell whether it was named."""
    return sent.topic, sent.key, sent.value, sent.headers, sent.due


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sink" in metafunc.fixturenames:
        cases = [
            pytest.param("confluent", 15_000),
            pytest.param("confluent", 200_000, marks=pytest.mark.soak),
            pytest.param("kafka-python", 6_000),
            pytest.param("kafka-python", 200_000, marks=pytest.mark.soak),
        ]
        metafunc.parametrize(("sink", "count"), cases)
