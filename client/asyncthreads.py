"""Lets an event loop await calls that block.

The calls have threads of their own: a program may fill its loop's executor with work that lasts for
hours, and each message would wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

from ..wire.pool import Pool

P = ParamSpec("P")
R = TypeVar("R")


def in_pool(
    pool: Pool | Executor, call: Callable[P, R], *given: P.args, **named: P.kwargs
) -> asyncio.Future[R]:
    """Call in a thread of ``pool``. The future gets the result or the error. A call that nobody
    awaits any more goes on to its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def settle(take: Callable[[Any], None], outcome: object) -> None:
        def do() -> None:
            if not future.done():
                take(outcome)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(do)

    def carry_out() -> None:
        try:
            result = call(*given, **named)
        except BaseException as error:
            settle(future.set_exception, error)
        else:
            settle(future.set_result, result)

    pool.submit(carry_out)
    return future
