"""Cancels of messages that lie in files of an hour or a day: what is read for them, how often, and
what stays known when a file is deleted, damaged or replaced. The widths are small (conftest)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel import config as wheel_config
from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.cancelrecord import CancelRecord
from slotwheel.wheel.config import TICK_MS, WheelConfig
from slotwheel.wheel.due import cancels as register
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.journal.payloads import CancelRows
from slotwheel.wheel.mark import BY_TOPICS, Mark, Marks
from slotwheel.wheel.slots.cancelled import CancelledSeconds
from slotwheel.wheel.slots.filecancels import FileCancels
from slotwheel.wheel.slots.lookup import topics_of
from slotwheel.wheel.slots.mend import stage
from slotwheel.wheel.slots.slot import (
    HOUR_S,
    WIDTHS_S,
    is_wide,
    path_of,
    rows_by_slot,
    slot_with,
    slots_with,
    width_s,
)
from slotwheel.wheel.slots.slotfile import SlotFiles
from slotwheel.wheel.state import Loss, SlotInfo, StateUpdate, StoredState
from support.damage import flip
from support.memstate import MemoryState
from support.wheels import Node, batch, master_of, opened

BEGIN = 1_600_000_000_000
"""A day of 16 seconds begins."""
DAY_MS = 16 * TICK_MS
CANCELLED, DELIVERED, UNKNOWN = (
    CancelAnswer.CANCELLED,
    CancelAnswer.DELIVERED,
    CancelAnswer.UNKNOWN,
)
seconds = st.integers(-3, 40)


@pytest.fixture
def node(tmp_path: Path, small_widths: None) -> Iterator[Node]:
    config = WheelConfig(slots=2, far_horizon_ms=100 * TICK_MS, disk_reserve_bytes=0)
    with opened(tmp_path, config, BEGIN) as node:
        master_of(node.wheel).resume(BEGIN, exact=BY_TOPICS)  # what has left is known
        node.sync()
        yield node


def sent(node: Node, due: Sequence[int], now_ms: int = BEGIN) -> list[MessageId]:
    """Ids of messages, of topics a and b in turn, which are in slot files."""
    rows = [(at, "ab"[n % 2], b"%d" % n) for n, at in enumerate(due)]
    ids = node.ids_of(node.send(rows, now_ms))
    node.wheel.spill(now_ms, everything=True)
    return ids


def ask(
    node: Node, ids: Sequence[MessageId], now_ms: int = BEGIN, **may: Any
) -> list[CancelAnswer]:
    return node.blocking(lambda: node.wheel.cancel(ids, now_ms, **may))


def of_days(days: int = 3) -> list[int]:
    """A due time in each second of days that are far ahead."""
    return [BEGIN + 3 * DAY_MS + n * TICK_MS + 7 for n in range(days * 16)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bool]]:
    """Counts how often each wide slot's file is read whole, for its rows or for an index of its
    blocks; True: only what it had grown by."""
    counts = Counter[tuple[str, bool]]()

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(files: SlotFiles, slot: int, info: Any, known: SlotInfo | None = None) -> Any:
            if is_wide(slot):
                counts[path_of(slot), bool(known and known.length)] += 1
            return read(files, slot, info, known)

        return call

    for name in ("read", "block_spans"):
        monkeypatch.setattr(SlotFiles, name, counted(getattr(SlotFiles, name)))
    return counts


def test_a_file_is_read_once_for_all_seconds_that_are_asked_about(
    node: Node, reads: Counter[tuple[str, bool]]
) -> None:
    ids = sent(node, of_days())
    assert ask(node, ids[::2]) == [CANCELLED] * 24
    assert not reads, "no file has a cancel"
    node.wheel.spill(BEGIN, everything=True)
    node.reopen(BEGIN)
    assert ask(node, ids) == [CANCELLED] * 48
    assert len(reads) == 3
    assert set(reads.values()) == {1}
    reads.clear()
    assert ask(node, ids) == [CANCELLED] * 48
    assert not reads, "nothing has grown"
    node.send([(at, "a", b"") for at in of_days()], BEGIN)
    node.wheel.spill(BEGIN, everything=True)
    ask(node, ids)
    assert {grown for _, grown in reads} == {True}
    reads.clear()
    node.send([(at, "a", b"") for at in of_days()], BEGIN)
    node.wheel.spill(BEGIN, everything=True)
    assert ask(node, ids) == [CANCELLED] * 48
    assert not reads, "they have grown, by no cancel"


def test_topics_are_read_once_a_file(node: Node, reads: Counter[tuple[str, bool]]) -> None:
    ids = sent(node, of_days())
    ids += node.ids_of(node.send([(at, "a", b"") for at in of_days()], BEGIN))
    answers = ask(node, ids, may="a".__eq__)
    assert answers == [CANCELLED, UNKNOWN] * 24 + [CANCELLED] * 48
    assert len(reads) == 3
    assert set(reads.values()) == {1}


def test_an_id_of_a_row_that_was_lost_is_not_that_of_another_second_of_its_day(node: Node) -> None:
    [real] = sent(node, of_days()[:1])
    lost = node.wheel.mint.one(real.due + 2 * TICK_MS, real.offset)
    assert ask(node, [lost, real], may="a".__eq__) == [UNKNOWN, CANCELLED]
    node.wheel.spill(BEGIN, everything=True)
    assert ask(node, [lost, real], may="a".__eq__) == [UNKNOWN, CANCELLED]


def test_cancels_of_one_offset_in_several_seconds_of_a_day_are_told_apart(node: Node) -> None:
    [real] = sent(node, of_days()[:1])
    ids = [real, *(node.wheel.mint.one(real.due + n * TICK_MS, real.offset) for n in (1, 2))]
    assert ask(node, ids[1::-1]) == [CANCELLED] * 2
    node.wheel.spill(BEGIN, everything=True)
    node.reopen(BEGIN)
    committed = node.wheel.status().committed_offset
    assert ask(node, ids) == [CANCELLED] * 3
    assert node.wheel.status().committed_offset == committed + 1, "of the third alone"


def test_cancels_are_found_in_whichever_file_they_were_spilled_to(node: Node) -> None:
    """Target and cancel in files of two widths, or in one of the third."""
    due = BEGIN + 3 * DAY_MS + 5_007
    ids = sent(node, [due] * 5)
    for number, now_ms in enumerate((BEGIN, due - 10_000, due - 1_500)):
        assert ask(node, ids[number : number + 1], now_ms) == [CANCELLED]
        node.wheel.spill(now_ms, everything=True)
    assert [width_s(slot) for slot in node.wheel.stock_point().catalog] == [1, 4, 16]
    node.reopen(due - 1_500)
    assert ask(node, ids[:3], due - 1_500) == [CANCELLED] * 3
    assert node.wheel.status().pending == 2, "nothing was cancelled again"
    assert node.delivered(due) == [b"3", b"4"]


@pytest.mark.parametrize("spilled", [False, True])
def test_what_the_register_forgets_before_its_spill_still_holds_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, spilled: bool
) -> None:
    """In the tail both an answer and the delivery find it."""
    monkeypatch.setattr(register, "_SECONDS_MAX", 8)
    monkeypatch.setattr(register, "_NEAR_SECONDS", 3)
    due = of_days()
    ids = sent(node, due)
    assert ask(node, ids[::2]) == [CANCELLED] * 24
    node.wheel.clean(BEGIN)
    assert len(node.wheel._cancels) <= 8
    if spilled:
        node.wheel.spill(BEGIN, everything=True)
    committed = node.wheel.status().committed_offset
    assert ask(node, ids[::2]) == [CANCELLED] * 24
    assert node.wheel.status().committed_offset == committed, "no second cancel was stored"
    node.wheel.clean(BEGIN)
    for now_ms in range(BEGIN, due[-1] + TICK_MS, 500):
        node.wheel.clean(now_ms)
        assert set(node.delivered(now_ms)) <= {b"%d" % n for n in range(1, 48, 2)}
    assert node.wheel.status().delivered == 24


class DayThatLeaves:
    """A day each second of which has a message; those of even seconds are cancelled, and so is one
    whose file is of a second. What left more than five seconds ago is forgotten."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wheel_config, "_SHORT_HORIZON_MS", 5 * TICK_MS)
        self.node = node
        self.reopen(BEGIN)
        self.due = of_days(1)
        self.ids = sent(node, self.due)
        ask(node, self.ids[::2])
        node.wheel.spill(BEGIN, everything=True)
        near_ms = self.due[2] + 500
        self.deliver(near_ms - 600)
        [near] = node.ids_of(node.send([(near_ms, "a", b"near")], near_ms - 600))
        assert ask(node, [near], near_ms - 600) == [CANCELLED]

    def reopen(self, now_ms: int) -> None:
        self.node.reopen(now_ms)
        master_of(self.node.wheel).resume(now_ms, exact=BY_TOPICS)
        self.node.sync()

    def deliver(self, now_ms: int) -> None:
        self.node.delivered(now_ms)
        self.node.mark(now_ms)
        self.node.wheel.spill(now_ms, everything=True)

    def answers(self, now_ms: int) -> str:
        """The first letters of the answers for what has left."""
        ids = [message_id for message_id in self.ids if message_id.due <= now_ms]
        return "".join(answer.value[0] for answer in ask(self.node, ids, now_ms))

    def recorded(self) -> list[int]:
        """Positions of the seconds of which there is a record."""
        seconds = sorted(self.node.state.load().cancelled)
        return [second - self.due[0] // TICK_MS for second in seconds]


def test_of_a_day_that_leaves_the_last_two_hours_are_known(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its file is there, what was cancelled is known for longer, and what was delivered is
    not: its cancel might have been in the file of its second."""
    day = DayThatLeaves(node, monkeypatch)
    for now_ms, answers, recorded in (
        (day.due[6] + 900, "cacacac", [2]),
        (day.due[10] + 900, "cucacacacac", []),
        (day.due[15] + 1_000, "cucucucucucacaca", [12, 14]),  # the register still knows them
    ):
        day.deliver(now_ms)
        node.wheel.clean(now_ms)
        assert day.answers(now_ms) == answers
        assert day.recorded() == recorded
    assert not list(node.wheel.stock_point().catalog)
    day.reopen(day.due[15] + 1_000)
    assert day.answers(day.due[15] + 1_000) == "u" * 11 + "acaca"


def test_of_a_damaged_day_that_leaves_nothing_is_said(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, end_ms = DayThatLeaves(node, monkeypatch), of_days(1)[15] + 1_000
    day.deliver(end_ms)
    [slot] = [slot for slot in node.wheel.stock_point().catalog if is_wide(slot)]
    flip(node.path / path_of(slot))
    day.reopen(end_ms)
    node.wheel.clean(end_ms)
    assert not list(node.wheel.stock_point().catalog)
    assert day.answers(end_ms) == "u" * 16
    assert day.recorded() == [11, 12, 13, 14, 15], "and of the two hours before nothing is lost"
    later = sent(node, [end_ms + 500], end_ms)
    node.delivered(end_ms + 500)
    assert ask(node, later, end_ms + 500) == [DELIVERED]


def test_a_day_that_is_made_anew_has_doubts_up_to_the_mark_only(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = DayThatLeaves(node, monkeypatch)
    now_ms = day.due[9] + 900
    day.deliver(now_ms)
    [slot] = [slot for slot in node.wheel.stock_point().catalog if is_wide(slot)]
    storage, marks = node.wheel._storage, node.wheel._committed_marks
    first, *others = storage.read_blocks(slot, storage.catalog[slot])
    rest = [first.slice(9), *others]
    update = StateUpdate(slots={slot: stage(node.files, slot, rest)})
    storage.replace([slot], update, marks)
    assert day.recorded() == [*range(4, 10)]
    assert day.answers(now_ms) == "cucucucucu"
    assert ask(node, day.ids[10:12], now_ms) == [CANCELLED, CANCELLED]


def test_a_loss_in_a_day_makes_unknown_what_has_left_of_it(node: Node) -> None:
    ids = sent(node, [*of_days(1), BEGIN + 4 * DAY_MS + 7])
    end_ms = BEGIN + 4 * DAY_MS + 500
    assert len(node.delivered(end_ms)) == 17
    assert ask(node, ids, end_ms) == [DELIVERED] * 17
    day = slot_with(ids[0].due // TICK_MS, 16)
    node.wheel._losses = [Loss(day, 1, 1)]
    assert ask(node, ids, end_ms) == [UNKNOWN] * 16 + [DELIVERED]


def test_a_day_makes_records_of_two_hours_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = 0
    encode = CancelRecord.encode

    def counted(record: CancelRecord) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode(record)

    monkeypatch.setattr(CancelRecord, "encode", counted)
    kept = CancelledSeconds(MemoryState(StoredState(cancelled_floor=-1)), 7_200_000)
    marks = Marks(Mark(86_400_000, 0, 1 << 40))
    named = np.arange(86_400)
    update = kept.plan(CancelRows(named * TICK_MS, named, named), marks)
    assert list(update.records) == list(range(79_200, 86_400))
    assert (encoded, update.floor_ms, update.deleted) == (7_200, 79_199_999, ())
    lost = kept.plan(CancelRows(), marks, [range(86_400)])
    assert list(lost.records) == list(range(79_200, 86_400))
    assert (encoded, lost.floor_ms, lost.deleted) == (14_400, 79_199_999, ())
    before = kept.plan(CancelRows(), marks, [range(86_395, 86_400)])
    assert (len(before.records), before.floor_ms) == (5, None)
    kept.committed(update)
    kept.committed(lost)
    due = np.array([79_199_999, 79_200_000, 86_400_000])
    assert kept.known(due).tolist() == [False, False, True]


def test_a_file_that_is_deleted_while_it_is_read_is_not_remembered(tmp_path: Path) -> None:
    blocks = [cancel_block([5, 9])]
    forget: list[Callable[[], None]] = []

    def read(*_: Any) -> list[pa.RecordBatch]:
        for call in forget:
            call()
        return blocks

    cancels, info = FileCancels(read, 100), SlotInfo(1000, 2, 2, 9, 0)
    forget.append(lambda: cancels.forget(7))
    assert cancels.of(7, info).target.tolist() == [5, 9]
    forget.clear()
    blocks[:] = [cancel_block([11, 12])]
    assert cancels.of(7, info).target.tolist() == [11, 12], "another file of the same slot"
    blocks.clear()
    assert cancels.of(7, info).target.tolist() == [11, 12], "it is kept by now"
    assert len(cancels.of(8, info)) == 0, "deleted before it was read"
    blocks[:] = [cancel_block([3, 4])]
    assert cancels.of(8, info).target.tolist() == [3, 4]


def test_cancels_of_files_are_kept_up_to_a_number() -> None:
    read = Counter[int]()

    def blocks(slot: int, *_: Any) -> list[pa.RecordBatch]:
        read[slot] += 1
        return [cancel_block(list(range(slot)))]

    cancels = FileCancels(blocks, 10)
    for slot in (4, 5, 4, 3, 4, 5, 11, 11, 4):
        assert len(cancels.of(slot, SlotInfo(1000, slot, slot, 99, 0))) == slot
    assert read == {4: 1, 5: 2, 3: 1, 11: 2}


def cancel_block(targets: Sequence[int]) -> pa.RecordBatch:
    rows = batch([(TICK_MS, "", b"")] * len(targets))
    columns = {"offset": pa.array(targets, pa.int64()), "cancels": pa.array(targets, pa.int64())}
    return pa.RecordBatch.from_pydict({"due": rows.column("due"), **columns})


@given(st.lists(seconds, max_size=20), st.sets(seconds), st.sets(st.integers(0, 2)))
def test_rows_by_slot_are_those_of_each_slot(
    due: list[int], some: set[int], widths: set[int]
) -> None:
    slots = {slot_with(max(0, at) * HOUR_S, WIDTHS_S[n]) for at in some for n in widths} | some
    times = np.array([at * HOUR_S * TICK_MS + 7 for at in due], np.int64)
    by_slot = [(slot, sorted(rows.tolist())) for slot, rows in rows_by_slot(slots, times)]
    expected: dict[int, list[int]] = {}
    for row, at in enumerate(due):
        for slot in slots_with(at * HOUR_S):
            if slot in slots:
                expected.setdefault(slot, []).append(row)
    assert by_slot == sorted(expected.items())


def test_a_topic_is_known_beside_a_damaged_file_if_another_one_has_the_row(node: Node) -> None:
    due = of_days(1)[3]
    sent(node, [due], BEGIN)
    sent(node, [due], due - 10_000)
    flip(node.path / path_of(slot_with(due // TICK_MS, 16)))
    topics = topics_of(node.wheel._storage, np.array([due] * 3), np.array([0, 1, 2]))
    assert topics.tolist() == [None, "a", ""]
