"""The gateway as a process: it lives and ends with its node, and the node does not with it."""

from __future__ import annotations

from pathlib import Path

import psutil

from support.gatewaynode import GatewayNode
from support.nodeprocess import run_process
from support.waiting import eventually


def test_it_is_started_again_and_ends_with_its_node(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        first = node.gateway
        first.kill()
        node.wait_for_gateway(1)
        second = node.gateway
        assert second.pid != first.pid
        sent = node.ask("POST", "/v1/messages", {"topic": "t", "value": "v", "delay_ms": 1})
        assert sent.status == 201
        node.wait_for("t", 1)
        node.kill()
        eventually(lambda: _ended(second))
        node.start()
        third = node.gateway
        assert node.signal() < 5
        eventually(lambda: _ended(third))
    assert "the gateway ended with" in node.log_text()


def _ended(process: psutil.Process) -> bool:
    """Nobody may wait for a process whose parent was killed."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_it_shows_its_nodes_pages_and_the_node_has_no_server_of_its_own(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        assert "metrics=off" in node.log_text()
        text = node.ask("GET", "/metrics").body.decode()
        assert "slotwheel_pending 0.0" in text
        assert "slotwheel_http_seconds_bucket" in text
        assert node.ask("GET", "/healthz").json == {"ok": True, "reasons": []}
        assert node.ask("GET", "/readyz").status == 200
        page = node.ask("GET", "/nothing")
        assert (page.status, page.json["error_code"]) == (404, 404)
        wrong = node.ask("PUT", "/v1/messages", {})
        assert wrong.status == 405


def test_while_its_node_is_away_it_says_so_and_goes_on_when_it_comes(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        own = psutil.Process(node.running.pid)
        own.suspend()
        try:
            refused = node.ask("GET", "/healthz")
            assert refused.status in (503, 504)
            assert refused.headers["retry-after"]
        finally:
            own.resume()
        eventually(lambda: node.ask("GET", "/healthz").status == 200)


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        done = run_process(
            "gateway", "--listen", f"{node.host}:{node.port}", "--node", node.address
        )
        assert done.returncode == 1
        assert f"{node.host}:{node.port}" in done.stderr


def test_each_request_is_logged_if_that_is_wanted(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        node.ask("GET", "/readyz")
        assert "GET /readyz" not in node.log_text()
    with GatewayNode(tmp_path / "data", "--http-log") as node:
        node.ask("GET", "/readyz")
        eventually(lambda: "GET /readyz 200" in node.log_text())
