"""Pages with programs are run as they stand: each program, each command, and what it should print.

Only the addresses are others, so that a broker or a node of the user's is left alone.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from support.broker import Cluster, jars
from support.java import SHORT_LIVED
from support.pagesession import Session, blocks
from support.ports import free_address

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LASTS = "slotwheel node"
"""A command that runs until the end of the page."""
BOOTSTRAP = 'bootstrap="localhost:9092"'


@pytest.mark.parametrize(("page", "commands_min"), [("consuming.md", 9), ("languages.md", 6)])
def test_the_page_runs_as_written(
    page: str,
    commands_min: int,
    own_broker: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, gateway = free_address(), free_address()
    found = blocks(ROOT / "docs" / page)
    ran = 0
    monkeypatch.setenv("SLOTWHEEL_NODE", node)
    (tmp_path / "libs").symlink_to(jars())
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(SHORT_LIVED))
    with ExitStack() as stack:
        for number, (kind, written) in enumerate(found):
            text = written
            if kind == "python":  # they find the node where it is by default
                text = text.replace(BOOTSTRAP, f'{BOOTSTRAP}, wheel="{node}"')
            text = text.replace("localhost:9092", own_broker.bootstrap)
            text = text.replace("127.0.0.1:8082", gateway)
            if kind in ("python", "toml", "java"):
                (
                    tmp_path / text.split("\n", 1)[0].removeprefix("# ").removeprefix("// ")
                ).write_text(text)
                continue
            if kind != "sh":
                assert kind == "text", kind
                continue
            ran += 1
            expected = found[number + 1] if number + 1 < len(found) else ("", "")
            lines = []
            if expected[0] == "text":
                wanted = expected[1].replace("127.0.0.1:7200", node)
                lines = [line for line in wanted.splitlines() if line]
            commands = text.replace(LASTS, f"{LASTS} --listen {node} --metrics off")
            session = Session(commands, tmp_path)
            stack.callback(session.stop)
            session.expect(lines)
            if LASTS not in commands:
                session.end(interrupt=bool(lines))
        if page == "consuming.md":
            readme = next(text for _, text in blocks(README) if "def charge" in text)
            for written, there in {
                "broker:9092": own_broker.bootstrap,
                '"orders", "billing"': '"readme", "reader"',
                "retry=": f'wheel="{node}", retry=',
            }.items():
                assert written in readme
                readme = readme.replace(written, there)
            (tmp_path / "readme.py").write_text(readme)
            own_broker.create_topic("readme")
            session = Session("slotwheel send readme cake --delay 1\npython -u readme.py", tmp_path)
            stack.callback(session.stop)
            session.expect(["b'cake' attempt 1", "b'cake' attempt 2 ConnectionError: the bank"])
            session.end(interrupt=True)
    assert ran >= commands_min, "the page has lost its commands"
