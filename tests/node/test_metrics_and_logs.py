"""Histograms against a plain count, log lines in both forms, configuration that is refused."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.delivery.ports import DeliveryEvents
from slotwheel.node import health
from slotwheel.node.config import NodeConfig
from slotwheel.node.events import NodeEvents
from slotwheel.node.health import HealthServer
from slotwheel.node.histogram import ArrayHistogram
from slotwheel.node.intake.ports import IntakeEvents
from slotwheel.node.logs import event, set_up
from slotwheel.node.metrics import Metrics
from slotwheel.wheel.errors import InvalidConfiguration, InvalidMessage
from support.waiting import eventually

BOUNDS = (0.001, 0.01, 1.0)


@given(st.lists(st.sampled_from([0.0, 0.001, 0.0011, 0.01, 0.5, 1.0, 2.0, -1.0]), max_size=50))
def test_a_histogram_counts_as_one_would_by_hand(values: list[float]) -> None:
    at_once = ArrayHistogram("seconds", "text", BOUNDS)
    one_by_one = ArrayHistogram("seconds", "text", BOUNDS)
    at_once.observe(np.array(values, np.float64))
    for value in values:
        one_by_one.observe_one(value)
    expected = [sum(value <= bound for value in values) for bound in (*BOUNDS, np.inf)]
    for histogram in (at_once, one_by_one):
        (family,) = histogram.collect()
        counts = [s.value for s in family.samples if s.name == "seconds_bucket"]
        assert counts == expected
        (total,) = [s.value for s in family.samples if s.name == "seconds_sum"]
        assert total == pytest.approx(sum(values))


@pytest.mark.parametrize("events", [DeliveryEvents, IntakeEvents])
def test_no_event_is_ignored(events: type) -> None:
    names = [name for name in vars(events) if not name.startswith("_")]
    assert len(names) > 3
    assert [name for name in names if getattr(NodeEvents, name) is getattr(events, name)] == []


def test_a_row_that_was_early_raises_an_alarm() -> None:
    metrics = Metrics()
    NodeEvents(metrics).delivered(np.array([5, -1, 0], np.int64))
    text = metrics.render().decode()
    assert "slotwheel_early_rows_total 1.0" in text
    assert 'slotwheel_alarms_total{kind="early"} 1.0' in text
    assert "slotwheel_lateness_seconds_count 3.0" in text


def test_departures_that_are_not_kept_are_counted_and_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    events = NodeEvents(metrics)
    with caplog.at_level(logging.WARNING, "slotwheel.node"):
        for _ in range(3):
            events.not_kept(7, "No space left on device")
    assert "slotwheel_departures_missed_total 21.0" in metrics.render().decode()
    assert [record.message for record in caplog.records] == [
        "messages left, and it could not be kept how"
    ]


def test_the_sink_is_down_and_up_once() -> None:
    events = NodeEvents(Metrics())
    events.sink_down("no broker")
    assert events.sink_problem == "no broker"
    events.sink_up()
    assert events.sink_problem is None


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_no_name_server_is_asked_before_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def gethostbyaddr(_: str) -> NoReturn:
        raise AssertionError("a name server that does not answer would hold up the start")

    monkeypatch.setattr(socket, "gethostbyaddr", gethostbyaddr)
    HealthServer("127.0.0.1:0", {}).close()


def test_who_sends_a_request_for_metrics_byte_by_byte_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "METRICS_MAX", 3)
    monkeypatch.setattr(health, "REQUEST_S", 0.3)
    server = HealthServer("127.0.0.1:0", {"/healthz": lambda: (200, "text/plain", b"well")})
    with closing(server), ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
            for _ in range(3)
        ]

        def is_served() -> bool:
            for one in slow:
                with suppress(OSError):
                    one.sendall(b"G")
            with socket.create_connection(("127.0.0.1", server.port), 30) as newcomer:
                newcomer.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
                with suppress(ConnectionError):
                    return newcomer.makefile("rb").read().endswith(b"well")
            return False

        eventually(is_served)
        assert is_served(), "and leaves its own place"


def test_text_lines_quote_what_needs_it(stream: io.StringIO) -> None:
    set_up("text", "info", stream)
    event(logging.getLogger("slotwheel.test"), logging.INFO, "moved", to="a b", rows=3, why="")
    event(logging.getLogger("slotwheel.test"), logging.DEBUG, "not shown")
    logging.getLogger("other").warning("two\nlines")
    first, second = stream.getvalue().splitlines()
    assert first.split(" ", 1)[1] == 'info moved to="a b" rows=3 why=""'
    assert first[10] == "T"
    assert second.split(" ", 1)[1] == 'warning "two\\nlines"'


def test_json_lines_hold_fields_and_traceback(stream: io.StringIO) -> None:
    set_up("json", "info", stream)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("slotwheel.test").exception("failed")
    event(logging.getLogger("slotwheel.test"), logging.INFO, "moved", path=Path("x"), rows=3)
    failed, moved = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert failed["level"] == "error"
    assert "ValueError: broken" in failed["traceback"]
    assert (moved["event"], moved["path"], moved["rows"]) == ("moved", "x", 3)


@pytest.mark.parametrize("address", ["", "7200", ":7200", "host:", "host:x", "host:70000", "h:-1"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--listen"):
        NodeConfig(Path("data"), listen=address)


def test_settings_that_contradict_each_other() -> None:
    data = Path("data")
    with pytest.raises(InvalidConfiguration, match="--bootstrap"):
        NodeConfig(data, sink="kafka-python")
    with pytest.raises(InvalidConfiguration, match="--bootstrap"):
        NodeConfig(data, delay_topics=("delays",))
    with pytest.raises(InvalidConfiguration, match="the delay topic is the dead-letter topic"):
        NodeConfig(data, bootstrap="b:1", delay_topics=("dead",), dead_letter_topic="dead")
    with pytest.raises(InvalidConfiguration, match="--sink"):
        NodeConfig(data, sink="rabbits")
    with pytest.raises(InvalidConfiguration, match="no such delivery"):
        NodeConfig(data, delivery="twice")
    with pytest.raises(InvalidConfiguration, match="embedded topics are each peer's own"):
        NodeConfig(data, node_id="a", peers={"a": "h:1", "b": "h:2"}, delivery="exactly-once")
    with pytest.raises(InvalidConfiguration, match="only exactly-once asks"):
        NodeConfig(data, accept_repeats=True)
    with pytest.raises(InvalidConfiguration, match="--sink"):
        NodeConfig(data, kafka_settings={"acks": "all"})
    with pytest.raises(InvalidConfiguration, match="--delay-partitions"):
        NodeConfig(data, delay_partitions=(0, -1))
    with pytest.raises(InvalidConfiguration, match="a fleet shares delay topics"):
        NodeConfig(data, delay_fleet="fleet")
    shared: Any = {"bootstrap": "b:1", "delay_topics": ("delays",)}
    with pytest.raises(InvalidConfiguration, match=r"'a/b'.*--delay-fleet"):
        NodeConfig(data, **shared, delay_fleet="a/b")
    with pytest.raises(InvalidConfiguration, match=r"--delay-partitions 0-1"):
        NodeConfig(data, **shared, delay_fleet="fleet", delay_partitions=(0, 1))
    with pytest.raises(InvalidConfiguration, match="--delay-from"):
        NodeConfig(data, delay_from="middle")
    with pytest.raises(InvalidMessage, match="topic"):
        NodeConfig(data, dead_letter_topic="no/topic")
