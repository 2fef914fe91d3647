"""Makes docs/console.png: the console's first page, of a node with messages made for it.

cd tests && python -m support.consolepicture
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from support.broker import ROOT
from support.browsing import chromium, settle
from support.consoledata import fill
from support.gatewayprocess import NodeWithGateway
from support.waiting import eventually

_WAITING, _DELIVERED = 250_000, 20_000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, NodeWithGateway(Path(folder) / "data") as node:
        for part in range(10):
            fill(node.address, _WAITING // 10, _DELIVERED // 10, seed=part)
        eventually(lambda: node.ask("GET", "/v1/status").json()["delivered"] == _DELIVERED)
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.goto(f"{node.url}/console")
            settle(page)
            page.screenshot(path=ROOT / "docs" / "console.png")
        node.signal()
    return 0


if __name__ == "__main__":
    sys.exit(main())
