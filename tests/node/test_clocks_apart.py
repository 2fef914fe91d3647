"""A node and a broker whose clocks are two hours apart: nothing dies of it, and it is told."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource

from slotwheel import Client, Message
from support.broker import Broker
from support.nodeprocess import NodeProcess
from support.waiting import eventually
from support.wallclock import WallClock

SINKS = ["kafka-python"]
if importlib.util.find_spec("confluent_kafka"):
    SINKS.append("confluent")
CASES = [(sink, delivery) for sink in SINKS for delivery in ("at-least-once", "exactly-once")]
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def slow_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Its clock is two hours behind."""
    clock = WallClock(tmp_path_factory.mktemp("clock") / "clock", -2 * 3_600_000)
    with patch.dict(os.environ, clock.variables):
        broker = Broker()
    with broker:
        yield broker


@pytest.mark.parametrize(("sink", "delivery"), [*CASES, (SINKS[-1], "at-most-once")])
def test_messages_wait_until_the_clocks_agree(
    tmp_path: Path, slow_broker: Broker, sink: str, delivery: str
) -> None:
    target, dead, other = (f"{name}-{sink}-{delivery}" for name in ("target", "dead", "other"))
    slow_broker.create_topics([target, dead], 2, message_timestamp_type="CreateTime")
    slow_broker.create_topic(other)
    options = ["--sink", sink, "--bootstrap", slow_broker.bootstrap, "--dead-letter-topic", dead]
    options += ["--delivery", delivery]
    with NodeProcess(tmp_path / "data", *options) as node, Client(node.address) as client:
        names = (target, other) * 50
        client.send_many([Message(name, "value", delay=0) for name in names]).result(60)
        eventually(lambda: "clocks differ" in node.get("/readyz")[1], otherwise=node.log_text)
        status, text = node.get("/readyz")
        assert status == 503
        (reason,) = (one for one in json.loads(text)["reasons"] if "clocks differ" in one)
        assert "the node's clock says" in reason
        assert "the broker's clock " in reason
        eventually(lambda: "alarm clocks-differ" in node.log_text())
        if delivery != "at-most-once":  # there, one topic that takes nothing holds up all
            eventually(lambda: node.metric("slotwheel_delivered_total") == 50)
            eventually(lambda: client.status()["held_topics"] == [target])
        allow(slow_broker, target)
        eventually(lambda: node.metric("slotwheel_delivered_total") == 100)
        eventually(lambda: node.get("/readyz")[0] == 200)
        assert node.metric("slotwheel_dead_total") == 0


def allow(broker: Broker, topic: str) -> None:
    """The topic takes any time: to it, the clocks agree."""
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        limit = {"message.timestamp.after.max.ms": str(10**12)}
        admin.alter_configs([ConfigResource("TOPIC", topic, limit)])
