"""Delays, retries and expiry go by the node's clock, a minute ahead or behind its users'."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slotwheel import Client, Consumer, Message
from slotwheel.consumer.message import Received
from slotwheel.policy.deadletters import DEAD_LETTER_TOPIC
from slotwheel.wheel.ids import MessageId
from support.broker import Broker
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess, run_cli
from support.waiting import eventually, now_ms
from support.wallclock import WallClock

DELAY_MS = 1_500
SLACK_MS = 45_000
"""Of a busy machine: less than what a clock is off by."""


@dataclass
class Shifted:
    node: NodeProcess
    off_ms: int

    def assert_begun(self, *due: int, asked_ms: int, delay_ms: int = DELAY_MS) -> None:
        """The delays began by the node's clock, between ``asked_ms`` by ours and now."""
        for one in due:
            assert asked_ms - 1 <= one - delay_ms - self.off_ms <= now_ms() + 1


@pytest.fixture(scope="module", params=[60_000, -60_000], ids=["node-ahead", "node-behind"])
def shifted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shifted]:
    path = tmp_path_factory.mktemp("clock")
    clock = WallClock(path / "clock", request.param)
    with NodeProcess(path / "data", **clock.variables) as node:
        yield Shifted(node, request.param)


def test_delays_of_a_client(shifted: Shifted, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts.arrows"
    asked_ms = now_ms()
    fixed_ms = asked_ms - 60_000  # past for the node, too
    with Client(shifted.node.address, receipts=receipts) as client:
        one = client.send("client", b"", delay=DELAY_MS / 1000, ttl=30)
        mixed = client.send_many(
            [Message("client", b"", delay=DELAY_MS / 1000), Message("client", b"", due=fixed_ms)]
        )
        level = client.send("client", b"", level="5s")
        old = client.send("client", b"", delay=600)
        answer, moved = client.reschedule(old.id, delay=DELAY_MS / 1000)
        assert (answer, mixed.due_ms[1]) == ("cancelled", fixed_ms)
        assert moved is not None
        ids = [MessageId.parse(text) for text in (one.id, *mixed.result(), moved)]
        due = [one.due_ms, int(mixed.due_ms[0]), ids[3].due]
        assert [ids[0].due, ids[1].due] == due[:2]
        shifted.assert_begun(*due, asked_ms=asked_ms)
        shifted.assert_begun(level.due_ms, asked_ms=asked_ms, delay_ms=5000)
    rows = eventually(lambda: len(found := shifted.node.delivered("client")) == 5 and found)
    assert rows
    [expires] = [
        int(header["value"])
        for row in rows
        for header in row["headers"]
        if header["key"] == "slotwheel-expires-ms"
    ]
    assert expires == one.due_ms + 30_000


def test_delays_of_the_command_line_and_over_http(shifted: Shifted) -> None:
    asked_ms, address = now_ms(), shifted.node.address
    text = run_cli(
        "send", "cli", "x", "--delay", f"{DELAY_MS}ms", "--json", "--node", address
    ).stdout
    shifted.assert_begun(json.loads(text)["due_ms"], asked_ms=asked_ms)
    due: list[int] = []
    body: dict[str, Any] = {"topic": "http", "delay_ms": DELAY_MS}
    with GatewayProcess(shifted.node) as gateway:
        asked_ms = now_ms()
        due.append(gateway.request("POST", "/v1/messages", json=body).json()["due_ms"])
        key = {"Idempotency-Key": "k"}
        first = gateway.request("POST", "/v1/messages", json=body, headers=key).json()
        time.sleep(0.1)
        assert gateway.request("POST", "/v1/messages", json=body, headers=key).json() == first
        due.append(first["due_ms"])
        [due_ms] = gateway.request("POST", "/v1/messages", json=[body]).json()["ids"]
        due.append(MessageId.parse(due_ms).due)
        with Client(gateway.url) as client:
            receipt = client.send("http", b"", delay=DELAY_MS / 1000)
            assert MessageId.parse(receipt.id).due == receipt.due_ms
            due.append(receipt.due_ms)
        shifted.assert_begun(*due, asked_ms=asked_ms)


def test_what_is_redriven_or_redelivered_is_due_then(shifted: Shifted) -> None:
    """Redriven at once, or at a rate; whoever does it has another clock than the node."""
    node, past_ms = shifted.node, now_ms() - 300_000
    with Client(node.address) as client:
        for topic in ("once", "rate"):
            client.send(topic, b"x", due=past_ms, expires=past_ms + 1).result(60)
        client.send("old", b"x", due=past_ms).result(60)
    node.wait_for("old", 1)
    node.wait_for(DEAD_LETTER_TOPIC, 2)
    where = ("--yes", "--node", node.address)
    data = str(node.data)
    span = ("--from", _iso(past_ms - 1), "--to", _iso(past_ms + 1))
    for topic, command in (
        ("once", ["dead", "redrive", "--for-topic", "once", "--data", data]),
        ("rate", ["dead", "redrive", "--for-topic", "rate", "--rate", "10", "--data", data]),
        ("again", ["replay", data, "--redeliver", "--topic", "old", "--to-topic", "again", *span]),
    ):
        asked_ms = now_ms()
        done = run_cli(*command, *where)
        assert done.returncode == 0, done.stderr
        [row] = node.wait_for(topic, 1)
        due_ms = round(row["due"].timestamp() * 1000)
        assert asked_ms - 5 <= due_ms - shifted.off_ms <= now_ms() + 5, topic


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def received(consumer: Consumer, until: int) -> dict[bytes, list[float]]:
    """When each attempt at each value came, by the monotonic clock; all but ``good`` fail. Of one
    that is done again, because its transaction was aborted, the last time counts."""
    found: dict[bytes, dict[int, float]] = defaultdict(dict)

    def handle(message: Received) -> None:
        found[message.value or b""][message.attempt] = time.monotonic()
        if sum(map(len, found.values())) == until:
            consumer.close()
        if message.value != b"good":
            raise ValueError("no")

    consumer.run(handle)
    return {value: list(times.values()) for value, times in found.items()}


def assert_apart(times: list[float], delay_s: float) -> None:
    assert len(times) == 3
    for before, after in pairwise(times):
        assert delay_s - 0.05 < after - before < SLACK_MS / 1000


def test_attempts_and_expiry_at_a_consumer(shifted: Shifted) -> None:
    """Three attempts at their distance; what lives half a minute is seen, what is over is not."""
    with Client(shifted.node.address) as client:
        client.send("orders", b"bad", delay=0)
        client.send("orders", b"good", delay=0, ttl=30)
        client.send("orders", b"over", delay=0, ttl=1)
        client.send("orders", b"soon", delay=0, ttl=30)
    eventually(lambda: len(shifted.node.delivered("orders")) == 4)
    time.sleep(1.2)
    with Consumer(
        "orders",
        "billing",
        data=shifted.node.data,
        wheel=shifted.node.address,
        retry="1s 1s 1h",
    ) as consumer:
        found = received(consumer, 7)
    assert found.keys() == {b"bad", b"good", b"soon"}
    assert len(found[b"good"]) == 1
    assert_apart(found[b"bad"], 1.0)
    assert_apart(found[b"soon"], 1.0)


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
@pytest.mark.parametrize("off_ms", [60_000, -60_000])
def test_attempts_by_way_of_the_delay_topic(
    broker: Broker, tmp_path: Path, client: str, off_ms: int
) -> None:
    names = [f"clocks-{client}-{off_ms + 60_000}-{one}" for one in ("orders", "delays", "dead")]
    created: dict[str, Any] = {"message_timestamp_type": "CreateTime"}  # Kafka's default
    orders, delays, dead = (broker.create_topic(name, **created) for name in names)
    group = f"{orders}-group"
    broker.create_topic(f"{group}-retry", **created)
    clock = WallClock(tmp_path / "clock", off_ms)
    options = ["--sink", "kafka-python", "--bootstrap", broker.bootstrap, "--delay-topic", delays]
    options += ["--dead-letter-topic", dead]
    with NodeProcess(tmp_path / "data", *options, **clock.variables) as node:
        with Client(node.address) as sender:
            sender.send(orders, b"bad", delay=0).result(60)
        with Consumer(
            orders,
            group,
            bootstrap=broker.bootstrap,
            client=client,
            retry="1s 1s 1h",
            transactional=True,
            delay_topic=delays,
            dead_letter_topic=dead,
            wheel=node.address,
        ) as consumer:
            found = received(consumer, 3)
        assert_apart(found[b"bad"], 1.0)
