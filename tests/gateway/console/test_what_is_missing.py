"""What a page shows of a node that is away, of a gateway without a directory, and of answers that
are not complete; and what pages are made of."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import psutil
import pytest

from slotwheel.account.vocabulary import AuditVerdict, Boundary
from slotwheel.audit.comparing import Comparison
from slotwheel.audit.differing import Differing, differing_of, join_differing
from slotwheel.audit.ledger import CellReport
from slotwheel.audit.watch.watching import AuditReport
from slotwheel.gateway.authentication import STRANGER
from slotwheel.gateway.console import audit as audit_page
from slotwheel.gateway.console import shown
from slotwheel.gateway.console.audit import AuditForm, shown_audit
from slotwheel.gateway.console.figures import NodeHealth, figures_of
from slotwheel.gateway.console.guard import token_of
from slotwheel.gateway.console.message import STEPS_MAX, MessageWay, shown_steps
from slotwheel.gateway.console.node import settings_shown
from slotwheel.gateway.console.overview import by_slot, wrongs
from slotwheel.gateway.console.rendering import STATIC, address, rendered
from slotwheel.gateway.console.viewer import Viewer
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.fresh import FreshAnswers
from slotwheel.gateway.services import Services
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.gateway.v1.pending import PendingCounts, SlotCount
from slotwheel.reading.problems import INTEGRITY, Problem
from slotwheel.trace.chains.chain import Chain, ChainState, ChainStep, StepKind, Witness
from slotwheel.wheel.texts import span_text
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess

VENDORED = {
    "htmx-2.0.11.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx-LICENSE.txt": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
NOW_MS = 1_800_000_030_500


def test_what_others_made_is_as_they_published_it() -> None:
    found = {name: hashlib.sha256(STATIC[name][0]).hexdigest() for name in VENDORED}
    assert found == VENDORED
    assert set(STATIC) == {*VENDORED, "console.css", "console.js", "icon.svg"}


def test_a_node_that_is_away_takes_only_its_parts_with_it(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node, GatewayProcess(node) as gateway:
        node.kill()
        paths = ("", "/pending", "/message", "/schedules", "/dead", "/audit", "/jobs", "/node")
        # At once: each waits for seconds.
        with ThreadPoolExecutor(len(paths)) as callers:
            found = callers.map(
                lambda path: gateway.request("GET", f"/console{path}?whole=true"), paths
            )
            answers = dict(zip(paths, found, strict=True))
        for answer in answers.values():
            assert answer.status_code == 200, answer.text
            assert "<h1>" in answer.text
        text = answers[""].text
        assert text.count('role="alert"') == 4  # all but what the directory says
        assert "0</strong> messages wait" in text
        assert 'role="alert"' in answers["/node"].text
        assert 'role="alert"' in answers["/schedules"].text


def test_search_that_is_off_says_how_it_is_turned_on(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path / "data") as node,
        GatewayProcess(node, beside=False) as gateway,
    ):
        for path in ("", "/pending", "/message"):
            text = gateway.request("GET", f"/console{path}").text
            assert "Search is off" in text
            assert "--data DIRECTORY" in text
        for path in ("/dead?whole=true", "/message/cancel?id=x&whole=true"):
            assert "--data" in gateway.request("GET", f"/console{path}").text
        refused = gateway.request("GET", "/console/pending/cancel?topic=x")
        assert (refused.status_code, "--data" in refused.text) == (404, True)
        assert (
            gateway.request("GET", "/console/pending/cancel?topic=x")
            .headers["content-type"]
            .startswith("text/html")
        )


def test_what_was_not_turned_on_says_how_it_is(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path / "data") as node,
        GatewayProcess(node) as gateway,
    ):
        text = gateway.request("GET", "/console/audit").text
        for named in ("The audit is off", "--audit", "No events are stored", "--trace-retain"):
            assert named in text


def stopped_lookup(gateway: GatewayProcess, one: str) -> psutil.Process:
    """The process that knows the ways of messages; it is stopped."""

    def answers(path: str) -> bool:
        try:
            return gateway.request("GET", path, timeout=2).status_code == 200
        except httpx.TimeoutException:
            return False

    assert answers(f"/v1/trace/{one}")
    for child in gateway.process.children(recursive=True):
        child.suspend()
        if not answers(f"/v1/trace/{one}") and answers(f"/v1/messages/{one}"):
            return child
        child.resume()
    raise AssertionError("no process answers for the ways of messages")


def test_what_is_done_to_a_message_does_not_wait_for_its_way(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node, GatewayProcess(node) as gateway:
        one = gateway.send(topic="t", value="v", delay_ms=3_600_000)
        assert "Its way" in gateway.request("GET", f"/console/message?id={one}&whole=true").text
        stopped = stopped_lookup(gateway, one)
        try:
            known = f"/console/message?id={one}&part=known"
            assert "Reschedule…" in gateway.request("GET", known).text
            for path in (f"cancel?id={one}", f"reschedule?id={one}&due=9000000000000"):
                answer = gateway.request("GET", f"/console/message/{path}&whole=true")
                assert 'method="post"' in answer.text
            assert "Working on it…" in gateway.request("GET", f"/console/message?id={one}").text
        finally:
            stopped.resume()


def test_the_audit_shows_the_worst_first_and_why_it_does_not_know() -> None:
    def one(topic: str, bucket: int, verdict: AuditVerdict, why: str = "") -> Comparison:
        count = 5 if verdict is AuditVerdict.LOST else 0
        return Comparison(topic, bucket, Boundary.WHEEL_TOPIC, "", verdict, count, why=why)

    found = [
        one("fine", 1_000, AuditVerdict.EQUAL),
        one("open", 2_000, AuditVerdict.OPEN, "waits in the wheel"),
        one("open", 3_000, AuditVerdict.OPEN, "waits in the wheel"),
        one("bad", 1_000, AuditVerdict.LOST),
        one("bad", 2_000, AuditVerdict.EQUAL),
        one("bad", 3_000, AuditVerdict.LOST),
    ]
    cells = [CellReport(each.topic, each.bucket_ms, each.verdict, [each]) for each in found]
    differing = join_differing(differing_of(found))
    report = AuditReport(3_500, 1_000, cells, {"another interval": 2}, {}, differing=differing)
    shown_one = shown_audit(report, 1_000, NOW_MS)
    assert [line.topic for line in shown_one.lines] == ["bad", "open", "fine"]
    assert [fault.bucket_ms for fault in shown_one.faults] == [3_000, 1_000]
    assert (shown_one.differ, shown_one.topics) == (2, 3)
    bad = shown_one.lines[0]
    assert (bad.differ, bad.since_ms) == (2, 1_000)
    assert [verdict for _, verdict in bad.strip[-4:]] == [None, "lost", "equal", "lost"]
    assert [(r.buckets, r.first_ms, r.why) for r in shown_one.reasons] == [
        (2, 2_000, "waits in the wheel")
    ]
    assert shown_audit(report, 1_000, NOW_MS, "fine").differ == 0
    text = rendered("audit/tiers.html", it=shown_one, form=AuditForm())
    assert "2 buckets differ" in text
    assert "another interval: 2" in text
    many = AuditReport(
        3_500, 1_000, [c._replace(comparisons=c.comparisons * 60) for c in cells], {}, {}
    )
    assert shown_audit(many, 1_000, NOW_MS).more == (0, 0, 70, 0)


def test_the_audit_shows_what_was_lost_when_its_buckets_are_forgotten() -> None:
    fine = Comparison("bad", 9_000, Boundary.WHEEL_TOPIC, "", AuditVerdict.EQUAL)
    lost = Differing("bad", Boundary.WHEEL_TOPIC, "", 1_000, 2_000, 2, lost=7)
    for cells in ([], [CellReport("bad", 9_000, AuditVerdict.EQUAL, [fine])]):
        report = AuditReport(9_500, 1_000, cells, {}, {}, differing=[lost])
        shown_one = shown_audit(report, 1_000, NOW_MS)
        assert [line.since_ms for line in shown_one.lines] == [1_000] * len(cells)
        text = rendered("audit/tiers.html", it=shown_one, form=AuditForm())
        assert "Messages were lost or repeated" in text
        assert "What differed since the audit began" in text
        assert "All tiers agree" not in text
        assert shown_audit(report, 1_000, NOW_MS, "fine").differing == []


def test_the_audit_knows_the_first_bucket_that_differed_also_of_rows_that_it_leaves_out() -> None:
    pairs = [
        Differing(f"bad-{n}", Boundary.WHEEL_TOPIC, "", 1_000 * n, 90_000 + n, 1, lost=1)
        for n in range(1, audit_page.ROWS + 2)
    ]
    shown_one = shown_audit(AuditReport(99_000, 1_000, [], {}, {}, differing=pairs), 1_000, NOW_MS)
    assert (len(shown_one.differing), shown_one.since_ms) == (audit_page.ROWS, 1_000)


@pytest.mark.parametrize(
    ("age_ms", "problem", "restarts", "shown_text"),
    [
        (0, "", 0, "All tiers agree"),
        (0, "the audit has ended", 0, "the audit has ended"),
        (11_000, "", 0, "As of"),
        (0, "", 2, "The audit has begun anew, 2 times"),
    ],
)
def test_the_audit_agrees_only_when_it_is_about_now(
    age_ms: int, problem: str, restarts: int, shown_text: str
) -> None:
    fine = Comparison("fine", 9_000, Boundary.WHEEL_TOPIC, "", AuditVerdict.EQUAL)
    cells = [CellReport("fine", 9_000, AuditVerdict.EQUAL, [fine])]
    report = AuditReport(9_500, 1_000, cells, {}, {}, problem, restarts=restarts)
    shown_one = shown_audit(report, 1_000, 9_500 + age_ms)
    text = rendered("audit/tiers.html", it=shown_one, form=AuditForm())
    assert shown_text in text
    assert ("All tiers agree" in text) == (not age_ms and not problem)


def test_the_audit_is_worked_out_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []

    def shown(*_: object) -> None:
        names.append(threading.current_thread().name)
        raise HttpError(503, "enough")

    monkeypatch.setattr(audit_page, "shown_audit", shown)
    with ThreadPoolExecutor(thread_name_prefix="pool") as pool:
        services = SimpleNamespace(
            front=None,
            audit=SimpleNamespace(report=AuditReport(0, 0, [], {}, {})),
            settings=SimpleNamespace(audit_interval_ms=1_000, store=None),
            fresh=FreshAnswers(),
            pool=pool,
        )
        services.run = partial(Services.run, cast(Services, services))
        scope = {"path": "/console/audit", "query_string": b"", "headers": []}
        query = AuditForm(part="tiers", whole=True)
        call = SimpleNamespace(services=services, query=query, scope=scope, identity=STRANGER)
        reply = asyncio.run(audit_page.audit(cast(Any, call)))
    assert "enough" in reply.body.decode()
    assert [one.partition("_")[0] for one in names] == ["pool"]


def counts_of(slots: dict[range, int], *problems: str) -> PendingCounts:
    """An answer of ``found_counts`` by slot."""
    counts = [SlotCount(seconds.start * 1000, n, len(seconds)) for seconds, n in slots.items()]
    total = sum(slots.values())
    return PendingCounts(total, not problems, 0, None, list(problems), slots=counts)


def test_an_answer_that_is_not_complete_says_why() -> None:
    problem = Problem(INTEGRITY, "damage", "expected 7 rows, found <b>", file="slots/7")
    found = by_slot(counts_of({range(1, 2): 1}, str(problem)), NOW_MS)
    text = rendered("overview/slots.html", it=found, viewer=Viewer(STRANGER))
    assert "This is not everything." in text
    assert "slots/7: expected 7 rows, found &lt;b&gt;" in text


def test_slots_become_minutes() -> None:
    now_s = NOW_MS // 1000
    counts = {now_s - 1: 1, now_s: 2, now_s + 29: 4, now_s + 30: 8, now_s + 7_170: 16}
    slots = {range(second, second + 1): count for second, count in counts.items()}
    found = by_slot(counts_of(slots), NOW_MS)
    assert (found.overdue, found.later) == (1, 16)
    assert [bar.messages for bar in found.minutes.bars[:3]] == [6, 8, 0]
    assert [row.messages for row in found.rows] == [14, *[0] * 11]
    assert found.rows[0].from_ms == NOW_MS - 30_500
    assert found.minutes.values["count"][:2] == [6, 8]
    assert not found.days.rows


def test_the_table_of_a_year_scrolls_within_the_page() -> None:
    """Otherwise 366 rows would push lateness and peers some 13,000 pixels down a telephone."""
    day_s, now_s = 86_400, NOW_MS // 1000
    midnight = now_s - now_s % day_s
    days = [range(midnight + day * day_s, midnight + (day + 1) * day_s) for day in range(3, 369)]
    found = by_slot(counts_of(dict.fromkeys(days, 1)), NOW_MS)
    text = str(rendered("overview/slots.html", it=found, viewer=Viewer(STRANGER)))
    assert text.count('class="scroll tall"') == 1
    assert text.count('class="scroll"') == 1, "that of the next two hours"


def test_slots_further_ahead_become_hours_and_days() -> None:
    """It is 08:00:30 on 2027-01-15: hours from 10:00 on to the end of the 17th, then days."""
    hour_s, day_s, now_s = 3_600, 86_400, NOW_MS // 1000
    midnight = now_s - now_s % day_s
    spans = [
        (10 * hour_s + 20, 1, 1),
        (13 * hour_s, hour_s, 2),
        (3 * day_s - 1, 1, 4),
        (3 * day_s, hour_s, 8),
        (4 * day_s, day_s, 16),
        (400 * day_s, 1, 32),
    ]
    counts = {
        range(midnight + first, midnight + first + length): count for first, length, count in spans
    }
    found = by_slot(counts_of(counts), NOW_MS)
    assert (found.overdue, found.later) == (0, 63)
    hours = [((row.from_ms // 1000 - midnight) / hour_s, row.messages) for row in found.hours.rows]
    assert hours == [(10, 1), (13, 2), (71, 4)]
    assert (found.hours.bars[-1].to_ms // 1000 - midnight) // hour_s == 72
    days = [((row.from_ms // 1000 - midnight) // day_s, row.messages) for row in found.days.rows]
    assert days == [(3, 8), (4, 16)]
    assert len(found.days.bars) == 366
    assert ((found.beyond.from_ms // 1000 - midnight) // day_s, found.beyond.messages) == (369, 32)
    assert set(np.diff(found.days.values["at"])) == {found.days.values["step"]} == {day_s}
    text = rendered("overview/slots.html", it=found, viewer=Viewer(STRANGER))
    assert 'class="scroll tall"' not in text, "short tables are shown whole"
    assert 'later than that</td><td class="num">32</td>' in text


METRICS = """
# TYPE slotwheel_alarms_total counter
slotwheel_alarms_total{kind="disk-low"} 2.0
slotwheel_alarms_created{kind="disk-low"} 1.7e9
# TYPE slotwheel_audit_age_seconds gauge
slotwheel_audit_age_seconds 61.0
# TYPE slotwheel_audit_differs gauge
slotwheel_audit_differs 2.0
# TYPE slotwheel_audit_closed_total counter
slotwheel_audit_closed_total{verdict="lost"} 3.0
slotwheel_audit_closed_total{verdict="repeated"} 1.0
slotwheel_audit_closed_total{verdict="equal"} 90.0
# HELP slotwheel_lateness_seconds Late
# TYPE slotwheel_lateness_seconds histogram
slotwheel_lateness_seconds_bucket{le="0.001"} 6.0
slotwheel_lateness_seconds_bucket{le="0.1"} 9.0
slotwheel_lateness_seconds_bucket{le="+Inf"} 10.0
slotwheel_lateness_seconds_count 10.0
slotwheel_lateness_seconds_sum 2.5
"""


def test_metrics_become_figures() -> None:
    figures = figures_of(METRICS)
    assert [(one.name, one.labels, one.value) for one in figures.figures] == [
        ("alarms", "kind disk-low", 2.0),
        ("audit_age_seconds", "", 61.0),
        ("audit_differs", "", 2.0),
        ("audit_closed", "verdict lost", 3.0),
        ("audit_closed", "verdict repeated", 1.0),
        ("audit_closed", "verdict equal", 90.0),
    ]
    late = figures.spread("lateness_seconds")
    assert late is not None
    assert (late.counts, late.total, late.mean_s) == ([6, 3, 1], 10, 0.25)
    assert (late.within(0.5), late.within(0.9), late.within(0.99)) == (0.001, 0.1, float("inf"))


def test_what_is_wrong_is_told_with_what_was_wrong() -> None:
    status = {
        "held_topics": ["slow"],
        "damaged_files": ["slots/1"],
        "replication": {"peers": [{"id": "b", "admitted": False}, {"id": "c", "admitted": True}]},
    }
    found = wrongs(NodeHealth([], ["sink away"]), figures_of(METRICS), status)
    exposed = {**status, "insecure": ["--listen 0.0.0.0:1 has no --security"]}
    banner = wrongs(NodeHealth([], []), figures_of(METRICS), exposed)[0]
    assert "strangers can reach this node: --listen 0.0.0.0:1" in banner.text
    assert banner.grave
    assert [one.path for one in found if one.path] == ["/audit"] * 3
    assert [(one.text, one.grave) for one in found] == [
        ("sink away", True),
        ("topics that say not now: slow", True),
        ("damaged: slots/1", True),
        ("peer b is not admitted", True),
        ("2 buckets differ: messages were lost or repeated, or are not the same", True),
        ("the audit has looked at nothing new for 61 s", True),
        (
            "messages were lost or repeated, or are not the same: 4 comparisons of earlier buckets,"
            " since the audit began",
            False,
        ),
        ("disk-low: 2 since the start", False),
    ]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        *(("", None), ("  ", None), ("1700000000000", 1_700_000_000_000)),
        *(("+10m", NOW_MS + 600_000), ("-1.5h", NOW_MS - 5_400_000)),
        *(("2027-01-15T08:00:00Z", 1_800_000_000_000), ("2027-01-15 08:00", 1_800_000_000_000)),
        *(("2027-01-15T09:00:00+01:00", 1_800_000_000_000), ("2000-01-02", 946_771_200_000)),
    ],
)
def test_times_are_understood(text: str, ms: int | None) -> None:
    assert shown.when(text, NOW_MS, "Due from") == ms


@pytest.mark.parametrize(
    "text", ["soon", "+", "+10", "1969-12-31T23:59:59Z", "9" * 30, "٣", "+10m<b>", "0001-01-01"]
)
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(HttpError) as caught:
        shown.when(text, NOW_MS, "Due from")
    assert (caught.value.status, caught.value.place) == (422, "Due from")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *((0, "0 ms"), (0.07, "0.07 ms"), (999, "999 ms"), (1_500, "1.5 s"), (61_000, "1 min 1 s")),
        *((3_600_000, "1 h"), (3_661_000, "1 h 1 min"), (-90_000_000, "1 d 1 h")),
    ],
)
def test_spans_are_short(ms: float, text: str) -> None:
    assert span_text(ms) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        *(
            ("audit_interval_ms", 10_000, "audit interval 10 s"),
            ("idle_s", 75.0, "idle 1 min 15 s"),
        ),
        *(("tail_bytes", 2048, "tail 2 KiB"), ("body_bytes_max", 8 << 20, "body max 8 MiB")),
        *(("wait_ms_max", 1_500, "wait max 1.5 s"), ("rows", 1_500, "rows 1,500")),
        *(("ms_of_it", 7, "ms of it 7"), ("many_s_each", 7, "many s each 7")),
    ],
)
def test_a_unit_stands_with_the_name_or_the_value(name: str, value: float, text: str) -> None:
    assert f"{shown.plain(name)} {shown.measured(value, name)}" == text


def test_settings_are_shown_with_their_units() -> None:
    found = dict(
        settings_shown(GatewaySettings(audit_ahead_ms=7_200_000, waiting_bytes_max=1 << 20))
    )
    assert (found["audit_ahead_ms"], found["waiting_bytes_max"]) == ("2 h", "1 MiB")
    assert (found["connections_max"], found["audit_others"]) == ("10,000", "none")


def test_times_beyond_all_dates_are_numbers() -> None:
    assert shown.time_element(1 << 61) == f'<span class="num">{1 << 61}</span> ms'
    assert 'datetime="2027-01-15T08:00:30.500Z"' in shown.time_element(NOW_MS)


def test_addresses_leave_out_what_is_not_given() -> None:
    assert address("/x", a="", b=None, c=False, d=True, e=0, f="&\r\n") == (
        "/console/x?d=true&e=0&f=%26%0D%0A"
    )


@pytest.mark.parametrize("value", [b"", b"=short", b"=" + b"<" * 32, b"=\xff", b"; ="])
def test_a_cookie_that_is_no_token_is_none(value: bytes) -> None:
    assert token_of({"headers": [(b"cookie", b"slotwheel-console" + value)]}) == ""


def test_a_question_is_asked_once_for_all_who_wait() -> None:
    asked = 0

    async def answer() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return asked

    async def ask() -> None:
        fresh = FreshAnswers(young_s=60)
        assert await fresh.get("k", answer, 0) is None  # it goes on
        assert await asyncio.gather(*(fresh.get("k", answer, None) for _ in range(9))) == [1] * 9
        assert await fresh.get("k", answer, None) == 1
        assert await fresh.get("other", answer, None) == 2
        fresh.forget()
        assert await fresh.get("k", answer, None) == 3
        old = FreshAnswers(young_s=-1)
        assert [await old.get("k", answer, None) for _ in range(2)] == [4, 5]

    asyncio.run(ask())


def test_a_question_that_fails_fails_for_all_who_wait() -> None:
    async def fail() -> int:
        raise HttpError(404, "none")

    async def ask() -> None:
        fresh = FreshAnswers()
        found = await asyncio.gather(
            *(fresh.get("k", fail, None) for _ in range(3)), return_exceptions=True
        )
        assert [type(one) for one in found] == [HttpError] * 3

    asyncio.run(ask())


def test_a_chain_of_very_many_steps_is_cut_and_says_so() -> None:
    steps = tuple(
        ChainStep(StepKind.PROCESSED, Witness.CONSUMER, number, "id")
        for number in range(STEPS_MAX + 7)
    )
    chain = Chain("id", ChainState.PROCESSED, {}, (), steps, {}, ())
    page = MessageWay(chain, shown_steps(chain))
    assert (len(page.steps), page.left_out) == (STEPS_MAX, 7)
