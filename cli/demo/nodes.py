"""The demo's nodes: child processes, each ended by its own process id only."""

from __future__ import annotations

import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...delivery.semantics import EXACTLY_ONCE
from ...wheel.errors import NodeUnreachable
from .secured import HOST, Secured

FLEET_FILE = "fleet.toml"
_PORTS = (12_000, 32_000)
_STOP_MAX_S = 10.0
_GATEWAY = re.compile(r"gateway listening on (\S+:\d+)")
_FILES = ("--retain", "1GiB", "--tail-age", "10s")
"""Delivered messages are kept, so that `slotwheel replay` can prove the run once more; those that
are due later are in slot files at the end, to be looked at, and not after ten minutes."""


def names_of(count: int) -> str:
    """The names of so many peers, a letter each; empty for a node alone."""
    return "abcdefg"[:count] if count > 1 else ""


def make_nodes(directory: Path, count: int, secured: Secured | None) -> dict[str, NodeProcess]:
    """Nodes by their names: one on ``directory`` itself, which delivers exactly once, or peers with
    a folder each in it. ``secured``: the files by which they prove themselves; None: without
    TLS."""
    names, addresses = names_of(count), free_addresses(count)
    own = () if secured is None else secured.node_options()
    if not names:
        return {"node": NodeProcess(directory, addresses[0], "--delivery", EXACTLY_ONCE, *own)}
    # With TLS peers meet at addresses of their own, which no client can use.
    meet = addresses if secured is None else free_addresses(count, addresses)
    peers = [
        word
        for name, address in zip(names, meet, strict=True)
        for word in ("--peer", f"{name}={address}")
    ]
    nodes = {}
    for name, address in zip(names, addresses, strict=True):
        proof = () if secured is None else secured.peer_options(name)
        options = ("--node-id", name, *peers, *own, *proof)
        nodes[name] = NodeProcess(directory / name, address, *options)
    return nodes


def make_wheels(directory: Path, count: int) -> dict[str, NodeProcess]:
    """The wheels of a fleet by their names, each a node alone, which delivers exactly once, with a
    folder in ``directory``; the fleet's file is beside these."""
    names = [f"w{number}" for number in range(1, count + 1)]
    wheels = dict(zip(names, free_addresses(count), strict=True))
    lines = [f'{name} = "{address}"\n' for name, address in wheels.items()]
    (directory / FLEET_FILE).write_text("".join(["[wheels]\n", *lines]))
    own = ("--delivery", EXACTLY_ONCE)
    return {
        name: NodeProcess(directory / name, address, "--group", name, *own)
        for name, address in wheels.items()
    }


class NodeProcess:
    """A node on ``data``, with embedded topics; its log is ``node.log`` there."""

    def __init__(self, data: Path, address: str, *options: str) -> None:
        self.data = data
        self.address = address
        self._options = (*options, *_FILES, "--metrics", "off")
        self._log = data / "node.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self, *more: str) -> None:
        """Start the node, on the same port each time, and do not wait. ``more``: options for this
        start only."""
        command = [sys.executable, "-m", "slotwheel.cli.main", "node", "--data", str(self.data)]
        command += ["--listen", self.address, *self._options, *more]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTWHEEL_")}
        self.data.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean
            )

    def ready(self) -> bool:
        """Returns True when it accepts messages. Errors: ``NodeUnreachable``: it has ended."""
        assert self._child is not None
        text = self._log_text()
        if "listening on " in text:
            return True
        if self._child.poll() is not None:
            raise NodeUnreachable(
                f"the node ended with code {self._child.returncode}",
                remedy=f"Its log is {self._log}; the last line: {text.strip()[-300:]}",
            )
        return False

    def gateway(self) -> str:
        """The address of the gateway that was started with the node; empty: it is not ready."""
        match = _GATEWAY.search(self._log_text())
        return match[1] if match else ""

    def _log_text(self) -> str:
        return self._log.read_bytes()[self._log_start :].decode("utf-8", "replace")

    def kill(self) -> int:
        """End the node with SIGKILL. Returns its process id."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()
        return self._child.pid

    def stop(self) -> int:
        """End the node with SIGTERM, and SIGKILL if it takes too long. Returns the exit code."""
        if self._child is None:
            return 0
        self._child.terminate()
        try:
            self._child.wait(_STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.kill()
        return self._child.returncode


def free_addresses(count: int, taken: Sequence[str] = ()) -> list[str]:
    """Free addresses below the range of ports for outgoing connections, none of those in ``taken``.
    A client that tries a dead node's port in that range again and again can get this very port, and
    connect to itself."""
    addresses: list[str] = []
    while len(addresses) < count:
        address = (HOST, random.randrange(*_PORTS))
        with suppress(OSError), socket.socket() as probe:
            probe.bind(address)
            if (text := "{}:{}".format(*address)) not in (*addresses, *taken):
                addresses.append(text)
    return addresses
