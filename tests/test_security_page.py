"""docs/security.md is run as it stands: certificates by openssl, three peers, a client.

Only the address is another one of this machine, so that a node of the user's is left alone.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from support.pagesession import Session, blocks

PAGE = Path(__file__).resolve().parents[1] / "docs/security.md"
WRITTEN, OURS = "127.0.0.1", "127.0.77.1"
LASTS = "slotwheel node"


def test_the_page_runs_as_written(tmp_path: Path) -> None:
    found = [(kind, text.replace(WRITTEN, OURS)) for kind, text in blocks(PAGE)]
    ran = 0
    with ExitStack() as stack:
        for number, (kind, text) in enumerate(found):
            if kind == "python":
                (tmp_path / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)
            if kind != "sh":
                continue
            ran += 1
            expected = found[number + 1] if number + 1 < len(found) else ("", "")
            lines = expected[1].splitlines() if expected[0] == "text" else []
            lasts = LASTS in text
            session = Session(f"{text}\nwait" if lasts else text, tmp_path)
            stack.callback(session.stop)
            session.expect([f"listening on {OURS}:720{n}" for n in (1, 2, 3)] if lasts else lines)
            if not lasts:
                session.end(interrupt=False)
    assert ran == 4, "the page has lost its commands"
