"""A demo's node: a child process that is ended by its own process id and by no other means."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ..wheel.errors import NodeUnreachable

STEP_S = 0.05
START_MAX_S = 30.0


class NodeProcess:
    """A node on ``data``, with embedded topics; its log is ``node.log`` there. ``address``: where
    it listens; any free port if not given."""

    def __init__(self, data: Path, *options: str, address: str = "") -> None:
        self.data = data
        self.address = address
        self._options = options
        self._log = data / "node.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._seen = 0

    def start(self) -> None:
        """Start it; on the same port as before, if it ran before. Does not wait."""
        listen = self.address or "127.0.0.1:0"
        command = [sys.executable, "-m", "slotwheel.cli.main", "node", "--data", str(self.data)]
        command += ["--listen", listen, "--metrics", "off", *self._options]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTWHEEL_")}
        with self._log.open("ab") as log:
            self._seen = log.tell()
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean
            )

    def ready(self) -> bool:
        """Whether it takes messages. Errors: ``NodeUnreachable`` when it has ended."""
        assert self._child is not None
        text = self._log.read_bytes()[self._seen :].decode("utf-8", "replace")
        _, found, rest = text.partition("listening on ")
        if found and "\n" in rest:
            self.address = rest.split()[0]
            return True
        if self._child.poll() is not None:
            raise NodeUnreachable(
                f"the node ended with code {self._child.returncode}",
                remedy=f"Its log is {self._log}; the last line: {text.strip()[-300:]}",
            )
        return False

    def wait_ready(self) -> None:
        end = time.monotonic() + START_MAX_S
        while not self.ready():
            if time.monotonic() > end:
                raise NodeUnreachable(
                    f"the node did not start within {START_MAX_S:.0f} s",
                    remedy=f"Its log is {self._log}",
                )
            time.sleep(STEP_S)

    def kill(self) -> int:
        """SIGKILL; its process id."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()
        return self._child.pid

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that does not help; the exit code."""
        if self._child is None:
            return 0
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        return self._child.returncode
