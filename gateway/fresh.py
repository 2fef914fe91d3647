"""Answers that several ask for at once, or again within a moment: worked out once.

Theory: a page that is open in ten browsers asks the same questions every few seconds. One of them
waits for the answer, and the others take the same, as long as it is young. Whoever cannot wait goes
away and asks again: the work goes on, and the answer is there then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

R = TypeVar("R")

YOUNG_S = 1.0


@dataclass(slots=True)
class _Asked:
    task: asyncio.Task[Any]
    ended_at: float | None = None


class FreshAnswers:
    """Belongs to one event loop."""

    def __init__(self, young_s: float = YOUNG_S) -> None:
        self._young_s = young_s
        self._asked: dict[Hashable, _Asked] = {}

    async def get(
        self, key: Hashable, make: Callable[[], Awaitable[R]], patience_s: float | None
    ) -> R | None:
        """The answer to ``key``; None: it was not there after ``patience_s``, and is worked on.
        Errors: those of ``make``, which are kept as answers are."""
        found = self._known(key)
        if found is None:
            found = _Asked(asyncio.ensure_future(_awaited(make)))
            self._asked[key] = found
            found.task.add_done_callback(lambda task: self._end(key, task))
        done, _ = await asyncio.wait([found.task], timeout=patience_s)
        return found.task.result() if done else None

    def forget(self) -> None:
        """Whoever asks next gets an answer that is worked out from then on."""
        self._asked.clear()

    def _known(self, key: Hashable) -> _Asked | None:
        old = asyncio.get_running_loop().time() - self._young_s
        ended = [k for k, v in self._asked.items() if v.ended_at is not None and v.ended_at < old]
        for one in ended:
            del self._asked[one]
        return self._asked.get(key)

    def _end(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # whoever asked may be gone
        if (found := self._asked.get(key)) is not None and found.task is task:
            found.ended_at = task.get_loop().time()


async def _awaited(make: Callable[[], Awaitable[R]]) -> R:
    return await make()
