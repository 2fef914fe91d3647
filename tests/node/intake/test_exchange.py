"""The rules of an append exchange, against a real wheel."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.node.intake.exchange import AppendExchange
from slotwheel.node.intake.ports import IntakeEvents, WheelPort
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NotMaster, Overloaded, SlotwheelError
from slotwheel.wheel.protocol import AppendCommand, RefusedBatch, decode_answer, encode_sequence
from support.fakewheel import FakeWheel
from support.references import no_collection
from support.wheels import NOW, batch, opened

CONFIG = WheelConfig(tail_bytes_refuse=20_000, disk_reserve_bytes=0)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    with no_collection():
        yield


def exchange_of(wheel: WheelPort) -> AppendExchange:
    return AppendExchange(
        wheel,
        lambda: NOW,
        IntakeEvents(),
        AppendCommand(0),
        closing=threading.Event(),
        ending=threading.Event(),
        room_timeout_s=60,
        resolved=lambda: None,
    )


def told(exchange: AppendExchange, rows: pa.RecordBatch, again: int = 0) -> SlotwheelError:
    """The error that is answered to a batch, of which this function has the only reference. It is
    tried so many times before it is refused."""
    exchange.read(rows, encode_sequence(0))
    for _ in range(again):
        exchange.append()
        assert exchange.waits
    exchange._room_timeout_s = 0
    exchange.append()
    answered = exchange.next_answer()
    assert answered is not None
    assert answered[0] is not None
    answer = decode_answer(answered[0])
    assert isinstance(answer, RefusedBatch)
    return answer.error


def test_a_batch_that_waited_for_room_in_vain_is_freed(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        node.wheel.append(batch([(NOW, "t", bytes(20_000))]), NOW)
        rows = batch([(NOW, "t", b"x")])
        kept = weakref.ref(rows)
        error = told(exchange_of(node.wheel), rows, again=3)
        del rows
        assert isinstance(error, Overloaded)
        assert kept() is None


def test_a_batch_that_is_refused_is_freed(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        rows = batch([(NOW, "not a topic", b"x")])
        kept = weakref.ref(rows)
        told(exchange_of(node.wheel), rows)
        del rows
        assert kept() is None


def test_a_batch_that_a_deposed_master_was_sent_is_freed() -> None:
    wheel = FakeWheel()
    wheel.serving = False
    exchange = exchange_of(wheel)

    def sent() -> weakref.ref[pa.RecordBatch]:
        rows = batch([(NOW, "t", b"x")])
        exchange.read(rows, encode_sequence(0))
        with pytest.raises(NotMaster):
            exchange.append()
        return weakref.ref(rows)

    assert sent()() is None
