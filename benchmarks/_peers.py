"""Nodes as subprocesses that are peers, on free ports of this machine."""

from __future__ import annotations

import random
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slotwheel.client import Client
from slotwheel.wheel.errors import SlotwheelError

from ._node import BenchNode

_WHOLE_S = 60.0
_PORTS = (12_000, 32_000)
"""Below the range that outgoing connections take their ports from."""


class BenchPeers:
    """``names`` on ``directory``; ready when there is a master and all others are admitted."""

    def __init__(self, directory: Path, *options: str, names: str = "abc") -> None:
        self._addresses = dict(zip(names, _free_addresses(len(names)), strict=True))
        every = [
            word for name, at in self._addresses.items() for word in ("--peer", f"{name}={at}")
        ]
        self.nodes = {
            name: BenchNode(directory / name, "--node-id", name, "--listen", at, *every, *options)
            for name, at in self._addresses.items()
        }
        self.address = ",".join(self._addresses.values())
        self.master = ""
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for node in self.nodes.values():
                starting.enter_context(node)
            self.wait_until_whole()
            self._closing = starting.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.close()

    @property
    def cpu_s(self) -> float:
        return sum(node.cpu_s for node in self.nodes.values())

    @property
    def master_cpu_s(self) -> float:
        return self.nodes[self.master].cpu_s

    @property
    def rss_max(self) -> int:
        """Of the largest of them."""
        return max(node.rss_max for node in self.nodes.values())

    def metrics(self) -> dict[str, float]:
        """The master's."""
        return self.nodes[self.master].metrics()

    def view(self) -> dict[str, Any]:
        """How the master sees the group; empty when there is none."""
        for name, address in self._addresses.items():
            with suppress(SlotwheelError), Client(address, timeout_s=2) as client:
                seen: dict[str, Any] = client.status().get("replication", {})
                if seen.get("role") == "master":
                    self.master = name
                    return seen
        return {}

    def wait_until_whole(self) -> None:
        deadline = time.monotonic() + _WHOLE_S
        while True:
            seen = self.view()
            others = [one for one in seen.get("peers", []) if one["id"] != self.master]
            ready = [one for one in others if one["admitted"] and one["state"] == "replicate"]
            if len(ready) == len(self.nodes) - 1:
                return
            if time.monotonic() > deadline:
                logs = "\n".join(node.log()[-1500:] for node in self.nodes.values())
                raise RuntimeError(f"the peers did not find each other: {seen}\n{logs}")
            time.sleep(0.1)


def _free_addresses(count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        host, port = "127.0.0.1", random.randrange(*_PORTS)
        with suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            if f"{host}:{port}" not in found:
                found.append(f"{host}:{port}")
    return found
