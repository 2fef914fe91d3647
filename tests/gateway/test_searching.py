"""Pending messages found, counted and cancelled over HTTP, and what is known of one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psutil

from slotwheel.aside.process import NICE
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess
from support.waiting import eventually

HOUR_MS = 3_600_000


def send_many(gateway: GatewayProcess, topic: str, count: int, **more: Any) -> list[str]:
    due_ms = time.time_ns() // 1_000_000 + HOUR_MS
    messages = [
        {"topic": topic, "value": str(n), "key": f"k{n % 3}", "due_ms": due_ms + 1000 * n, **more}
        for n in range(count)
    ]
    answer = gateway.request("POST", "/v1/messages", json=messages)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["ids"])


def ended_job(gateway: GatewayProcess, answer: Any) -> dict[str, Any]:
    """The report of a job that was begun, once it has ended."""
    assert answer.status_code == 202, answer.text
    path = f"/v1/jobs/{answer.json()['id']}"
    eventually(lambda: gateway.get(path)["state"] != "running")
    return dict(gateway.get(path))


def test_pages_show_what_was_stored_before_the_question(gateway: GatewayProcess) -> None:
    ids = send_many(gateway, "paged", 25, headers={"own": "1", "raw": {"base64": "/w=="}})
    found: list[dict[str, Any]] = []
    page: str | None = ""
    pages = 0
    while page is not None:
        answer = gateway.get("/v1/messages", params={"topic": "paged", "limit": 10, "page": page})
        assert answer["complete"]
        assert answer["read_point"]["next_offset"] > 0
        found += answer["messages"]
        page, pages = answer["next"], pages + 1
    assert pages == 3
    assert [one["id"] for one in found] == ids
    assert found[4] == {
        **found[4],
        "topic": "paged",
        "value": "4",
        "key": "k1",
        "headers": [["own", "1"], ["raw", {"base64": "/w=="}]],
    }
    again = {name: found[4][name] for name in ("topic", "value", "key", "headers", "due_ms")}
    gateway.send(**again)
    assert gateway.get("/v1/messages/count", params={"topic": "paged"})["messages"] == 26


def test_conditions_hold_together(gateway: GatewayProcess) -> None:
    send_many(gateway, "asked", 9, headers={"from": "here"})
    first = gateway.get("/v1/messages", params={"topic": "asked", "limit": 1})["messages"][0]
    from_ms = first["due_ms"]

    def count(**query: Any) -> int:
        params = {"topic": "asked", **query}
        return int(gateway.get("/v1/messages/count", params=params)["messages"])

    assert count() == 9
    assert count(key="k0") == 3
    assert count(key=["k0", "k1"]) == 6
    assert count(header="from:here") == 9
    assert count(header="from:there") == 0
    assert count(from_ms=from_ms, to_ms=from_ms + 3000) == 3
    assert count(topic=["asked", "nothing"], key="k2", to_ms=from_ms + 3000) == 1
    slots = gateway.get("/v1/messages/count", params={"topic": "asked", "by": "slot"})["slots"]
    assert [one["messages"] for one in slots] == [1] * 9
    topics = gateway.get("/v1/messages/count", params={"by": "topic"})["topics"]
    assert topics["asked"] == 9


def test_lines_end_with_the_end_of_the_page(gateway: GatewayProcess) -> None:
    ids = send_many(gateway, "lines", 3)
    accept = {"Accept": "application/json;q=0.5, application/x-ndjson"}
    answer = gateway.request("GET", "/v1/messages?topic=lines&limit=2", headers=accept)
    assert answer.headers["content-type"] == "application/x-ndjson"
    *messages, end = map(json.loads, answer.text.splitlines())
    assert [one["id"] for one in messages] == ids[:2]
    assert end["page"]["next"]
    refused = gateway.request("GET", "/v1/messages", headers={"Accept": "text/html"})
    assert refused.status_code == 406


def test_what_is_known_of_a_message(gateway: GatewayProcess, node: NodeProcess) -> None:
    pending, cancelled = send_many(gateway, "known", 2)
    gateway.request("DELETE", f"/v1/messages/{cancelled}")
    gone = gateway.send(topic="known-gone", value="x", delay_ms=0)
    node.wait_for("known-gone", 1)
    found = gateway.get(f"/v1/messages/{pending}")
    assert (found["state"], found["message"]["value"]) == ("pending", "0")
    assert gateway.get(f"/v1/messages/{cancelled}")["state"] == "cancelled"
    eventually(lambda: gateway.get(f"/v1/messages/{gone}")["state"] == "delivered")
    left = gateway.get(f"/v1/messages/{gone}")
    assert left["created_ms"] <= left["left_ms"]
    assert left["topic"] == "known-gone"
    assert (found["left_ms"], found["topic"]) == (None, "known")
    unknown = gateway.get("/v1/messages/nobody")
    assert unknown["state"] == "unknown"
    assert unknown["why"]


def test_many_are_cancelled_by_what_they_are(gateway: GatewayProcess) -> None:
    ids = send_many(gateway, "bulk", 50)
    kept = send_many(gateway, "bulk-kept", 3)
    body = {"where": {"topic": "bulk", "key": ["k0", "k1"]}}
    counted = gateway.request("POST", "/v1/cancellations?dry_run=true", json=body)
    assert (counted.status_code, counted.json()["messages"]) == (200, 34)
    report = ended_job(gateway, gateway.request("POST", "/v1/cancellations", json=body))
    assert (report["state"], report["done"], report["total"]) == ("done", 34, 34)
    assert report["summary"]["answers"] == {"cancelled": 34}
    assert report["summary"]["complete"]
    left = gateway.get("/v1/messages/count", params={"topic": "bulk"})["messages"]
    assert left == len(ids) - 34
    assert gateway.get(f"/v1/messages/{kept[0]}")["state"] == "pending"
    assert report["id"] in [one["id"] for one in gateway.get("/v1/jobs")["jobs"]]
    stopped = gateway.request("DELETE", f"/v1/jobs/{report['id']}")
    assert stopped.json()["state"] == "done"


def test_a_search_process_that_was_killed_is_started_again(gateway: GatewayProcess) -> None:
    gateway.get("/v1/messages")
    (worker,) = _workers(gateway.process)
    assert worker.nice() == min(19, gateway.process.nice() + NICE)
    worker.kill()
    assert gateway.get("/v1/messages/count")["complete"]
    (second,) = _workers(gateway.process)
    assert second.pid != worker.pid


def test_the_processes_beside_a_gateway_load_no_pandas(node: NodeProcess) -> None:
    """pyarrow imports it, where it is installed, as it is here."""
    with GatewayProcess(node) as one:
        one.get("/v1/messages")
        (sent,) = send_many(one, "without-pandas", 1)
        one.get(f"/v1/trace/{sent}")
        found = _workers(one.process)
        assert len(found) == 2
        for process in (one.process, *found):
            paths = {Path(place.path).parts for place in process.memory_maps()}
            assert any("pyarrow" in parts for parts in paths)
            assert not any("pandas" in parts for parts in paths)


def test_a_gateway_without_a_directory_says_what_it_lacks(node: NodeProcess) -> None:
    with GatewayProcess(node, beside=False) as one:
        off = "search, and what is known of a message, are off: they need --data"
        eventually(lambda: off in one.log_text())
        for path in ("/v1/messages", "/v1/messages/count", "/v1/messages/x", "/v1/dead"):
            answer = one.request("GET", path)
            assert (answer.status_code, "--data" in answer.json()["remedy"]) == (404, True), path
        assert one.request("PUT", "/v1/messages").headers["Allow"] == "GET, POST, HEAD"


def _workers(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children() if "begin.py" in " ".join(one.cmdline())]
