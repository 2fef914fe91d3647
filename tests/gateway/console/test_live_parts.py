"""Parts of a page that are fetched again: what stays, and what says that it may be old."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Route, expect

from support.browsing import check_readable, settle
from support.gatewayprocess import NodeWithGateway

Tab = Callable[..., Any]
PARTS = re.compile(r"[?&]part=")
NOT_AGAIN = "error: "
"""Browser and htmx log each request that fails."""


def tick(page: Page) -> None:
    page.evaluate("htmx.trigger(document.body, 'tick')")


def refreshed(page: Page, part: str) -> None:
    """Fetch the parts again, and wait for this one."""
    with page.expect_response(lambda one: f"part={part}" in one.url) as found:
        tick(page)
    found.value.finished()
    expect(page.locator(".htmx-request")).to_have_count(0)


def test_what_may_be_old_says_so_until_there_is_an_answer(tab: Tab) -> None:
    answers: dict[str, Callable[[Route], None]] = {
        "nobody answers": lambda route: route.abort("connectionrefused"),
        "an error": lambda route: route.fulfill(status=503, body="away"),
        "somebody else answers": lambda route: route.fulfill(body="<p>Please log in</p>"),
    }
    one = tab()
    one.allowed += [NOT_AGAIN]
    page = one.open("/console")
    settle(page)
    line, now = page.locator("#old"), page.locator("#part-now")
    expect(line).to_be_empty()
    for what, answer in answers.items():
        before = now.inner_html()
        page.route(PARTS, answer)
        tick(page)
        expect(line).to_contain_text("May be old: no answer since ")
        expect(now).to_contain_text("Pending")
        assert now.inner_html() == before, what
        said = line.inner_text()
        tick(page)
        expect(line).to_have_text(said)  # announced once
        if what == "an error":  # the page looks the same each time
            check_readable(page)
        page.unroute(PARTS)
        tick(page)
        expect(line).to_be_empty()
        expect(page.locator(".htmx-request")).to_have_count(0)


def test_a_gateway_that_keeps_silent_is_noticed(tab: Tab) -> None:
    one = tab()
    one.page.clock.install()
    page = one.open("/console/jobs")
    settle(page)
    page.route(PARTS, lambda _: None)
    page.clock.run_for(10_000)
    expect(page.locator("#old")).to_be_empty()
    page.clock.run_for(10_000)
    expect(page.locator("#old")).to_contain_text("May be old: no answer since ")


def test_a_reader_who_keeps_a_part_from_changing_is_told(tab: Tab) -> None:
    one = tab()
    one.page.clock.install()
    page = one.open("/console")
    settle(page)
    page.locator("#part-slots a").first.focus()
    page.clock.run_for(20_000)
    expect(page.locator("#old")).to_contain_text("Not asked for again since ")
    page.locator("#part-slots a").first.blur()
    page.clock.run_for(5_000)
    expect(page.locator("#old")).to_be_empty()


def test_a_part_that_never_came_says_so_and_is_asked_for_again(
    tab: Tab, node: NodeWithGateway
) -> None:
    one = tab()
    one.allowed += [NOT_AGAIN]
    page = one.page
    node.ask("GET", "/v1/messages/count")  # so that there is a process that searches
    searching = node.gateway.children(recursive=True)
    try:
        for each in searching:
            each.suspend()
        page.route(PARTS, lambda route: route.abort())
        one.open("/console/pending?key=customer-07919")
        late = page.locator("#part-rows .late")
        expect(late).to_contain_text("There was no answer. It is asked for again")
        expect(page.locator("#old")).to_contain_text("no answer since ")
    finally:
        for each in searching:
            each.resume()
    page.unroute(PARTS)
    tick(page)
    expect(page.locator("#part-rows tbody tr")).not_to_have_count(0)
    expect(page.locator("#old")).to_be_empty()
    settle(page)


def test_what_is_fetched_again_leaves_focus_and_scrolling_where_they_were(tab: Tab) -> None:
    page = tab().open("/console/node")
    settle(page)
    region = page.locator("#part-figures").get_by_role("region")
    region.focus()
    region.evaluate("(one) => { one.scrollTop = 300; window.kept = one; }")
    refreshed(page, "figures")
    expect(region).to_be_focused()
    assert region.evaluate("(one) => [one.scrollTop, one === window.kept]") == [300, True]


def test_only_what_differs_is_changed(tab: Tab, node: NodeWithGateway) -> None:
    page = tab().open("/console")
    settle(page)
    page.evaluate(
        """() => {
          window.changed = [];
          new MutationObserver((all) => window.changed.push(...all.map((one) => {
            const at = one.target.nodeType === 1 ? one.target : one.target.parentElement;
            const said = at.closest("[role=status], [role=alert]") !== null;
            return said ? "said again" : at.closest(".part")?.id;
          }))).observe(document.querySelector("main"),
            { subtree: true, childList: true, characterData: true });
          const figure = document.querySelector("#part-lateness figure");
          const canvas = figure.querySelector("canvas");
          const drawn = figure.dataset.values;
          // A message of another test may be delivered meanwhile: then there is more to draw.
          window.stands = () => canvas.isConnected
            || document.querySelector("#part-lateness figure").dataset.values !== drawn;
        }"""
    )
    message = {"topic": "t", "value": "", "delay_ms": 900_000}
    assert node.ask("POST", "/v1/messages", json=message).status_code == 201
    page.wait_for_timeout(1100)  # answers are fresh for a second
    refreshed(page, "now")
    changed = page.evaluate("window.changed")
    assert "part-now" in changed
    assert "said again" not in changed
    assert page.evaluate("window.stands()")


def test_rows_keep_their_elements_when_others_come(tab: Tab, node: NodeWithGateway) -> None:
    def begin_job() -> str:
        answer = node.ask("POST", "/v1/cancellations", json={"where": {"topic": ["nobodys"]}})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    first = begin_job()
    page = tab().open("/console/jobs")
    settle(page)
    row = page.locator(f"#job-{first}")
    row.evaluate("(one) => { window.kept = one; }")
    second = begin_job()
    refreshed(page, "jobs")
    expect(page.locator(f"#job-{second}")).to_have_count(1)
    expect(row).to_contain_text(first[:8])
    assert page.evaluate("window.kept.isConnected && window.kept.id") == f"job-{first}"


def test_a_link_that_is_pressed_leads_where_it_led(tab: Tab, node: NodeWithGateway) -> None:
    """Rows move: their element may be another row's a moment later."""
    one = tab()
    one.page.clock.install()  # the page asks for nothing by itself
    page = one.open("/console")
    settle(page)
    links, led = page.locator("#part-slots a"), ""

    def moved(route: Route) -> None:
        nonlocal led
        answer = route.fetch()
        first, second = re.findall(r'<a href="([^"]+)"', answer.text())[:2]
        led = html.unescape(second)
        route.fulfill(response=answer, body=answer.text().replace(first, second, 1))

    links.first.evaluate("(one) => { window.kept = one; window.before = one.href; }")
    page.route(re.compile("part=slots"), moved)
    refreshed(page, "slots")
    expect(links.first).to_have_attribute("href", led)
    assert page.evaluate("[kept.isConnected, kept.href === before]") == [False, True]
    page.unroute(re.compile("part=slots"))

    # While it is pressed, what was asked for before changes nothing.
    links.first.hover()
    page.mouse.down()
    refreshed(page, "slots")
    expect(links.first).to_have_attribute("href", led)
    page.mouse.up()
    page.wait_for_url("**" + led)
