"""Programs that send one message and wait for it: ``store``, and the client for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random
from typing import Any

import pytest
import uvloop

from slotwheel import (
    AsyncClient,
    Client,
    InvalidConfiguration,
    InvalidMessage,
    Message,
    NodeUnreachable,
    NotRunning,
    Overloaded,
    SlotwheelError,
)
from slotwheel.client.storing import Storer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.schema import times
from support.callers import WAYS, Callers
from support.fakegroup import FakeGroup
from support.fakewheel import FakeWheel
from support.proxy import Proxy
from support.served import ServedIntake
from support.waiting import eventually, now_ms

Outcome = str | SlotwheelError
Together = Callable[[str | list[str], list[Message]], list[Outcome]]
"""Sends messages at the same time, each by a caller that waits; what became of each."""


def by_threads(address: str | list[str], messages: list[Message]) -> list[Outcome]:
    found: list[Outcome | None] = [None] * len(messages)
    with Client(address, timeout_s=20) as client:
        begin = threading.Barrier(len(messages))

        def call(row: int) -> None:
            begin.wait()
            try:
                found[row] = client.store(messages[row])
            except SlotwheelError as error:
                found[row] = error

        threads = [threading.Thread(target=call, args=[row]) for row in range(len(messages))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert None not in found
    return [one for one in found if one is not None]


def by_tasks(
    address: str | list[str],
    messages: list[Message],
    run: Callable[[Coroutine[Any, Any, list[Outcome]]], list[Outcome]] = asyncio.run,
) -> list[Outcome]:
    async def main() -> list[Outcome]:
        async with AsyncClient(address, timeout_s=20) as client:
            sent = [client.store(message) for message in messages]
            found = await asyncio.gather(*sent, return_exceptions=True)
        return [one for one in found if isinstance(one, str | SlotwheelError)]

    return run(main())


def by_tasks_of_uvloop(address: str | list[str], messages: list[Message]) -> list[Outcome]:
    """The loop that uvicorn takes where it is installed."""
    return by_tasks(address, messages, uvloop.run)


TOGETHER = pytest.mark.parametrize("together", [by_threads, by_tasks, by_tasks_of_uvloop])


@pytest.fixture
def node(wheel: FakeWheel) -> Iterator[ServedIntake]:
    with closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def address(node: ServedIntake) -> str:
    return f"127.0.0.1:{node.port}"


def stored(wheel: FakeWheel) -> dict[bytes, tuple[int, int]]:
    """Due time and offset of each value."""
    found: dict[bytes, tuple[int, int]] = {}
    offset = 0
    for batch in wheel.batches:
        values = batch["value"].to_pylist()
        for due, value in zip(times(batch, "due").tolist(), values, strict=True):
            assert value not in found
            found[value] = due, offset
            offset += 1
    return found


@TOGETHER
def test_each_caller_gets_the_id_of_its_own_message(
    together: Together, wheel: FakeWheel, address: str
) -> None:
    messages = [
        Message("t", b"%d" % n, key=b"k", headers=[("h", b"v"), ("none", None)], delay=60 + n)
        for n in range(20)
    ]
    messages.append(Message("other", b"at", partition=3, due=now_ms() + 60_000))
    found = together(address, messages)
    rows = stored(wheel)
    for message, own in zip(messages, found, strict=True):
        assert isinstance(own, str)
        parsed = MessageId.parse(own)
        assert isinstance(message.value, bytes)
        assert (parsed.due, parsed.offset) == rows[message.value]
        assert wheel.mint.genuine(parsed)


@TOGETHER
def test_a_bad_message_fails_alone(together: Together, wheel: FakeWheel, address: str) -> None:
    good = [Message("t", b"%d" % n, delay=60) for n in range(10)]
    bad = Message("t", b"bad", delay=1_000_000)
    found = together(address, [*good[:5], bad, *good[5:]])
    assert isinstance(found[5], InvalidMessage)
    assert "horizon" in str(found[5])
    assert sum(isinstance(one, str) for one in found) == 10
    assert set(stored(wheel)) == {b"%d" % n for n in range(10)}


@TOGETHER
def test_headers_that_a_plain_row_cannot_have(
    together: Together, wheel: FakeWheel, address: str
) -> None:
    many = Message("t", b"many", headers=[("n", b"")] * 70_000, delay=60)
    long = Message("t", b"long", headers=[("n" * 70_000, b"")], delay=60)
    ids = together(address, [many, long, Message("t", b"plain", delay=60)])
    assert all(isinstance(one, str) for one in ids), ids
    assert sorted(wheel.values()) == [b"long", b"many", b"plain"]


@TOGETHER
def test_without_room_it_is_waited_for_and_no_connection_is_lost(
    together: Together, wheel: FakeWheel, node: ServedIntake
) -> None:
    wheel.has_room.clear()
    with Proxy(node.port) as proxy:
        opened = threading.Timer(0.5, wheel.has_room.set)
        opened.start()
        found = together(proxy.address, [Message("t", b"%d" % n, delay=60) for n in range(5)])
        assert all(isinstance(one, str) for one in found)
        assert proxy.connections <= 5
    assert len(stored(wheel)) == 5


@TOGETHER
def test_nobody_there(together: Together) -> None:
    with Proxy(1) as proxy:
        address = proxy.address
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotwheel.client.addresses.PAUSE_MAX_S", (0.01, 0.01))
        begun = time.monotonic()
        [error] = _with_timeout(together, address, [Message("t", b"x", delay=60)], 0.5)
    assert time.monotonic() - begun < 10
    assert isinstance(error, NodeUnreachable)
    assert "connection refused" in str(error)
    assert not error.uncertain


def _with_timeout(
    together: Together, address: str, messages: list[Message], timeout_s: float
) -> list[Outcome]:
    """The same with less patience."""
    if together is by_threads:
        with Client(address, timeout_s=timeout_s) as client:
            try:
                return [client.store(messages[0])]
            except SlotwheelError as error:
                return [error]

    async def main() -> list[Outcome]:
        async with AsyncClient(address, timeout_s=timeout_s) as client:
            try:
                return [await client.send(messages[0])]
            except SlotwheelError as error:
                return [error]

    return asyncio.run(main())


@TOGETHER
def test_without_an_answer_nobody_knows(
    together: Together, wheel: FakeWheel, node: ServedIntake
) -> None:
    with Proxy(node.port) as proxy:
        [own] = together(proxy.address, [Message("t", b"first", delay=60)])
        assert isinstance(own, str)
        wheel.commit_s = 30.0
        # A busy machine needs some of it to connect.
        [error] = _with_timeout(together, proxy.address, [Message("t", b"x", delay=60)], 2.0)
    assert isinstance(error, NodeUnreachable)
    assert error.uncertain
    assert "not known" in str(error)


@pytest.mark.parametrize("way", WAYS)
def test_masters_die_while_callers_wait(way: str) -> None:
    """Nothing lost, nothing twice, and each id leads to its own row."""
    rng = Random(way)
    with FakeGroup(commit_s=0.003) as group:
        callers = Callers(group.addresses, lambda: now_ms() + 60_000, ways=[way])
        for _ in range(4):
            time.sleep(rng.uniform(0.1, 0.3))
            old = group.master
            assert old is not None
            group.die(old)
            time.sleep(rng.uniform(0.0, 0.15))
            group.elect((old + rng.choice([1, 2])) % 3)
            group.come_back(old)
        answered = len(callers.ids)
        eventually(lambda: len(callers.ids) > answered)
        callers.stop()
        assert not callers.refused
        assert not callers.open
        rows = stored(group.wheel)
        assert set(rows) == {b"%d" % value for value in callers.ids}
        for value, own in callers.ids.items():
            assert MessageId.parse(own).offset == rows[b"%d" % value][1]


@TOGETHER
def test_a_master_that_stands_still_is_left_for_the_next(together: Together) -> None:
    with FakeGroup() as group:
        group.proxies[0].stall()
        timer = threading.Timer(0.5, group.elect, [1])
        timer.start()
        found = together(group.addresses, [Message("t", b"%d" % n, delay=60) for n in range(3)])
        assert all(isinstance(one, str) for one in found)
        group.proxies[0].go_on()
        assert set(stored(group.wheel)) == {b"0", b"1", b"2"}


def test_closing_ends_who_waits(wheel: FakeWheel, address: str) -> None:
    wheel.commit_s = 30.0
    client = Client(address, timeout_s=60)
    errors: list[SlotwheelError] = []

    def call() -> None:
        try:
            client.store("t", b"x", delay=60)
        except SlotwheelError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    eventually(lambda: wheel.early)
    client.close()
    caller.join(60)
    assert [error.code for error in errors] == ["not-running"]
    assert errors[0].uncertain
    with pytest.raises(NotRunning):
        client.store("t", b"y", delay=60)


@pytest.mark.parametrize("step", ["__init__", "_open"])
def test_closing_ends_who_has_no_connection_yet(
    wheel: FakeWheel, address: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    client = Client(address, timeout_s=60)
    done = getattr(Storer, step)

    def close_then(*arguments: Any, **named: Any) -> Any:
        found = done(*arguments, **named)
        client.close()
        return found

    monkeypatch.setattr(Storer, step, close_then)
    with pytest.raises(NotRunning) as failed:
        client.store("t", b"x", delay=60)
    assert not failed.value.uncertain
    assert stored(wheel) == {}
    assert [one._channel for one in client._all_storers] == [None]


def test_a_level_or_acks_0_goes_the_other_way(address: str) -> None:
    with Client(address, timeout_s=5) as client, pytest.raises(SlotwheelError, match="polic"):
        client.store("t", b"x", level="soon")
    with Client(address, timeout_s=5, acks="0") as quiet, pytest.raises(SlotwheelError, match="id"):
        quiet.store("t", b"x", delay=60)


def test_the_client_for_asyncio_has_the_other_methods(wheel: FakeWheel, address: str) -> None:
    async def main() -> None:
        async with AsyncClient(address, timeout_s=20) as client:
            own = await client.store("t", b"one", delay=60)
            receipts = await client.send_many(Message("t", b"%d" % n, delay=60) for n in range(3))
            assert len(set(receipts.result(0))) == 3
            assert await client.cancel(own) == ["cancelled"]
            assert (await client.status())["next_offset"] == 4
            later = [client.send("t", b"later %d" % n, delay=60) for n in range(3)]
            await client.flush(60)
            assert all(one.done() for one in later)
            with pytest.raises(InvalidMessage):
                client.send("no topic", b"x", delay=60)
        with pytest.raises(NotRunning):
            client.send("t", b"x", delay=60)

    asyncio.run(main())
    assert len(stored(wheel)) == 7


def test_a_program_whose_executor_is_full_waits_for_nothing(wheel: FakeWheel, address: str) -> None:
    """Neither for a host's name nor for calls in threads, nor for the client's end."""
    hold = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, hold.wait, 300)
        try:
            named = address.replace("127.0.0.1", "localhost")
            async with asyncio.timeout(60), AsyncClient(named, timeout_s=50) as client:
                own = await client.store("t", b"one", delay=60)
                assert await client.cancel(own) == ["cancelled"]
        finally:
            hold.set()
            await busy

    asyncio.run(main())


def test_an_abandoned_task_leaves_the_others_alone(wheel: FakeWheel, address: str) -> None:
    wheel.commit_s = 0.2

    async def main() -> list[str]:
        async with AsyncClient(address, timeout_s=20) as client:
            sent = [client.send("t", b"%d" % n, delay=60) for n in range(5)]
            sent[2].cancel()
            return [await one for one in sent if not one.cancelled()]

    assert len(set(asyncio.run(main()))) == 4


def test_what_asyncio_does_not_take_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="answer"):
        AsyncClient(acks="0")
    with pytest.raises(InvalidConfiguration, match="nodes"):
        AsyncClient("http://127.0.0.1:7280")


def test_a_message_larger_than_a_request_of_many() -> None:
    wheel = FakeWheel(config=WheelConfig())
    with (
        closing(ServedIntake(wheel, "127.0.0.1:0")) as server,
        Client(f"127.0.0.1:{server.port}", timeout_s=20) as client,
    ):
        client.store("t", b"x" * 900_000, delay=60)
        with pytest.raises(InvalidMessage, match="large"):
            client.store("t", b"x" * 1_100_000, delay=60)
        client.store("t", b"after", delay=60)
    assert len(stored(wheel)) == 2


def test_of_a_request_that_is_refused_as_a_whole_only_who_is_at_fault_fails() -> None:
    """The node takes smaller batches than any other."""
    wheel = FakeWheel(config=WheelConfig(batch_bytes_max=4_000))
    messages = [Message("t", b"%d" % n + b"x" * 500, delay=60) for n in range(20)]
    messages[7] = Message("t", b"x" * 5_000, delay=60)
    with closing(ServedIntake(wheel, "127.0.0.1:0")) as server:
        found = by_tasks(f"127.0.0.1:{server.port}", messages)
    assert [n for n, one in enumerate(found) if not isinstance(one, str)] == [7]
    assert len(stored(wheel)) == 19


def test_a_defect_of_the_wheel_leaves_nobody_waiting(wheel: FakeWheel, address: str) -> None:
    def fails(_rows: object) -> None:
        raise ZeroDivisionError

    wheel.before_append = fails
    with Client(address, timeout_s=20) as client:
        with pytest.raises(SlotwheelError, match="not known") as failed:
            client.store("t", b"x", delay=60)
        assert failed.value.uncertain
        wheel.before_append = None
        client.store("t", b"y", delay=60)


def test_what_waits_for_room_does_not_fall_out_of_what_a_node_remembers(
    wheel: FakeWheel, address: str
) -> None:
    """One request is tried again and again, while others of the same connection are stored."""
    until = time.monotonic() + 0.5

    def no_room(rows: Any) -> None:
        if b"late" in rows["value"].to_pylist() and time.monotonic() < until:
            raise Overloaded("not yet")

    wheel.before_append = no_room

    async def main() -> None:
        async with AsyncClient(address, timeout_s=20) as client:
            late = client.send("t", b"late", delay=60)
            await asyncio.sleep(0.05)
            for number in range(50):
                await client.send("t", b"%d" % number, delay=60)
            await late

    asyncio.run(main())
    assert len(stored(wheel)) == 51


def test_calls_of_a_group_keep_few_connections() -> None:
    with FakeGroup() as group, Client(group.addresses, timeout_s=20) as client:
        for _ in range(50):
            assert client.status()["pending"] == 0
        assert sum(proxy.connections for proxy in group.proxies) <= 3
