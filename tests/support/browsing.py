"""A Chromium for the console's pages: Debian's, driven by Playwright, one for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

WIDE = ViewportSize(width=1440, height=900)
NARROW = ViewportSize(width=390, height=844)


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
