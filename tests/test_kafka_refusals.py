"""Messages that Kafka does not take, among many that it does: nobody waits for them, none of their
neighbours comes twice, and all others keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwheel import Client
from slotwheel.delivery.kafka.confluent import ConfluentSink
from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.kafka.sink import KafkaSink
from slotwheel.delivery.sink import Answer
from support.broker import Cluster, TopicFactory
from support.deliveries import MINT, Sent, rows_of
from support.kafkaread import assert_none_early, assert_order, lateness, numbers, read_all
from support.load import messages
from support.nodeprocess import NodeProcess
from support.stopwatch import Stopwatch
from support.waiting import eventually, now_ms

pytestmark = pytest.mark.kafka
SINKS = ["confluent", "kafka-python"]
Figure = Callable[[str], None]


def to(broker: Cluster, sink: str) -> tuple[str, ...]:
    return ("--sink", sink, "--bootstrap", broker.bootstrap)


@pytest.mark.parametrize("sink", SINKS)
def test_two_bad_ones_among_ten_thousand(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, figure: Figure, sink: str
) -> None:
    """One oversized, one for a topic that does not exist; only they become dead letters."""
    count, seconds = 10_000, 3
    target, dead = topic("target", 3), topic("dead")
    options = ("--dead-letter-topic", dead, "--message-bytes", "4M", "--unknown-topics", "accept")
    watch = Stopwatch()
    with NodeProcess(tmp_path / "data", *to(broker, sink), *options) as node:
        with Client(node.address, batch_bytes=8 << 20) as client:
            begin = now_ms() + 2000
            load = messages(target, count, begin, begin + 1000 * seconds)
            load[2000].value = b"x" * 2_000_000
            load[3000].topic = "nobody-made-this"
            ids = client.send_many(load).result(60)
        eventually(lambda: node.metric("slotwheel_pending") == 0)
        stalled_ms = 1000 * watch.stalled_s
        # A message is counted behind the mark.
        eventually(lambda: node.metric("slotwheel_delivered_total") == count - 2)
        eventually(lambda: node.metric("slotwheel_dead_total") == 2)
    arrived = read_all(broker.bootstrap, [target], count - 2)
    assert numbers(arrived) == Counter(set(range(count)) - {2000, 3000})
    assert_none_early(arrived)
    assert_order(arrived)
    late = lateness(arrived)
    assert late.max() < 3000 + stalled_ms, "the others had to wait"
    # No topic of Kafka takes the oversized one, so its letter lies in the data directory.
    (unknown,) = read_all(broker.bootstrap, [dead], 1)
    said = dict(unknown.headers)
    assert (unknown.id, unknown.value) == (ids[3000], b"3000")
    assert said["slotwheel-dead-topic"] == b"nobody-made-this"
    assert b"does not exist" in (said["slotwheel-dead-error"] or b""), said
    (oversized,) = node.delivered(dead)
    assert len(oversized["value"]) == 2_000_000
    local = {one["key"]: one["value"] for one in oversized["headers"]}
    assert local["slotwheel-dead-topic"] == target.encode()
    assert b"arge" in local["slotwheel-dead-error"], local
    figure(f"2 bad ones among {count}, {sink}: the others late by at most {late.max()} ms")


@pytest.mark.parametrize("known", [True, False], ids=["known before", "seen by the broker alone"])
@pytest.mark.parametrize("sink", SINKS)
def test_one_bad_row_of_a_hundred_does_not_repeat_its_neighbours(
    broker: Cluster, topic: TopicFactory, tmp_path: Path, sink: str, known: bool
) -> None:
    """All due in the same millisecond, so they travel together, in one batch or in a few."""
    config = {"max_message_bytes": 1000} if known else {"cleanup_policy": "compact"}
    target, dead = topic("target", 1, **config), topic("dead")
    with NodeProcess(tmp_path / "data", *to(broker, sink), "--dead-letter-topic", dead) as node:
        with Client(node.address) as client:
            due = now_ms() + 1500
            load = messages(target, 100, due, due)
            if known:
                load[57].value = b"x" * 2000
            else:
                load[57].key = None
            ids = client.send_many(load).result(60)
        eventually(lambda: node.metric("slotwheel_pending") == 0)
    arrived = read_all(broker.bootstrap, [target], 99)
    if known:
        assert [one.id for one in arrived] == ids[:57] + ids[58:]
    else:  # the batches behind that of the bad one have been accepted by then
        assert sorted(one.id for one in arrived) == sorted(ids[:57] + ids[58:])
    (letter,) = read_all(broker.bootstrap, [dead], 1)
    assert letter.id == ids[57]


@pytest.mark.parametrize("kind", [ConfluentSink, KafkaPythonSink])
def test_rows_of_a_topic_with_a_small_limit_keep_their_order(
    broker: Cluster, topic: TopicFactory, kind: type[KafkaSink]
) -> None:
    """The limit holds for a batch: each row is far below it, and a client's full batch is not."""
    target, rounds, count = topic("small", 1, max_message_bytes=1000), 10, 300
    sink = kind(MINT, KafkaSettings(broker.bootstrap))
    for number in range(rounds):
        values = range(number * count, (number + 1) * count)
        answers = sink.deliver(rows_of([Sent(target, b"%d" % n, b"key") for n in values]))
        assert len(answers.which(Answer.ACCEPTED)) == count, number
    sink.close()
    arrived = read_all(broker.bootstrap, [target], rounds * count)
    assert [int(one.value or b"-1") for one in arrived] == list(range(rounds * count))
