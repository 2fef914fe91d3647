"""Pages of the documentation run as they stand: each command, and what they say it prints.

Only the addresses are others, so that a node of the user's is left alone.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.pagesession import Session, blocks
from support.ports import free_address

DOCS = Path(__file__).resolve().parents[1] / "docs"
WRITTEN = "127.0.0.1:8082"
WITH_RIGHTS = "127.0.0.1:8083"
NODE, GATEWAY = "slotwheel node", "slotwheel gateway"
CLIENT = "Client()"
"""A program's client of the node that is there by default."""


@pytest.mark.parametrize(
    ("page", "commands_min"), [("http.md", 11), ("recipes.md", 5), ("schedules.md", 3)]
)
def test_the_page_runs_as_written(
    tmp_path: Path, page: str, commands_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    http, with_rights, node = free_address(), free_address(), free_address()
    monkeypatch.setenv("SLOTWHEEL_NODE", node)
    found = blocks(DOCS / page)
    ran = 0
    with ExitStack() as stack:
        for number, (kind, written) in enumerate(found):
            if kind == "python":
                name = written.split("\n", 1)[0].removeprefix("# ")
                assert CLIENT in written
                (tmp_path / name).write_text(written.replace(CLIENT, f'Client("{node}")'))
                continue
            if kind == "json":
                (tmp_path / f"{json.loads(written)['name']}.json").write_text(written)
                continue
            if kind != "sh":
                assert kind == "text", kind
                continue
            ran += 1
            commands = written.replace(WRITTEN, http).replace(WITH_RIGHTS, with_rights)
            commands = commands.replace(NODE, f"{NODE} --listen {node}")
            commands = commands.replace(GATEWAY, f"{GATEWAY} --node {node}")
            expected = found[number + 1] if number + 1 < len(found) else ("", "")
            lines = expected[1].splitlines() if expected[0] == "text" else []
            lines = [
                line.replace(WRITTEN, http).replace(WITH_RIGHTS, with_rights) for line in lines
            ]
            session = Session(commands, tmp_path)
            stack.callback(session.stop)
            session.expect(lines)
            if NODE not in commands and GATEWAY not in commands:
                session.end(interrupt=False)
    assert ran >= commands_min, "the page has lost its commands"
