"""Overview: how much is pending and when it is due, lateness, the peers, and what is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...account.vocabulary import FAULTS
from ...audit.watch.watching import STALE_MS
from ...client.groupstatus import REPLICATION
from ...client.message import clock_ms
from ...reading.search.query import Query
from ...security.rights import Right
from ...wheel.config import TICK_MS
from ..endpoint import RouteCall
from ..requests import Reply
from ..v1.group import status_of
from ..v1.pending import PendingCounts
from ..v1.searching import found_counts
from .figures import NodeFigures, NodeHealth, node_figures, node_health
from .parts import SEARCH_OFF, PagePart, PartsQuery, node_part, page

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_BARS = 120
_ROW_BARS = 10
_DAYS_MAX = 366
"""The most days that are shown apart."""
_DIFFERED = frozenset(f"verdict {verdict}" for verdict in FAULTS)


@dataclass(frozen=True, slots=True)
class DueRow:
    """How many messages are due in a span of time."""

    from_ms: int
    to_ms: int
    messages: int


@dataclass(frozen=True, slots=True)
class DueChart:
    """Spans of ``step_ms`` each, one behind the other. The first one may begin later."""

    step_ms: int
    bars: list[DueRow]

    @property
    def values(self) -> dict[str, Any]:
        """The values for the script that draws it, times in seconds."""
        return {
            "step": self.step_ms // 1000,
            "at": [bar.from_ms // self.step_ms * self.step_ms // 1000 for bar in self.bars],
            "count": [bar.messages for bar in self.bars],
        }

    @property
    def rows(self) -> list[DueRow]:
        """The spans with messages."""
        return [bar for bar in self.bars if bar.messages]


@dataclass(frozen=True, slots=True)
class PendingBySlot:
    """Pending messages: overdue ones, those of the next two hours by minutes, and later ones."""

    total: int
    overdue: int
    later: int
    minutes: DueChart
    rows: list[DueRow]
    """One for each ten minutes."""
    hours: DueChart
    """From two hours ahead to the end of the day in 48 hours."""
    days: DueChart
    """The days (UTC) after that, up to the last one with messages."""
    beyond: DueRow
    """What is due after the last one of ``days``."""
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that a person should look at. ``grave``: it is wrong now; False: it was at some
    time since the start. ``path``: of the page that shows more."""

    text: str
    grave: bool
    path: str = ""


@dataclass(frozen=True, slots=True)
class ShownWheel:
    """A wheel of a fleet. ``problem``: why it does not take messages; empty: it does. ``status``:
    None: it does not answer. ``console``: the address of its own console; empty: it has none."""

    name: str
    state: str
    problem: str
    status: dict[str, Any] | None
    console: str


@dataclass(frozen=True, slots=True)
class ShownFleet:
    """All wheels of a fleet, and the sums of those that answer."""

    wheels: list[ShownWheel]

    @property
    def pending(self) -> int:
        return sum(wheel.status["pending"] for wheel in self.wheels if wheel.status)

    @property
    def away(self) -> list[str]:
        """The wheels that do not answer, which the sum lacks."""
        return [wheel.name for wheel in self.wheels if wheel.status is None]


async def overview(call: RouteCall[PartsQuery, None]) -> Reply:
    services = call.services
    status = partial(status_of, services)
    front = services.front

    async def slots() -> PendingBySlot:
        # A figure of the whole, as the node's status has it, for who may observe.
        counted = await found_counts(services, Query(), "slot", Right.OBSERVE)
        return by_slot(counted, clock_ms())

    async def wrong() -> list[Wrong]:
        found = wrongs(await node_health(services), await node_figures(services), await status())
        if services.settings.exposed:
            text = f"strangers could misuse this gateway: {services.settings.exposed}"
            found.insert(0, Wrong(text, True))
        return found

    async def wheels() -> ShownFleet:
        assert front is not None, "it is asked for a fleet"
        return ShownFleet(
            [
                ShownWheel(
                    name,
                    wheel["state"],
                    wheel["problem"],
                    wheel["status"],
                    front.gateways.first_address(name),
                )
                for name, wheel in (await status())["wheels"].items()
            ]
        )

    if front is not None and front.is_whole:
        parts = {
            "wheels": node_part("overview/wheels.html", "wheels", wheels),
            "slots": PagePart("overview/slots.html", "slots", slots, live=True),
        }
        return await page(call, "overview", "fleet.html", parts)
    parts = {
        "alarms": node_part("overview/alarms.html", "alarms", wrong),
        "now": node_part("overview/now.html", "status", status),
        "slots": PagePart("overview/slots.html", "slots", slots, live=True)
        if services.searches
        else SEARCH_OFF,
        "lateness": node_part("overview/lateness.html", "figures", lambda: node_figures(services)),
        "peers": node_part("overview/peers.html", "status", status),
    }
    return await page(call, "overview", "overview.html", parts)


def by_slot(counted: PendingCounts, now_ms: int) -> PendingBySlot:
    """``counted``: with ``by_slot``. A second whose end has passed is overdue."""
    start_ms = now_ms // _MINUTE_MS * _MINUTE_MS
    later_ms = start_ms + _BARS * _MINUTE_MS
    days_ms = (now_ms // _DAY_MS + 3) * _DAY_MS
    overdue = 0
    minutes, hours, days = Counter[int](), Counter[int](), Counter[int]()
    for slot in counted.slots or ():
        due_ms, count = slot.from_ms, slot.messages
        if due_ms + slot.seconds * TICK_MS <= now_ms:
            overdue += count
        elif due_ms < later_ms:
            minutes[due_ms // _MINUTE_MS] += count
        elif due_ms < days_ms and slot.seconds * TICK_MS < _DAY_MS:
            hours[due_ms // _HOUR_MS] += count
        else:
            days[due_ms // _DAY_MS] += count
    first_day = min(days, default=0)
    shown_days = range(first_day, min(max(days, default=-1) + 1, first_day + _DAYS_MAX))
    behind_ms = shown_days.stop * _DAY_MS

    def row(first: int, many: int) -> DueRow:
        count = sum(minutes[number] for number in range(first, first + many))
        return DueRow(first * _MINUTE_MS, (first + many) * _MINUTE_MS, count)

    first = start_ms // _MINUTE_MS
    hour_numbers = range(later_ms // _HOUR_MS, days_ms // _HOUR_MS)
    hour_rows = [
        DueRow(max(later_ms, hour * _HOUR_MS), (hour + 1) * _HOUR_MS, hours[hour])
        for hour in hour_numbers
    ]
    day_rows = [DueRow(day * _DAY_MS, (day + 1) * _DAY_MS, days[day]) for day in shown_days]
    beyond = days.total() - sum(one.messages for one in day_rows)
    return PendingBySlot(
        counted.messages,
        overdue,
        hours.total() + days.total(),
        DueChart(_MINUTE_MS, [row(first + bar, 1) for bar in range(_BARS)]),
        [row(first + bar, _ROW_BARS) for bar in range(0, _BARS, _ROW_BARS)],
        DueChart(_HOUR_MS, hour_rows),
        DueChart(_DAY_MS, day_rows),
        DueRow(behind_ms, behind_ms, beyond),
        counted.problems,
    )


def exposed(status: dict[str, Any]) -> list[str]:
    """A text for each address at which the node lets strangers in, by ``--allow-insecure``."""
    texts: list[str] = status.get("insecure", [])
    return texts


def wrongs(health: NodeHealth, figures: NodeFigures, status: dict[str, Any]) -> list[Wrong]:
    """All that is or was wrong, what is wrong now first."""
    wrong = [Wrong(reason, True) for reason in (*health.unhealthy, *health.unready)]
    wrong += [Wrong(f"strangers can reach this node: {text}", True) for text in exposed(status)]
    if status["held_topics"]:
        topics = ", ".join(status["held_topics"])
        wrong.append(Wrong(f"topics that say not now: {topics}", True))
    wrong += [Wrong(f"damaged: {file}", True) for file in status["damaged_files"]]
    group = status.get(REPLICATION) or {}
    wrong += [
        Wrong(f"peer {peer['id']} is not admitted", True)
        for peer in group.get("peers", ())
        if not peer.get("admitted", True)
    ]
    differs = int(figures.value("audit_differs") or 0)
    if differs:
        buckets = "1 bucket differs" if differs == 1 else f"{differs:,} buckets differ"
        text = f"{buckets}: messages were lost or repeated, or are not the same"
        wrong.append(Wrong(text, True, "/audit"))
    age_s = figures.value("audit_age_seconds") or 0.0
    if age_s > STALE_MS / 1000:
        wrong.append(
            Wrong(f"the audit has looked at nothing new for {age_s:,.0f} s", True, "/audit")
        )
    closed = sum(
        int(figure.value)
        for figure in figures.figures
        if figure.name == "audit_closed" and figure.labels in _DIFFERED
    )
    if closed:
        text = f"messages were lost or repeated, or are not the same: {closed:,} comparisons of"
        wrong.append(Wrong(f"{text} earlier buckets, since the audit began", False, "/audit"))
    for figure in figures.figures:
        if figure.name in ("alarms", "early_rows", "archive_missed") and figure.value:
            alarm = figure.labels.removeprefix("kind ") or figure.help
            wrong.append(Wrong(f"{alarm}: {figure.value:,.0f} since the start", False))
    return wrong
