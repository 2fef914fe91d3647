"""The commands of a page of the documentation, run as they stand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from support.waiting import PATIENCE_S, eventually

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return _FENCE.findall(page.read_text("utf-8"))


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
            self._reader.join(60)
            assert all(line in self.printed for line in lines), (self.commands, self.printed)
        return False

    def end(self, *, interrupt: bool) -> None:
        """Wait for it; ``interrupt``: what runs until Ctrl-C gets it, and has to end in time."""
        if interrupt:
            time.sleep(0.3)
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(PATIENCE_S)
        self._reader.join(60)
        fine = (0, 130, -signal.SIGINT) if interrupt else (0,)
        assert code in fine, (code, self.commands, self.printed)
        assert "defect" not in self.printed, self.printed
        assert "Traceback" not in self.printed, self.printed

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(60)
