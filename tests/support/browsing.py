"""A Chromium for the console's pages: Debian's, driven by Playwright, one for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

WIDE = ViewportSize(width=1440, height=900)
NARROW = ViewportSize(width=390, height=844)
_LOOKS: list[tuple[Literal["light", "dark"], ViewportSize]] = [("light", WIDE), ("dark", NARROW)]
_axe = Axe()


@contextmanager
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        raise RuntimeError("there is no Chromium: `make kafka` fetches Debian's")
    # In a container there is no sandbox to be had, and little shared memory.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def settle(page: Page) -> None:
    """Wait until every part of a page is there."""
    expect(page.locator("[aria-busy]")).to_have_count(0, timeout=60_000)


def check_readable(page: Page) -> None:
    """Axe finds nothing serious in each width and each scheme, and nothing is wider than the
    window; colours are the same at both widths."""
    for scheme, size in _LOOKS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, (page.url, size)
        found = [
            (violation["id"], violation["nodes"][0]["html"])
            for violation in _axe.run(page).response["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
        assert found == [], (page.url, scheme, size)
