"""What waits because the window is full leaves in one batch, and each part has its own fate."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.client import Client, Message, Receipt
from slotwheel.client.columns import rows_of
from slotwheel.client.failures import CountedShipment
from slotwheel.client.receiptfile import RECEIPTS
from slotwheel.client.receipts import Receipts
from slotwheel.wheel.errors import InvalidBatch, InvalidMessage, NodeUnreachable, Overloaded
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.protocol import IN_FLIGHT_MAX
from slotwheel.wheel.schema import INPUT
from support.fakewheel import FakeWheel
from support.proxy import Proxy
from support.served import ServedIntake
from support.waiting import eventually, now_ms


class Gate(FakeWheel):
    """Takes nothing until ``open`` is set, and remembers how large each batch was."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.arrived = 0
        self.sizes: list[int] = []
        self.before_append = self._note

    def _note(self, rows: pa.RecordBatch) -> None:
        self.arrived += 1
        self.open.wait(60)
        self.sizes.append(rows.num_rows)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def wheel(gate: Gate) -> FakeWheel:
    return gate


@pytest.fixture
def gated(address: str, gate: Gate) -> Iterator[str]:
    yield address
    gate.open.set()  # before the server closes, which waits for those at the gate


def table(start: int, rows: int) -> pa.RecordBatch:
    values = [b"%d" % number for number in range(start, start + rows)]
    columns = [pa.array([now_ms() + 60_000] * rows), pa.array(["t"] * rows), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])


def test_tables_that_wait_leave_together(gated: str, gate: Gate) -> None:
    with Client(gated) as client:
        handed = [client.send_table(table(start, 100)) for start in range(0, 4000, 100)]
        gate.open.set()
        client.flush(60)
    # Five went off alone while the window was open; the rest had to wait, and needs few batches.
    assert sum(gate.sizes) == 4000
    assert len(gate.sizes) <= IN_FLIGHT_MAX + 2
    stored = gate.values()
    for number, receipts in enumerate(handed):
        wanted = [b"%d" % n for n in range(number * 100, number * 100 + 100)]
        assert [stored[offset] for offset in receipts.offsets()] == wanted
        first = MessageId.parse(receipts[0].id)
        assert gate.mint.genuine(first)
        assert stored[first.offset] == wanted[0]


def test_single_messages_of_many_threads_leave_together(gated: str, gate: Gate) -> None:
    with Client(gated) as client:
        receipts: list[Receipt] = []
        lock = threading.Lock()

        def send(number: int) -> None:
            receipt = client.send("t", b"%d" % number, delay=60)
            with lock:
                receipts.append(receipt)
            receipt.result(60)  # whoever waits ends the lingering of its message

        threads = [threading.Thread(target=send, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(receipts) == 60)
        gate.open.set()
        for thread in threads:
            thread.join(60)
        assert len({receipt.id for receipt in receipts}) == 60
    assert sorted(gate.values()) == sorted(b"%d" % number for number in range(60))
    assert len(gate.sizes) < 30


def test_who_waits_while_a_batch_is_under_way_shares_the_next(gated: str, gate: Gate) -> None:
    with Client(gated, linger_ms=15_000) as client:
        first = client.send("t", b"first", delay=60)  # nothing is under way: it goes at once
        eventually(lambda: gate.arrived == 1)
        handed = [client.send("t", b"%d" % number, delay=60) for number in range(20)]
        asked = threading.Event()

        def ask(receipt: Receipt) -> None:
            asked.set()
            receipt.result(60)  # less than it would linger

        threads = [threading.Thread(target=ask, args=(receipt,)) for receipt in handed]
        for thread in threads:
            thread.start()
        asked.wait(60)
        gate.open.set()
        for thread in threads:
            thread.join(60)
        assert first.done()
        assert all(receipt.done() for receipt in handed)
    assert gate.sizes == [1, 20]


def test_never_more_than_a_batch_may_hold(gated: str, gate: Gate) -> None:
    with Client(gated, batch_rows=250, batch_bytes=12_000) as client:
        for start in range(0, 4000, 100):
            client.send_table(table(start, 100))
        gate.open.set()
        client.flush(60)
    assert max(gate.sizes) == 200
    assert sum(gate.sizes) == 4000
    assert gate.values() == [b"%d" % number for number in range(4000)]


def test_what_the_node_refuses_in_company_fails_alone(gated: str, gate: Gate) -> None:
    def refuse(rows: pa.RecordBatch) -> None:
        gate._note(rows)
        for row, value in enumerate(rows.column("value").to_pylist()):
            if value.endswith(b"77"):
                raise InvalidMessage("the node does not like it", got=value, row=row)

    gate.before_append = refuse
    with Client(gated) as client:
        handed = [client.send_table(table(start, 100)) for start in range(0, 2000, 100)]
        gate.open.set()
        client.flush(60)
        for number, receipts in enumerate(handed):
            assert list(receipts.errors()) == [77]
            assert isinstance(receipts.errors()[77], InvalidMessage)
            offsets = receipts.offsets()
            assert offsets[77] == -1
            stored = gate.values()
            for row in (0, 76, 78, 99):
                assert stored[offsets[row]] == b"%d" % (number * 100 + row)
    assert sorted(gate.values()) == sorted(b"%d" % n for n in range(2000) if n % 100 != 77)
    # Twenty refusals; who is in the same batch as a bad row is not sent by itself for that.
    assert len(gate.sizes) < 20 + 20


def test_what_is_wrong_with_a_whole_batch_is_found(gated: str, gate: Gate) -> None:
    def refuse(rows: pa.RecordBatch) -> None:
        gate._note(rows)
        if b"777" in rows.column("value").to_pylist():
            raise InvalidBatch("the node does not like it, and does not say which row")

    gate.before_append = refuse
    with Client(gated) as client:
        handed = [client.send_table(table(start, 100)) for start in range(0, 2000, 100)]
        gate.open.set()
        client.flush(60)
        failed = [number for number, receipts in enumerate(handed) if receipts.errors()]
        assert failed == [7]
        assert len(handed[7].errors()) == 100
    assert len(gate.values()) == 1900


def test_overloaded_is_tried_again_as_it_was(gated: str, gate: Gate) -> None:
    refusals = iter(range(12))

    def refuse(rows: pa.RecordBatch) -> None:
        gate._note(rows)
        if next(refusals, None) is not None:
            raise Overloaded("not now")

    gate.before_append = refuse
    with Client(gated, timeout_s=60) as client:
        handed = [client.send_table(table(start, 100)) for start in range(0, 2000, 100)]
        gate.open.set()
        client.flush(60)
    assert all(receipts.errors() == {} for receipts in handed)
    assert sorted(gate.values()) == sorted(b"%d" % number for number in range(2000))
    assert gate.duplicates == 0


def test_given_up_together_and_told_the_truth(gate: Gate) -> None:
    """What is told that it failed for certain is never stored later in somebody's company."""
    server = ServedIntake(gate, "127.0.0.1:0", room_timeout_s=0.05)
    with Proxy(server.port) as proxy, Client(proxy.address, timeout_s=2) as client:
        client.status()
        proxy.stall()
        handed = [client.send_table(table(start, 100)) for start in range(0, 2000, 100)]
        errors = [receipts.errors(60) for receipts in handed]
        assert all(len(found) == 100 for found in errors)
        uncertain = [
            all("whether the messages are stored is not known" in str(e) for e in found.values())
            for found in errors
        ]
        assert all(isinstance(e, NodeUnreachable) for found in errors for e in found.values())
        gate.open.set()
        proxy.go_on()
        client.send("t", b"after", delay=60).result(60)
    server.close()
    stored = {int(value) // 100 for value in gate.values() if value != b"after"}
    assert all(uncertain[number] for number in stored)


def test_receipts_are_written_for_each(gated: str, gate: Gate, tmp_path: object) -> None:
    path = f"{tmp_path}/receipts.arrow"
    with Client(gated, receipts=path) as client:
        for start in range(0, 2000, 100):
            client.send_table(table(start, 100))
        gate.open.set()
        client.flush(60)
    with pa.OSFile(path) as file:
        found = pa.ipc.open_stream(file).read_all()
    assert found.schema.equals(RECEIPTS)
    assert sorted(found.column("offset").to_pylist()) == list(range(2000))
    assert len(np.unique(found.column("digest"))) == 2000


def test_fire_and_forget_ends_all_of_them(gated: str, gate: Gate) -> None:
    gate.open.set()
    with Client(gated, acks="0") as client:
        handed = [client.send_many([Message("t", b"x", delay=60)] * 50) for _ in range(100)]
        client.flush(60)
        assert all(receipts.done() for receipts in handed)
    eventually(lambda: len(gate.values()) == 5000)


def test_what_may_be_stored_is_not_sent_again_under_another_sequence() -> None:
    """The node fails behind the append, and says that it does not know."""
    failed: list[int] = []

    class Defect(Gate):
        def append(self, rows, now_ms, **options):  # type: ignore[no-untyped-def]
            future = super().append(rows, now_ms, **options)
            if rows.num_rows > 100 and not failed:
                failed.append(rows.num_rows)
                raise RuntimeError("a defect behind the append")
            return future

    wheel = Defect()
    server = ServedIntake(wheel, "127.0.0.1:0", room_timeout_s=0.05)
    with Client(f"127.0.0.1:{server.port}") as client:
        handed = [client.send_table(table(start, 100)) for start in range(0, 2000, 100)]
        wheel.open.set()
        client.flush(60)
        told = sum(len(receipts.errors()) for receipts in handed)
    server.close()
    assert told == failed[0]
    assert sorted(wheel.values()) == sorted(b"%d" % number for number in range(2000))


def test_a_receipt_that_is_kept_keeps_no_rows(gated: str, gate: Gate) -> None:
    gate.open.set()
    rows = table(0, 1000)
    alive = weakref.ref(rows)
    gc.disable()
    try:
        with Client(gated) as client:
            receipts = client.send_table(rows).wait(60)
            del rows
            assert receipts.errors() == {}
            eventually(lambda: alive() is None)
    finally:
        gc.enable()


def test_slices_without_headers_are_as_small_as_they_look(gated: str, gate: Gate) -> None:
    gate.open.set()
    sizes: list[int] = []
    gate.before_append = lambda rows: sizes.append(rows.get_total_buffer_size())
    headers = [[("trace", b"0123456789")]] * 20_000 + [[]] * 100
    count = len(headers)
    whole = pa.table(
        {
            "due": pa.array([now_ms() + 60_000] * count),
            "topic": pa.array(["t"] * count),
            "value": pa.array([b"v"] * count),
            "headers": pa.array(
                [[dict(zip(("key", "value"), one, strict=True)) for one in row] for row in headers],
                INPUT.field("headers").type,
            ),
        }
    )
    with Client(gated, batch_rows=100) as client:
        client.send_table(whole.slice(20_000)).wait(60)
    assert max(sizes) < 20_000


def test_shares_of_several_calls_leave_together_and_in_order(gated: str, gate: Gate) -> None:
    with Client(gated, linger_ms=15_000) as client:
        shares = [
            client.send_share([Message("t", b"%d" % number, delay=60) for number in numbers])
            for numbers in (range(3), range(3, 5))
        ]
        between = client.send("t", b"5", delay=60)
        shares.append(client.send_share([Message("t", b"6", delay=60)]))
        gate.open.set()
        assert len(shares[0].result(60)) == 3  # less than they would linger
        assert between.done()
        assert all(receipts.done() for receipts in shares)
    assert gate.values() == [b"%d" % number for number in range(7)]
    assert gate.sizes == [7]


def test_shares_that_fill_a_batch_leave_at_once(gated: str, gate: Gate) -> None:
    gate.open.set()
    with Client(gated, linger_ms=60_000, batch_rows=4) as client:
        rows = rows_of([Message("t", b"x", delay=60)] * 2)
        assert rows is not None
        first = client.send_share(rows)
        second = client.send_share(rows)
        eventually(lambda: first.done() and second.done())
    assert gate.sizes == [4]


def test_who_waits_for_several_shipments_ends_the_lingering_of_all() -> None:
    hurried: list[int] = []
    shipments = [
        CountedShipment(due=[0], counted_in=None, hurried=partial(hurried.append, number))
        for number in range(3)
    ]
    shipments[1].finish(None, "")
    with pytest.raises(TimeoutError):
        Receipts(shipments).wait(0)
    assert hurried == [0, 2]
