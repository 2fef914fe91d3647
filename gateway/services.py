"""What the gateway's routes work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from ..client import Client
from .gathering import Gatherer
from .metrics import GatewayMetrics
from .settings import GatewaySettings

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Services:
    """``client``: of the group, it follows the master. ``own``: of the node beside the gateway."""

    settings: GatewaySettings
    client: Client
    own: Client
    gatherer: Gatherer
    metrics: GatewayMetrics
    pool: ThreadPoolExecutor
    closing: ExitStack
    """What the routes have open; it is closed when the gateway ends."""

    async def run(self, function: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """What waits, on a thread, so that the loop does not. Errors: those of ``function``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: function(*args, **named))
