"""A whole node and a Kafka that is away, refuses, or is sent what it cannot take.

What was accepted is delivered, none early, and nobody waits for another one's trouble.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)

from slotwheel import Client, Message
from slotwheel.delivery.kafka.confluent import ConfluentSink
from slotwheel.delivery.kafka.kafka_python import KafkaPythonSink
from slotwheel.delivery.kafka.plan import KafkaSettings
from slotwheel.delivery.kafka.sink import KafkaSink
from slotwheel.delivery.sink import Answer
from slotwheel.gateway.administration import KEPT_OUT
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.rest.kafka_administration import KafkaAdministration
from slotwheel.gateway.rest.kafka_cluster import KafkaCluster
from support import kafkaload
from support.broker import Broker, Cluster, every_rule, read_only
from support.deliveries import MINT, Sent, rows_of
from support.kafkaread import assert_none_early, assert_order, held, lateness, numbers, read_all
from support.load import messages
from support.nodeprocess import GIVES_UP_SOON, NodeProcess
from support.waiting import eventually, now_ms

pytestmark = pytest.mark.kafka
SINKS = ["confluent", "kafka-python"]
OUTAGES = [
    ("confluent", "paused", 4),
    ("kafka-python", "killed", 4),
    *(
        pytest.param(sink, how, 60, marks=pytest.mark.soak)
        for sink in SINKS
        for how in ("paused", "killed")
    ),
]
REFUSALS = [
    ("confluent", 4),
    *(pytest.param(sink, 60, marks=pytest.mark.soak) for sink in SINKS),
]
Figure = Callable[[str], None]


def node_for(broker: Cluster, data: Path, sink: str, *options: str) -> NodeProcess:
    return NodeProcess(data, "--sink", sink, "--bootstrap", broker.bootstrap, *options)


@pytest.mark.parametrize(("sink", "how", "seconds"), OUTAGES)
def test_a_broker_that_is_away_across_the_due_time(
    own_broker: Broker, tmp_path: Path, figure: Figure, sink: str, how: str, seconds: int
) -> None:
    """Due before, while and after the broker is away: delivered = accepted."""
    broker, count = own_broker, 3000
    topic = broker.create_topic(f"away-{sink}-{how}-{seconds}", 3)
    stop, start = (broker.pause, broker.resume) if how == "paused" else (broker.kill, broker.start)
    # The long run has the patience that a node has by itself.
    options = GIVES_UP_SOON[sink] if seconds < 60 else ()
    with node_for(broker, tmp_path / "data", sink, *options) as node:
        with Client(node.address) as client:
            begin = now_ms() + 1000
            load = messages(topic, count, begin, begin + 1000 * (seconds + 6))
            client.send_many(load[: count // 2]).result(60)
            time.sleep(max(0.0, (begin + 2000 - now_ms()) / 1000))
            stop()
            away_ms = now_ms()
            client.send_many(load[count // 2 :]).result(60)  # stored all the same
            eventually(lambda: node.get("/readyz")[0] == 503)
            assert node.get("/healthz")[0] == 200, "a restart would not help"
            time.sleep(max(0.0, (away_ms + 1000 * seconds - now_ms()) / 1000))
        start()
        back_ms = now_ms()
        eventually(lambda: node.metric("slotwheel_pending") == 0)
        eventually(lambda: node.metric("slotwheel_delivered_total") == count)  # behind the mark
        assert node.metric("slotwheel_dead_total") == 0
        assert node.get("/readyz")[0] == 200
        assert node.signal() < 2.0
    arrived = read_all(broker.bootstrap, [topic], count)
    found = numbers(arrived)
    assert set(found) == set(range(count))
    assert_none_early(arrived)
    # A repeat of what may have arrived before the answer was lost; the rest keeps its order.
    repeated = len(arrived) - count
    first_seen = list({one.id: one for one in arrived}.values())
    assert_order(first_seen)
    drained_ms = max(one.appended_ms for one in arrived if one.due_ms < back_ms) - back_ms
    figure(
        f"broker {how} for {seconds} s, {sink}: {count} accepted, {len(found)} delivered,"
        f" {repeated} of them again, the backlog gone {drained_ms / 1000:.1f} s after its return"
    )


@pytest.mark.parametrize(("sink", "seconds"), REFUSALS)
def test_a_topic_that_refuses_everything_across_the_due_time(
    own_broker: Broker, tmp_path: Path, figure: Figure, sink: str, seconds: int
) -> None:
    """It says *not now* to every record; all others go on in time, and it gets its own later."""
    broker, count = own_broker, 2000
    refusing = broker.create_topic(f"refusing-{sink}-{seconds}", 3)
    other = broker.create_topic(f"other-{sink}-{seconds}", 3)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls(read_only(refusing))
        with node_for(broker, tmp_path / "data", sink) as node:
            with Client(node.address) as client:
                begin = now_ms() + 2000
                for name in (refusing, other):
                    load = messages(name, count, begin, begin + 1000 * seconds)
                    client.send_many(load).result(60)
            eventually(lambda: node.metric("slotwheel_held_topics") == 1, seconds + 20)
            time.sleep(max(0.0, (begin - now_ms()) / 1000 + seconds - 1))
            assert held(broker.bootstrap, [refusing]) == 0
            admin.delete_acls([every_rule(refusing)])
            eventually(lambda: node.metric("slotwheel_pending") == 0)
            eventually(lambda: node.metric("slotwheel_held_topics") == 0)
            # The hand sees in its next turn that the wheel holds nothing back any more.
            eventually(lambda: "topic released" in node.log_text())
            eventually(lambda: node.metric("slotwheel_delivered_total") == 2 * count)
            assert node.metric("slotwheel_dead_total") == 0
            assert "topic held back" in node.log_text()
    for name in (refusing, other):
        arrived = read_all(broker.bootstrap, [name], count)
        assert numbers(arrived) == Counter(range(count))
        assert_none_early(arrived)
        assert_order(arrived)
    latest = lateness(arrived).max()
    assert latest < 3000, "the other topic had to wait for the one that refused"
    figure(f"a topic refused for {seconds} s, {sink}: the other one late by at most {latest} ms")


def exactly_once(broker: Broker, tmp_path: Path, name: str, sink: str) -> NodeProcess:
    """A node that delivers exactly once, with that name for its group and its dead-letter topic."""
    options = ("--delivery", "exactly-once", "--group", name, "--dead-letter-topic", name)
    return node_for(broker, tmp_path / "data", sink, *options)


@pytest.mark.parametrize(
    "sink", ["confluent", pytest.param("kafka-python", marks=pytest.mark.soak)]
)
def test_64_held_back_topics_with_the_longest_names_survive_a_restart(
    own_broker: Broker, tmp_path: Path, sink: str
) -> None:
    """Under exactly-once Kafka's mark has room for them, and the names are found again."""
    broker, each = own_broker, 5
    denied = f"denied-{sink}-"
    names = [f"{denied}{n:02d}-".ljust(249, "x") for n in range(64)]
    broker.create_topics(names)
    free, dead = broker.create_topic(f"free-{sink}"), broker.create_topic(f"many-held-{sink}")
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls(read_only(denied, prefix=True))
        with exactly_once(broker, tmp_path, dead, sink) as node:
            due = now_ms() + 1000
            with Client(node.address) as client:
                sent = [Message(name, b"%d" % n, due=due) for n in range(each) for name in names]
                client.send_many(sent).result(60)
            eventually(lambda: node.metric("slotwheel_held_topics") == 64)
            node.kill()
            node.start()
            with Client(node.address) as client:
                client.send_many(Message(free, b"%d" % n, delay=0.1) for n in range(100)).result(60)
            assert len(read_all(broker.bootstrap, [free], 100)) == 100
            eventually(lambda: node.metric("slotwheel_held_topics") == 64)
            eventually(lambda: node.metric("slotwheel_pending") == each * 64)  # behind the topic
            admin.delete_acls([every_rule(denied, prefix=True)])
            eventually(lambda: node.metric("slotwheel_pending") == 0)
            assert node.metric("slotwheel_dead_total") == 0
    found = Counter((one.topic, one.value) for one in read_all(broker.bootstrap, names, each * 64))
    assert found == Counter({(name, b"%d" % n): 1 for name in names for n in range(each)})


@pytest.mark.parametrize("sink", SINKS)
def test_exactly_once_without_its_rights_says_which_and_begins_once_it_has_them(
    own_broker: Broker, tmp_path: Path, sink: str
) -> None:
    broker, name = own_broker, f"rights-{sink}"
    topic = broker.create_topic(f"allowed-{sink}")
    denied = ResourcePattern(ResourceType.TRANSACTIONAL_ID, f"slotwheel-{name}-mark-0")
    rule = ACL("User:*", "*", ACLOperation.WRITE, ACLPermissionType.DENY, denied)
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls([rule])
        with exactly_once(broker, tmp_path, name, sink) as node:
            with Client(node.address) as client:
                client.send_many(Message(topic, b"%d" % n, delay=0.1) for n in range(50)).result(60)
            eventually(lambda: f"dead-letter topic {name} does not exist" in node.get("/readyz")[1])
            broker.create_topic(name)
            eventually(lambda: "WRITE and DESCRIBE on transactional ids" in node.get("/readyz")[1])
            assert node.metric("slotwheel_pending") == 50
            admin.delete_acls(
                [ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, denied)]
            )
            assert len(read_all(broker.bootstrap, [topic], 50)) == 50
            eventually(lambda: node.metric("slotwheel_pending") == 0)


@pytest.mark.parametrize("kind", [ConfluentSink, KafkaPythonSink])
def test_a_refusal_does_not_repeat_the_neighbours_under_way(
    own_broker: Broker, kind: type[KafkaSink]
) -> None:
    """A client may give everything up when one batch is refused, also what the broker has."""
    broker, rounds, count = own_broker, 5, 600
    refusing = broker.create_topic(f"denied-{kind.__name__}", 3)
    other = broker.create_topic(f"open-{kind.__name__}", 6)
    sink = kind(MINT, KafkaSettings(broker.bootstrap))
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls(read_only(refusing))
    for number in range(rounds):
        values = range(number * count, (number + 1) * count)
        topics = [(refusing, other)[n % 2] for n in values]
        sent = [Sent(topic, b"%d" % n, b"k%d" % n) for topic, n in zip(topics, values, strict=True)]
        answers = sink.deliver(rows_of(sent))
        accepted = answers.which(Answer.ACCEPTED).tolist()
        assert accepted == [topic == other for topic in topics], number
        assert not answers.which(Answer.REFUSED).any()
        assert not answers.down
    sink.close()
    assert held(broker.bootstrap, [other]) == rounds * count // 2
    assert held(broker.bootstrap, [refusing]) == 0


@pytest.mark.parametrize("kind", [ConfluentSink, KafkaPythonSink])
def test_held_topics_do_not_disturb_each_other(own_broker: Broker, kind: type[KafkaSink]) -> None:
    """One goes on refusing while another one drains on the side, at the same time."""
    broker, rounds, count = own_broker, 6, 300
    refusing = broker.create_topic(f"side-denied-{kind.__name__}", 3)
    other = broker.create_topic(f"side-open-{kind.__name__}", 3)
    sink = kind(MINT, KafkaSettings(broker.bootstrap))
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_acls(read_only(refusing))

    def drain(topic: str, *, accepted: bool) -> None:
        for _ in range(rounds):
            rows = rows_of([Sent(topic, b"v", b"k%d" % n) for n in range(count)])
            answers = sink.deliver(rows, trial=True)
            assert (answers.which(Answer.ACCEPTED) == accepted).all(), topic
            assert not answers.which(Answer.REFUSED).any()

    with ThreadPoolExecutor(2) as threads:
        jobs = [
            threads.submit(drain, refusing, accepted=False),
            threads.submit(drain, other, accepted=True),
        ]
        for job in jobs:
            job.result(60)
    sink.close()
    assert held(broker.bootstrap, [other]) == rounds * count


def test_kafka_cannot_be_reached_at_start(
    own_broker: Broker, tmp_path: Path, figure: Figure
) -> None:
    """A node stores, says so, and delivers when Kafka comes; the delay topic is read then. It ends
    at once, also with a message in hand for a Kafka that is away again."""
    broker, targets = own_broker, {}
    with ExitStack() as stack:
        for sink in SINKS:
            target = broker.create_topic(f"target-{sink}")
            delays = broker.create_topic(f"delays-{sink}", message_timestamp_type="CreateTime")
            waiting = [Sent(target, b"%d" % n, due=now_ms()) for n in range(100, 200)]
            kafkaload.send_by_kafka_python(broker.bootstrap, delays, waiting)
            targets[target] = node_for(broker, tmp_path / sink, sink, "--delay-topic", delays)
        broker.stop()
        for target, node in targets.items():
            stack.enter_context(node)
            with Client(node.address) as client:
                client.send_many(messages(target, 100, now_ms(), now_ms() + 1000)).result(60)
        for node in targets.values():
            eventually(partial(_says, node, "sink unreachable: messages are stored"))
            assert broker.bootstrap in node.log_text()
            code, body = node.get("/readyz")
            assert code == 503
            assert "the sink cannot be reached" in json.loads(body)["reasons"][0]
            assert node.get("/healthz")[0] == 200
            assert node.metric("slotwheel_sink_up") == 0
            assert node.metric("slotwheel_pending") == 100
        broker.start()
        back_s = time.monotonic()
        for node in targets.values():
            eventually(partial(_delivered_and_ready, node, 200))
            eventually(partial(_says, node, "sink reachable again"))
        took_s = time.monotonic() - back_s
        arrived = [read_all(broker.bootstrap, [target], 200) for target in targets]
        broker.stop()
        for target, node in targets.items():
            with Client(node.address) as client:
                client.send(target, b"more", delay=0.05).result(60)
        time.sleep(0.5)  # it is being handed over
        for node in targets.values():
            assert node.signal() < 2.0
            assert node.running.returncode == 0
    for found in arrived:
        assert numbers(found) == Counter(range(200))
        assert_none_early(found)
    figure(f"no Kafka at start, {' and '.join(SINKS)}: all delivered {took_s:.1f} s after it came")


def _says(node: NodeProcess, text: str) -> bool:
    return text in node.log_text()


def _delivered_and_ready(node: NodeProcess, count: int) -> bool:
    return node.metric("slotwheel_delivered_total") == count and node.get("/readyz")[0] == 200


def test_a_gateway_that_may_not_change_a_topic_says_whose_right_it_is(own_broker: Broker) -> None:
    kept = own_broker.create_topic("kept")
    with KafkaAdminClient(bootstrap_servers=own_broker.bootstrap) as admin:
        admin.create_acls(read_only(kept))
    cluster = KafkaCluster(own_broker.bootstrap, {})
    kafka = KafkaAdministration(cluster)
    changes: list[Callable[[], object]] = [
        lambda: kafka.alter(kept, {"retention.ms": "60000"}, validate_only=False),
        lambda: kafka.grow(kept, 2),
        lambda: kafka.configs(kept),
    ]
    with closing(cluster):
        for change in changes:
            eventually(partial(_is_kept_out, change))


def _is_kept_out(change: Callable[[], object]) -> bool:
    """A rule counts a moment after it was made."""
    try:
        change()
    except HttpError as error:
        return error.error_code == KEPT_OUT and "principal of the gateway" in error.remedy
    return False
