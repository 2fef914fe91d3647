"""The audit's answer: whether all tiers of the wheel saw the same messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import msgspec

from ...account.vocabulary import AuditVerdict
from ...audit.watch.watching import AuditReport
from ...client.message import clock_ms
from ...security.rights import Operation
from ..endpoint import AnyEndpoint, RouteCall, endpoint
from ..errors import HttpError
from ..requests import Reply, as_json
from ..services import Services
from .joining import of_each

_LIMIT = 1_000
"""Comparisons in an answer, at most."""


class AuditQuery(msgspec.Struct):
    """``verdict``: only comparisons with this one; empty: all."""

    verdict: str = ""


class AuditComparison(msgspec.Struct):
    """One boundary of a topic's bucket. ``bucket_ms``: its first due time; ``group``: of consumers;
    ``count``: so many messages are missing or too many behind it, ``before`` and ``after`` so many
    on each side; ``late_ms``: how late the latest was; ``why``: why it is open or unknown;
    ``wheel``: of a fleet, the wheel whose messages these are; empty: there is one wheel."""

    topic: str
    bucket_ms: int
    boundary: str
    group: str
    verdict: AuditVerdict
    count: int
    late_ms: int
    before: int
    after: int
    why: str
    wheel: str = ""


class AuditDiffering(msgspec.Struct):
    """A boundary of a topic at which messages were lost or repeated, or are not the same, since the
    audit began. ``group``: of consumers; ``since_ms``, ``last_ms``: the first and the last bucket
    that differed; ``buckets``: how many did; ``lost``, ``repeated``: so many messages were;
    ``wheel``: as of ``AuditComparison``."""

    topic: str
    boundary: str
    group: str
    since_ms: int
    last_ms: int
    buckets: int
    lost: int
    repeated: int
    wheel: str = ""


class AuditAnswer(msgspec.Struct):
    """``at_ms``: all that was there at this time has been read; ``stale``: that is more than 10 s
    ago; ``from_ms``: the first bucket; ``verdicts``: how many comparisons have each; ``closed``:
    how many had each when their bucket was dropped; ``refused``: how many sums, or batches of them,
    were not taken, by reason; ``problem``: why nothing new can be read, empty if it can;
    ``restarts``: how often the audit has begun anew, as its process had ended."""

    at_ms: int
    stale: bool
    from_ms: int
    verdicts: dict[str, int]
    comparisons: list[AuditComparison]
    differing: list[AuditDiffering]
    closed: dict[str, int]
    refused: dict[str, int]
    problem: str
    restarts: int


def newest_report(services: Services) -> AuditReport:
    """Errors: ``HttpError`` 404: this gateway does not audit; 503: it has no report yet."""
    if services.audit is None:
        remedy = "Start it with --audit beside a node, or with --data DIRECTORY of one"
        raise HttpError(404, "this gateway does not audit", remedy=remedy)
    if services.audit.report is None:
        raise HttpError(503, "the audit has just begun", remedy="Ask again in a moment")
    return services.audit.report


async def audit(call: RouteCall[AuditQuery, None]) -> Reply:
    """Compare what was produced, accepted, delivered and consumed, by topic and due time. The
    newest comparisons stand first, 1,000 at most. Of a fleet, those of each wheel are apart, and
    `problem` names the wheels that do not answer."""
    query, front = call.query, call.services.front
    if front is not None:
        paths = dict.fromkeys(front.names, f"/v1/audit?{urlencode({'verdict': query.verdict})}")
        # One that does not audit is missing like one that does not answer.
        answers, missing = await call.services.run(front.ask_now, paths, AuditAnswer, None)
        return as_json(joined_audit(answers, missing))
    report = newest_report(call.services)
    if query.verdict not in ("", *AuditVerdict):
        verdicts = ", ".join(AuditVerdict)
        raise HttpError(422, "no such verdict", place="query verdict", limit=verdicts)
    return await call.services.run(_answer, report, query)


def joined_audit(answers: Mapping[str, AuditAnswer], missing: Sequence[str]) -> AuditAnswer:
    """The comparisons of several wheels side by side. A sum is of the messages whose ids name one
    wheel, so each message is in the comparisons of this wheel alone, and no verdict follows from
    two of them. ``missing``: a line for each wheel that is not among them. Errors: ``HttpError``
    503: no wheel answers."""
    if not answers:
        raise HttpError(503, "no wheel tells of its audit", got="; ".join(missing)[:300])
    verdicts, closed, refused = Counter[str](), Counter[str](), Counter[str]()
    comparisons, differing = list[AuditComparison](), list[AuditDiffering]()
    for name, answer in answers.items():
        for comparison in answer.comparisons:
            comparison.wheel = name
        for boundary in answer.differing:
            boundary.wheel = name
        comparisons += answer.comparisons
        differing += answer.differing
        verdicts.update(answer.verdicts)
        closed.update(answer.closed)
        refused.update(answer.refused)
    comparisons.sort(key=lambda row: (-row.bucket_ms, row.topic, row.wheel))
    told = [*missing, *of_each(([answer.problem] for answer in answers.values()), answers)]
    return AuditAnswer(
        at_ms=min(answer.at_ms for answer in answers.values()),
        stale=any(answer.stale for answer in answers.values()),
        from_ms=max(answer.from_ms for answer in answers.values()),
        verdicts=dict(verdicts),
        comparisons=comparisons[:_LIMIT],
        differing=differing,
        closed=dict(closed),
        refused=dict(refused),
        problem="; ".join(text for text in told if not text.endswith(": ")),
        restarts=sum(answer.restarts for answer in answers.values()),
    )


def _answer(report: AuditReport, query: AuditQuery) -> Reply:
    newest_first = (row for cell in reversed(report.cells) for row in cell.comparisons)
    wanted = (row for row in newest_first if query.verdict in ("", row.verdict))
    answer: dict[str, Any] = {
        "at_ms": report.at_ms,
        "stale": report.stale(clock_ms()),
        "from_ms": report.from_ms,
        "verdicts": report.verdicts,
        "comparisons": list(islice(wanted, _LIMIT)),
        "differing": report.differing,
        "closed": report.closed,
        "refused": dict(report.refused),
        "problem": report.problem,
        "restarts": report.restarts,
    }
    return as_json(answer)


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.AUDIT,
        "GET",
        "/v1/audit",
        audit,
        {200: AuditAnswer},
        errors=(404, 503),
        name="getAudit",
    ),
]
