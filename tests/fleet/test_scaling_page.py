"""docs/scaling.md runs as it stands, but for the addresses."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from support.pagesession import Session, blocks
from support.ports import free_address

PAGE = Path(__file__).resolve().parents[2] / "docs/scaling.md"
WRITTEN = [f"127.0.0.1:{port}" for port in (7210, 7220, 8210, 8220, 8230)]
STARTS = ("slotwheel node", "slotwheel gateway")


def test_the_page_runs_as_written(tmp_path: Path) -> None:
    addresses = {address: free_address() for address in WRITTEN}
    printed = ""
    with ExitStack() as stack:
        for kind, written in blocks(PAGE):
            text = written
            for address, free in addresses.items():
                text = text.replace(address, free)
            if kind == "python":
                (tmp_path / written.split("\n", 1)[0].removeprefix("# ")).write_text(text)
                continue
            if kind != "sh":
                assert kind == "text", kind
                continue
            session = Session(text, tmp_path)
            stack.callback(session.stop)
            if text.startswith(STARTS):
                session.expect([free for free in addresses.values() if free in text])
            else:
                session.end(interrupt=False)
                printed += session.printed
    assert "north" in printed
    assert "\ncancelled\n" in printed
    assert '"complete":true' in printed
