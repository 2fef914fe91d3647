"""The console's schedules in a real Chromium: the list, one of them, and what is done to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from slotwheel import Client
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.security.rights import Right
from support.browsing import check_readable, settle
from support.consoledata import PLANTED
from support.consolerequests import GivenClock
from support.gatewayprocess import NodeWithGateway, ask
from support.nodeprocess import NodeProcess
from support.rightsfile import ALL, OTHER, OTHER_PREFIX, TOPIC, token_of, write_rights
from support.servedgateway import served_gateway
from support.waiting import eventually

Tab = Callable[..., Any]
SELDOM_MS = 1_009 * 3_600_000
"""Runs are due at whole multiples of it: none is while a test looks, as it would be each hour."""
NAMES = ["<b>bold</b>", "/run", "a/pause", "100%2Frun", "two  blanks", "ünï©", "a\u200bb", PLANTED]
SELDOM = {"every_ms": SELDOM_MS, "template": {"topic": "beats", "value": "x"}}
REFUSED = "error: Failed to load resource: the server responded with a status of 4"


def put(node: NodeWithGateway, name: str, **fields: Any) -> dict[str, Any]:
    with Client(node.address) as client:
        return client.schedules.put({"name": name, **SELDOM, **fields})


def get(node: NodeWithGateway, name: str) -> dict[str, Any] | None:
    answer = ask(node, "GET", f"/v1/schedules/{quote(name, safe='')}")
    return dict(answer.json()) if answer.status_code == 200 else None


@contextmanager
def stored(node: NodeWithGateway, *names: str, **fields: Any) -> Iterator[None]:
    """These schedules are there meanwhile."""
    for name in names:
        put(node, name, **fields)
    try:
        yield
    finally:
        for name in names:
            ask(node, "DELETE", f"/v1/schedules/{quote(name, safe='')}")


def open_schedule(tab: Any, name: str) -> Page:
    page: Page = tab.open(f"/console/schedule?name={quote(name, safe='')}")
    settle(page)
    return page


def follow(page: Page, link: str, button: str) -> None:
    """Follow a link to the page that asks, and press its button."""
    page.get_by_role("link", name=link).click()
    settle(page)
    page.get_by_role("button", name=button).click()
    page.wait_for_url("**/console/schedule?*")


def write(page: Page, fields: dict[str, Any] | str) -> None:
    """Write a schedule and look at what would be stored."""
    text = fields if isinstance(fields, str) else json.dumps(fields)
    page.get_by_label("The schedule as JSON").fill(text)
    page.get_by_role("button", name="Preview…").click()
    page.wait_for_load_state()


def test_a_schedule_is_written_looked_at_and_stored(tab: Tab, node: NodeWithGateway) -> None:
    name = "from the page"
    cron = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "start_ms": 1_806_000_000_000}
    fields = {"name": name, **cron, "template": {"topic": "reports", "value": "ü\u200bü"}}
    one = tab(zone="America/New_York")
    page = one.open("/console/schedules")
    settle(page)
    page.get_by_role("link", name="New schedule…").click()
    write(page, fields)
    check_readable(page)
    expect(page.locator("h1")).to_have_text("What would be stored")
    expect(page.locator("main table tbody tr")).to_have_count(10)
    # 2027-03-28: the clock skips 02:00 to 03:00 there.
    row = page.locator("main tbody tr", has_text="2027-03-28 03:00:00 +02:00")
    expect(row.locator("time")).to_have_attribute("title", "2027-03-28 01:00:00 UTC")
    expect(row.locator("time")).to_have_text("2027-03-27 21:00:00 -04:00")
    assert json.loads(page.locator("pre.value").inner_text()) == fields
    assert "\\u200b" in page.locator("pre.value").inner_text()
    assert get(node, name) is None, "a look stores nothing"
    page.get_by_role("button", name="Write on").click()
    shown = json.loads(page.get_by_label("The schedule as JSON").input_value())
    assert shown == fields
    write(page, {**shown, "count": 3})
    expect(page.locator("main table tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Store it").click()
    expect(page.get_by_text("It was stored.")).to_be_visible()
    settle(page)
    expect(page.locator("h1")).to_have_text(f"Schedule {name}")
    known = get(node, name)
    assert known is not None
    assert known["schedule"] == {**fields, "count": 3}
    expect(page.locator("#part-known .facts").first).to_contain_text(str(known["version"]))
    check_readable(page)
    one.check()
    assert ask(node, "DELETE", f"/v1/schedules/{quote(name)}").status_code == 204


def test_a_schedule_is_run_paused_resumed_and_deleted(tab: Tab, node: NodeWithGateway) -> None:
    name = "a/run"
    with stored(node, name):
        one = tab(narrow=True)
        page = open_schedule(one, name)
        check_readable(page)
        page.get_by_role("link", name="Run it now…").click()
        settle(page)
        expect(page.locator("main")).to_contain_text("This concerns 1 schedule.")
        check_readable(page)
        assert (get(node, name) or {})["runs"] == 0, "the page before it does nothing"
        page.get_by_role("button", name="Send 1 message now").click()
        page.wait_for_url("**/console/schedule?*")
        last = (get(node, name) or {})["last"]
        assert last["run"] == 1
        expect(page.locator("[role=status]")).to_have_text(f"Run 1 is the message {last['id']}.")
        settle(page)
        page.locator("#part-known").get_by_role("link", name=last["id"]).click()
        settle(page)
        expect(page.locator("#part-known")).to_contain_text(last["id"])
        page = open_schedule(one, name)
        follow(page, "Pause it…", "Pause 1 schedule")
        settle(page)
        expect(page.locator("[role=status]")).to_contain_text("It was paused.")
        expect(page.locator(".word.paused")).to_have_text("paused")
        expect(page.get_by_text("It is paused.")).to_be_visible()
        follow(page, "Resume it…", "Resume 1 schedule")
        settle(page)
        expect(page.locator(".word.active")).to_have_text("active")
        address = page.url.removeprefix(node.url)
        one.open(address.replace("resumed", "deleted"))
        expect(page.locator("[role=status]")).to_have_count(0)
        page = open_schedule(one, name)
        follow(page, "Delete it…", "Delete 1 schedule")
        expect(page.locator("[role=status]")).to_have_text("It was deleted.")
        assert get(node, name) is None
        one.check()


def test_who_is_late_sees_both_before_he_replaces_anything(tab: Tab, node: NodeWithGateway) -> None:
    name = "late"
    with stored(node, name):
        one = tab()
        one.allowed.append(REFUSED)
        page = open_schedule(one, name)
        page.get_by_role("link", name="Change it…").click()
        mine = json.loads(page.get_by_label("The schedule as JSON").input_value())
        assert mine == {"name": name, **SELDOM}
        write(page, {**mine, "every_ms": 2 * SELDOM_MS})
        expect(page.locator("h1")).to_have_text("What would take its place")
        there = put(node, name, every_ms=3 * SELDOM_MS)
        page.get_by_role("button", name="Store it").click()
        expect(page.get_by_role("alert")).to_contain_text("is another one by now")
        assert (get(node, name) or {})["schedule"]["every_ms"] == 3 * SELDOM_MS, "nothing was lost"
        expect(page.locator("h2").first).to_have_text(f"There by now: version {there['version']}")
        assert json.loads(page.locator("pre.value").inner_text()) == there["schedule"]
        written = json.loads(page.get_by_label("The schedule as JSON").input_value())
        assert written["every_ms"] == 2 * SELDOM_MS
        check_readable(page)
        page.get_by_role("button", name="Preview…").click()
        expect(page.locator("main")).to_contain_text(
            f"It takes the place of version {there['version']}."
        )
        page.get_by_role("button", name="Store it").click()
        expect(page.get_by_text("It was stored.")).to_be_visible()
        assert (get(node, name) or {})["schedule"]["every_ms"] == 2 * SELDOM_MS
        # A new one does not take the place of one that is there.
        one.open("/console/schedule/put")
        write(page, {**mine, "every_ms": 4 * SELDOM_MS})
        page.get_by_role("button", name="Store it").click()
        expect(page.get_by_role("alert")).to_contain_text("expectedno such schedule")
        assert (get(node, name) or {})["schedule"]["every_ms"] == 2 * SELDOM_MS
        one.check()


def test_what_is_done_is_done_to_the_version_that_was_shown(
    tab: Tab, node: NodeWithGateway
) -> None:
    name = "replaced"
    with stored(node, name):
        one = tab()
        one.allowed.append(REFUSED)
        page = open_schedule(one, name)
        page.get_by_role("link", name="Delete it…").click()
        settle(page)
        put(node, name, template={"topic": "other"})
        page.get_by_role("button", name="Delete 1 schedule").click()
        expect(page.get_by_role("alert")).to_contain_text("is another one by now")
        expect(page.locator("#part-form")).to_contain_text("other")
        assert get(node, name) is not None
        page.get_by_role("button", name="Delete 1 schedule").click()
        expect(page.locator("[role=status]")).to_have_text("It was deleted.")
        assert get(node, name) is None


@pytest.mark.parametrize(
    ("text", "place", "got"),
    [
        ({"name": "n", "cron": "0 25 * * *", "template": {"topic": "t"}}, "$.cron", "0 25 * * *"),
        (
            {"name": "n", "cron": "0 0 30 2 *", "template": {"topic": "t"}},
            "$.cron",
            "0 0 30 2 *",
        ),
        (
            {"name": "n", "cron": "0 0 * * *", "zone": "Mars/Olympus", "template": {"topic": "t"}},
            "$.zone",
            "Mars/Olympus",
        ),
        ({"name": "n", "every_ms": 1_000, "template": {"topic": "a b"}}, "$.template.topic", "a b"),
        (
            {"name": "n", "every_ms": 1_000, "template": {"topic": "t"}, "end_ms": 946684800000},
            "$.end_ms",
            "2000-01-01",
        ),
        ('{"name": "n",\n "cron": }', "line 2, column 10", '"cron": }'),
        ('{"name": ' + "9" * 5_000 + "}", "", "digits"),
        ("[" * 100_000, "", "recursion"),
        ("", "line 1, column 1", "nothing"),
    ],
    ids=["cron", "never", "zone", "topic", "end", "comma", "digits", "brackets", "nothing"],
)
def test_what_is_no_schedule_is_named_with_its_place(
    node: NodeWithGateway, text: Any, place: str, got: str
) -> None:
    token = "a" * 32
    fields = {"token": token, "version": "0", "step": "preview"}
    fields["text"] = text if isinstance(text, str) else json.dumps(text)
    headers = {"Cookie": f"slotwheel-console={token}"}
    answer = node.ask("POST", "/console/schedule/put", data=fields, headers=headers)
    assert answer.status_code == 422, answer.text
    assert f"<dt>where</dt><dd>{place}</dd>" in answer.text if place else True
    assert got.replace('"', "&#34;") in answer.text
    if len(fields["text"]) < 1_000:
        assert fields["text"].replace('"', "&#34;") in answer.text, "what was written is kept"


def test_a_bad_cron_is_named_beside_what_was_written(tab: Tab) -> None:
    one = tab(narrow=True)
    one.allowed.append(REFUSED)
    page = one.open("/console/schedule/put")
    check_readable(page)
    write(page, {"name": "n", "cron": "0 25 * * *", "template": {"topic": "t"}})
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("$.cron")
    expect(alert).to_contain_text("an hour of 0 to 23")
    assert '"0 25 * * *"' in page.get_by_label("The schedule as JSON").input_value()
    check_readable(page)
    one.check()


def test_names_are_shown_and_followed_as_they_are(tab: Tab, node: NodeWithGateway) -> None:
    with stored(node, *(f"n-{name}" for name in NAMES)):
        one = tab()
        for name in NAMES:
            page = one.open("/console/schedules?prefix=n-")
            settle(page)
            links = page.locator("#part-rows td[data-label=Name] a")
            expect(links).to_have_count(len(NAMES))
            expect(page.locator("img[src='/x'], main b")).to_have_count(0)
            at = sorted(f"n-{each}" for each in NAMES).index(f"n-{name}")
            links.nth(at).click()
            settle(page)
            follow(page, "Pause it…", "Pause 1 schedule")
            settle(page)
            shown = json.loads(page.locator("pre.value").inner_text())
            assert shown["name"] == f"n-{name}"
            assert (get(node, f"n-{name}") or {})["schedule"]["paused"] is True
            one.check()
        page.get_by_role("link", name="Change it…").click()
        written = json.loads(page.get_by_label("The schedule as JSON").input_value())
        assert written["name"] == f"n-{NAMES[-1]}"
        write(page, {**written, "template": {"topic": "t", "value": PLANTED}})
        expect(page.locator("img[src='/x']")).to_have_count(0)
        page.get_by_role("button", name="Write on").click()
        written = json.loads(page.get_by_label("The schedule as JSON").input_value())
        assert written["template"]["value"] == PLANTED
        one.check()


def test_a_long_list_comes_in_pages_and_is_filtered(tab: Tab, node: NodeWithGateway) -> None:
    names = [f"page-{number:03}" for number in range(120)]
    with stored(node, *names):
        put(node, names[7], template={"topic": "paged-other"}, paused=True)
        put(node, names[110], template={"topic": "paged-more"})
        one = tab()
        page = one.open("/console/schedules?prefix=page-")
        seen: list[str] = []
        for count in (50, 50, 20):
            settle(page)
            links = page.locator("#part-rows td[data-label=Name] a")
            expect(links).to_have_count(count)
            seen += links.all_inner_texts()
            if count == 50:
                page.get_by_role("link", name="Next page").click()
                page.wait_for_url(f"**page={seen[-1]}")
        assert seen == names
        expect(page.get_by_role("link", name="Next page")).to_have_count(0)
        check_readable(page)
        page.get_by_label("Topic").fill("paged-*")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**topic=paged-*")
        settle(page)
        rows = page.locator("#part-rows tbody tr")
        expect(rows.locator("td[data-label=Name]")).to_have_text([names[7], names[110]])
        expect(rows.locator("td[data-label=State]")).to_have_text(["paused", "active"])
        expect(rows.locator("td[data-label=When]")).to_have_text(["every 1009 h", "every 1009 h"])
        one.open("/console/schedules?prefix=page-&topic=nobody")
        settle(page)
        expect(page.locator("#part-rows")).to_contain_text("There is no schedule like these.")
        one.check()


def test_a_schedule_that_fires_shows_its_last_message(tab: Tab, node: NodeWithGateway) -> None:
    with stored(node, "fires", every_ms=1_000):
        eventually(lambda: (get(node, "fires") or {})["runs"] > 0)
        page = tab().open("/console/schedules?prefix=fires")
        settle(page)
        link = page.locator("#part-rows td[data-label='Last run'] a")
        expect(link).to_contain_text("in ")  # a message already, half a minute ahead
        message_id = str(link.get_attribute("href")).rpartition("id=")[2]
        link.click()
        settle(page)
        expect(page.locator("#part-known")).to_contain_text(message_id)
        expect(page.locator("#part-known")).to_contain_text("slotwheel-schedule-run")


def test_without_scripts_a_schedule_is_stored_all_the_same(tab: Tab, node: NodeWithGateway) -> None:
    page = tab(scripts=False).page
    page.goto(f"{node.url}/console/schedule/put")
    write(page, {"name": "no scripts", **SELDOM})
    page.get_by_role("button", name="Store it").click()
    expect(page.get_by_text("It was stored.")).to_be_visible()
    page.get_by_role("link", name="Delete it…").click()
    page.get_by_role("button", name="Delete 1 schedule").click()
    expect(page.locator("[role=status]")).to_have_text("It was deleted.")
    assert get(node, "no scripts") is None


def test_roles_have_their_buttons_and_the_server_refuses_the_rest(
    browser: Browser, tmp_path: Path
) -> None:
    security = write_rights(tmp_path / "security.toml")
    with NodeProcess(tmp_path / "data") as node:
        with Client(node.address) as client:
            for topic in (TOPIC, OTHER):
                template = {"topic": topic}
                client.schedules.put(
                    {"name": f"of-{topic}", "every_ms": SELDOM_MS, "template": template}
                )
        settings = GatewaySettings(
            listen="127.0.0.1:0", nodes=(node.address,), data=node.data, security=security
        )
        with served_gateway(settings, GivenClock(0)) as port:
            base = f"http://localhost:{port}"

            def opened(role: str, path: str) -> Page:
                page = browser.new_context().new_page()
                page.goto(f"{base}{path}")
                page.get_by_label("Token").fill(token_of(role))
                page.get_by_role("button", name="Log in with a token").click()
                page.wait_for_url(f"{base}{path}")
                settle(page)
                return page

            reader = opened(Right.READ.value, "/console/schedules")
            expect(reader.locator("#part-rows td[data-label=Name]")).to_have_text([f"of-{TOPIC}"])
            expect(reader.get_by_role("link", name="New schedule…")).to_have_count(0)
            reader.goto(f"{base}/console/schedule?name=of-{TOPIC}")
            settle(reader)
            expect(reader.locator("#part-known")).to_contain_text("every 1009 h")
            expect(reader.locator("#part-known .actions")).to_have_count(0)
            token = reader.locator("input[name=token]").first.input_value()
            for path in ("delete", "pause", "resume", "run", "put"):
                status = reader.evaluate(
                    """async ([path, token]) => (await fetch(path, {method: 'POST',
                         headers: {'Content-Type': 'application/x-www-form-urlencoded'},
                         body: new URLSearchParams({token, version: 1})})).status""",
                    [f"/console/schedule/{path}?name=of-{TOPIC}", token],
                )
                assert status == 403, path
            reader.goto(f"{base}/console/schedule?name=of-{OTHER}")
            settle(reader)
            expect(reader.get_by_role("alert")).to_contain_text("no such schedule")
            # Whoever may change schedules of one topic is refused that of another.
            other = opened(OTHER_PREFIX, f"/console/schedule?name=of-{OTHER}")
            expect(other.locator("#part-known .actions a")).to_have_count(4)
            other.goto(f"{base}/console/schedule/put")
            write(other, {"name": "new", "every_ms": SELDOM_MS, "template": {"topic": TOPIC}})
            other.get_by_role("button", name="Store it").click()
            expect(other.get_by_role("alert")).to_contain_text(f"for topic '{TOPIC}'")
            write(
                other, {"name": f"of-{TOPIC}", "every_ms": SELDOM_MS, "template": {"topic": OTHER}}
            )
            other.get_by_role("button", name="Store it").click()
            expect(other.get_by_role("alert")).to_contain_text(f"for topic '{TOPIC}'")
            own = opened(ALL, f"/console/schedule?name=of-{TOPIC}")
            follow(own, "Delete it…", "Delete 1 schedule")
            expect(own.locator("[role=status]")).to_have_text("It was deleted.")
        with Client(node.address) as client:
            names = [each["schedule"]["name"] for each in client.schedules.list()]
        assert names == [f"of-{OTHER}"]
        node.signal()
