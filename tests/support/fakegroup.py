"""Peers of a group for tests of the client: fake wheels with one log behind real servers.

Each stands behind a proxy, so that a peer can die, fall silent and come back at its address.
"""

from __future__ import annotations

from typing import Any, Self

from support.served import ServedIntake

from .fakewheel import FakeWheel, Log
from .proxy import Proxy


class FakeGroup:
    """``count`` peers, the first of them is master. What one stores, all of them know."""

    def __init__(self, count: int = 3, *, commit_s: float = 0.0) -> None:
        self.log = Log()
        self.epoch = 0
        self.master: int | None = None
        self.asked = [0] * count
        """How often each was asked who is who: by every hello, status and refusal."""
        self.says: dict[int, str] = {}
        """What a peer names as the master's address, if not the truth."""
        self.wheels = [FakeWheel(log=self.log, commit_s=commit_s) for _ in range(count)]
        self.stepped_down: list[int] = []
        self.servers = [self._serve(number) for number in range(count)]
        self.proxies = [Proxy(server.port) for server in self.servers]
        self.addresses = [proxy.address for proxy in self.proxies]
        self.elect(0)

    @property
    def wheel(self) -> FakeWheel:
        """Any of them: rows are the same on all."""
        return self.wheels[0]

    def elect(self, number: int | None) -> None:
        """Make one the master, or none; the one before is deposed."""
        before, self.master = self.master, number
        self.epoch += number is not None
        for peer, wheel in enumerate(self.wheels):
            wheel.master = self._hint(peer)
            wheel.serving = peer == number
        if before is not None and before != number:
            self.servers[before].depose()

    def die(self, number: int) -> None:
        """As by SIGKILL, seen from outside."""
        self.proxies[number].refusing = True
        self.wheels[number].serving = False
        self.proxies[number].cut()

    def come_back(self, number: int) -> None:
        self.proxies[number].refusing = False

    def _serve(self, number: int) -> ServedIntake:
        return ServedIntake(
            self.wheels[number],
            "127.0.0.1:0",
            group=lambda: self._seen_by(number),
            step_down=lambda _timeout_s: self._step_down(number),
        )

    def _seen_by(self, number: int) -> dict[str, Any]:
        self.asked[number] += 1
        return {
            "role": "master" if number == self.master else "standby",
            "epoch": self.epoch,
            "master": None if self.master is None else f"n{self.master}",
            "master_address": self._hint(number) or None,
        }

    def _hint(self, number: int) -> str:
        truth = "" if self.master is None else self.addresses[self.master]
        return self.says.get(number, truth)

    def _step_down(self, number: int) -> bool:
        self.stepped_down.append(number)
        self.elect((number + 1) % len(self.wheels))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self.proxies:
            proxy.close()
        for server in self.servers:
            server.close(0.5)
