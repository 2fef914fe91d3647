"""Client processes of a server, as its users run them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .server import Sender, Server

_MOST_S = 900.0
Load = Callable[[Sender, int], float]
"""With its connection, and a number of its own, from 0."""


@dataclass(frozen=True)
class Clients:
    """``processes`` at once, each with so many ``threads``; a connection for each thread."""

    processes: int = 1
    threads: int = 1

    @property
    def connections(self) -> int:
        return self.processes * self.threads

    def run(self, server: Server, call: Load) -> float:
        """The sum of what ``call`` returns for each connection."""
        context = multiprocessing.get_context("spawn")
        result: Any = context.SimpleQueue()
        ready: Any = context.Barrier(self.processes)
        started = [
            context.Process(
                target=_run,
                args=(server, call, number * self.threads, self.threads, ready, result),
                daemon=True,
            )
            for number in range(self.processes)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(_MOST_S)
        codes = [process.exitcode for process in started]
        if codes != [0] * self.processes:
            for process in started:
                process.kill()
            raise RuntimeError(f"a client of {server.name} failed: codes {codes}")
        return sum(float(result.get()) for _ in started)


def _run(server: Server, call: Load, first: int, threads: int, ready: Any, result: Any) -> None:
    senders = [server.sender() for _ in range(threads)]
    ready.wait(60)
    with ThreadPoolExecutor(threads) as pool:
        result.put(sum(pool.map(call, senders, range(first, first + threads))))
    for sender in senders:
        sender.close()
