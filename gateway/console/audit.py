"""Audit: whether all tiers saw the same messages, how long steps took, what was out of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...account.vocabulary import FAULTS, RANK, AuditVerdict, worst
from ...audit.comparing import Comparison
from ...audit.differing import Differing
from ...audit.watch.watching import AuditReport
from ...client.message import clock_ms
from ...trace.chains.lookup import AnomalyQuery, LatencyQuery
from ..endpoint import RouteCall
from ..requests import Reply
from ..services import Services
from ..v1.audit import newest_report
from ..v1.tracing import found_anomalies, found_latency
from .parts import PagePart, PartsQuery, off, page

ROWS = 50
"""Rows of each table, at most."""
STRIP = 30
"""Buckets of a strip. The ledger drops older buckets in which nothing is wrong, so a longer strip
would have gaps."""
_WHOLE_MS = 1 << 41
"""An interval that holds all due times up to the year 2039: one row for each step of a topic."""


class AuditForm(PartsQuery, forbid_unknown_fields=True):
    """``topic``: only this one; empty: all."""

    topic: str = ""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One boundary of a topic. ``group``: of consumers; ``verdict``: the worst; ``buckets``: how
    many have each verdict; ``since_ms``: the first bucket that differed; ``strip``: bucket and
    verdict of the last ``STRIP`` ones, the newest last, None: nothing was due."""

    topic: str
    boundary: str
    group: str
    verdict: AuditVerdict
    buckets: Mapping[AuditVerdict, int]
    since_ms: int | None
    strip: list[tuple[int, AuditVerdict | None]]

    @property
    def differ(self) -> int:
        return sum(self.buckets.get(verdict, 0) for verdict in FAULTS)


@dataclass(frozen=True, slots=True)
class AuditReason:
    """Buckets of one boundary that have no answer yet, are late, or cannot have one, and why."""

    verdict: AuditVerdict
    topic: str
    boundary: str
    group: str
    why: str
    buckets: int
    first_ms: int
    late_ms: int


@dataclass(frozen=True, slots=True)
class AuditShown:
    """A report for people, the worst first. ``stale``: as of ``AuditReport.stale``; ``differ``:
    buckets in which something differs; ``verdicts``: how many comparisons have each;
    ``differing``: since the audit began, the newest first; ``since_ms``: the first bucket of these,
    also of those that are left out; ``faults``: the newest first; ``more``: how many rows are left
    out of lines, differing, faults and reasons."""

    report: AuditReport
    stale: bool
    interval_ms: int
    topics: int
    differ: int
    verdicts: Mapping[AuditVerdict, int]
    lines: list[AuditLine]
    differing: list[Differing]
    since_ms: int | None
    faults: list[Comparison]
    reasons: list[AuditReason]
    more: tuple[int, ...]


def shown_audit(report: AuditReport, interval_ms: int, now_ms: int, topic: str = "") -> AuditShown:
    """A report as its page shows it. ``topic``: only this one; empty: all."""
    cells = [cell for cell in report.cells if topic in ("", cell.topic)]
    comparisons = [comparison for cell in cells for comparison in cell.comparisons]
    newest_ms = report.at_ms - report.at_ms % interval_ms
    of_lines: dict[tuple[str, str, str], list[Comparison]] = {}
    of_reasons: dict[tuple[str, ...], list[Comparison]] = {}
    for row in comparisons:
        place = row.topic, row.boundary, row.group
        of_lines.setdefault(place, []).append(row)
        if not row.fault and row.verdict is not AuditVerdict.EQUAL:
            of_reasons.setdefault((*place, row.verdict, row.why), []).append(row)
    differing = [pair for pair in report.differing if topic in ("", pair.topic)]
    since = {pair.place: pair.since_ms for pair in differing}
    lines = [
        _line(buckets, since.get(place), newest_ms, interval_ms)
        for place, buckets in of_lines.items()
    ]
    lines.sort(key=lambda line: (RANK[line.verdict], line.topic))
    reasons = [_reason(buckets) for buckets in of_reasons.values()]
    reasons.sort(key=lambda reason: (RANK[reason.verdict], reason.topic))
    faults = sorted((row for row in comparisons if row.fault), key=lambda row: -row.bucket_ms)
    return AuditShown(
        report,
        report.stale(now_ms),
        interval_ms,
        topics=len({row.topic for row in comparisons}),
        differ=len({(fault.topic, fault.bucket_ms) for fault in faults}),
        verdicts=_verdicts(comparisons),
        lines=lines[:ROWS],
        differing=sorted(differing, key=lambda pair: -pair.last_ms)[:ROWS],
        since_ms=min(since.values(), default=None),
        faults=faults[:ROWS],
        reasons=reasons[:ROWS],
        more=tuple(max(0, len(rows) - ROWS) for rows in (lines, differing, faults, reasons)),
    )


def _verdicts(comparisons: Iterable[Comparison]) -> Counter[AuditVerdict]:
    return Counter(comparison.verdict for comparison in comparisons)


def _line(
    buckets: list[Comparison], since_ms: int | None, newest_ms: int, interval_ms: int
) -> AuditLine:
    """``buckets``: the comparisons of one boundary of a topic."""
    first = buckets[0]
    verdicts = {bucket.bucket_ms: bucket.verdict for bucket in buckets}
    begin_ms = newest_ms - (STRIP - 1) * interval_ms
    return AuditLine(
        topic=first.topic,
        boundary=first.boundary,
        group=first.group,
        verdict=worst(verdicts.values()),
        buckets=_verdicts(buckets),
        since_ms=since_ms,
        strip=[
            (at, verdicts.get(at)) for at in range(begin_ms, newest_ms + interval_ms, interval_ms)
        ],
    )


def _reason(buckets: list[Comparison]) -> AuditReason:
    first = buckets[0]
    return AuditReason(
        verdict=first.verdict,
        topic=first.topic,
        boundary=first.boundary,
        group=first.group,
        why=first.why,
        buckets=len(buckets),
        first_ms=min(bucket.bucket_ms for bucket in buckets),
        late_ms=max(bucket.late_ms for bucket in buckets),
    )


async def audit(call: RouteCall[AuditForm, None]) -> Reply:
    """Which tiers agree, and what took long or went wrong in the last hour."""
    services, form = call.services, call.query
    more = {"form": form}

    async def tiers() -> AuditShown:
        report, interval_ms = newest_report(services), services.settings.audit_interval_ms
        return await services.run(shown_audit, report, interval_ms, clock_ms(), form.topic)

    parts = {
        "tiers": off("audit/of_wheel.html" if services.front is not None else "audit/off.html")
        if services.audit is None
        else PagePart("audit/tiers.html", ("audit", form.topic), tiers, live=True, more=more),
        **_event_parts(services, form.topic),
    }
    return await page(call, "audit", "audit.html", parts, form=form)


def _event_parts(services: Services, topic: str) -> dict[str, PagePart]:
    """Latency and anomalies of the last hour, or how to have a store of events to find them in."""
    if services.front is not None and services.lookup is None:
        if services.front.is_whole:
            return {"events": off("audit/of_one.html")}
    elif (store := services.settings.store) is None or not store.is_dir():
        return {"events": off("audit/no_events.html")}
    latency = LatencyQuery(topic=topic or None, interval_ms=_WHOLE_MS)
    anomalies = AnomalyQuery(topic=topic or None, limit=ROWS)
    return {
        "latency": PagePart(
            "audit/latency.html",
            ("latency", topic),
            lambda: found_latency(services, latency),
            more={"rows": 4 * ROWS},
        ),
        "anomalies": PagePart(
            "audit/anomalies.html",
            ("anomalies", topic),
            lambda: found_anomalies(services, anomalies),
        ),
    }
