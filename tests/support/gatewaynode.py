"""A node with a gateway beside it, and requests to it."""

from __future__ import annotations

import json
import re
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from support.nodeprocess import NodeProcess, command_line

_LISTENING = re.compile(r"gateway listening on ([\w.\[\]:]+):(\d+)")
_START_S = 60.0


class HttpReply(NamedTuple):
    """An answer of the gateway."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class GatewayNode(NodeProcess):
    """Runs ``slotwheel node --http`` on ``data``."""

    def __init__(self, data: Path, *options: str) -> None:
        super().__init__(data, *options)
        self.host, self.port = "", 0

    def command(self) -> list[str]:
        own = ["--data", str(self.data), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        return command_line("node", *own, *self._options)

    def wait_until_it_listens(self) -> None:
        super().wait_until_it_listens()
        self.wait_for_gateway()

    def wait_for_gateway(self, after: int = 0) -> None:
        """Wait until a gateway listens that has not been seen yet. ``after``: how many there were
        before."""
        deadline = time.monotonic() + _START_S
        while len(found := self._listening()) <= after:
            assert self.running.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.02)
        self.host, self.port = found[-1][0], int(found[-1][1])

    def _listening(self) -> list[tuple[str, str]]:
        return _LISTENING.findall(self.log.read_text()[self._seen :])

    @property
    def gateways(self) -> int:
        """How many gateways have listened beside this process of the node."""
        return len(self._listening())

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def gateway(self) -> psutil.Process:
        """The gateway's process."""
        (found,) = psutil.Process(self.running.pid).children()
        return found

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> HttpReply:
        """One request. ``body``: bytes, or what becomes JSON."""
        return ask(self.host, self.port, method, path, body, headers)


def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> HttpReply:
    given = dict(headers or {})
    if body is not None and not isinstance(body, bytes | str):
        body = json.dumps(body).encode()
        given.setdefault("Content-Type", "application/json")
    connection = HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        headers_of = {name.lower(): value for name, value in answer.getheaders()}
        return HttpReply(answer.status, headers_of, answer.read())
    finally:
        connection.close()
