"""The console of a gateway over a fleet in a real Chromium: the whole, one wheel, one away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from slotwheel import Client, Message
from slotwheel.policy.deadletters import BURIED, DEAD_LETTER_TOPIC
from slotwheel.wheel.ids import MessageId
from support.browsing import check_readable, settle
from support.deadlab import letter
from support.fakefleet import NAMES
from support.fleetofnodes import FleetOfNodes, FrontProcess, fleet_of_nodes
from support.waiting import eventually

Tab = Callable[..., Any]
COUNT = 30


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetOfNodes]:
    with fleet_of_nodes(tmp_path_factory.mktemp("fleet")) as fleet:
        for number in range(COUNT):
            fleet.front.send(topic="t", key=f"k{number}", value="x", delay_ms=900_000)
        for number, node in enumerate(fleet.nodes.values()):
            buried = letter("t", number, BURIED)
            with Client(node.address) as client:
                message = Message(
                    DEAD_LETTER_TOPIC, buried.value, buried.key, buried.headers, delay=0
                )
                client.store(message)
            node.wait_for(DEAD_LETTER_TOPIC, 1)
        yield fleet


@pytest.fixture(scope="module")
def node(fleet: FleetOfNodes) -> FrontProcess:
    """What ``tab`` opens."""
    return fleet.front


def choose(page: Page, wheel: str) -> None:
    page.get_by_label("Wheel", exact=True).select_option(wheel)
    page.get_by_role("button", name="Show").click()
    settle(page)


def shares(fleet: FleetOfNodes) -> dict[str, int]:
    found = fleet.front.get("/v1/messages")["messages"]
    groups = [MessageId.parse(each["id"]).group for each in found]
    return {name: groups.count(name) for name in NAMES}


@pytest.mark.parametrize("narrow", [False, True])
def test_the_whole_and_one_wheel_are_shown(tab: Tab, fleet: FleetOfNodes, narrow: bool) -> None:
    one = tab(narrow=narrow)
    page = one.open("/console")
    settle(page)
    expect(page.locator("main")).to_contain_text("All 3 wheels answer.")
    expect(page.locator("main")).to_contain_text(f"{COUNT} pending")
    check_readable(page)
    choose(page, "south")
    share = shares(fleet)["south"]
    expect(page.locator("#part-now")).to_contain_text(f"Pending{share}")
    check_readable(page)
    page.get_by_role("link", name="Pending", exact=True).click()
    settle(page)
    assert "wheel=south" in page.url
    expect(page.locator("#part-rows tbody tr")).to_have_count(share)
    page.get_by_role("button", name="Search").click()
    settle(page)
    assert "wheel=south" in page.url, "a form keeps it"
    choose(page, "")
    expect(page.locator("#part-rows tbody tr")).to_have_count(COUNT)
    one.check()


def test_each_page_is_there_for_the_whole_and_for_a_wheel(tab: Tab, fleet: FleetOfNodes) -> None:
    one = tab()
    for name in ("", "/pending", "/message", "/schedules", "/dead", "/audit", "/jobs", "/node"):
        for query in ("", "?wheel=west"):
            page = one.open(f"/console{name}{query}")
            settle(page)
            # Of the audit two parts need a store of events, which this wheel has not.
            refused = 2 if (name, query) == ("/audit", "?wheel=west") else 0
            expect(page.locator("main .notice.bad")).to_have_count(refused)
            expect(page.locator("main")).not_to_contain_text("is not known here")
            expect(page.locator("main")).not_to_contain_text("\\u{")
    message_id = fleet.front.get("/v1/messages")["messages"][0]["id"]
    page = one.open(f"/console/message?id={message_id}")
    settle(page)
    expect(page.locator("#part-known")).to_contain_text("pending")


def test_letters_of_all_wheels_lead_to_theirs(tab: Tab) -> None:
    page = tab().open("/console/dead")
    settle(page)
    rows = page.locator("#t-letters ~ div tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("link", name="south 0/").click()
    settle(page)
    assert "wheel=south" in page.url
    expect(page.locator("#part-letter")).to_contain_text("why 1")


def test_many_are_cancelled_and_a_wheel_that_is_away_is_named(
    tab: Tab, fleet: FleetOfNodes
) -> None:
    many = [{"topic": "bulk", "key": f"k{n}", "value": "x", "delay_ms": 900_000} for n in range(60)]
    assert fleet.front.http.post("/v1/messages", json=many).status_code == 200
    one = tab()
    page = one.open("/console/pending/cancel?topic=bulk")
    settle(page)
    page.locator("main form input:not([type=hidden])").fill("60")
    page.get_by_role("button", name="Cancel 60").click()
    page.wait_for_url("**/console/job?*")
    settle(page)
    expect(page.locator("main")).to_contain_text("done")
    assert fleet.front.get("/v1/messages/count", params={"topic": "bulk"})["messages"] == 0
    west = fleet.nodes["west"]
    west.kill()
    try:
        eventually(lambda: "west" in fleet.front.http.get("/readyz").text)
        page = one.open("/console")
        settle(page)
        expect(page.locator("main")).to_contain_text("west is away")
        expect(page.locator("main")).to_contain_text("and those of west, which cannot be asked")
        check_readable(page)
        page = one.open("/console/pending")
        settle(page)
        expect(page.locator("#part-rows")).to_contain_text("the wheel west is missing")
    finally:
        west.start()
