"""Turns of the gateway's loop: of each party a piece in each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import uvloop

from slotwheel.gateway.turns import Turns
from support.httpserved import served_http


def test_a_turn_does_a_piece_of_each_party_in_its_order() -> None:
    done: list[str] = []

    async def test() -> None:
        turns = Turns()
        for name in ("a0", "a1", "b0", "a2"):
            turns.take(name[0], partial(done.append, name))
        assert done == ["a0", "b0"]
        await asyncio.sleep(0)
        assert done == ["a0", "b0", "a1"]
        turns.take("a", partial(done.append, "a3"))
        turns.take("b", partial(done.append, "b1"))
        assert done == ["a0", "b0", "a1", "b1"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == ["a0", "b0", "a1", "b1", "a2", "a3"]
        await asyncio.sleep(0)
        turns.take("a", partial(done.append, "a4"))
        assert done[-1] == "a4"

    asyncio.run(test())


class Told(Turns):
    def __init__(self) -> None:
        super().__init__()
        self.parties: list[str] = []

    def take(self, party: str, do: Callable[[], None]) -> None:
        self.parties.append(party)
        super().take(party, do)


def test_requests_of_one_address_are_one_party() -> None:
    """As long as nobody knows who calls."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def test() -> None:
        async with served_http(app) as (server, port):
            server.turns = told = Told()
            for host in ("127.0.0.2", "127.0.0.1", "127.0.0.2"):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(host, 0)
                )
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert (await reader.readline()).split()[1] == b"204"
                writer.close()
            assert told.parties == ["127.0.0.2", "127.0.0.1", "127.0.0.2"]

    uvloop.run(test())
