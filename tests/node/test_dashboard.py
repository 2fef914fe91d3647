"""The dashboard: it is made of its table, it draws what is served, and all that a rule watches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from slotwheel.account.vocabulary import AuditVerdict
from slotwheel.audit.watch.watching import AuditReport
from slotwheel.gateway.metrics import GatewayMetrics
from slotwheel.node.alarmrules import WATCHES
from slotwheel.node.dashboard import ROWS, dashboard_json
from slotwheel.node.intake.delay_source import SourceState
from slotwheel.node.intake.fleet import FleetState
from slotwheel.node.metrics import Metrics, Scrape
from slotwheel.wheel.config import WheelConfig
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess
from support.prometheus import Prometheus
from support.waiting import eventually
from support.wheels import NOW, Node

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "deploy/grafana/slotwheel.json"
RULES = ROOT / "deploy/prometheus/slotwheel.rules.yml"
OF_STORE = {"slotwheel_trace_store_starts_total"}
"""Served by a gateway that has a process for trace events."""
AGAIN = "from slotwheel.node.dashboard import dashboard_json as f; print(f(), end='')"


def figures(expr: str) -> set[str]:
    return set(re.findall(r"\b(?:slotwheel_\w+|up)\b", expr))


def drawn() -> set[str]:
    panels = [panel for row in ROWS.values() for panel in row]
    return {name for panel in panels for expr in panel.lines.values() for name in figures(expr)}


def served(root: Path) -> set[str]:
    """The figures of a master with delay topics in a fleet, and of a gateway that audits."""
    node = Node(root, WheelConfig(), NOW)
    group = {"role": "master", "master": "a", "lease_ms": 5}
    metrics = Metrics()
    scrape = Scrape(
        node.wheel.status(),
        NOW,
        1,
        sink_up=True,
        sources=[SourceState("t", 0, "id", 1, 2, "")],
        notes=0,
        damaged=0,
        group=group | {"peers": [{"id": "b", "lag_entries": 1, "heard_ms": 2}]},
        ready=True,
        fleet=FleetState("f", "w"),
    )
    metrics.watch(lambda: scrape)
    metrics.refused.labels("overloaded")
    gateway = GatewayMetrics(dict)
    gateway.answered("GET", "/", 200, 0.1)
    report = AuditReport(NOW, NOW, [], {}, dict.fromkeys(AuditVerdict, 0))
    gateway.audit = lambda: report
    text = metrics.render().decode() + gateway.render().decode()
    node.close()
    return {line.partition(" ")[0].partition("{")[0] for line in text.splitlines()}


def test_the_file_is_what_the_table_makes() -> None:
    assert PAGE.read_text() == dashboard_json(), f"write it again: {AGAIN} > {PAGE}"


def test_each_figure_is_served(tmp_path: Path) -> None:
    known = served(tmp_path) | OF_STORE | {"up"}
    assert sorted(drawn() - known) == []
    watched = {name for watch in WATCHES for name in figures(watch.expr)}
    assert sorted(watched - known) == []


def test_each_figure_that_a_rule_watches_is_drawn() -> None:
    watched = {name for watch in WATCHES for name in figures(watch.expr)}
    assert sorted(watched - drawn()) == []


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard_json())["panels"]:
        at = panel["gridPos"]
        place = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not place & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= place


def test_a_prometheus_answers_each_panel_of_a_real_node(tmp_path: Path) -> None:
    options = ("--trace-store", str(tmp_path / "trace"), "--trace-retain", "1h", "--audit")
    with (
        NodeProcess(tmp_path / "data") as node,
        GatewayProcess(node, *options) as gateway,
        Prometheus(tmp_path, [gateway.address], RULES) as prometheus,
    ):
        message = {"topic": "t", "value": "x", "delay_ms": 100}
        assert gateway.http.post("/v1/messages", json=message).status_code == 201
        eventually(lambda: (value(prometheus, "sum(slotwheel_delivered_total)") or 0) >= 1)
        eventually(lambda: prometheus.names() >= OF_STORE)
        # A rate needs two samples.
        rate = "sum(rate(slotwheel_http_requests_total[10s]))"
        eventually(lambda: value(prometheus, rate) is not None)
        empty = []
        for panel in (panel for row in ROWS.values() for panel in row):
            for expr in panel.lines.values():
                asked = expr.replace("@", 'job="slotwheel"').replace("$__rate_interval", "10s")
                if not prometheus.get("query", query=asked)["result"]:
                    empty.append(asked)
        conditional = "delay_|peer_|master|refused_rows|> 0$"
        assert [expr for expr in empty if not re.search(conditional, expr)] == []
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def value(prometheus: Prometheus, query: str) -> float | None:
    result: Any = prometheus.get("query", query=query)["result"]
    return float(result[0]["value"][1]) if result else None
