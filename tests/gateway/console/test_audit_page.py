"""The audit page, and a message with a long way, in a real Chromium, of sums and events that were
planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from slotwheel import Client
from slotwheel.account.vocabulary import Tier
from slotwheel.audit.sums import IdSum, SumBatch, SumKey, encode_sums
from slotwheel.client.message import clock_ms
from slotwheel.trace.chains.lookup import STORE_DIRECTORY
from slotwheel.trace.events import AUDIT_TOPIC, EventSender
from slotwheel.trace.store.making import SegmentAbout, write_segment
from slotwheel.trace.store.names import SegmentName
from slotwheel.wheel.ids import MessageId
from support.browsing import WIDE, check_readable, settle
from support.consoledata import PLANTED
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess
from support.traced import Row, event, stored
from support.waiting import eventually

Tab = Callable[..., Any]
FORGED = "forged"
_INTERVAL_MS = 1_000
_AUDIT = ("--audit", "--audit-interval", "1s", "--trace-retain", "1h")
_LATER_MS = 3_600_000


def plant_sums(address: str, bucket_ms: int) -> None:
    """A sender says that it has sent what nobody has, and another has no bucket behind it yet."""
    lost = SumKey(Tier.PRODUCED, "default", FORGED, "", bucket_ms)
    read = SumKey(Tier.CONSUMED, "default", FORGED, PLANTED, bucket_ms)
    sums = {lost: IdSum(3, 7), read: IdSum(2, 9)}
    batch = SumBatch(EventSender("s" * 16, PLANTED), 0, _INTERVAL_MS, sums, last=True)
    with Client(address) as client:
        client.send(AUDIT_TOPIC, encode_sums(batch), delay=0).result(60)


def way_of(message_id: str) -> list[Row]:
    """Two attempts that failed, a third that waits, and a dead letter in another group."""
    one, at = MessageId.parse(message_id), clock_ms()
    parts = {"group": one.group, "due": one.due, "offset": one.offset, "check": one.check}
    tries = [parts, *({**parts, "offset": one.offset + n * 1_000_000} for n in (1, 2))]
    place: dict[str, Any] = {"topic": "chained", "partition": 0, "key": b"customer-7"}
    rows = [event(0, at - 9_000, "s", id=parts, took_us=1_500, client="shop", **place)]
    billing = {"group": "billing", "sender": "c", "client": "till-1", **place}
    error = "the card was refused: " + PLANTED
    for n in (1, 2):
        origin = {} if n == 1 else {"origin": parts}
        of_try = {"id": tries[n - 1], "attempt": n, **origin, **billing}
        rows.append(event(3 * n, at + n * 70, kind="received", **of_try))
        rows.append(
            event(3 * n + 1, at + n * 100, kind="processed", took_us=70, error=error, **of_try)
        )
        rows.append(event(3 * n + 2, at + n * 101, kind="retried", **of_try))
    mail = {"sender": "m", "client": "mailer", "group": PLANTED, **place}
    rows.append(event(0, at + 50, kind="processed", took_us=9_000, id=parts, error="no", **mail))
    rows.append(event(1, at + 51, kind="dead", id=parts, error="retries-used-up", **mail))
    rows.append(event(2, at + 52, kind="processed", took_us=9, id=tries[2], origin=parts, **mail))
    return rows


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that audits; ``tab`` opens its pages."""
    folder = tmp_path_factory.mktemp("console-audit")
    with NodeProcess(folder / "data") as beside, GatewayProcess(beside, *_AUDIT) as one:
        eventually(lambda: one.request("GET", "/v1/audit").status_code == 200)
        bucket_ms = one.get("/v1/audit")["from_ms"] + 2 * _INTERVAL_MS
        plant_sums(beside.address, bucket_ms)
        for n in range(12):
            one.send(topic="orders", value="v", due_ms=bucket_ms + n * 300)
        one.send(topic="orders", value="v", delay_ms=_LATER_MS)
        yield one


@pytest.fixture(scope="module")
def chained(node: GatewayProcess) -> str:
    """The id of a message with a long way."""
    found = node.send(topic="chained", value="v", delay_ms=0)
    eventually(lambda: node.get(f"/v1/messages/{found}")["state"] == "delivered")
    about = SegmentAbout(hour=1, topic="t", positions={0: 9})
    root = node.node.data / STORE_DIRECTORY
    root.mkdir(exist_ok=True)
    write_segment(root, SegmentName(1_000_000, 1_000_000), about, stored(way_of(found)))
    return found


def judged(node: GatewayProcess) -> None:
    """Wait until the planted loss is one, and what was sent by HTTP is equal at each boundary."""

    def verdicts(topic: str) -> set[tuple[str, str]]:
        found = node.get("/v1/audit")["comparisons"]
        return {(one["boundary"], one["verdict"]) for one in found if one["topic"] == topic}

    eventually(lambda: ("client to wheel", "lost") in verdicts(FORGED))
    wanted = {("client to wheel", "equal"), ("wheel to topic", "equal")}
    eventually(lambda: wanted <= verdicts("orders"))
    assert not {"lost", "repeated", "differs"} & {verdict for _, verdict in verdicts("orders")}


def test_what_differs_is_found_from_the_overview(
    tab: Tab, node: GatewayProcess, chained: str
) -> None:
    judged(node)
    one = tab()
    page = one.open("/console")
    settle(page)
    page.get_by_role("link", name="messages were lost or repeated").click()
    settle(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Audit")
    expect(page.locator("#part-tiers .state")).to_contain_text("differ")
    faults = page.get_by_role("region", name="Which buckets differ").locator("tbody tr")
    expect(faults.filter(has_text="client to wheel")).to_contain_text(["lost"])
    expect(faults.filter(has_text=PLANTED)).not_to_have_count(0)
    lines = page.get_by_role("region", name="Which tiers agree").locator("tbody tr")
    expect(lines.first).to_contain_text(FORGED)
    expect(lines.first.locator("rect.lost, rect.repeated")).to_have_count(1)
    expect(page.locator("#part-latency")).to_contain_text("consumer")
    expect(page.locator("#part-anomalies")).to_contain_text("retry 2")
    expect(page.locator("img[src='/x']")).to_have_count(0)
    check_readable(page)
    one.check()
    page.set_viewport_size(WIDE)
    lines.filter(has_text="orders").get_by_role("link").first.click()
    settle(page)
    expect(page.get_by_text("Only topic")).to_contain_text("orders")
    expect(lines).to_have_count(2)
    expect(faults).to_have_count(0)
    one.check()


def test_a_long_way_is_readable(tab: Tab, node: GatewayProcess, chained: str) -> None:
    one = tab()
    page = one.open(f"/console/message?id={quote(chained)}")
    settle(page)
    # The wheel has done its part, and a group has not.
    expect(page.locator("h2").nth(0)).to_have_text("It is retrying")
    expect(page.locator("h2").nth(1)).to_have_text("In the wheel: delivered")
    steps = page.get_by_role("region", name="Its way").locator("tbody tr")
    expect(steps.filter(has_text="the card was refused")).to_have_count(2)
    expect(page.locator("#part-way")).to_contain_text("retrying")
    expect(page.locator("img[src='/x']")).to_have_count(0)
    check_readable(page)
    one.check()


def test_without_scripts_the_audit_is_whole(tab: Tab, node: GatewayProcess, chained: str) -> None:
    judged(node)
    page = tab(scripts=False).page
    page.goto(f"{node.url}/console/audit")
    expect(page.locator("[aria-busy]")).to_have_count(0)
    expect(
        page.get_by_role("region", name="Which buckets differ").locator("time").first
    ).to_contain_text("UTC")
    expect(page.locator("#part-latency tbody tr")).not_to_have_count(0)
