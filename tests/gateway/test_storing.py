"""The process beside a gateway that makes the trace store: killed, restarted, counted."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from kafka import KafkaProducer

from slotwheel.aside.process import NICE
from slotwheel.client import Client
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.gateway.storing import StoreProcess, StoringSettings
from slotwheel.trace import TRACE_TOPIC, Tracer, WheelTarget
from slotwheel.trace.batches import encode
from slotwheel.trace.events import EventSender
from slotwheel.trace.store import TraceQuery, TraceReader
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.files import DirectoryLock
from support.broker import Broker, TopicFactory
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess
from support.traced import event, keys_of, of_sender
from support.waiting import eventually


def stored(root: Path) -> list[tuple[int, str, int]]:
    page = TraceReader(root).page(TraceQuery(), limit=1_000_000)
    assert page.complete, page.problems
    keys = keys_of(page.events)
    assert len({key[1:] for key in keys}) == len(keys)
    return keys


def storing(gateway: GatewayProcess, root: Path) -> psutil.Process | None:
    """The process that holds the store's lock."""
    try:
        pid = int((root / "LOCK").read_text() or "0")
    except FileNotFoundError:
        return None
    return next((one for one in gateway.process.children() if one.pid == pid), None)


def figure(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_a_gateway_stores_what_clients_tell_and_goes_on_when_its_process_is_killed(
    tmp_path: Path,
) -> None:
    with (
        NodeProcess(tmp_path / "data") as node,
        GatewayProcess(node, "--trace-retain", "1h") as gateway,
    ):
        root = node.data / "trace"
        tracer = Tracer(WheelTarget(node.address), client="test")
        sent = 0
        killed: set[int] = set()
        with Client(node.address, observer=tracer) as client:
            for turn in range(3):
                for _ in range(20):
                    client.send("orders", b"x", delay=0)
                    sent += 1
                process = eventually(lambda: storing(gateway, root))
                assert process.nice() == min(19, gateway.process.nice() + NICE)
                if turn:
                    process.kill()
                    killed.add(process.pid)
                eventually(
                    lambda: (one := storing(gateway, root)) is not None and one.pid not in killed
                )
        tracer.close()
        assert tracer.dropped == 0
        with Client(node.address) as client:
            client.send(TRACE_TOPIC, b"no events", delay=0)
        eventually(lambda: len(stored(root)) == tracer.noted == sent)

        def counted() -> bool:
            text = gateway.request("GET", "/metrics").text
            return (
                figure(text, "slotwheel_trace_store_starts_total") == 3
                and figure(text, 'slotwheel_trace_refused_total{reason="not-events"}') >= 1
                and figure(text, "slotwheel_trace_stored_total") > 0
                and figure(text, "slotwheel_trace_lag") == 0
                and figure(text, "slotwheel_trace_missing") == 0
            )

        eventually(counted, otherwise=lambda: gateway.request("GET", "/metrics").text)
        process = eventually(lambda: storing(gateway, root))
        gateway.process.kill()
        eventually(lambda: not process.is_running())


def test_a_node_starts_a_gateway_that_stores(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--http", "127.0.0.1:0", "--trace-retain", "1h") as node:
        tracer = Tracer(WheelTarget(node.address), client="test")
        with Client(node.address, observer=tracer) as client:
            client.send("orders", b"x", delay=0)
        tracer.close()
        eventually(lambda: len(stored(node.data / "trace")) == 1)


def test_events_of_kafka_are_stored_from_each_partition_once(
    tmp_path: Path, broker: Broker, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    settings = StoringSettings(
        store=tmp_path, topic=name, retain_ms=3_600_000, bootstrap=broker.bootstrap
    )
    now_ms = time.time_ns() // 1_000_000
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer:
        for number in range(60):
            sender = f"s{number % 4}"
            rows = [event(number // 4 * 2 + n, now_ms, sender) for n in range(2)]
            value = encode(EventSender(sender), of_sender(rows))
            producer.send(name, value, partition=number % 3)
            if number % 10 == 0:
                producer.send(name, value, partition=2)
            if number == 30:
                producer.flush()
                with closing(StoreProcess(settings)):
                    eventually(lambda: len(stored(tmp_path)) == 62)
        producer.flush()
    with closing(StoreProcess(settings)) as process:
        eventually(lambda: len(stored(tmp_path)) == 120)

        def twice() -> float:
            return sum(s.value for m in process.collect() if "twice" in m.name for s in m.samples)

        eventually(lambda: twice() >= 2)


def test_what_a_gateway_needs_to_store(tmp_path: Path) -> None:
    assert GatewaySettings(data=tmp_path, trace_retain_ms=1).store == tmp_path / "trace"
    with pytest.raises(InvalidConfiguration, match="nowhere to store"):
        GatewaySettings(trace_retain_ms=1, bootstrap="b:1")
    with pytest.raises(InvalidConfiguration, match="nowhere to read"):
        GatewaySettings(trace_retain_ms=1, trace_store=tmp_path)
    assert GatewaySettings().trace_topic == TRACE_TOPIC


def test_a_process_that_can_store_nothing_is_started_less_and_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = StoringSettings(tmp_path / "trace", TRACE_TOPIC, 1_000, data=tmp_path)
    lock = DirectoryLock(settings.store)
    with closing(StoreProcess(settings)):
        for pause in ("1.0 s", "2.0 s"):
            eventually(lambda: f"next try in {pause}" in caplog.text)  # noqa: B023
    lock.release()
    assert "another gateway writes this trace store" in caplog.text
