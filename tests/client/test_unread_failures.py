"""Failures of messages whose receipts nobody has read: the client logs them when it is closed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys

import pyarrow as pa
import pytest

from slotwheel import Client, InvalidMessage, Message, SlotwheelError
from slotwheel.client.message import FlatMessage
from slotwheel.client.receipts import Receipts
from support.fakewheel import FakeWheel
from support.waiting import PATIENCE_S

NOBODY = "127.0.0.1:1"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "slotwheel.client"]


@pytest.fixture
def picky(wheel: FakeWheel) -> FakeWheel:
    """A wheel that refuses values that begin with "bad"."""

    def refuse(rows: pa.RecordBatch) -> None:
        for row, value in enumerate(rows.column("value").to_pylist()):
            if value.startswith(b"bad"):
                raise InvalidMessage("the node does not like it", got=value, row=row)

    wheel.before_append = refuse
    return wheel


def test_a_script_that_reads_no_receipt_hears_of_failures() -> None:
    script = f"""
from slotwheel import Client
with Client("{NOBODY}", timeout_s=0.3) as client:
    for number in range(10):
        client.send("orders", b"lost", delay=60)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, text=True)
    [line] = done.stderr.splitlines()
    assert "nobody read: 10; the first failure: node not reachable" in line


@pytest.mark.usefixtures("picky")
def test_only_messages_that_failed_are_counted(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(address) as client:
        client.send("t", b"good", delay=60)
        client.send("t", b"bad one", delay=60)
        client.send_many(Message("t", b"bad" if n % 2 else b"good", delay=60) for n in range(8))
        client.send_many([Message("no/topic", b"", delay=60)])
    [line] = warnings(caplog)
    assert "nobody read: 6; the first failure: " in line


@pytest.mark.usefixtures("picky")
@pytest.mark.parametrize("way", ["errors", "outcomes", "result", "offsets", "each", "error"])
def test_what_was_read_is_not_logged(
    address: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(address) as client:
        receipts = client.send_many(Message("t", b"bad", delay=60) for _ in range(3))
        if way == "result":
            with pytest.raises(InvalidMessage):
                receipts.result(60)
        elif way == "each":
            for receipt in receipts:
                with pytest.raises(InvalidMessage):
                    receipt.result(60)
        elif way == "error":
            for receipt in [*receipts, *receipts]:  # twice is once
                assert receipt.error(20) is not None
        else:
            assert len(getattr(receipts, way)(20)) == 3
    assert warnings(caplog) == []


@pytest.mark.usefixtures("picky")
def test_a_receipt_speaks_for_its_own_message_alone(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(address) as client:
        receipts = client.send_many(Message("t", b"bad", delay=60) for _ in range(5))
        receipts.wait(60)  # says nothing of errors
        assert receipts[3].error() is not None
        assert client.send("t", b"good", delay=60).error(20) is None
    [line] = warnings(caplog)
    assert "nobody read: 4; the first failure: the node does not like it" in line


def test_what_close_cuts_off_is_counted(
    address: str, wheel: FakeWheel, caplog: pytest.LogCaptureFixture
) -> None:
    wheel.has_room.clear()
    client = Client(address, timeout_s=20)
    read = client.send_many([Message("no/topic", b"", delay=60)])
    assert list(read.errors()) == [0]  # not the first any more
    client.send_many(Message("t", b"", delay=60) for _ in range(7))
    client.close(0.1)
    [line] = warnings(caplog)
    assert "nobody read: 7; the first failure: the client was closed" in line


def test_who_is_called_with_the_receipts_has_read_them(caplog: pytest.LogCaptureFixture) -> None:
    done: queue.SimpleQueue[Receipts] = queue.SimpleQueue()
    with Client(NOBODY, timeout_s=0.3) as client:
        flats: list[FlatMessage] = [client.prepare(Message("t", b"", delay=60), 0)] * 3
        client.ship(flats, whole=True, done=done.put)
    assert done.get(timeout=PATIENCE_S)[1].error() is not None
    assert warnings(caplog) == []


def test_repr_of_a_receipt_says_how_it_ended(address: str) -> None:
    with Client(address) as client:
        stored = client.send("t", b"", delay=60)
        stored.result(60)
        assert repr(stored) == f"<Receipt due {stored.due_ms} ms, done>"
    with Client(NOBODY, timeout_s=0.3) as client:
        lost = client.send("t", b"", delay=60)
        assert repr(lost).endswith("ms, under way>")
        with pytest.raises(SlotwheelError):
            lost.result()
        assert repr(lost).startswith(f"<Receipt due {lost.due_ms} ms, failed: node not reachable")


def test_json_on_stderr_stays_json() -> None:
    command = [sys.executable, "-m", "slotwheel.cli.main", "send", "t", "--delay", "1m", "--json"]
    done = subprocess.run(
        [*command, "--node", NOBODY, "--timeout", "500ms"],
        input="\n".join(map(str, range(200_000))),
        capture_output=True,
        timeout=60,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert json.loads(line)["error"]["code"] == "node-unreachable"
