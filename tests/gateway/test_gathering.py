"""Requests that are joined: none waits longer for the others, and none fails for another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from typing import Any, cast

import pytest

from slotwheel import Client, InvalidBatch, Message, NodeUnreachable, SlotwheelError
from slotwheel.client.failures import CountedShipment, UnreadFailures
from slotwheel.client.message import FlatMessage, flatten
from slotwheel.client.receipts import Receipts
from slotwheel.gateway.gathering import Gatherer
from slotwheel.wheel.config import WheelConfig
from support.fakewheel import FakeWheel
from support.served import ServedIntake

ANSWER_S = 10.0


class Loop(asyncio.SelectorEventLoop):
    """Its clock can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class Held:
    """A client whose batches end when a test says so."""

    batch_limits = (100, 1 << 20)

    def __init__(self) -> None:
        self.shipped: list[tuple[list[bytes | None], float]] = []
        """Values, and how long they are tried."""
        self._ends: list[tuple[Callable[[Receipts], None], int]] = []

    def ship(
        self,
        flats: Sequence[FlatMessage],
        *,
        whole: bool,
        done: Callable[[Receipts], None],
        timeout_s: float,
    ) -> None:
        assert not whole
        self.shipped.append(([flat.value for flat in flats], timeout_s))
        self._ends.append((done, len(flats)))

    def end(self, error: SlotwheelError) -> None:
        """The oldest batch fails."""
        done, count = self._ends.pop(0)
        shipment = CountedShipment(0.0, lambda *_: None, UnreadFailures())
        shipment.due = [0] * count
        shipment.fail(error)
        done(Receipts([shipment]))


def flat(value: bytes) -> FlatMessage:
    return flatten(Message("t", value, delay=60))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Loop], Coroutine[Any, Any, None]]) -> None:
    loop = Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


def test_what_waits_behind_others_is_tried_for_what_is_left_of_its_time() -> None:
    async def test(loop: Loop) -> None:
        held = Held()
        gatherer = Gatherer(cast("Client", held), 1 << 20, ANSWER_S)
        futures = []
        for value in (b"a", b"b", b"c", b"d"):  # two batches are on their way, the others wait
            if value == b"d":
                loop.ahead_s += 4.0
            futures.append(gatherer.store(flat(value)))
            await turns()
        loop.ahead_s += 4.0
        for _ in range(2):
            held.end(NodeUnreachable("away"))
            await turns()
        assert [values for values, _ in held.shipped] == [[b"a"], [b"b"], [b"c"], [b"d"]]
        # In between nothing waits: what is missing is the time that the test took.
        for (_, tried_s), left_s in zip(held.shipped, (10.0, 10.0, 2.0, 6.0), strict=True):
            assert left_s - 2.0 < tried_s <= left_s
        late = gatherer.store(flat(b"e"))
        await turns()
        loop.ahead_s += ANSWER_S
        held.end(NodeUnreachable("away"))
        await turns()
        with pytest.raises(NodeUnreachable, match="no answer in time"):
            late.result()
        assert len(held.shipped) == 4
        held.end(NodeUnreachable("away"))
        await turns()
        for future in futures:
            with pytest.raises(NodeUnreachable, match="away"):
                future.result()
        assert len({id(future.exception()) for future in futures}) == 4
        assert gatherer.nbytes == 0

    run(test)


def test_of_a_batch_that_is_refused_as_a_whole_only_who_is_at_fault_fails() -> None:
    """The node takes smaller batches than any other; that is not known before its first answer."""
    wheel = FakeWheel(config=WheelConfig(batch_bytes_max=100_000))
    values = [b"%d" % number + b"x" * 10_000 for number in range(40)]
    values[17] = b"x" * 150_000

    async def test(_loop: Loop) -> None:
        gatherer = Gatherer(client, 64 << 20, ANSWER_S)
        futures = [gatherer.store(flat(value)) for value in values]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(found[17], InvalidBatch)
        del found[17]
        assert len({one for one in found if isinstance(one, str)}) == 39
        assert gatherer.nbytes == 0

    with (
        closing(ServedIntake(wheel, "127.0.0.1:0")) as server,
        Client(f"127.0.0.1:{server.port}", timeout_s=20) as client,
    ):
        run(test)
    assert sorted(wheel.values()) == sorted(value for value in values if len(value) < 100_000)


def test_what_may_be_stored_is_not_sent_again() -> None:
    async def test(_loop: Loop) -> None:
        held = Held()
        gatherer = Gatherer(cast("Client", held), 1 << 20, ANSWER_S)
        futures = [gatherer.store(flat(b"%d" % number)) for number in range(3)]
        await turns()
        error = InvalidBatch("no")
        error.uncertain = True
        held.end(error)
        await turns()
        assert len(held.shipped) == 1
        for future in futures:
            with pytest.raises(InvalidBatch):
                future.result()

    run(test)
