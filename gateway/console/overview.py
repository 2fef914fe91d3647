"""Overview: how much is pending and when it is due, lateness, the peers, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...account.vocabulary import FAULTS
from ...audit.watch.watching import STALE_MS
from ...client.groupstatus import REPLICATION, group_status
from ...client.message import clock_ms
from ...reading.search.pending import PendingCount
from ...reading.search.query import Query
from ...wheel.config import TICK_MS
from ..endpoint import RouteCall
from ..requests import Reply
from ..v1.searching import problem_texts, searcher_of
from .figures import NodeFigures, NodeHealth, node_figures, node_health
from .parts import PagePart, PartsQuery, node_part, page, search_off

_MINUTE_MS = 60_000
_BARS = 120
_ROW_BARS = 10
_DIFFERED = frozenset(f"verdict {one}" for one in FAULTS)


class OverviewQuery(PartsQuery, forbid_unknown_fields=True):
    """No filter."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """How many messages are due in a span of time."""

    from_ms: int
    to_ms: int
    messages: int


@dataclass(frozen=True, slots=True)
class PendingBySlot:
    """What is pending: before now, in the next two hours by minutes, and behind these."""

    total: int
    overdue: int
    later: int
    bars: list[DueRow]
    """By minute."""
    rows: list[DueRow]
    """By ten minutes."""
    problems: list[str]

    @property
    def chart(self) -> dict[str, Any]:
        return {
            "at": [bar.from_ms // 1000 for bar in self.bars],
            "count": [bar.messages for bar in self.bars],
        }


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that a person should look at. ``grave``: now, and not only some time; ``path``: of
    the page that shows more."""

    text: str
    grave: bool
    path: str = ""


async def overview(call: RouteCall[OverviewQuery, None]) -> Reply:
    """The first page."""
    services = call.services

    async def status() -> dict[str, Any]:
        return await services.run(group_status, services.client)

    async def slots() -> PendingBySlot:
        found = await searcher_of(services).count(Query(), by_second=True)
        return by_slot(found, clock_ms())

    async def wrong() -> list[Wrong]:
        return wrongs(await node_health(services), await node_figures(services), await status())

    parts = {
        "alarms": node_part("overview/alarms.html", "alarms", wrong),
        "now": node_part("overview/now.html", "status", status),
        "slots": PagePart("overview/slots.html", "slots", slots, live=True)
        if services.searcher
        else search_off(),
        "lateness": node_part("overview/lateness.html", "figures", lambda: node_figures(services)),
        "peers": node_part("overview/peers.html", "status", status),
    }
    return await page(call, "overview", "overview.html", parts)


def by_slot(found: PendingCount, now_ms: int) -> PendingBySlot:
    """``found``: with ``by_second``."""
    start_ms = now_ms // _MINUTE_MS * _MINUTE_MS
    counts = [0] * _BARS
    overdue = later = 0
    for second, count in found.by_second.items():
        due_ms = second * TICK_MS
        number = (due_ms - start_ms) // _MINUTE_MS
        if due_ms + TICK_MS <= now_ms:
            overdue += count
        elif number < _BARS:
            counts[number] += count
        else:
            later += count

    def row(first: int, many: int) -> DueRow:
        begin = start_ms + first * _MINUTE_MS
        return DueRow(begin, begin + many * _MINUTE_MS, sum(counts[first : first + many]))

    return PendingBySlot(
        found.total,
        overdue,
        later,
        [row(one, 1) for one in range(_BARS)],
        [row(one, _ROW_BARS) for one in range(0, _BARS, _ROW_BARS)],
        problem_texts(found.problems),
    )


def wrongs(health: NodeHealth, figures: NodeFigures, status: dict[str, Any]) -> list[Wrong]:
    """What is wrong now first."""
    found = [Wrong(one, True) for one in (*health.unhealthy, *health.unready)]
    if status["held_topics"]:
        topics = ", ".join(status["held_topics"])
        found.append(Wrong(f"topics that say not now: {topics}", True))
    found += [Wrong(f"damaged: {one}", True) for one in status["damaged_files"]]
    group = status.get(REPLICATION) or {}
    found += [
        Wrong(f"peer {one['id']} is not admitted", True)
        for one in group.get("peers", ())
        if not one.get("admitted", True)
    ]
    differs = int(figures.value("audit_differs") or 0)
    if differs:
        buckets = "1 bucket differs" if differs == 1 else f"{differs:,} buckets differ"
        text = f"{buckets}: messages were lost or repeated, or are not the same"
        found.append(Wrong(text, True, "/audit"))
    age_s = figures.value("audit_age_seconds") or 0.0
    if age_s > STALE_MS / 1000:
        found.append(
            Wrong(f"the audit has looked at nothing new for {age_s:,.0f} s", True, "/audit")
        )
    closed = sum(
        int(one.value)
        for one in figures.figures
        if one.name == "audit_closed" and one.labels in _DIFFERED
    )
    if closed:
        text = f"messages were lost or repeated, or are not the same: {closed:,} comparisons of"
        found.append(Wrong(f"{text} earlier buckets, since the audit began", False, "/audit"))
    for one in figures.figures:
        if one.name in ("alarms", "early_rows", "archive_missed") and one.value:
            what = one.labels.removeprefix("kind ") or one.help
            found.append(Wrong(f"{what}: {one.value:,.0f} since the start", False))
    return found
