"""What the gateway counts, in Prometheus' text; it stands behind what its node counts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..account.vocabulary import AuditVerdict
from ..audit.watch.watching import AuditReport
from ..client.message import clock_ms

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class GatewayMetrics:
    """Counts requests by route and status. Used by the loop's thread alone: each count is one
    addition. ``levels``: figures that are read at a scrape, by name."""

    def __init__(self, levels: Callable[[], dict[str, tuple[str, float]]]) -> None:
        self._levels = levels
        self.audit: Callable[[], AuditReport | None] = lambda: None
        """The newest report of the audit; None: there is none."""
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests[method, route, status] += 1
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def add(self, collector: Collector) -> None:
        """Further figures, of something else in the gateway."""
        self._registry.register(collector)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "slotwheel_http_requests",
            "Requests answered",
            labels=["method", "route", "status"],
        )
        for (method, route, status), count in self._requests.items():
            requests.add_metric([method, route, str(status)], count)
        yield requests
        total, buckets = 0, []
        for bound, count in zip(
            (*(f"{one:g}" for one in SECONDS), "+Inf"), self._buckets, strict=True
        ):
            total += count
            buckets.append((bound, total))
        seconds = HistogramMetricFamily(
            "slotwheel_http_seconds", "From a request's headers to the end of its answer"
        )
        seconds.add_metric([], buckets, self._seconds)
        yield seconds
        for name, (text, value) in self._levels().items():
            yield GaugeMetricFamily(f"slotwheel_http_{name}", text, value)
        report = self.audit()
        if report is not None:
            yield from _of_audit(report)


def _of_audit(report: AuditReport) -> Iterable[Metric]:
    text = "Since when nothing new was looked at by the audit"
    yield GaugeMetricFamily(
        "slotwheel_audit_age_seconds", text, max(0, clock_ms() - report.at_ms) / 1000
    )
    verdicts = report.verdicts
    cells = GaugeMetricFamily(
        "slotwheel_audit_comparisons",
        "Boundaries of buckets that are looked at, by what the sums on both sides say",
        labels=["verdict"],
    )
    for verdict in AuditVerdict:
        cells.add_metric([verdict], verdicts[verdict])
    yield cells
    closed = CounterMetricFamily(
        "slotwheel_audit_closed",
        "Boundaries of buckets that are not looked at any more, by their last verdict",
        labels=["verdict"],
    )
    for verdict in AuditVerdict:
        closed.add_metric([verdict], report.closed.get(verdict, 0))
    yield closed
    text = "Buckets in which messages were lost or repeated, or are not the same"
    yield GaugeMetricFamily("slotwheel_audit_differs", text, len(report.faults))
    refused = CounterMetricFamily(
        "slotwheel_audit_refused", "What came for the audit and was not taken", labels=["why"]
    )
    for why, count in report.refused.items():
        refused.add_metric([why], count)
    yield refused
