"""What ``/v1/audit`` and the metrics make of a report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from slotwheel.account.vocabulary import AuditVerdict, Boundary
from slotwheel.audit.comparing import Comparison
from slotwheel.audit.differing import Differing
from slotwheel.audit.ledger import CellReport
from slotwheel.audit.watch.watching import AuditReport
from slotwheel.client.message import clock_ms
from slotwheel.gateway.metrics import GatewayMetrics
from slotwheel.gateway.v1.audit import AuditQuery, audit

_FINE = Comparison("orders", 9_000, Boundary.WHEEL_TOPIC, "", AuditVerdict.EQUAL)
_LOST = Differing("orders", Boundary.WHEEL_TOPIC, "", 1_000, 2_000, 2, lost=7)


def _report(**more: Any) -> AuditReport:
    cells = [CellReport("orders", 9_000, AuditVerdict.EQUAL, [_FINE])]
    closed: dict[str, int] = {AuditVerdict.LOST: 2, AuditVerdict.EQUAL: 5}
    return AuditReport(9_500, 1_000, cells, {}, closed, differing=[_LOST], **more)


def _answer(report: AuditReport) -> dict[str, Any]:
    async def run(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    services = SimpleNamespace(audit=SimpleNamespace(report=report), run=run, front=None)
    call = SimpleNamespace(services=services, query=AuditQuery())
    found: dict[str, Any] = json.loads(asyncio.run(audit(cast(Any, call))).body)
    return found


def test_what_was_lost_is_told_when_its_buckets_are_forgotten() -> None:
    found = _answer(_report())
    assert found["differing"] == [
        {
            "topic": "orders",
            "boundary": "wheel to topic",
            "group": "",
            "since_ms": 1_000,
            "last_ms": 2_000,
            "buckets": 2,
            "lost": 7,
            "repeated": 0,
        }
    ]
    assert (found["verdicts"], found["closed"]) == ({"equal": 1}, {"lost": 2, "equal": 5})


def test_a_report_of_long_ago_is_stale() -> None:
    assert _answer(_report())["stale"]
    assert not _answer(replace(_report(), at_ms=clock_ms()))["stale"]
    ended = _answer(_report(problem="the audit has ended", restarts=3))
    assert (ended["problem"], ended["restarts"]) == ("the audit has ended", 3)


def test_closed_comparisons_are_a_metric() -> None:
    metrics = GatewayMetrics(dict)
    metrics.audit = _report
    families = text_string_to_metric_families(metrics.render().decode())
    (closed,) = [one for one in families if one.name == "slotwheel_audit_closed"]
    counts = {one.labels["verdict"]: one.value for one in closed.samples}
    assert counts == dict.fromkeys(AuditVerdict, 0) | {"lost": 2, "equal": 5}
