"""Rules of exactly-once delivery into Kafka, each removed by one function, for the tests that have
to see it: the stories of overlapping masters, and the crash sweep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from slotwheel.delivery.kafka.transactions import StoredMark
from slotwheel.wheel.dispatcher import Dispatcher
from support.fakekafka import FakeProducer, FakeTransactions

Patch = pytest.MonkeyPatch


def mark_read_while_it_is_unstable(patch: Patch) -> None:
    patch.setattr(FakeTransactions, "read", lambda self: self._net.broker.read_mark(stable=False))


def mark_committed_behind_the_transaction(patch: Patch) -> None:
    store, commit = FakeProducer.store, FakeProducer.commit
    marks: dict[FakeProducer, StoredMark] = {}

    def later(self: FakeProducer, offset: int, metadata: str) -> None:
        marks[self] = StoredMark(offset, metadata)

    def then_the_mark(self: FakeProducer) -> None:
        if self._sent:
            commit(self)
        store(self, marks[self].offset, marks[self].metadata)
        commit(self)

    patch.setattr(FakeProducer, "store", later)
    patch.setattr(FakeProducer, "commit", then_the_mark)


def held_back_before_the_journal_has_the_name(patch: Patch) -> None:
    def hold(self: Any, topics: Iterable[str], now_ms: int) -> None:
        with self._lock:
            for topic in topics:
                self.due.lines.hold(topic)

    patch.setattr(Dispatcher, "hold", hold)
