"""Client processes of a server, as its users run them."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .server import Sender

_MOST_S = 900.0
_CONNECT_S = 60.0
Found = TypeVar("Found")
Load = Callable[[Sender, int], Found]
"""With its connection, and a number of its own, from 0."""


class Sends(Protocol):
    """What clients connect to; handed to their processes."""

    name: ClassVar[str]

    def sender(self) -> Sender: ...


@dataclass(frozen=True)
class Ran(Generic[Found]):
    """What the load returned for each connection, and the processor time of the clients."""

    found: list[Found]
    cpu_s: float


@dataclass(frozen=True)
class Clients:
    """``processes`` at once, each with so many ``threads``; a connection for each thread."""

    processes: int = 1
    threads: int = 1

    @property
    def connections(self) -> int:
        return self.processes * self.threads

    def run(self, server: Sends, call: Load[Found]) -> Ran[Found]:
        """Call the load for each connection once all are open."""
        context = multiprocessing.get_context("spawn")
        results: Any = context.Queue()
        ready: Any = context.Barrier(self.processes)
        started = [
            context.Process(
                target=_run,
                args=(server, call, number * self.threads, self.threads, ready, results),
                daemon=True,
            )
            for number in range(self.processes)
        ]
        for process in started:
            process.start()
        try:
            ran: list[Ran[Found]] = []
            deadline = time.monotonic() + _MOST_S
            while len(ran) < len(started):
                try:
                    ran.append(results.get(timeout=1.0))
                except queue.Empty:
                    codes = [process.exitcode for process in started]
                    if any(codes) or time.monotonic() > deadline:
                        told = f"a client of {server.name} failed: codes {codes}"
                        raise RuntimeError(told) from None
            for process in started:
                process.join(10)
        finally:
            for process in started:
                process.kill()
        return Ran([one for part in ran for one in part.found], sum(part.cpu_s for part in ran))


def _run(
    server: Sends, call: Load[Found], first: int, threads: int, ready: Any, results: Any
) -> None:
    senders = [server.sender() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        ready.wait(_CONNECT_S)
        begun_s = time.process_time()
        found = list(pool.map(call, senders, range(first, first + threads)))
        results.put(Ran(found, time.process_time() - begun_s))
    for sender in senders:
        sender.close()
