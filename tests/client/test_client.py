"""The client against a real server on loopback, with a small wheel behind it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotwheel import (
    Client,
    InvalidBatch,
    InvalidMessage,
    Message,
    NotRunning,
    Overloaded,
    SlotwheelError,
    UnknownId,
)
from slotwheel.client import client as client_module
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.ids import MessageId
from support.fakewheel import FakeWheel
from support.waiting import eventually, now_ms


def test_one_message(client: Client, wheel: FakeWheel) -> None:
    before = now_ms()
    receipt = client.send("orders", b"v", key=b"k", headers=[("h", None)], partition=2, delay=30)
    message_id = MessageId.parse(receipt.result(60))
    row = wheel.rows[0]
    assert wheel.mint.genuine(message_id)
    assert message_id.due == receipt.due_ms == int(row["due"].timestamp() * 1000)
    assert before + 30_000 <= receipt.due_ms <= now_ms() + 30_000
    assert (row["topic"], row["partition"], row["key"], row["value"]) == ("orders", 2, b"k", b"v")
    assert row["headers"] == [{"key": "h", "value": None}]


def test_a_script_of_five_lines_that_does_not_even_close(address: str, wheel: FakeWheel) -> None:
    script = f"""
from slotwheel import Client
client = Client("{address}")
for number in range(1000):
    client.send("orders", f"hello {{number}}", delay=60)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert wheel.values() == [b"hello %d" % number for number in range(1000)]


def test_leaving_the_block_flushes(address: str, wheel: FakeWheel) -> None:
    wheel.commit_s = 0.05
    with Client(address, linger_ms=10_000) as client:
        receipts = [client.send("t", str(number), delay=60) for number in range(100)]
    assert all(receipt.done() for receipt in receipts)
    assert wheel.values() == [str(number).encode() for number in range(100)]
    with pytest.raises(NotRunning):
        client.send("t", b"", delay=1)


def test_send_many_keeps_order_and_a_bad_one_fails_alone(client: Client, wheel: FakeWheel) -> None:
    client.send("t", b"first", delay=60)
    messages = [Message("t", str(number), delay=60) for number in range(12_000)]
    messages[7000] = Message("no/topic", b"", delay=60)
    receipts = client.send_many(messages)
    assert list(receipts.errors(60)) == [7000]
    offsets = receipts.offsets()
    assert offsets[7000] == -1
    assert np.delete(offsets, 7000).tolist() == list(range(1, 12_000))
    assert wheel.values()[1:] == [b"%d" % n for n in range(12_000) if n != 7000]
    with pytest.raises(InvalidMessage, match="no/topic"):
        receipts.result()
    assert isinstance(receipts[7000].error(), InvalidMessage)
    assert MessageId.parse(receipts[7001].id).offset == offsets[7001]
    assert len(receipts) == len(list(receipts)) == 12_000
    assert receipts[-1].id == receipts[11_999].id


def test_send_table(client: Client, wheel: FakeWheel) -> None:
    rows = 20_000
    due = now_ms() + np.random.default_rng(1).integers(0, 7_000_000, rows)
    values = [b"%d" % number for number in range(rows)]
    receipts = client.send_table(pa.table({"due": due, "topic": ["t"] * rows, "value": values}))
    ids = [MessageId.parse(text) for text in receipts.result(60)]
    assert wheel.values() == values
    assert [found.due for found in ids] == due.tolist() == receipts.due_ms.tolist()
    assert all(wheel.mint.genuine(found) for found in ids)
    with pytest.raises(InvalidBatch):
        client.send_table(pa.table({"due": due}))


def test_beyond_the_horizon(client: Client) -> None:
    first = client.send("t", b"", delay=7300)  # the horizon is not known yet: the node says it
    with pytest.raises(InvalidMessage, match=r"^due beyond the horizon"):
        first.result(60)
    with pytest.raises(InvalidMessage, match="horizon"):
        client.send("t", b"", delay=7300)
    client.send("t", b"", delay=7199.5).result(60)
    client.send("t", b"", due=0).result(60)
    client.send("t", b"", delay=-5).result(60)


def test_overloaded_for_too_long_is_an_error_that_knows(address: str, wheel: FakeWheel) -> None:
    with Client(address, timeout_s=1) as client:
        client.send("t", b"first", delay=60).result(60)  # it is connected
        wheel.has_room.clear()
        receipt = client.send("t", b"", delay=60)
        with pytest.raises(Overloaded, match="tail is full"):
            receipt.result(60)
    time.sleep(0.3)  # a try that was under way when it was given up finds no room either
    wheel.has_room.set()
    time.sleep(0.2)
    assert wheel.values() == [b"first"]


def test_full_buffer_blocks_and_then_refuses(address: str, wheel: FakeWheel) -> None:
    wheel.has_room.clear()
    with Client(address, timeout_s=0.7, buffer_bytes=100_000) as client:
        for _ in range(9):
            client.send("t", b"x" * 10_000, delay=60)
        # The tenth; a later one if this thread was not run for 0.7 s, and those were given up.
        with pytest.raises(Overloaded):
            _ = [client.send("t", b"x" * 10_000, delay=60) for _ in range(50)]


def test_cancel_reschedule_status(client: Client) -> None:
    later = client.send("t", b"", delay=60)
    sooner = client.send("t", b"", delay=-1)
    assert client.cancel([later, sooner.id]) == ["cancelled", "already delivered"]
    answer, moved = client.reschedule(client.send("t", b"", delay=60), delay=90)
    assert answer == "cancelled"
    assert moved is not None
    assert MessageId.parse(moved).due > now_ms() + 80_000
    assert client.reschedule(sooner, delay=90) == ("already delivered", None)
    assert client.status()["pending"] == 4
    for wrong in ("", "x", "default.1.2.0000000", "default.1.2.00000000"):
        with pytest.raises(UnknownId):
            client.cancel(wrong)
    with pytest.raises(InvalidMessage, match="neither due nor delay"):
        client.reschedule(later)


def test_fire_and_forget(address: str, wheel: FakeWheel) -> None:
    with Client(address, acks="0") as client:
        receipts = client.send_many(Message("t", b"%d" % n, delay=60) for n in range(100))
        with pytest.raises(SlotwheelError, match="there is no id"):
            receipts.result(60)
    eventually(lambda: len(wheel.values()) == 100)
    with pytest.raises(InvalidMessage):
        Client(address, acks="2")


def test_lone_message_does_not_linger(address: str) -> None:
    with Client(address, linger_ms=60_000) as client:
        client.send("t", b"", delay=1).result(60)
        company = [client.send("t", b"", delay=1) for _ in range(3)]
        company[-1].result(60)  # who asks ends the wait


def test_messages_too_large_for_one_batch_are_split(address: str, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_rows_max=100, batch_bytes_max=50_000, message_bytes_max=20_000)
    with Client(address, batch_rows=100, batch_bytes=50_000) as client:
        receipts = client.send_many(Message("t", b"x" * 9000, delay=60) for _ in range(300))
        assert receipts.errors(60) == {}
        with pytest.raises(InvalidMessage, match="too large"):
            client.send("t", b"x" * 20_001, delay=60)
    assert len(wheel.values()) == 300


def test_a_node_with_small_limits_gets_small_batches(address: str, wheel: FakeWheel) -> None:
    wheel.config = WheelConfig(batch_rows_max=10, batch_bytes_max=50_000, message_bytes_max=20_000)
    with Client(address, linger_ms=1000) as client:
        client.send("t", b"the limits are known now", delay=60).result(60)
        receipts = [client.send("t", b"x" * 9000, delay=60) for _ in range(50)]
        many = client.send_many(Message("t", b"x", delay=60) for _ in range(50))
        assert many.errors(60) == {}
        assert [receipt.error(20) for receipt in receipts] == [None] * 50
    assert len(wheel.values()) == 101


def test_in_a_forked_child_it_says_so(client: Client) -> None:
    client._pid -= 1  # what a fork changes
    with pytest.raises(NotRunning, match="forked"):
        client.send("t", b"", delay=1)
    client._pid += 1


def test_many_ids_are_cancelled_in_the_order_of_their_due_times(
    client: Client, wheel: FakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is about messages of a few days, however the ids are mixed, so the node looks
    into few of its files; the answers come in the order of the ids."""
    monkeypatch.setattr(client_module, "_CANCELS_AT_ONCE", 4)
    delays = [60, -1, 90, 70, -3, 80, -2, 65, -4, 95]
    ids = [client.send("t", b"", delay=delay).result(60) for delay in delays]
    asked: list[list[int]] = []
    cancel = wheel.cancel

    def noted(ids: Sequence[str], *rest: Any, **more: Any) -> list[CancelAnswer]:
        asked.append([MessageId.parse(text).due for text in ids])
        return cancel(ids, *rest, **more)

    monkeypatch.setattr(wheel, "cancel", noted)
    answers = client.cancel(ids)
    assert answers == ["cancelled" if delay > 0 else "already delivered" for delay in delays]
    assert [len(due) for due in asked] == [4, 4, 2]
    in_order = sorted(MessageId.parse(text).due for text in ids)
    assert [at for due in asked for at in due] == in_order
