"""Metrics and health of a running node."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from pathlib import Path

from slotwheel import Client, Message
from support.nodeprocess import NodeProcess, run_cli
from support.waiting import eventually


def test_metrics_tell_what_happened(tmp_path: Path) -> None:
    options = ("--tail-age", "500ms", "--tail-keep", "100ms", "--horizon", "60d")
    with NodeProcess(tmp_path / "data", *options) as node:
        with Client(node.address) as client:
            client.send_many([Message("later", b"x", delay=50 * 86_400)] * 3).result(60)
            client.send_many([Message("soon", b"x", delay=0.2) for _ in range(50)]).result(60)
            client.send_many([Message("later", b"x", delay=600) for _ in range(20)]).result(60)
            node.wait_for("soon", 50)
            bad = client.send_many([Message("later", b"x", delay=61 * 86_400)]).errors(60)
            assert len(bad) == 1
        # A message is counted behind the mark, which is set behind the topic; its lateness last.
        eventually(lambda: node.metric("slotwheel_lateness_seconds_count") == 50)
        assert node.metric("slotwheel_delivered_total") == 50
        assert node.metric("slotwheel_accepted_total") == 73
        assert node.metric("slotwheel_dead_total") == 0
        assert node.metric("slotwheel_pending") == 23
        assert node.metric("slotwheel_early_rows_total") == 0
        assert node.metric('slotwheel_lateness_seconds_bucket{le="60"}') == 50
        assert node.metric("slotwheel_append_seconds_count") >= 2
        assert node.metric("slotwheel_sink_up") == 1
        assert node.metric("slotwheel_journal_bytes") > 0
        assert node.metric("slotwheel_disk_free_bytes") > 0
        assert 0 < node.metric("slotwheel_recovery_seconds") < 10
        assert node.metric("slotwheel_mark_age_seconds") < 5
        names = node.get("/metrics")[1]
        for name in ("tail_bytes", "queued_bytes", "open_handles", "held_topics", "slot_files"):
            assert f"\nslotwheel_{name} " in names
        eventually(lambda: node.metric("slotwheel_spill_seconds_count") >= 1)
        eventually(lambda: node.metric("slotwheel_slot_rows") == 23)
        assert node.metric("slotwheel_far_rows") == 3
        assert node.metric("slotwheel_far_files") == 1
        assert 0 < node.metric("slotwheel_far_bytes") < node.metric("slotwheel_slot_bytes")
        shown = run_cli("status", "--node", node.address).stdout
        assert re.search(r"^far rows +3$", shown, re.MULTILINE), shown
        assert re.search(r"^horizon +60 d$", shown, re.MULTILINE), shown


def test_health_is_well_on_an_idle_node(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        for page in ("/healthz", "/readyz"):
            code, body = node.get(page)
            assert (code, json.loads(body)) == (200, {"ok": True, "reasons": []})
        code, body = node.get("/other")
        assert code == 404
        assert "/metrics" in json.loads(body)["pages"]


def test_metrics_can_be_turned_off(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--metrics", "off") as node:
        assert node.metrics == ""
        assert "metrics=off" in node.log_text()


def test_the_status_tells_the_delivery_semantics(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--delivery", "exactly-once") as node:
        said = run_cli("status", "--node", node.address, "--json").stdout
        assert json.loads(said)["delivery"] == "exactly-once"


def test_a_page_of_another_site_cannot_read_the_metrics(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "--http-name", "wheel.example.com") as node:
        port = node.metrics.rpartition(":")[2]
        answers = {"evil.example": 421, "127.0.0.1.evil.example": 421, "": 421}
        answers |= dict.fromkeys(["localhost:1", "127.0.0.1", "wheel.example.com"], 200)
        for host, status in answers.items():
            for page in ("/metrics", "/healthz", "/readyz"):
                connection = HTTPConnection("127.0.0.1", int(port), timeout=30)
                connection.request("GET", page, headers={"Host": host})
                answer = connection.getresponse()
                body = answer.read()
                connection.close()
                assert answer.status == status, (host, page, body)
                assert (b"slotwheel_" in body) == (status == 200 and page == "/metrics")
