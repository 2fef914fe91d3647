"""What the gateway's routes work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from ..client import Client
from ..wheel.errors import Overloaded
from .gathering import Gatherer
from .jobs import Jobs
from .metrics import GatewayMetrics
from .searcher import Searcher
from .settings import GatewaySettings

P = ParamSpec("P")
R = TypeVar("R")


class OneByOne:
    """Calls that take processor time: one at a time on ``pool``, and few that wait. Belongs to one
    event loop."""

    def __init__(self, pool: ThreadPoolExecutor, waiting_max: int = 8) -> None:
        self._pool = pool
        self._waiting_max = waiting_max
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """Errors: ``Overloaded``: too many wait; those of ``function``."""
        if self._waiting >= self._waiting_max:
            raise Overloaded(
                "as many requests of this kind wait as may",
                got=self._waiting,
                limit=self._waiting_max,
                remedy="Ask again in a moment",
            )
        self._waiting += 1
        try:
            async with self._turn:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._pool, lambda: function(*args, **named))
        finally:
            self._waiting -= 1


@dataclass(slots=True)
class Services:
    """``client``: of the group, it follows the master. ``own``: of the node beside the gateway.
    ``letters``: for reading dead
    letters. ``searcher``: None without a data directory."""

    settings: GatewaySettings
    client: Client
    own: Client
    gatherer: Gatherer
    metrics: GatewayMetrics
    pool: ThreadPoolExecutor
    jobs: Jobs
    letters: OneByOne
    searcher: Searcher | None
    closing: ExitStack
    """What the routes have open; it is closed when the gateway ends."""

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """What waits, on a thread, so that the loop does not. Errors: those of ``function``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: function(*args, **named))
