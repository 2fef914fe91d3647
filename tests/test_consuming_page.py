"""docs/consuming.md is run as it stands: each program, each command, and what it says they print.

Only the two addresses are others, so that a broker or a node of the user's is left alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from support.broker import Cluster
from support.ports import free_address
from support.waiting import eventually

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/consuming.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LASTS = "slotwheel node"
"""A command that runs until the end of the page."""
BOOTSTRAP = 'bootstrap="localhost:9092"'
PATIENCE_S = 90.0


class Session:
    """One block of commands, in a process group of its own."""

    def __init__(self, commands: str, directory: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.commands = commands
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._printed.append(line)

    @property
    def printed(self) -> str:
        return "".join(self._printed)

    def expect(self, lines: list[str]) -> None:
        """Wait until all lines were printed."""
        eventually(
            lambda: all(line in self.printed for line in lines) or self._ended_without(lines),
            PATIENCE_S,
            otherwise=lambda: f"{self.commands}\nexpected {lines}, printed:\n{self.printed}",
        )

    def _ended_without(self, lines: list[str]) -> bool:
        if self._process.poll() is not None:
            self._reader.join(10)
            assert all(line in self.printed for line in lines), (self.commands, self.printed)
        return False

    def end(self, *, interrupt: bool) -> None:
        """Wait for it; ``interrupt``: what runs until Ctrl-C gets it, and has to end in time."""
        if interrupt:
            time.sleep(0.3)
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(PATIENCE_S)
        self._reader.join(10)
        fine = (0, 130, -signal.SIGINT, 1) if interrupt else (0,)
        assert code in fine, (code, self.commands, self.printed)
        assert "defect" not in self.printed, self.printed

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(30)


def blocks() -> Iterator[tuple[str, str]]:
    yield from FENCE.findall(PAGE.read_text("utf-8"))


def test_the_page_runs_as_written(own_broker: Cluster, tmp_path: Path) -> None:
    node = free_address()
    found = list(blocks())
    ran = 0
    os.environ["SLOTWHEEL_NODE"] = node
    with ExitStack() as stack:
        stack.callback(os.environ.pop, "SLOTWHEEL_NODE")
        for number, (kind, written) in enumerate(found):
            text = written
            if kind == "python":  # they find the node where it is by default
                text = text.replace(BOOTSTRAP, f'{BOOTSTRAP}, wheel="{node}"')
            text = text.replace("localhost:9092", own_broker.bootstrap)
            if kind in ("python", "toml"):
                (tmp_path / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)
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
    assert ran > 8, "the page has lost its commands"
