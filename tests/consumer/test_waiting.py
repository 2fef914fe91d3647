"""Who starts while Kafka and the node are away waits for them, says so once, and works then."""

from __future__ import annotations

import logging
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka import KafkaProducer

from slotwheel.consumer import Consumer
from support.broker import Broker
from support.nodeprocess import NodeProcess, command_line, environment
from support.ports import free_address
from support.waiting import PATIENCE_S, eventually

CLIENTS = ("kafka-python", "confluent")


def test_consumers_and_commands_wait(
    own_broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_broker.create_topics(["orders", *(f"{client}-retry" for client in CLIENTS)])
    own_broker.create_topic("slotwheel-dead-letters")
    with KafkaProducer(bootstrap_servers=own_broker.bootstrap) as producer:
        producer.send("orders", b"hello").get(10)
    own_broker.kill()
    node_address = free_address()

    def consume(client: str) -> bytes | None:
        where = {"bootstrap": own_broker.bootstrap, "client": client, "wheel": node_address}
        with Consumer("orders", client, **where) as consumer:  # type: ignore[arg-type]
            (message,) = consumer.take(1, PATIENCE_S)
            consumer.done(message)
            return message.value

    def said(where: str) -> int:
        """How often it was said that somebody waits for this."""
        every = [one.getMessage() for one in caplog.records]
        return sum("waits:" in one and where in one for one in every)

    told = tmp_path / "told"
    printing = subprocess.Popen(
        command_line(
            *("consume", "orders", "--bootstrap", own_broker.bootstrap),
            *("--follow", "--limit", "1", "--json"),
        ),
        stdout=subprocess.PIPE,
        stderr=told.open("wb"),
        env=environment(),
    )
    eventually(lambda: b"waiting: " in told.read_bytes())
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(consume, client) for client in CLIENTS]
        eventually(lambda: said(node_address) == len(CLIENTS))
        with NodeProcess(tmp_path / "data", "--listen", node_address):
            own_broker.start()
            assert [one.result(PATIENCE_S) for one in waiting] == [b"hello", b"hello"]
    out, _ = printing.communicate(timeout=PATIENCE_S)
    err = told.read_bytes()
    assert b"hello" in out
    assert err.count(b"waiting: ") == 1
    assert said(node_address) == len(CLIENTS)
