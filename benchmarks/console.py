"""How soon does a browser show the console's pages while many messages wait?

``--rows`` messages of ten topics, with keys, wait in all slots. Then a Chromium opens each page
``--times`` times, in a new tab with an empty cache, and its own first paint is told, in ms from
the start of the navigation; beside it the time of the gateway's answer. The parts that come
later, such as a search by key through everything, are not in it; how long until the last of them is
there is told, too. At last a bulk cancel goes the way of the pages, and its count must be true.

    python -m benchmarks.console [--rows 10000000] [--times 7]
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa
from playwright.sync_api import Browser, Page

from slotwheel.client import Client

from ._node import BenchNode
from .harness import Report, data_directory, median_spread, options, warm_memory, with_tests_support

_ESTIMATE = (
    "a page waits 120 ms for its parts, and is shown without those that take longer; templates take"
    " 5 ms, style and layout 30 ms, and Chromium's own start of a page 50 ms: 200 ms at most."
)
_TOPICS, _BATCH_ROWS, _SPAN_MS, _LEAD_MS, _LEAD_ROWS_MS = 10, 5_000, 7_000_000, 60_000, 100
_GOAL_MS = 300.0
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_ANSWER = "performance.getEntriesByType('navigation')[0].responseEnd"
_LISTENING = re.compile(r"gateway listening on (\S+:\d+)")
_SPILL_S = 600.0


def main(arguments: list[str] | None = None) -> int:
    with_tests_support()
    from support.browsing import chromium

    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages that wait")
    parser.add_argument("--times", type=int, default=7, help="how often each page is opened")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows, chosen.times = min(chosen.rows, 50_000), 2
    with data_directory(chosen.dir) as directory:
        report = Report(f"console, {chosen.rows:,} pending", _ESTIMATE, directory)
        report.begin()
        needed_gib = min(8.0, 1 + chosen.rows * 300 / 1e9)
        warm_memory(needed_gib if chosen.warm_gib is None else chosen.warm_gib)
        data = directory / "data"
        with BenchNode(data, "--tail-age", "5s", "--http", "127.0.0.1:0") as node:
            bench = _Bench(report, node)
            bench.fill(chosen.rows)
            with chromium() as browser:
                bench.pages(browser, chosen.times)
                bench.cancel(browser)
        report.end(chosen.json)
    return 0


@dataclass
class _Bench:
    report: Report
    node: BenchNode
    paints: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        found = _LISTENING.search(self.node.log())
        assert found is not None, "the gateway does not listen"
        return f"http://{found[1]}"

    def fill(self, rows: int) -> None:
        generator = np.random.default_rng(3)
        start_ms = time.time_ns() // 1_000_000 + _LEAD_MS + rows // _LEAD_ROWS_MS
        topics = pa.array([f"later-{n % _TOPICS}" for n in range(_BATCH_ROWS)])
        value = pa.array([b'{"order": 4711, "kind": "reminder", "attempt": 1}'] * _BATCH_ROWS)
        with Client(self.node.address, batch_rows=_BATCH_ROWS) as client:
            for first in range(0, rows, _BATCH_ROWS):
                many = min(_BATCH_ROWS, rows - first)
                due = pa.array(generator.integers(0, _SPAN_MS, many) + start_ms)
                keys = pa.array([b"key-%d" % n for n in range(first, first + many)])
                columns = [due, topics.slice(0, many), keys, value.slice(0, many)]
                names = ["due", "topic", "key", "value"]
                client.send_table(pa.RecordBatch.from_arrays(columns, names=names))
            client.flush()
            deadline = time.monotonic() + _SPILL_S
            while client.status()["tail_rows"]:
                if time.monotonic() > deadline:
                    raise RuntimeError("the messages were not spilled")
                time.sleep(0.2)

    def pages(self, browser: Browser, times: int) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as http:
            found = http.get("/v1/messages", params={"limit": 1}).json()["messages"][0]
            pending = http.get("/v1/messages/count").json()["messages"]
        if not pending:
            raise RuntimeError("nothing waits")
        one = quote(found["id"])
        pages = {
            "overview": "",
            "pending": "/pending",
            "pending by topic": "/pending?topic=later-3",
            "pending by key": f"/pending?key={found['key']}",
            "cancel many": "/pending/cancel?topic=later-3",
            "message": f"/message?id={one}",
            "cancel one": f"/message/cancel?id={one}",
            "reschedule": f"/message/reschedule?id={one}&due=%2B10m",
            "dead letters": "/dead",
            "jobs": "/jobs",
            "schedules": "/schedules",
            "node": "/node",
        }
        for name, path in pages.items():
            seen = [self._opened(browser, path) for _ in range(times)]
            paints, answers, wholes = zip(*seen, strict=True)
            paint, _ = median_spread(paints)
            answer, _ = median_spread(answers)
            whole, _ = median_spread(wholes)
            text = f"{paint:.0f} ({max(paints):.0f} at most), answer {answer:.0f}, all {whole:.0f}"
            self.report.figure(f"{name}: first paint, ms", paint, text, f"<= {_GOAL_MS:.0f}")

    def _opened(self, browser: Browser, path: str) -> tuple[float, float, float]:
        """First paint, answer and the last part, ms from the start of the navigation."""
        from support.browsing import WIDE, settle

        context = browser.new_context(viewport=WIDE)
        page = context.new_page()
        try:
            page.goto("about:blank")
            page.goto(f"{self.url}/console{path}")
            settle(page)
            whole = float(page.evaluate("performance.now()"))
            if page.get_by_role("alert").count():
                raise RuntimeError(f"{path}: {page.get_by_role('alert').first.inner_text()}")
            return _painted(page), float(page.evaluate(_ANSWER)), whole
        finally:
            context.close()

    def cancel(self, browser: Browser) -> None:
        from support.browsing import WIDE, settle

        page = browser.new_page(viewport=WIDE)
        begun = time.perf_counter()
        page.goto(f"{self.url}/console/pending/cancel?topic=later-3&due_to=%2B15m")
        settle(page)
        number = page.locator("label strong")
        if number.count():
            count = int(number.inner_text())
            page.get_by_label("To cancel them, type their number").fill(str(count))
            page.get_by_role("button", name="Cancel").click()
            page.wait_for_url("**/console/job?*")
            job = page.url.rpartition("=")[2]
            with httpx.Client(base_url=self.url, timeout=60) as http:
                while (report := http.get(f"/v1/jobs/{job}").json())["state"] == "running":
                    time.sleep(0.2)
            if report["state"] != "done" or sum(report["summary"]["answers"].values()) > count:
                raise RuntimeError(f"{count} were to be cancelled: {report}")
            took = time.perf_counter() - begun
            self.report.figure(f"cancel of {count:,} by the pages, s", took, f"{took:.1f}")


def _painted(page: Page) -> float:
    for _ in range(100):
        if found := float(page.evaluate(_PAINT)):
            return found
        page.wait_for_timeout(20)
    raise RuntimeError("nothing was painted")


if __name__ == "__main__":
    sys.exit(main())
