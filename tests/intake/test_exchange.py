"""The rules of an append exchange, against a real wheel."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from slotwheel.intake.exchange import AppendExchange
from slotwheel.intake.ports import IntakeEvents
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Overloaded, SlotwheelError
from slotwheel.wheel.protocol import AppendCommand, RefusedBatch, decode_answer, encode_sequence
from support.wheels import NOW, Node, batch, opened

CONFIG = WheelConfig(tail_bytes_refuse=20_000, disk_reserve_bytes=0)


@pytest.fixture(autouse=True)
def by_reference_counts() -> Iterator[None]:
    """What is freed is freed at once, and not by a collection that may come minutes later."""
    gc.disable()
    yield
    gc.enable()


def exchange_of(node: Node) -> AppendExchange:
    return AppendExchange(
        node.wheel,
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
        error = told(exchange_of(node), rows, again=3)
        del rows
        assert isinstance(error, Overloaded)
        assert kept() is None


def test_a_batch_that_is_refused_is_freed(tmp_path: Path) -> None:
    with opened(tmp_path, CONFIG, NOW) as node:
        rows = batch([(NOW, "not a topic", b"x")])
        kept = weakref.ref(rows)
        told(exchange_of(node), rows)
        del rows
        assert kept() is None
