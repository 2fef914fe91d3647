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
"""Of each table."""
STRIP = 30
"""Buckets of a strip: of those that are equal, older ones are forgotten."""
_WHOLE_MS = 1 << 41
"""An interval that has all due times of our days in it."""


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
        return sum(self.buckets.get(one, 0) for one in FAULTS)


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
    """A report for people: the worst first. ``stale``: as of a report; ``differ``: buckets in which
    something does; ``verdicts``: how many comparisons have each; ``differing``: since the audit
    began, the newest first; ``faults``: the newest first; ``more``: how many rows of each are left
    out."""

    report: AuditReport
    stale: bool
    interval_ms: int
    topics: int
    differ: int
    verdicts: Mapping[AuditVerdict, int]
    lines: list[AuditLine]
    differing: list[Differing]
    faults: list[Comparison]
    reasons: list[AuditReason]
    more: tuple[int, ...]

    @property
    def since_ms(self) -> int | None:
        """The first bucket that differed."""
        return min((one.since_ms for one in self.differing), default=None)


def shown_audit(report: AuditReport, interval_ms: int, now_ms: int, topic: str = "") -> AuditShown:
    """``topic``: only this one; empty: all."""
    every = [one for cell in report.cells if topic in ("", cell.topic) for one in cell.comparisons]
    newest_ms = report.at_ms - report.at_ms % interval_ms
    of_lines: dict[tuple[str, str, str], list[Comparison]] = {}
    of_reasons: dict[tuple[str, ...], list[Comparison]] = {}
    for one in every:
        place = one.topic, one.boundary, one.group
        of_lines.setdefault(place, []).append(one)
        if not one.fault and one.verdict is not AuditVerdict.EQUAL:
            of_reasons.setdefault((*place, one.verdict, one.why), []).append(one)
    differing = [one for one in report.differing if topic in ("", one.topic)]
    since = {one.place: one.since_ms for one in differing}
    lines = [
        _line(same, since.get(place), newest_ms, interval_ms) for place, same in of_lines.items()
    ]
    lines.sort(key=lambda one: (RANK[one.verdict], one.topic))
    reasons = [_reason(same) for same in of_reasons.values()]
    reasons.sort(key=lambda one: (RANK[one.verdict], one.topic))
    faults = sorted((one for one in every if one.fault), key=lambda one: -one.bucket_ms)
    return AuditShown(
        report,
        report.stale(now_ms),
        interval_ms,
        topics=len({one.topic for one in every}),
        differ=len({(one.topic, one.bucket_ms) for one in faults}),
        verdicts=_verdicts(every),
        lines=lines[:ROWS],
        differing=sorted(differing, key=lambda one: -one.last_ms)[:ROWS],
        faults=faults[:ROWS],
        reasons=reasons[:ROWS],
        more=tuple(max(0, len(one) - ROWS) for one in (lines, differing, faults, reasons)),
    )


def _verdicts(comparisons: Iterable[Comparison]) -> Counter[AuditVerdict]:
    return Counter(one.verdict for one in comparisons)


def _line(
    same: list[Comparison], since_ms: int | None, newest_ms: int, interval_ms: int
) -> AuditLine:
    """``same``: of one boundary of a topic."""
    first = same[0]
    of_bucket = {one.bucket_ms: one.verdict for one in same}
    begin_ms = newest_ms - (STRIP - 1) * interval_ms
    return AuditLine(
        topic=first.topic,
        boundary=first.boundary,
        group=first.group,
        verdict=worst(one.verdict for one in same),
        buckets=_verdicts(same),
        since_ms=since_ms,
        strip=[
            (at, of_bucket.get(at)) for at in range(begin_ms, newest_ms + interval_ms, interval_ms)
        ],
    )


def _reason(same: list[Comparison]) -> AuditReason:
    first = same[0]
    return AuditReason(
        verdict=first.verdict,
        topic=first.topic,
        boundary=first.boundary,
        group=first.group,
        why=first.why,
        buckets=len(same),
        first_ms=min(one.bucket_ms for one in same),
        late_ms=max(one.late_ms for one in same),
    )


async def audit(call: RouteCall[AuditForm, None]) -> Reply:
    """Which tiers agree, and what took long or went wrong in the last hour."""
    services, form = call.services, call.query
    more = {"form": form}

    async def tiers() -> AuditShown:
        about = newest_report(services), services.settings.audit_interval_ms, clock_ms()
        return await services.run(shown_audit, *about, form.topic)

    parts = {
        "tiers": off("audit/off.html")
        if services.audit is None
        else PagePart("audit/tiers.html", ("audit", form.topic), tiers, live=True, more=more),
        **_of_events(services, form.topic),
    }
    return await page(call, "audit", "audit.html", parts, form=form)


def _of_events(services: Services, topic: str) -> dict[str, PagePart]:
    """What is made of the store of events, over the last hour."""
    store = services.settings.store
    if store is None or not store.is_dir():
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
