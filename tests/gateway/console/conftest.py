"""One browser and one node with a gateway for the console's tests, and pages that watch
themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from slotwheel import Client, Message
from slotwheel.policy.deadletters import BURIED, DEAD_LETTER_TOPIC, RETRIES_USED_UP
from support.browsing import NARROW, WIDE, chromium
from support.consoledata import PLANTED, fill
from support.deadlab import letter
from support.gatewayprocess import NodeWithGateway
from support.waiting import eventually

expect.set_options(timeout=30_000)
_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => window.violations.push(event.violatedDirective + " " + event.blockedURI));
"""


# Of a module: while it runs, nothing else in its process can have an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithGateway]:
    """With messages that wait and that left, and with dead letters, all with scripts in them."""
    folder: Path = tmp_path_factory.mktemp("console")
    with NodeWithGateway(folder / "data", "--horizon", "60d") as one:
        fill(one.address, 300, 500)
        planted = letter(PLANTED, 3, BURIED, group=PLANTED)
        letters = [letter("again", n, RETRIES_USED_UP) for n in range(3)]
        letters.append(planted._replace(key=PLANTED.encode(), value=PLANTED.encode()))
        with Client(one.address) as client:
            for topic in ("planted", "planted-more"):
                headers = [(PLANTED, PLANTED.encode()), ("raw", b"\xff")]
                message = Message(topic, PLANTED.encode(), PLANTED.encode(), headers, delay=3_000)
                client.send(message)
            for number, found in enumerate(letters):
                client.send(
                    Message(DEAD_LETTER_TOPIC, found.value, found.key, found.headers, delay=0)
                ).result(60)
                one.wait_for(DEAD_LETTER_TOPIC, number + 1)
        eventually(lambda: one.ask("GET", "/v1/status").json()["delivered"] == 504)
        yield one
        one.signal()


@dataclass
class Watched:
    """A tab, and what is wrong with what it did."""

    page: Page
    base: str
    allowed: list[str] = field(default_factory=list)
    """Beginnings of console messages that are meant to be."""
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path)
        self.check()
        return self.page

    def check(self) -> None:
        """No script of others ran, and nothing was kept from running."""
        assert not self.page.evaluate("window.planted === undefined ? '' : 'a planted script ran'")
        assert self.page.evaluate("window.violations || []") == []

    def seen(self, text: str) -> None:
        if not text.startswith(tuple(self.allowed) or ("\0",)):
            self.wrong.append(text)


@pytest.fixture
def tab(browser: Browser, node: NodeWithGateway) -> Iterator[Callable[..., Watched]]:
    """Opens tabs. ``narrow``: as wide as a phone; ``scripts``: whether they run; ``zone``: the
    reader's; None: that of the machine."""
    opened: list[tuple[BrowserContext, Watched]] = []

    def make(*, narrow: bool = False, scripts: bool = True, zone: str | None = None) -> Watched:
        size = NARROW if narrow else WIDE
        context = browser.new_context(viewport=size, java_script_enabled=scripts, timezone_id=zone)
        page = context.new_page()
        made = Watched(page, node.url)
        if scripts:
            page.add_init_script(_VIOLATIONS)
        page.on("pageerror", lambda error: made.seen(f"error: {error}"))
        page.on("console", lambda one: made.seen(f"{one.type}: {one.text}"))
        page.on("dialog", lambda one: made.seen(f"dialog: {one.message}"))
        page.on(
            "request",
            lambda one: (
                None
                if urlsplit(one.url).netloc == urlsplit(node.url).netloc
                else made.seen(f"foreign: {one.url}")
            ),
        )
        opened.append((context, made))
        return made

    yield make
    for context, made in opened:
        context.close()
        assert made.wrong == []
