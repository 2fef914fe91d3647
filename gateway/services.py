"""What the gateway's routes work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from ..client import Client
from .gathering import Gatherer
from .jobs import Jobs
from .metrics import GatewayMetrics
from .searcher import Searcher
from .settings import GatewaySettings

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Services:
    """``client``: of the group, it follows the master. ``own``: of the node beside the gateway.
    ``searcher``: None without a data directory."""

    settings: GatewaySettings
    client: Client
    own: Client
    gatherer: Gatherer
    metrics: GatewayMetrics
    pool: ThreadPoolExecutor
    jobs: Jobs
    searcher: Searcher | None

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """What waits, on a thread, so that the loop does not. Errors: those of ``function``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: function(*args, **named))
