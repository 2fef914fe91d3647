"""The gateway as a process: it lives and ends with its node, and the node does not with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from slotwheel.audit.sums import decode_sums
from slotwheel.trace.events import AUDIT_TOPIC
from support.gatewayprocess import NodeWithGateway, ask
from support.nodeprocess import run_process
from support.stopwatch import Stopwatch
from support.waiting import eventually, has_ended


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    """For the tests that do not end it."""
    with NodeWithGateway(tmp_path_factory.mktemp("gateway") / "data") as one:
        yield one


def test_it_is_started_again_and_ends_with_its_node(tmp_path: Path) -> None:
    # A variable of the gateway's own command, which nothing beside a node reads.
    with NodeWithGateway(tmp_path / "data", SLOTWHEEL_AUDIT_AHEAD="soon") as node:
        first = node.gateway
        node.kill_gateway()
        second = node.gateway
        assert second.pid != first.pid
        sent = ask(node, "POST", "/v1/messages", {"topic": "t", "value": "v", "delay_ms": 1})
        assert sent.status_code == 201
        node.wait_for("t", 1)
        node.kill()
        eventually(lambda: has_ended(second))
        node.start()
        third = node.gateway
        assert node.signal() < 5
        eventually(lambda: has_ended(third))
    assert "the gateway ended with" in node.log_text()


def test_a_node_that_is_stopped_has_the_last_sums_of_its_gateway(tmp_path: Path) -> None:
    with NodeWithGateway(tmp_path / "data", "--audit") as node:
        sent = ask(node, "POST", "/v1/messages", {"topic": "t", "value": "v", "delay_ms": 1})
        assert sent.status_code == 201
        first = eventually(lambda: _senders(node))
        node.signal()
        node.start()
        eventually(lambda: first <= _senders(node, last=True), otherwise=node.log_text)


def _senders(node: NodeWithGateway, *, last: bool = False) -> set[str]:
    """Who has sent sums; ``last``: and has said that these are all."""
    batches = [decode_sums(row["value"]) for row in node.delivered(AUDIT_TOPIC)]
    return {one.sender.name for one in batches if one.last or not last}


def test_it_shows_its_nodes_pages_and_the_node_has_no_server_of_its_own(
    node: NodeWithGateway,
) -> None:
    assert "metrics=off" in node.log_text()
    text = ask(node, "GET", "/metrics").text
    assert "slotwheel_pending 0.0" in text
    assert "slotwheel_http_seconds_bucket" in text
    assert ask(node, "GET", "/healthz").json() == {"ok": True, "reasons": []}
    assert ask(node, "GET", "/readyz").status_code == 200
    page = ask(node, "GET", "/nothing")
    assert (page.status_code, page.json()["error_code"]) == (404, 404)
    for _ in range(2):  # on one connection, whose next answer must not wait for a body
        assert node.http.head("/healthz").status_code in (200, 405)
    wrong = ask(node, "PUT", "/v1/messages", {})
    assert wrong.status_code == 405


def test_while_its_node_is_away_it_says_so_and_goes_on_when_it_comes(
    node: NodeWithGateway,
) -> None:
    """Also while more requests wait for the node's policies than it has threads."""
    level = {"topic": "t", "level": "1h"}
    with ThreadPoolExecutor(40) as callers:
        own = psutil.Process(node.running.pid)
        own.suspend()
        try:
            sent = [callers.submit(ask, node, "POST", "/v1/messages", level) for _ in range(40)]
            time.sleep(1)
            watch = Stopwatch()
            refused = ask(node, "GET", "/healthz")
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert watch.seconds < 15  # it gives its node five, and policies have thirty
        finally:
            own.resume()
        assert {one.result().status_code for one in sent} == {201}
    eventually(lambda: ask(node, "GET", "/healthz").status_code == 200)


def test_an_address_that_is_taken_is_named(node: NodeWithGateway, tmp_path: Path) -> None:
    done = run_process("gateway", "--listen", node.metrics, "--node", node.address)
    assert done.returncode == 1
    assert node.metrics in done.stderr
    other = ("--data", tmp_path / "other", "--listen", "127.0.0.1:0")
    done = run_process("node", *other, "--http", node.metrics)
    assert done.returncode == 1
    assert "--http" in done.stderr


def test_each_request_is_logged_if_that_is_wanted(node: NodeWithGateway, tmp_path: Path) -> None:
    ask(node, "GET", "/readyz")
    assert "GET /readyz" not in node.log_text()
    with NodeWithGateway(tmp_path / "data", "--http-log") as logging:
        ask(logging, "GET", "/readyz")
        eventually(lambda: "GET /readyz 200" in logging.log_text())
        ask(logging, "GET", "/nowhere%0a2026-01-01T00:00:00.000Z%20info%20forged")
        eventually(lambda: "GET /nowhere%0a2026" in logging.log_text())
        assert "\n2026-01-01" not in logging.log_text()
