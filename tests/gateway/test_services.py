"""What many requests ask at once is asked once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from slotwheel import NodeUnreachable
from slotwheel.gateway.services import SingleFlight


def test_who_asks_while_a_call_runs_gets_its_result() -> None:
    go = threading.Event()
    calls: list[int] = []

    def answer() -> int:
        calls.append(1)
        assert go.wait(60)
        return len(calls)

    async def ask(pool: ThreadPoolExecutor) -> None:
        flight = SingleFlight(pool, answer)
        asked = [asyncio.ensure_future(flight()) for _ in range(50)]
        await asyncio.sleep(0)
        asked[0].cancel()  # who asked first is gone
        go.set()
        assert await asyncio.gather(*asked[1:]) == [1] * 49
        assert await flight() == 2

    with ThreadPoolExecutor(4) as pool:
        asyncio.run(ask(pool))


def test_an_error_is_raised_for_each_and_the_next_one_asks_again() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise NodeUnreachable("away")

    async def ask(pool: ThreadPoolExecutor) -> None:
        flight = SingleFlight(pool, fail)
        errors = await asyncio.gather(*(flight() for _ in range(9)), return_exceptions=True)
        assert {str(error) for error in errors} == {"away"}
        assert len({id(error) for error in errors}) == 9
        assert len(calls) == 1
        await asyncio.gather(flight(), return_exceptions=True)
        assert len(calls) == 2

    with ThreadPoolExecutor(4) as pool:
        asyncio.run(ask(pool))
