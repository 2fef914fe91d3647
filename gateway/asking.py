"""Questions to a process beside the gateway's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ..aside.process import AsideEnded
from ..wheel.errors import Overloaded

WAITING_MAX = 16

T = TypeVar("T")


class Questions:
    """They wait for each other there, so few of them may. Belongs to one event loop."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._waiting = 0

    async def ask(self, question: Callable[[], Future[T]]) -> T:
        """Errors: ``Overloaded``; ``NotRunning``: the process ended twice; the question's own."""
        if self._waiting >= self._waiting_max:
            raise Overloaded(
                "as many questions wait for an answer as may",
                got=self._waiting,
                limit=self._waiting_max,
                remedy="Ask again in a moment",
            )
        self._waiting += 1
        try:
            try:
                return await asyncio.wrap_future(question())
            except AsideEnded:  # another one is started for the next question
                return await asyncio.wrap_future(question())
        finally:
            self._waiting -= 1
