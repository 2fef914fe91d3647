"""Client, server and the real wheel over a directory: ids and due times."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from slotwheel import Client, InvalidMessage, Message
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.schema import times
from slotwheel.wheel.wheel import Wheel
from support.memstate import MemoryState
from support.proxy import Proxy
from support.served import ServedIntake
from support.waiting import now_ms
from support.wheels import master_of, next_chunk


@contextmanager
def served(directory: Path, state: MemoryState) -> Iterator[tuple[Wheel, ServedIntake]]:
    """A wheel with its syncer and its server; left without any goodbye, as by a crash."""
    wheel = Wheel.open(OsFiles(directory), state, WheelConfig(), now_ms())
    stop = threading.Event()

    def sync() -> None:
        while not stop.is_set():
            wheel.write_pending(0.05)

    syncer = threading.Thread(target=sync)
    syncer.start()
    server = ServedIntake(wheel, "127.0.0.1:0")
    try:
        yield wheel, server
    finally:
        server.close(0.05)
        stop.set()
        syncer.join()


def delivered(wheel: Wheel) -> list[tuple[bytes, int]]:
    """Everything that is due, as (value, offset), with the sink taking all of it."""
    found: list[tuple[bytes, int]] = []
    later = now_ms() + 7_200_000
    while (chunk := next_chunk(wheel, later, lambda: time.sleep(0.005))) is not None:
        offsets = chunk.rows.column("offset").to_pylist()
        found += zip(chunk.rows.column("value").to_pylist(), offsets, strict=True)
        master_of(wheel).answer(chunk, np.ones(chunk.rows.num_rows, bool))
    return found


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


def test_ids_lead_to_their_rows(tmp_path: Path, state: MemoryState) -> None:
    with served(tmp_path, state) as (wheel, server):
        with Client(f"127.0.0.1:{server.port}") as client:
            receipts = client.send_many(Message("t", b"%d" % n, delay=60) for n in range(20_000))
            table = pa.table({"due": [now_ms()], "topic": ["t"], "value": [b"table"]})
            last = client.send_table(table)
            with pytest.raises(InvalidMessage, match="horizon"):
                client.send("t", b"", delay=10_000).result(60)
            ids = [MessageId.parse(text) for text in [*receipts.result(60), *last.result(60)]]
            assert client.cancel([str(ids[7])]) == ["cancelled"]
            answer, moved = client.reschedule(str(ids[8]), delay=120)
            assert answer == "cancelled"
            assert client.status()["pending"] == 20_000
        rows = {offset: value for value, offset in delivered(wheel)}
    assert moved is not None
    assert rows.pop(MessageId.parse(moved).offset) == b"8"
    assert all(wheel.mint.genuine(found) for found in ids)
    values = [rows.get(found.offset) for found in ids]
    expected: list[bytes | None] = [b"%d" % n for n in range(20_000)]
    assert values == [*expected[:7], None, None, *expected[9:], b"table"]
    assert len(rows) == 19_999


def test_due_times_are_those_of_the_first_send(tmp_path: Path, state: MemoryState) -> None:
    with (
        served(tmp_path, state) as (wheel, server),
        Proxy(server.port) as proxy,
        Client(proxy.address, timeout_s=30) as client,
    ):
        proxy.refusing = True
        receipt = client.send("t", b"x", delay=1)
        time.sleep(0.5)
        proxy.refusing = False
        message_id = MessageId.parse(receipt.result(60))
        chunk = next_chunk(wheel, now_ms() + 5000, lambda: time.sleep(0.005))
        assert chunk is not None
        assert times(chunk.rows, "due").tolist() == [receipt.due_ms] == [message_id.due]
