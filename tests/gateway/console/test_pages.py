"""The console in a real Chromium: every page, every action, hostile content, and no scripts."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from slotwheel.gateway.console.rendering import CONTENT_SECURITY_POLICY
from support.browsing import WIDE, check_readable, settle
from support.consoledata import PLANTED
from support.gatewayprocess import NodeWithGateway
from support.waiting import eventually

Tab = Callable[..., Any]
PAGES = ("", "/pending", "/message", "/schedules", "/dead", "/audit", "/jobs", "/node")


def send(node: NodeWithGateway, topic: str, count: int = 1, **more: Any) -> list[str]:
    due_ms = time.time_ns() // 1_000_000 + 3_000_000
    messages = [
        {"topic": topic, "value": str(n), "due_ms": due_ms + n, **more} for n in range(count)
    ]
    answer = node.ask("POST", "/v1/messages", json=messages)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["ids"])


def state(node: NodeWithGateway, message_id: str) -> str:
    return str(node.ask("GET", f"/v1/messages/{message_id}").json()["state"])


def planted_id(node: NodeWithGateway) -> str:
    found = node.ask("GET", "/v1/messages", params={"topic": "planted", "limit": 1}).json()
    return str(found["messages"][0]["id"])


def planted_letter(node: NodeWithGateway) -> dict[str, Any]:
    letters = node.ask("GET", "/v1/dead").json()["letters"]
    return dict(next(one for one in letters if one["for_topic"] == PLANTED))


def all_pages(node: NodeWithGateway) -> list[str]:
    """Each page, with content where it can have some, and few rows where there are rows."""
    one, letter = quote(planted_id(node)), planted_letter(node)
    return [
        *(path for path in PAGES if path not in ("/pending", "/message")),
        f"/message?id={one}",
        f"/message/cancel?id={one}",
        f"/message/reschedule?id={one}&due=%2B10m",
        "/pending?topic=planted",
        "/pending/cancel?topic=planted",
        f"/dead/letter?partition={letter['partition']}&position={letter['position']}",
        "/dead/redrive?reason=retries-used-up",
        "/job?id=none",
    ]


def test_the_address_alone_leads_to_the_overview(tab: Tab, node: NodeWithGateway) -> None:
    one = tab()
    page = one.open("/")
    assert page.url == f"{node.url}/console"
    settle(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    expect(page.locator("#part-now")).to_contain_text("504")
    expect(page.locator("#part-now")).to_contain_text("Dead in the wheel")
    expect(page.locator("#part-lateness")).to_contain_text("Of 504 messages")
    expect(page.locator("figure[data-chart] canvas")).to_have_count(2)
    rows = page.locator("#part-slots tbody tr")
    expect(rows).to_have_count(12)
    counted = node.ask("GET", "/v1/messages/count").json()["messages"]
    shown = [int(text.replace(",", "")) for text in rows.locator("td.num").all_inner_texts()]
    assert sum(shown) == counted
    rows.nth(3).get_by_role("link").click()
    settle(page)
    expect(page.locator("#part-count")).to_contain_text(f"{shown[3]:,} messages wait and match")
    one.check()


def test_the_overview_shows_hours_and_days_ahead(tab: Tab, node: NodeWithGateway) -> None:
    one = tab()
    page = one.open("/console")
    settle(page)
    expect(page.locator("#due-minutes canvas")).to_have_count(1)
    expect(page.locator("#due-hours, #due-days")).to_have_count(0)
    ids = []
    for days, count in ((1, 3), (40, 5)):
        ids += send(node, "far", count, due_ms=time.time_ns() // 1_000_000 + days * 86_400_000)
    try:
        one.open("/console")
        settle(page)
        expect(page.locator("#due-hours canvas, #due-days canvas")).to_have_count(2)
        expect(page.locator("#due-hours tbody td.num")).to_have_text(["3"])
        expect(page.locator("#due-days tbody td.num")).to_have_text(["5"])
        page.locator("#due-days .plot .u-over").hover()
        expect(page.locator("#due-days figcaption")).to_contain_text(
            "5 messages due in the day of "
        )
        check_readable(page)
        page.locator("#due-days").get_by_role("link").click()
        settle(page)
        expect(page.locator("#part-count")).to_contain_text("5 messages wait and match")
        one.check()
    finally:
        node.ask("POST", "/v1/cancel", json={"ids": ids})


def test_what_changes_is_fetched_again(tab: Tab, node: NodeWithGateway) -> None:
    page = tab().open("/console")
    settle(page)
    before = page.locator("#part-now .main dd").inner_text()
    send(node, "fetched-again", 7)
    eventually(lambda: node.ask("GET", "/v1/status").json()["pending"] >= 7)
    page.evaluate("setTimeout(() => htmx.trigger(document.body, 'tick'), 1100)")
    expect(page.locator("#part-now .main dd")).not_to_have_text(before, timeout=10_000)
    expect(page.locator("figure[data-chart] canvas")).to_have_count(2)


def test_no_page_is_hard_to_read(tab: Tab, node: NodeWithGateway) -> None:
    one = tab()
    one.allowed += ["error: Failed to load resource: the server responded with a status of 404"]
    page = one.page
    for path in all_pages(node):
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(WIDE)
        one.open(f"/console{path}")
        settle(page)
        check_readable(page)
        one.check()


def test_planted_scripts_are_shown_as_they_are(tab: Tab, node: NodeWithGateway) -> None:
    one = tab()
    page = one.open(f"/console/message?id={quote(planted_id(node))}")
    settle(page)
    expect(page.locator("pre.value")).to_have_text(PLANTED)
    expect(page.locator("#part-known td", has_text="{{7*7}}")).to_have_count(2)
    expect(page.locator("#part-known dd", has_text="{{7*7}}")).to_have_count(1)
    letter = planted_letter(node)
    one.open(f"/console/dead/letter?partition={letter['partition']}&position={letter['position']}")
    settle(page)
    expect(page.locator("#part-letter dd", has_text="{{7*7}}")).to_have_count(3)
    one.open("/console/pending?topic=planted")
    settle(page)
    expect(page.locator("#part-rows td", has_text="{{7*7}}")).to_have_count(2)
    one.open("/console/dead")
    settle(page)
    expect(page.locator("#part-letters td", has_text="{{7*7}}")).not_to_have_count(0)
    expect(page.locator("img[src='/x']")).to_have_count(0)
    one.check()


HOSTILE = (PLANTED, "a\r\nSet-Cookie: evil=1", "../../etc/passwd", "\0", "%00", "'; --", "{{7*7}}")
FIELDS = {
    "/pending": ("topic", "key", "header", "due_from", "due_to", "id", "page", "part"),
    "/message": ("id", "done", "old", "seal"),
    "/message/reschedule": ("id", "due"),
    "/dead": ("topic", "reason", "for_topic", "key", "id", "group", "buried_from", "part"),
    "/dead/redrive": ("topic", "reason", "to_topic", "rate"),
    "/dead/letter": ("topic", "partition", "position"),
    "/job": ("id",),
    "/schedules": ("prefix", "topic", "page", "part"),
    "/schedule": ("name", "done", "run", "id", "seal"),
    "/schedule/put": ("name",),
    "/schedule/delete": ("name",),
    "/audit": ("topic", "part"),
    "": (PLANTED, "part", "whole"),
}


@pytest.mark.parametrize("path", FIELDS)
def test_no_field_gets_out_of_its_place(node: NodeWithGateway, path: str) -> None:
    asked = [{name: PLANTED} for name in FIELDS[path]]
    asked += [dict.fromkeys(FIELDS[path], text) for text in HOSTILE]
    for query in asked:
        answer = node.ask("GET", f"/console{path}", params=query)
        assert answer.status_code in (200, 303, 404, 422), (query, answer.text)
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "evil" not in answer.headers.get("set-cookie", "")
        assert "<script>planted" not in answer.text
        assert "<img src=/x" not in answer.text
        assert "root:" not in answer.text
        assert not answer.headers.get("location", "/console").startswith(("//", "http"))


def test_fields_are_harmless_in_a_browser(tab: Tab) -> None:
    one = tab()
    one.allowed += ["error: Failed to load resource: the server responded with a status of 4"]
    hostile = quote(PLANTED)
    for path in (
        *(
            f"/pending?topic={hostile}&key={hostile}&header={hostile}:{hostile}",
            "/dead?key=" + hostile,
        ),
        *(f"/pending?due_from={hostile}", f"/message?id={hostile}&done=moved&old={hostile}"),
        *(f"/nowhere/{hostile}", f"/?{hostile}=1", f"/pending?part={hostile}"),
    ):
        page = one.open(f"/console{path}")
        settle(page)
        expect(page.locator("img[src='/x']")).to_have_count(0)
        one.check()
    one.open("/console/pending")
    one.page.get_by_label("Topic").fill(PLANTED)
    one.page.get_by_role("button", name="Search").click()
    settle(one.page)
    expect(one.page.get_by_label("Topic")).to_have_value(PLANTED)
    expect(one.page.locator("#part-rows")).to_contain_text("Nothing pending matches")
    one.check()


def test_pending_messages_show_the_names_by_which_they_are_searched(
    tab: Tab, node: NodeWithGateway
) -> None:
    send(node, "console.names", name="order-17 <b>")
    send(node, "console.names")
    page = tab(narrow=True).open("/console/pending?topic=console.names")
    settle(page)
    expect(page.locator("#part-rows tbody tr")).to_have_count(2)
    expect(page.locator("#part-rows td[data-label='Topic'] small")).to_have_text(
        ["name order-17 <b>"]
    )
    check_readable(page)


@pytest.mark.parametrize(
    "path", ["../guard.py", "..%2fguard.py", "%2e%2e/guard.py", "vendor/../../guard.py", "x.css"]
)
def test_no_other_file_is_served(node: NodeWithGateway, path: str) -> None:
    assert node.ask("GET", f"/console/static/{path}").status_code == 404


@pytest.mark.parametrize("place", ["partition=-1", "position=-1", "partition=0&position=-9"])
def test_a_letter_before_the_first_is_refused(node: NodeWithGateway, place: str) -> None:
    answer = node.ask("GET", f"/console/dead/letter?{place}")
    assert answer.status_code == 422
    assert place.rpartition("&")[2].partition("=")[0] in answer.text


def press_until(page: Page, role: str, name: str) -> None:
    """Tab to an element that can be seen to have the focus, and press Enter."""
    wanted = page.get_by_role(role, name=name).first  # type: ignore[arg-type]
    for _ in range(60):
        page.keyboard.press("Tab")
        if wanted.evaluate("(one) => one === document.activeElement"):
            outline = "(one) => getComputedStyle(one).outlineStyle"
            assert wanted.evaluate(outline) != "none"
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"no way to {name} by keyboard")


def test_one_message_is_cancelled_by_keyboard_alone(tab: Tab, node: NodeWithGateway) -> None:
    (one_id,) = send(node, "by-keyboard")
    one = tab()
    page = one.open("/console/pending")
    settle(page)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Topic")).to_be_focused()
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/pending?topic=by-keyboard&*")
    settle(page)
    press_until(page, "link", one_id)
    page.wait_for_url("**/console/message?*")
    settle(page)
    press_until(page, "link", "Cancel it…")
    page.wait_for_url("**/console/message/cancel?*")
    settle(page)
    expect(page.locator("main")).to_contain_text("This concerns 1 message")
    assert state(node, one_id) == "pending"
    press_until(page, "button", "Cancel 1 message")
    expect(page.get_by_text("It was cancelled.")).to_be_visible()
    expect(page.locator("h2").first).to_have_text("It is cancelled")
    assert state(node, one_id) == "cancelled"
    address = page.url.removeprefix(node.url)
    (other,) = send(node, "by-keyboard")
    for written in (address.replace(one_id, other), address.replace("cancelled", "unknown")):
        one.open(written)
        expect(page.locator("[role=status]")).to_have_count(0)
    one.open(address)
    expect(page.get_by_text("It was cancelled.")).to_be_visible()
    one.check()


@pytest.mark.parametrize(
    ("done", "seal"),
    [
        *((done, "0" * 32) for done in ("cancelled", "moved", "already-delivered", "unknown")),
        ("moved", ""),
        ("moved", "é"),
    ],
)
def test_what_an_address_says_was_done_is_not_repeated(
    node: NodeWithGateway, done: str, seal: str
) -> None:
    planted = planted_id(node)
    query = {"id": planted, "done": done, "old": planted, "seal": seal}
    for cookie in ("", f"slotwheel-console={'a' * 32}"):
        answer = node.ask("GET", "/console/message", params=query, headers={"Cookie": cookie})
        assert answer.status_code == 200
        assert 'role="status"' not in answer.text


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/message/reschedule?id=x&due=", "New due time"),
        ("/pending?due_from=", "Due from"),
        ("/pending/cancel?due_to=", "Due before"),
        ("/dead?buried_from=", "Buried from"),
        ("/dead/redrive?buried_to=", "Buried before"),
    ],
)
@pytest.mark.parametrize("time", ["-100000d", "1969-12-31T23:59:59Z"])
def test_a_time_before_2000_is_refused(
    node: NodeWithGateway, path: str, field: str, time: str
) -> None:
    answer = node.ask("GET", f"/console{path}{time}")
    assert answer.status_code == 422
    assert "a time before 2000" in answer.text
    assert field in answer.text


def test_all_matches_are_cancelled_once_their_number_is_typed(
    tab: Tab, node: NodeWithGateway
) -> None:
    ids = send(node, "many", 6, key="wanted") + send(node, "many", 2, key="kept")
    one = tab()
    one.allowed += ["error: Failed to load resource: the server responded with a status of 4"]
    page = one.open("/console/pending?topic=many&key=wanted&due_to=%2B1h")
    settle(page)
    page.get_by_role("link", name="Cancel all of them…").click()
    settle(page)
    expect(page.locator("main")).to_contain_text("This concerns 6 messages")
    field = page.get_by_label("To cancel them, type their number")
    field.fill("5")
    page.get_by_role("button", name="Cancel 6 messages").click()
    settle(page)
    expect(page.get_by_role("alert")).to_contain_text("not the number that was shown")
    ids += send(node, "many", 1, key="wanted")
    field.fill("6")
    page.get_by_role("button", name="Cancel 6 messages").click()
    settle(page)
    expect(page.get_by_role("alert")).to_contain_text("there are more by now")
    expect(page.locator("main")).to_contain_text("This concerns 7 messages")
    field.fill("7")
    page.get_by_role("button", name="Cancel 7 messages").click()
    page.wait_for_url("**/console/job?*")
    job = page.url.rpartition("=")[2]
    eventually(lambda: node.ask("GET", f"/v1/jobs/{job}").json()["state"] == "done")
    page.reload()
    expect(page.locator("#part-job")).to_contain_text("cancelled: 7")
    states = [state(node, one_id) for one_id in ids]
    assert states == ["cancelled"] * 6 + ["pending"] * 2 + ["cancelled"]
    one.open("/console/jobs")
    page.get_by_role("link", name=f"cancellation {job[:8]}").click()
    expect(page.locator("#part-job")).to_contain_text("7 of 7")
    one.check()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/pending?topic=many", "due_to"),
        ("/pending/cancel?topic=many", "due_from"),
        ("/message/reschedule?id=x", "due"),
        ("/dead?key=many", "buried_from"),
        ("/dead/redrive?key=many", "buried_to"),
    ],
)
def test_all_of_a_page_is_of_the_times_of_its_first_request(
    node: NodeWithGateway, path: str, field: str
) -> None:
    before_ms = time.time_ns() // 1_000_000 - 1
    answer = node.ask("GET", f"/console{path}&{field}=+1h".replace("+", "%2B"))
    assert answer.status_code == 303
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    given = parse_qs(urlsplit(path).query)
    assert {name: query[name] for name in given} == given
    assert set(query) == {*given, field}
    (text,) = query[field]
    due_ms = round(datetime.fromisoformat(text).timestamp() * 1000)
    assert 0 < due_ms - 3_600_000 - before_ms < 60_000
    text = node.ask("GET", answer.headers["location"]).text
    assert 'value="+1h"' not in text
    assert "%2B1h" not in text


def test_a_time_that_is_none_is_named(node: NodeWithGateway) -> None:
    answer = node.ask("GET", "/console/pending?due_to=%2Bsoon")
    assert (answer.status_code, "not a time" in answer.text) == (422, True)


def test_a_message_gets_another_due_time(tab: Tab, node: NodeWithGateway) -> None:
    (old,) = send(node, "moved")
    one = tab()
    page = one.open(f"/console/message?id={old}")
    settle(page)
    page.get_by_label("New due time").fill("+100m")
    page.get_by_role("button", name="Reschedule…").click()
    settle(page)
    assert state(node, old) == "pending"
    page.get_by_role("button", name="Reschedule 1 message").click()
    settle(page)
    expect(page.get_by_text("It has another due time")).to_be_visible()
    expect(page.locator("h2").first).to_have_text("It is pending")
    expect(page.locator(".state a")).to_have_text(old)
    assert state(node, old) == "cancelled"
    found = node.ask("GET", "/v1/messages", params={"topic": "moved"}).json()["messages"]
    assert [one["value"] for one in found] == ["0"]
    one.check()


def test_dead_letters_are_redriven_once_their_number_is_typed(
    tab: Tab, node: NodeWithGateway
) -> None:
    one = tab()
    page = one.open("/console/dead")
    settle(page)
    page.get_by_role("link", name="retries-used-up").first.click()
    settle(page)
    expect(page.locator("#part-letters")).to_contain_text("3 dead letters, 0 of them redriven")
    page.get_by_role("button", name="Redrive 3…").click()
    settle(page)
    expect(page.locator("main")).to_contain_text("This concerns 3 letters")
    page.get_by_label("To redrive them, type their number").fill("3")
    page.get_by_role("button", name="Redrive 3 letters").click()
    page.wait_for_url("**/console/job?*")
    node.wait_for("again", 3)
    job = page.url.rpartition("=")[2]
    eventually(lambda: node.ask("GET", f"/v1/jobs/{job}").json()["state"] == "done")
    one.open("/console/dead?reason=retries-used-up")
    settle(page)
    expect(page.locator("#part-letters")).to_contain_text("3 of them redriven")
    expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    one.check()


def test_without_scripts_all_is_there_and_actions_work(tab: Tab, node: NodeWithGateway) -> None:
    send(node, "no-scripts", 2)
    page = tab(scripts=False).page
    for path in PAGES:
        page.goto(f"{node.url}/console{path}")
        page.wait_for_load_state()
        expect(page.locator("[aria-busy]")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.goto(f"{node.url}/console")
    expect(page.locator("#part-slots tbody tr")).to_have_count(12)
    page.goto(f"{node.url}/console/pending?topic=no-scripts")
    expect(page.locator("#part-rows tbody time").first).to_contain_text("UTC")
    page.get_by_role("link", name="Cancel all of them…").click()
    page.get_by_label("To cancel them, type their number").fill("2")
    page.get_by_role("button", name="Cancel 2 messages").click()
    page.wait_for_url("**/console/job?*")
    counted = {"topic": "no-scripts"}
    eventually(
        lambda: node.ask("GET", "/v1/messages/count", params=counted).json()["messages"] == 0
    )


def test_a_form_of_another_site_does_nothing(tab: Tab, node: NodeWithGateway) -> None:
    (one_id,) = send(node, "foreign")
    one = tab()
    one.allowed += ["error: Failed to load resource: the server responded with a status of 403"]
    page = one.open("/console")  # so that the browser has the cookie
    page.goto("about:blank")
    page.set_content(
        f'<form method="post" action="{node.url}/console/message/cancel?id={one_id}">'
        '<input name="token" value="guessed"><button>x</button></form>'
    )
    page.get_by_role("button").click()
    expect(page.get_by_text("the request was sent from another site")).to_be_visible()
    assert state(node, one_id) == "pending"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Cookie": ""}, 403),
        ({"Cookie": "slotwheel-console=" + "b" * 32}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({}, 303),
    ],
)
def test_only_a_form_of_the_console_acts(
    node: NodeWithGateway, headers: dict[str, str], status: int
) -> None:
    token = "a" * 32
    given = {
        "Cookie": f"slotwheel-console={token}",
        "Content-Type": "application/x-www-form-urlencoded",
        **headers,
    }
    path = "/console/message/cancel?id=nobody"
    answer = node.ask("POST", path, content=f"token={token}", headers=given)
    assert answer.status_code == status, answer.text
    assert node.ask("GET", path).status_code == 200


def test_the_token_is_kept_from_scripts_and_other_sites(node: NodeWithGateway) -> None:
    node.http.cookies.clear()
    cookie = node.ask("GET", "/console/jobs").headers["set-cookie"]
    node.http.cookies.clear()
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
