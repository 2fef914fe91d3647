"""The consumer's own thread, between a source and a transactor that do as they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slotwheel.consumer import pump as pump_module
from slotwheel.consumer.inflight import CommitBatch, InFlight
from slotwheel.consumer.message import Received, SourcePartition
from slotwheel.consumer.parts import Parts
from slotwheel.consumer.pump import Pump
from slotwheel.consumer.source import Source
from slotwheel.consumer.transactions import TransactionFailed, Transactor
from support.stopwatch import Stopwatch
from support.waiting import eventually

PARTITION = SourcePartition("t", 0)


def messages(first: int, end: int) -> list[Received]:
    return [Received("t", 0, offset, None, b"x", [], 0) for offset in range(first, end)]


class Endless(Source):
    """Has messages without end, numbered."""

    def __init__(self) -> None:
        self.next = 0
        self.positions: dict[SourcePartition, int] = {}

    def poll(self, timeout_s: float, count: int) -> list[Received]:
        time.sleep(min(timeout_s, 0.002))
        found = messages(self.next, self.next + count)
        self.next += count
        self.seen = {PARTITION: self.next - 1}
        return found

    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        self.positions |= positions

    def hold(self, partitions: Collection[SourcePartition]) -> None:
        pass

    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        self.next = starts.get(PARTITION, self.next)

    def close(self) -> None:
        pass


class FailsOnce(Transactor):
    def __init__(self) -> None:
        self.batches: list[CommitBatch] = []

    def start(self) -> None:
        pass

    def commit(self, batch: CommitBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) == 1:
            raise TransactionFailed("the first one")

    def partitions(self, topic: str) -> int | None:
        return 1

    def close(self) -> None:
        pass


class Running:
    """A pump with what it joins."""

    def __init__(self, messages_max: int, transactor: Transactor | None = None) -> None:
        self.inflight = InFlight(messages_max, 1 << 20, transactional=transactor is not None)
        self.inflight.assigned([PARTITION], None)
        self.source = Endless()
        self.outbox = SimpleNamespace(settle=lambda: 0, close=lambda timeout_s: None)
        parts = SimpleNamespace(
            close=lambda: None,
            inflight=self.inflight,
            outbox=self.outbox,
            source=self.source,
            transactor=transactor,
            wanted=SimpleNamespace(messages_max=messages_max, observer=None),
            rule=None,
            retries="t-retry",
        )
        self.pump = Pump(cast("Parts", parts))

    def take(self, count: int) -> list[Received]:
        found: list[Received] = []
        watch = Stopwatch()
        while len(found) < count:
            assert watch.seconds < 20, f"{len(found)} of {count}"
            found += self.inflight.take(count - len(found), 0.1)
        return found


@pytest.fixture
def running() -> Iterator[Any]:
    made: list[Running] = []

    def make(*arguments: Any) -> Running:
        made.append(Running(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.pump.close()


def test_commit_tells_of_each_message_whether_it_was_committed(running: Any) -> None:
    one = running(10)
    first, second, third = one.take(3)
    one.inflight.done([first, third])
    one.pump.commit(5)
    assert [m.committed for m in (first, second, third)] == [True, False, False]
    one.inflight.revoked([PARTITION])
    one.inflight.done([second])
    one.pump.commit(5)
    assert [m.committed for m in (first, second, third)] == [True, False, False]
    assert one.source.positions == {PARTITION: 1}


def test_what_a_failed_transaction_held_is_not_committed(running: Any) -> None:
    one = running(10, FailsOnce())
    (message,) = one.take(1)
    one.inflight.done([message])
    one.pump.commit(5)
    assert not message.committed
    (again,) = one.take(1)
    assert again.offset == message.offset
    one.inflight.done([again])
    one.pump.commit(5)
    assert again.committed


def test_a_transaction_that_fails_while_it_closes_is_no_defect(running: Any) -> None:
    """What it covered comes again at the next start; who waited for it is told so."""
    under_way, closing = threading.Event(), threading.Event()

    class Fails(FailsOnce):
        def commit(self, batch: CommitBatch) -> None:
            self.batches.append(batch)
            under_way.set()
            assert closing.wait(60)
            raise TransactionFailed("the member was rebalanced away")

    transactor = Fails()
    one = running(10, transactor)
    [first] = one.take(1)
    one.inflight.done([first])
    answers: list[str] = []

    def ask() -> None:
        try:
            one.pump.commit(20)
        except TimeoutError as error:
            answers.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    assert under_way.wait(60)
    close = threading.Thread(target=one.pump.close)
    close.start()
    eventually(lambda: one.pump.closed)
    closing.set()
    close.join(60)
    asking.join(60)
    one.pump.check()
    assert answers == ["not committed: the consumer is closed"]
    assert len(transactor.batches) == 1
    assert not first.committed


def test_a_commit_while_it_closes_is_part_of_the_last_one(running: Any) -> None:
    one = running(10)
    (message,) = one.take(1)
    closing = threading.Thread(target=one.pump.close)
    one.outbox.settle = lambda: one.pump.closed and not one.pump._requests
    closing.start()
    eventually(lambda: one.pump.closed)
    one.inflight.done([message])
    one.pump.commit(10)
    assert message.committed
    closing.join(60)


def test_a_commit_that_comes_behind_the_last_one_ends_with_the_consumer(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = running(10)
    leaving, errors = threading.Event(), []

    def leave() -> None:
        leaving.set()
        eventually(lambda: one.pump._requests == 1)

    monkeypatch.setattr(one.source, "close", leave)

    def commit() -> None:
        assert leaving.wait(60)
        try:
            one.pump.commit(30)
        except TimeoutError as error:
            errors.append(error)

    waiting = threading.Thread(target=commit)
    waiting.start()
    one.pump.close()
    waiting.join(60)
    assert [str(error) for error in errors] == ["not committed: the consumer is closed"]


@pytest.mark.parametrize("hold_after_s", [0.0, 60.0])
def test_slow_messages_keep_no_worker_waiting_while_there_is_room(
    running: Any, monkeypatch: pytest.MonkeyPatch, hold_after_s: float
) -> None:
    monkeypatch.setattr(pump_module, "HOLD_AFTER_S", hold_after_s)
    one = running(8)
    eventually(lambda: one.inflight.room() == 0)
    slow, quick = one.take(5), one.take(3)
    one.inflight.done(quick)
    for _ in range(10):
        (message,) = one.take(1)
        one.inflight.done([message])
    assert not any(message.committed for message in slow)


def test_it_reads_on_when_half_is_free_while_messages_wait(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "HOLD_AFTER_S", 3600.0)
    one = running(8)
    eventually(lambda: one.inflight.room() == 0)
    read = one.source.next
    one.inflight.done(one.take(3))
    time.sleep(0.1)
    assert one.source.next == read
    one.inflight.done(one.take(1))
    eventually(lambda: one.source.next > read)


def test_what_is_begun_again_takes_no_memory() -> None:
    inflight = InFlight(100, 1 << 20, transactional=True)
    changes: Sequence[Any] = (
        inflight.restart,
        lambda: inflight.assigned([PARTITION], None),
        lambda: inflight.revoked([PARTITION]),
    )
    for change in changes:
        inflight.assigned([PARTITION], None)
        inflight.receive(PARTITION, messages(0, 100), 99)
        taken = inflight.take(10, 0)
        change()
        inflight.put_back(taken)
        assert len(inflight._ready) == 0
        assert inflight.take(1, 0) == []
