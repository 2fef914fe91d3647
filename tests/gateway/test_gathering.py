"""Messages of many requests: none fails for another one, and room is given back in each case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from slotwheel import Client, Message, NotRunning, Overloaded, SlotwheelError
from slotwheel.client.addresses import Addresses
from slotwheel.client.asynclink import AsyncLink
from slotwheel.client.batch import PLAIN_BYTES_MAX, Shipment
from slotwheel.client.link import WireTransport
from slotwheel.client.message import FlatMessage, flatten
from slotwheel.gateway.gathering import Gatherer, Room
from slotwheel.wheel.config import WheelConfig
from slotwheel.wire.pool import Pool
from support.fakewheel import FakeWheel
from support.served import ServedIntake

LARGE = PLAIN_BYTES_MAX + 1


class Observer:
    """Notes topics, whether they are stored, and of others whether they may be."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool, bool]] = []

    def shipped(self, shipment: Shipment, content: Any, kept: Any) -> None:
        assert kept is None
        topics = content[1] if isinstance(content, tuple) else content.column("topic").to_pylist()
        stored = shipment.stored is not None
        in_doubt = not stored and shipment.batch is not None and shipment.batch.tries.in_doubt
        self.seen += [(topic, stored, in_doubt) for topic in topics]


def flat(value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> FlatMessage:
    return flatten(Message("t", value, headers=headers, delay=60))


@asynccontextmanager
async def gathering(
    address: str, observer: Observer | None = None, bytes_max: int = 64 << 20
) -> AsyncIterator[tuple[Gatherer, AsyncLink]]:
    pool = Pool(2, "test")
    ask = WireTransport().epoch_of_master
    link = AsyncLink(Addresses(address), "all", 10.0, ask, pool, observer=observer)
    with Client(address, timeout_s=10, observer=observer) as client:
        yield Gatherer(client, link, Room(bytes_max)), link
        await link.close()
    pool.close()


def test_only_the_message_at_fault_fails_whichever_way_it_leaves() -> None:
    """The node takes smaller messages than any other; that is not known before its first answer."""
    wheel = FakeWheel(config=WheelConfig(message_bytes_max=100_000))
    sizes = [10, 1_000, LARGE, 150_000, 20, LARGE]
    many = [("", b"")] * 70_000  # more headers than a plain row can say
    flats = [*(flat(b"x" * size) for size in sizes), flat(b"many", many)]
    observer = Observer()

    async def test() -> None:
        async with gathering(f"127.0.0.1:{server.port}", observer) as (gatherer, _):
            futures = [gatherer.store(one) for one in flats]
            assert gatherer.room.nbytes > sum(sizes)
            found = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(found.pop(3), SlotwheelError)
            assert all(isinstance(one, str) for one in found), found
            assert len(set(found)) == len(found)
            assert gatherer.room.nbytes == 0
            assert gatherer.messages >= len(flats)

    with closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        asyncio.run(test())
    expected = [b"x" * size for size in sizes if size != 150_000]
    assert sorted(wheel.values()) == sorted([*expected, b"many"])
    assert sorted(stored for _, stored, _ in observer.seen) == [False] + [True] * 6


def test_room_is_given_back_when_nobody_awaits_the_answer_and_when_the_link_ends() -> None:
    wheel = FakeWheel()
    observer = Observer()

    async def test() -> None:
        address = f"127.0.0.1:{server.port}"
        size = flat(b"a").nbytes + 200
        async with gathering(address, observer, bytes_max=2 * size) as (gatherer, link):
            gone = gatherer.store(flat(b"a"))
            gone.cancel()
            kept = gatherer.store(flat(b"b"))
            with pytest.raises(Overloaded, match="wait to be stored"):
                gatherer.store(flat(b"c"))
            await kept
            assert gatherer.room.nbytes == 0
            late = gatherer.store(flat(b"d"))
            link.end()
            with pytest.raises(NotRunning):
                await late
            with pytest.raises(NotRunning):
                gatherer.store(flat(b"e"))
            assert gatherer.room.nbytes == 0

    with closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        asyncio.run(test())
    assert sorted(wheel.values()) == [b"a", b"b"]
    assert observer.seen == [("t", True, False)] * 2


def test_observers_hear_of_what_may_be_stored() -> None:
    """A request that is under way when the link ends."""
    wheel = FakeWheel()
    observer = Observer()

    async def test() -> None:
        async with gathering(f"127.0.0.1:{server.port}", observer) as (gatherer, link):
            await gatherer.store(flat(b"a"))
            late = gatherer.store(flat(b"b"))
            while link.messages < 2:
                await asyncio.sleep(0)
            link.end()
            with pytest.raises(NotRunning) as failed:
                await late
            assert failed.value.uncertain

    with closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        asyncio.run(test())
    assert observer.seen == [("t", True, False), ("t", False, True)]
