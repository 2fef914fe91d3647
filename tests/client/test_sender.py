"""The sender at moments that a real link gives only by chance: a link made up, answers at will."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa

from slotwheel.client.addresses import Addresses
from slotwheel.client.batch import Shipment, gathered
from slotwheel.client.buffer import Buffer
from slotwheel.client.columns import Limits
from slotwheel.client.sender import Sender
from slotwheel.wheel.errors import InvalidMessage, NodeUnreachable, SequenceTooOld, SlotwheelError
from slotwheel.wheel.protocol import RefusedBatch
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import times
from support.waiting import PATIENCE_S, eventually, now_ms


class FakeLink:
    takes_records = False
    """Remembers what was written: sequences, and the values of each."""

    group = "default"
    limits = Limits()
    epoch = 0
    error: SlotwheelError | None = None

    def __init__(self, on_answer: Any, on_write: Callable[[FakeLink, pa.RecordBatch, int], None]):
        self.on_answer = on_answer
        self.on_write = on_write
        self.wrote: list[tuple[int, list[bytes]]] = []

    def read_while(self, waiting: Callable[[], bool], timeout_s: float | None) -> None:
        pass

    def write(
        self, rows: pa.RecordBatch, sequence: int, request: Any = None, *, read: bool = True
    ) -> None:
        self.wrote.append((sequence, rows.column("value").to_pylist()))
        self.on_write(self, rows, sequence)

    def cut(self) -> None:
        pass

    def close(self, timeout_s: float = 1.0) -> None:
        pass


@contextmanager
def sender(
    *,
    timeout_s: float = 10.0,
    acks: str = "all",
    on_write: Callable[[FakeLink, pa.RecordBatch, int], None] = lambda link, rows, sequence: None,
) -> Iterator[tuple[Sender, list[FakeLink]]]:
    links: list[FakeLink] = []

    def connect(address: str, command: Any, wait_s: float, on_answer: Any, *rest: Any) -> Any:
        links.append(FakeLink(on_answer, on_write))
        return links[-1]

    with closing(
        Sender(
            Addresses("127.0.0.1:1"),
            connect,
            lambda address, timeout_s: 0,
            Buffer(
                timeout_s=timeout_s,
                linger_s=0.005,
                batch_rows=5000,
                batch_bytes=1 << 20,
                bytes_max=64 << 20,
            ),
            producer=1,
            acks=acks,
            timeout_s=timeout_s,
            answer_timeout_s=timeout_s,
        )
    ) as made:
        yield made, links


def ship(to: Sender, start: int, rows: int = 10) -> Shipment:
    values = [b"%d" % number for number in range(start, start + rows)]
    nothing = [None] * rows
    due = [now_ms() + 60_000] * rows
    content = from_columns(due, ["t"] * rows, nothing, nothing, values, [()] * rows)
    shipment = to.new_shipment(due=times(content, "due"), rows=content)
    to.submit(shipment)
    return shipment


def test_its_end_does_not_wait_for_its_watch() -> None:
    with patch("slotwheel.client.sender._WATCH_S", 60.0), sender() as (made, _):
        eventually(lambda: all(thread.is_alive() for thread in made._threads))
        made.close()
        assert not any(thread.is_alive() for thread in made._threads)


def test_what_is_given_up_while_it_is_gathered_is_never_written() -> None:
    real = gathered
    given_up = threading.Event()
    gathering: list[Any] = []

    def slowly(contents: Any) -> pa.RecordBatch:
        gathering.append(contents)
        assert given_up.wait(PATIENCE_S)
        return real(contents)

    with (
        patch("slotwheel.client.sender.gathered", slowly),
        sender(timeout_s=1.0) as (late, links),
        sender() as (closed, other_links),
    ):
        one, two = ship(late, 0), ship(closed, 0)
        eventually(lambda: len(gathering) == 2)
        closing = threading.Thread(target=closed.close)
        closing.start()
        one.wait(60)
        two.wait(60)
        given_up.set()
        closing.join(60)
    for shipment, made in ((one, links), (two, other_links)):
        assert shipment.failure is not None
        assert "not known" not in str(shipment.failure)
        assert [link.wrote for link in made] == [[]] * len(made)


def test_fire_and_forget_goes_on_behind_a_bad_row() -> None:
    def refuse(link: FakeLink, rows: pa.RecordBatch, sequence: int) -> None:
        values = rows.column("value").to_pylist()
        if b"3" in values:
            link.on_answer(RefusedBatch(sequence, InvalidMessage("no", row=values.index(b"3"))))

    with sender(acks="0", on_write=refuse) as (to, links):
        for start in range(0, 300, 10):
            ship(to, start)
            time.sleep(0.005)
        to.flush(60)
        written = {value for _, values in links[0].wrote for value in values}
    assert written == {b"%d" % number for number in range(300)}


def test_uncertain_batches_are_never_taken_apart() -> None:
    with sender() as (to, links):
        with to._changed:  # so that they leave together
            one, two = ship(to, 0), ship(to, 10)
        eventually(lambda: links and len(links[0].wrote) == 1)
        to._lost(cast(Any, links[0]), NodeUnreachable("gone"))
        eventually(lambda: len(links) == 2 and links[1].wrote)
        [(sequence, values)] = links[1].wrote
        assert (sequence, len(values)) == (0, 20)
        links[1].on_answer(RefusedBatch(0, SequenceTooOld("too old to say whether it was stored")))
        one.wait(60)
        two.wait(60)
        assert isinstance(one.failure, SequenceTooOld)
        assert isinstance(two.failure, SequenceTooOld)
        assert len(links[1].wrote) == 1


def test_no_deadline_moves_away() -> None:
    with sender() as (to, links):
        began = time.monotonic()
        old = ship(to, 0)
        eventually(lambda: links and len(links[0].wrote) == 1)
        old_deadline = old.deadline
        time.sleep(0.5)
        new = ship(to, 10)
        later_s = time.monotonic() - began
        eventually(lambda: len(links[0].wrote) == 2)
        with to._changed:
            for sequence in (0, 1):
                refused = RefusedBatch(sequence, InvalidMessage("no", row=3))
                links[0].on_answer(refused)
        eventually(lambda: len(links[0].wrote) >= 3)
        assert old.deadline == old_deadline
        assert new.deadline <= old_deadline + later_s


def test_thousands_of_bad_rows_are_sorted_out_quickly() -> None:
    with sender() as (to, links):
        with to._changed:
            shipments = [ship(to, number, 1) for number in range(5000)]
        eventually(lambda: links and links[0].wrote)
        with patch.object(
            to, "_rows_to_drop", lambda rows, error: dict.fromkeys(range(rows.num_rows), error)
        ):
            links[0].on_answer(RefusedBatch(0, InvalidMessage("no", row=0)))
        assert all(shipment.done for shipment in shipments[: len(links[0].wrote[0][1])])
        assert all(shipment.error(0) for shipment in shipments if shipment.done)


def test_giving_up_very_many_takes_time_in_proportion() -> None:
    """The lock is held meanwhile."""

    def seconds(count: int) -> float:
        buffer = Buffer(timeout_s=1.0, linger_s=1.0, batch_rows=1, batch_bytes=1, bytes_max=1 << 30)
        shipments = [Shipment(due=[]) for _ in range(count)]
        for shipment in shipments:
            buffer.add(shipment)
        began = time.thread_time()
        for shipment in reversed(shipments):
            buffer.remove(shipment)
        assert not buffer.open
        assert not buffer.waits_to_be_sent
        return time.thread_time() - began

    few = min(seconds(2_000) for _ in range(5))
    assert min(seconds(20_000) for _ in range(3)) < 40 * few
