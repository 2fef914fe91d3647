"""Chains, events, latency and anomalies over HTTP; and the same by the command line."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slotwheel.trace.chains.lookup import STORE_DIRECTORY
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName
from slotwheel.wheel.ids import MessageId
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess, run_cli
from support.traced import Row, event, id_parts, stored
from support.waiting import eventually

_flushes = itertools.count()
HOUR_MS = 3_600_000
_ABOUT = SegmentAbout(hour=1, topic="t", positions={0: 9})
ODD = b"<script>\xff"


def plant(gateway: GatewayProcess, rows: list[Row]) -> None:
    """Put events into the store beside the gateway."""
    number = next(_flushes)
    root = gateway.node.data / STORE_DIRECTORY
    root.mkdir(exist_ok=True)
    write_segment(root, SegmentName(number, number), _ABOUT, stored(rows))


def parts_of(text: str) -> dict[str, Any]:
    one = MessageId.parse(text)
    return {"group": one.group, "due": one.due, "offset": one.offset, "check": one.check}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def cli(gateway: GatewayProcess, *arguments: str) -> list[Any]:
    done = run_cli("trace", "--data", str(gateway.node.data), "--json", *arguments)
    assert not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def gateway(node: NodeProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess(node) as one:
        answer = one.request("GET", "/v1/trace")  # before there is a store
        assert answer.status_code == 422, answer.text
        assert "there is no store of events" in answer.text
        chain = one.get(f"/v1/trace/{sent(one, 'early')}")
        assert chain["state"] == "pending"
        assert "there is no store of events" in chain["missing"][0]
        yield one


def sent(gateway: GatewayProcess, topic: str, delay_ms: int = HOUR_MS) -> str:
    answer = gateway.request(
        "POST", "/v1/messages", json={"topic": topic, "value": "v", "delay_ms": delay_ms}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def delivered(gateway: GatewayProcess, topic: str) -> str:
    one = sent(gateway, topic, 0)
    eventually(lambda: gateway.get(f"/v1/messages/{one}")["state"] == "delivered")
    return one


def test_a_chain_is_the_same_over_http_and_by_the_command_line(gateway: GatewayProcess) -> None:
    one = delivered(gateway, "chained")
    parts, at = parts_of(one), now_ms()
    retry = {**parts, "offset": parts["offset"] + 1_000_000}
    place: dict[str, Any] = {"topic": "chained", "partition": 0, "key": ODD}
    of_group: dict[str, Any] = {"group": "billing", "sender": "c", "client": "till", **place}
    rows = [
        event(0, parts["due"] - 5, "s", id=parts, took_us=1500, **place),
        event(0, at, kind="processed", id=parts, took_us=70, attempt=1, error="no", **of_group),
        event(1, at + 1, kind="retried", id=parts, attempt=1, **of_group),
        event(2, at + 2, kind="processed", id=retry, origin=parts, attempt=2, **of_group),
    ]
    plant(gateway, rows)
    chain = gateway.get(f"/v1/trace/{one}")
    assert (chain["state"], chain["outcomes"]) == ("processed", {"billing": "processed"})
    kinds = [step["kind"] + "!" * step.get("failed", False) for step in chain["steps"]]
    assert [kind for kind in kinds if kind not in ("accepted", "delivered")] == [
        *("produced", "due", "processed!", "retried", "processed")
    ]
    assert chain["steps"][0]["key_base64"] == base64.b64encode(ODD).decode()
    assert chain["latency_ms"]["send"] == 1.5
    assert [one["kind"] for one in chain["anomalies"]] == ["retry"]
    [by_command] = cli(gateway, one)
    assert by_command == chain
    of_retry = gateway.get(f"/v1/trace/{chain['messages'][1]['id']}")
    assert of_retry["steps"] == chain["steps"]
    text = run_cli("trace", "--data", str(gateway.node.data), one).stdout
    assert "billing: processed" in text
    assert "retry: attempt 1 failed" in text


def test_pages_of_events_are_whole_and_in_order(gateway: GatewayProcess) -> None:
    at = now_ms()
    rows = [
        event(n, at + n // 3, f"pager{n % 2}", key=b"k%d" % (n % 5), tag="paged", topic="pages")
        for n in range(25)
    ]
    plant(gateway, rows[::2])
    plant(gateway, rows[1::2])
    wanted = {"tag": "paged", "limit": 10}
    found: list[Any] = []
    page: str | None = ""
    while page is not None:
        answer = gateway.get("/v1/trace", params={**wanted, "page": page})
        assert answer["complete"]
        found += answer["events"]
        page = answer["next"]
    by_time = sorted(rows, key=lambda one: (one["at"], one["sender"], one["number"]))
    assert [(one["at_ms"], one["number"]) for one in found] == [
        (one["at"], one["number"]) for one in by_time
    ]
    few = gateway.get("/v1/trace", params={"topic": "pages", "key": "k3", "from_ms": at + 3})
    assert [one["number"] for one in few["events"]] == [13, 18, 23]
    *events, end = cli(gateway, "--tag", "paged", "--limit", "10")
    following = end["page"]["next"]
    assert events == found[:10]
    assert cli(gateway, "--tag", "paged", "--limit", "10", "--page", following)[:-1] == found[10:20]


def test_latency_and_anomalies_are_those_of_the_events(gateway: GatewayProcess) -> None:
    due = 1_700_000_000_000
    rows = []
    for n in range(100):
        parts = id_parts(n, "elsewhere", due)
        done: dict[str, Any] = {"topic": "slow", "group": "g", "id": parts, "sender": "lat"}
        rows.append(event(n, due + n, kind="processed", took_us=1000 * n, **done))
    rows.append(event(100, due + 500, kind="retried", attempt=1, **done))
    rows.append(event(200, due + 600, kind="dropped", count=99, sender="lat"))
    plant(gateway, rows)
    when = {"from_ms": due, "to_ms": due + 1000}
    answer = gateway.get("/v1/trace/latency", params={**when, "topic": "slow"})
    figures = {"p50_ms": 49.0, "p95_ms": 94.0, "p99_ms": 98.0, "max_ms": 99.0}
    common = {"topic": "slow", "from_ms": due - due % 60_000, "messages": 100, **figures}
    assert answer["latencies"] == [{**common, "step": step} for step in ("arrival", "consumer")]
    found = gateway.get("/v1/trace/anomalies", params={**when, "limit": 1})
    assert found["counts"] == {"gap": 1, "retry": 1}
    assert [one["kind"] for one in found["anomalies"]] == ["retry"]
    between = ("--from", "2023-11-14T22:13:20Z", "--to", "2023-11-14T22:13:21Z")
    assert cli(gateway, *between, "--show", "latency", "--topic", "slow") == answer["latencies"]
    shown = cli(gateway, *between, "--show", "anomalies")
    assert shown[-1] == {"anomalies": found["counts"]}
    assert shown[0] == found["anomalies"][0]


def test_a_damaged_segment_is_a_problem_in_the_answer(gateway: GatewayProcess) -> None:
    at = 1_600_000_000_000
    plant(gateway, [event(0, at, "whole", tag="half")])
    plant(gateway, [event(0, at, "broken", tag="half")])
    newest = max((gateway.node.data / STORE_DIRECTORY).glob("*.arrow"))
    sound = newest.read_bytes()
    newest.write_bytes(sound[:-3] + b"???")
    try:
        answer = gateway.get("/v1/trace", params={"tag": "half"})
        assert not answer["complete"]
        assert newest.name in answer["problems"][0]
        assert [one["sender"] for one in answer["events"]] == ["whole"]
        done = run_cli("trace", "--data", str(gateway.node.data), "--tag", "half")
        assert (done.returncode, newest.name in done.stderr) == (1, True)
    finally:
        newest.write_bytes(sound)
