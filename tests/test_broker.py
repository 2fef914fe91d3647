"""The broker that other tests stand on: both clients work with it, and outages can be made."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.errors import KafkaError

from support import commonbroker
from support.broker import Broker, BrokerError, Cluster, TopicFactory
from support.waiting import PATIENCE_S

VALUES = [b"one", b"", b"three"]


def produce_with_kafka_python(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in VALUES:
        producer.send(topic, value).get(timeout=20)
    producer.close()


def produce_with_confluent(bootstrap: str, topic: str) -> None:
    producer = ConfluentProducer({"bootstrap.servers": bootstrap})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def read_with_kafka_python(bootstrap: str, topic: str) -> list[bytes]:
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=200).values():
            found += [record.value for record in records]
    consumer.close()
    return found


def read_with_confluent(bootstrap: str, topic: str) -> list[bytes]:
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    consumer.close()
    return found


def test_both_clients_understand_each_other(broker: Cluster, topic: TopicFactory) -> None:
    first, second = topic("from-kafka-python"), topic("from-confluent")
    produce_with_kafka_python(broker.bootstrap, first)
    produce_with_confluent(broker.bootstrap, second)
    assert read_with_confluent(broker.bootstrap, first) == VALUES
    assert read_with_kafka_python(broker.bootstrap, second) == VALUES


def test_a_topic_that_nobody_created_does_not_appear(broker: Cluster) -> None:
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        topic = admin.describe_topics(["no-such-topic"])[0]
        assert topic["error_code"] != 0
        assert "no-such-topic" not in admin.list_topics()


def test_outages(own_broker: Broker) -> None:
    """One broker for all of them: each start costs seconds."""
    own_broker.create_topic("kept", partitions=2, max_message_bytes=2000)
    bootstrap = own_broker.bootstrap
    produce_with_kafka_python(bootstrap, "kept")

    own_broker.pause()
    assert state_of(own_broker.pid) == "T"
    own_broker.resume()
    assert state_of(own_broker.pid) != "T"

    own_broker.kill()
    with pytest.raises(BrokerError, match="not running"):
        own_broker.pause()
    with pytest.raises(KafkaError):
        KafkaAdminClient(bootstrap_servers=bootstrap, bootstrap_timeout_ms=1000)
    own_broker.start()
    assert own_broker.bootstrap == bootstrap
    assert sorted(read_with_kafka_python(bootstrap, "kept")) == sorted(VALUES)


def test_a_broker_is_like_new_for_the_next_test(own_broker: Broker) -> None:
    """Also after a member that left its group without a word, and with a rule and a pause left."""
    own_broker.create_topic("left")
    produce_with_kafka_python(own_broker.bootstrap, "left")
    member = KafkaConsumer(
        "left",
        group_id="left",
        bootstrap_servers=own_broker.bootstrap,
        auto_offset_reset="earliest",
    )
    assert next(member).value == VALUES[0]
    rule = ACL(
        "User:*",
        "*",
        ACLOperation.WRITE,
        ACLPermissionType.DENY,
        ResourcePattern(ResourceType.TOPIC, "left"),
    )
    with KafkaAdminClient(bootstrap_servers=own_broker.bootstrap) as admin:
        admin.create_acls([rule])
        own_broker.pause()
        own_broker.renew()
        assert [name for name in admin.list_topics() if not name.startswith("__")] == []
        assert admin.list_groups() == []
    own_broker.create_topic("left")
    produce_with_confluent(own_broker.bootstrap, "left")
    assert read_with_confluent(own_broker.bootstrap, "left") == VALUES
    member.close(autocommit=False)


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Java is something here that takes no seconds to start."""
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o700)
    script = (
        "import pathlib, sys, time; from support.broker import Broker\n"
        "Broker._format = Broker._wait_until_it_answers = lambda _: None\n"
        "broker = Broker(pathlib.Path(sys.argv[1])); print(broker.pid, flush=True)\n"
        "time.sleep(600)"
    )
    home = str(tmp_path)
    more = {"PYTHONPATH": str(Path(__file__).parent), "JAVA_HOME": home, "KAFKA_HOME": home}
    environment = os.environ | more
    command = [sys.executable, "-c", script, str(tmp_path / "kafka")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert state_of(pid) in "RSD"
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while state_of(pid) not in "ZX" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state_of(pid) in "ZX"


def state_of(pid: int) -> str:
    """The kernel's letter for the process: R runs, S sleeps, T is stopped, X is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def test_each_process_is_told_why_the_common_broker_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commonbroker, "Broker", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    common = commonbroker.CommonBroker()
    try:
        for _ in range(2):
            with pytest.raises(BrokerError, match="no space"):
                commonbroker.bootstrap_from(common.address)
    finally:
        common.close()
