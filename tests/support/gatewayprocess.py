"""A gateway as a process, before a node or beside it, and HTTP to talk to it."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import psutil

from support import forkserver
from support.nodeprocess import NodeProcess, command_line, environment
from support.waiting import PATIENCE_S, eventually

_LISTENING = re.compile(r"gateway listening on ([\w.\[\]:]+:\d+)")
_numbers = itertools.count()
_WITH_LIMITS = """
import dataclasses, json, sys
from slotwheel.cli.main import main
from slotwheel.gateway import server
limits, run = json.loads(sys.argv[1]), server.run
server.run = lambda settings: run(dataclasses.replace(settings, **limits))
main(["gateway", *sys.argv[2:]])
"""
"""The command, with settings that it has no options for."""


class GatewayProcess:
    """Runs ``slotwheel gateway`` before ``node``; ready when the ``with`` block is entered.
    ``beside``: with the node's data directory. ``ca``: the authority of the certificate that the
    options give it; None: it has no TLS. ``limits``: fields of ``GatewaySettings`` that have no
    option of their own."""

    def __init__(
        self,
        node: NodeProcess,
        *options: str,
        beside: bool = True,
        ca: Path | None = None,
        **limits: float,
    ) -> None:
        self.node = node
        self._ca = ca
        self._beside = beside
        self.log = node.data.with_name(f"{node.data.name}.gateway{next(_numbers)}.log")
        self._options = options
        self._limits = limits
        self.address = ""
        self.http = httpx.Client()
        self._process: forkserver.Process | None = None

    def command(self) -> list[str]:
        given = [
            *("--listen", "127.0.0.1:0", "--node", self.node.address),
            *(("--data", str(self.node.data)) if self._beside else ()),
            *self._options,
        ]
        if not self._limits:
            return command_line("gateway", *given)
        return [sys.executable, "-c", _WITH_LIMITS, json.dumps(self._limits), *given]

    @property
    def url(self) -> str:
        return f"{'http' if self._ca is None else 'https'}://{self.address}"

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def rss_mb(self) -> float:
        return float(self.process.memory_info().rss) / 1e6

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.http.request(method, path, **more)

    def get(self, path: str, **more: Any) -> Any:
        """The body of an answer 200, as JSON."""
        answer = self.request("GET", path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, **message: Any) -> str:
        """Store one message; its id."""
        answer = self.request("POST", "/v1/messages", json=message)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def connect(self) -> socket.socket:
        split = urlsplit(self.url)
        return socket.create_connection((split.hostname, split.port), 30)

    def log_text(self) -> str:
        return self.log.read_text()

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = forkserver.start(self.command(), subprocess.DEVNULL, log, environment())
        found = eventually(self._listening, PATIENCE_S, otherwise=self.log_text)
        assert found
        verify = self._ca is None or ssl.create_default_context(cafile=self._ca)
        self.http = httpx.Client(base_url=self.url, timeout=30, verify=verify)
        return self

    def _listening(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_text()
        found = _LISTENING.search(self.log_text())
        self.address = found[1] if found else ""
        return found is not None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self.http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)


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
        return str(eventually(lambda: self._listening(0), PATIENCE_S, otherwise=self.log_text))

    def _listening(self, before: int) -> str:
        """Where the gateway listens that comes after ``before`` others; empty: not yet."""
        assert self.running.poll() is None, self.log_text()
        found = _LISTENING.findall(self.log.read_bytes()[self._seen :].decode())
        return found[-1] if len(found) > before else ""

    @property
    def gateway(self) -> psutil.Process:
        """The gateway's process."""
        (found,) = psutil.Process(self.running.pid).children()
        return found

    def kill_gateway(self) -> None:
        """Kill it, and wait for the next one."""
        found = _LISTENING.findall(self.log.read_bytes()[self._seen :].decode())
        self.gateway.kill()
        self.metrics = eventually(lambda: self._listening(len(found)), PATIENCE_S)
        self.url = f"http://{self.metrics}"
        self.http.base_url = httpx.URL(self.url)

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self.http.request(method, path, **request)

    def __exit__(self, *_: object) -> None:
        self.http.close()
        super().__exit__(*_)


def ask(
    node: NodeWithGateway,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """One request on a connection of its own. ``body``: bytes, or what becomes JSON."""
    plain = body is None or isinstance(body, bytes | str)
    more = {"content" if plain else "json": body}
    # Without the authorities' certificates, which take 20 ms to load: nothing here is encrypted.
    more["verify"] = False
    return httpx.request(method, node.url + path, headers=headers, timeout=60, **more)
