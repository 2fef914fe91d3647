"""A node with a gateway beside it, both as processes of their own, and HTTP to talk to it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Self

import httpx

from support.nodeprocess import START_S, NodeProcess

_LISTENING = re.compile(r"gateway listening on ([\w.\[\]:]+:\d+)")


class NodeWithGateway(NodeProcess):
    """``url``: of the gateway, which has the node's metrics, too; ``http``: a client of it."""

    def __init__(self, data: Path, *options: str, **variables: str) -> None:
        super().__init__(data, "--http", "127.0.0.1:0", *options, **variables)
        self.url = ""
        self.http = httpx.Client(timeout=60)

    def start(self, *, wait: bool = True) -> Self:
        super().start(wait=wait)
        if wait:
            self.metrics = self._wait_for_the_gateway()
            self.url = f"http://{self.metrics}"
            self.http.base_url = httpx.URL(self.url)
        return self

    def command(self) -> list[str]:
        """Without a server of its own for metrics: the gateway has them."""
        command = super().command()
        at = command.index("--metrics")
        return command[:at] + command[at + 2 :]

    def _wait_for_the_gateway(self) -> str:
        deadline = time.monotonic() + START_S
        while True:
            text = self.log.read_bytes()[self._seen :].decode()
            found = _LISTENING.search(text)
            if found and "\n" in text[found.end() :]:
                return found[1]
            assert self.running.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.02)

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self.http.request(method, path, **request)

    def __exit__(self, *_: object) -> None:
        self.http.close()
        super().__exit__(*_)
