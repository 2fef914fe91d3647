"""Names where they are hard: callers of one entry, the largest batch, runs that forget.

Each test shows a false answer, or a node that cannot start, unless a rule holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slotwheel.wheel.answers import Before, CancelAnswer, NamedAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NameTaken, from_wire
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.named import table
from slotwheel.wheel.named.runs import DIRECTORY
from slotwheel.wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists
from slotwheel.wheel.plain import PlainBatch, PlainReceipt
from slotwheel.wheel.rows import from_columns
from support.wheels import NOW, Node, master_of

FAR = WheelConfig(far_horizon_ms=30 * 86_400_000)
DAY_MS = 86_400_000
Named = tuple[str, IfExists, int]
"""A name, what becomes of the message that has it, and the due time of the new one, ms from now."""


@pytest.fixture
def node(tmp_path: Path) -> Any:
    made = Node(tmp_path, FAR, NOW)
    yield made
    made.close()


def send(
    node: Node, rows: Sequence[Named], now_ms: int = NOW, value: bytes = b""
) -> tuple[int, Sequence[NamedAnswer]]:
    """The first offset, and what became of the messages before."""
    none = [None] * len(rows)
    headers = [
        [(NAME_HEADER, name.encode()), (IF_EXISTS_HEADER, mode.encode())] for name, mode, _ in rows
    ]
    due = [now_ms + ahead for *_, ahead in rows]
    future = node.wheel.append(
        from_columns(due, ["t"] * len(rows), none, none, [value] * len(rows), headers), now_ms
    )
    node.sync()
    receipt = future.result(0)
    return receipt.base_offset, receipt.named


def send_plain(node: Node, callers: Sequence[Sequence[Named]]) -> list[Any]:
    """The answer to each of some callers whose rows come in one turn."""
    batches = [
        PlainBatch(
            [
                (
                    NOW + ahead,
                    b"t",
                    None,
                    None,
                    b"",
                    [
                        (NAME_HEADER.encode(), name.encode()),
                        (IF_EXISTS_HEADER.encode(), mode.encode()),
                    ],
                )
                for name, mode, ahead in rows
            ],
            100,
            100 + caller,
            1,
            caller=caller,
        )
        for caller, rows in enumerate(callers)
    ]
    answers: dict[Any, Any] = {}
    node.wheel.append_plain(
        batches,
        NOW,
        lambda of, answer: answers.update((batch.caller, answer) for batch in of),
    )
    node.sync()
    return [answers[caller] for caller in range(len(callers))]


def left(node: Node, now_ms: int) -> None:
    """All that is due has left, and the journal says so."""
    node.delivered(now_ms)
    node.mark(now_ms)


REPLACE, KEEP, REFUSE = IfExists


def test_a_refused_caller_takes_no_name_from_the_others_of_its_entry(node: Node) -> None:
    send(node, [("taken", REPLACE, 60_000)])
    refused, stored, too_late = send_plain(
        node,
        [
            [("free", REPLACE, 60_000), ("taken", REFUSE, 60_000)],
            [("free", REFUSE, 60_000)],
            [("free", REFUSE, 60_000)],
        ],
    )
    assert isinstance(refused, NameTaken)
    assert refused.row == 1
    assert isinstance(stored, PlainReceipt)
    assert isinstance(too_late, NameTaken)
    assert too_late.row == 0
    found = node.wheel.named("t", "free")
    assert found is not None
    assert found.offset == stored.base_offset


def test_a_refused_caller_gives_back_the_name_that_another_one_took(node: Node) -> None:
    send(node, [("taken", REPLACE, 60_000)])
    first, refused, last = send_plain(
        node,
        [
            [("free", REPLACE, 60_000)],
            [("free", REPLACE, 61_000), ("taken", REFUSE, 60_000)],
            [("free", KEEP, 62_000)],
        ],
    )
    assert isinstance(refused, NameTaken)
    assert first is last
    assert first.named == (NamedAnswer(1, Before.KEPT, NOW + 60_000, first.base_offset),)


def test_who_uses_a_name_twice_is_told_the_row_of_his_own_batch(node: Node) -> None:
    _, refused = send_plain(
        node,
        [
            [("other", REPLACE, 60_000)] * 3,
            [("x", REPLACE, 60_000), ("twice", REFUSE, 60_000), ("twice", REFUSE, 60_000)],
        ],
    )
    assert isinstance(refused, NameTaken)
    assert (refused.row, refused.got) == (
        2,
        "the name of an earlier message of the same batch, its row 1",
    )


def test_the_largest_batch_of_which_each_row_replaces_one_is_stored_and_found_again(
    node: Node,
) -> None:
    rows: list[Named] = [(f"{number}", REPLACE, 60_000) for number in range(FAR.batch_rows_max)]
    send(node, rows)
    content = bytes(FAR.batch_bytes_max // len(rows) - 110)
    base, named = send(node, rows, value=content)
    assert [answer.before for answer in named] == [Before.REPLACED] * len(rows)
    node.reopen(NOW)
    found = node.wheel.named("t", rows[-1][0])
    assert found is not None
    assert found.offset == base + len(rows) - 1
    assert node.wheel.status().pending == len(rows)


def test_a_thousand_rows_of_one_name_leave_one_pending(node: Node) -> None:
    base, named = send(node, [("one", REPLACE, 60_000)] * 1_000)
    assert [answer.row for answer in named] == list(range(1, 1_000))
    assert {answer.before for answer in named} == {Before.REPLACED}
    assert node.wheel.status().pending == 1
    node.reopen(NOW)
    assert node.wheel.status().pending == 1
    found = node.wheel.named("t", "one")
    assert found is not None
    assert found.offset == base + 999


@pytest.mark.parametrize("merged", [False, True])
def test_the_message_that_is_told_of_is_the_last_one(
    node: Node, merged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_FEW_NAMES", 0)
    send(node, [("one", REPLACE, 60_000)])
    send(node, [(f"other {number}", REPLACE, 2 * DAY_MS) for number in range(100)])
    node.wheel.spill(NOW, everything=True)
    now_ms = NOW + 61_000
    left(node, now_ms)
    last, _ = send(node, [("one", REPLACE, 1_000), ("third", REPLACE, 60_000)], now_ms)
    if merged:
        node.wheel.spill(now_ms, everything=True)
        send(node, [("fourth", REPLACE, 60_000)], now_ms)
    now_ms += 2_000
    left(node, now_ms)
    node.wheel.spill(now_ms, everything=True)
    if merged:
        node.wheel.clean(now_ms)
        assert len(node.wheel._storage.names.runs) == 2
    found = node.wheel.named("t", "one")
    assert found is not None
    assert found.offset == last
    _, named = send(node, [("one", REPLACE, 60_000)], now_ms)
    assert [(answer.before, answer.offset) for answer in named] == [(Before.DELIVERED, last)]


@pytest.mark.parametrize("hours", [0, 3])
def test_a_table_made_anew_does_not_say_delivered_of_what_was_cancelled(
    node: Node, hours: int
) -> None:
    """Its cancel is a row of a second, whose file is deleted; the message lies in that of a day."""
    due_ms = NOW - NOW % DAY_MS + 4 * DAY_MS
    base, _ = send(node, [("one", REPLACE, due_ms - NOW), ("two", REPLACE, due_ms + 1 - NOW)])
    send(node, [("stays", REPLACE, due_ms + DAY_MS - 1 - NOW)])
    node.wheel.spill(NOW, everything=True)
    now_ms = due_ms - 60_000
    left(node, now_ms)
    target = MessageId.parse(str(node.wheel.mint.one(due_ms, base)))
    answers = node.blocking(lambda: node.wheel.cancel([target], now_ms))
    assert answers == [CancelAnswer.CANCELLED]
    node.wheel.spill(now_ms, everything=True)
    now_ms = due_ms + 60_000 + hours * 3_600_000
    left(node, now_ms)
    node.wheel.clean(now_ms)
    node.wheel.spill(now_ms, everything=True)
    left(node, now_ms + 60_000)
    node.wheel.clean(now_ms + 60_000)
    node.wheel.spill(now_ms + 60_000, everything=True)
    node.crash()
    for path in (node.path / DIRECTORY).glob("*"):
        path.unlink()
    node.open(now_ms + 60_000)
    node.sync()
    master_of(node.wheel).canceller.know_what_left()  # as a sink tells that is exact
    assert len(node.wheel._storage.catalog) == 1
    _, named = send(node, [("one", REPLACE, 60_000)], now_ms + 60_000)
    assert [answer.before for answer in named if answer.before is Before.DELIVERED] == []
    assert node.wheel.named("t", "stays") is not None


def test_spills_without_names_leave_nothing_in_memory(node: Node) -> None:
    for _ in range(5):
        node.send([(NOW + 60_000, "t", b"")], NOW)
        node.wheel.spill(NOW, everything=True)
    assert len(node.wheel._storage.names._layers) <= 2
    assert node.wheel._storage.names.nbytes == 0


def test_a_reschedule_by_name_that_is_not_committed_in_time_is_done_once(node: Node) -> None:
    base, _ = send(node, [("one", REPLACE, 60_000)])
    offset = node.wheel._log.next_offset
    answer, before, after = node.wheel.reschedule_named("t", "one", NOW + 90_000, NOW, 0)
    assert (answer, after) == (CancelAnswer.UNKNOWN, None)
    assert before is not None
    assert before.offset == base
    node.sync()
    assert node.wheel._log.next_offset == offset + 2
    found = node.wheel.named("t", "one")
    assert found is not None
    assert found.due == NOW + 90_000


@pytest.mark.parametrize("length", [0, 10, 200, None])
def test_a_run_that_is_short_or_gone_is_made_anew(node: Node, length: int | None) -> None:
    base, _ = send(node, [(f"{number}", REPLACE, 60_000) for number in range(30)])
    node.wheel.spill(NOW, everything=True)
    node.crash()
    [path] = (node.path / DIRECTORY).glob("*")
    if length is None:
        path.unlink()
    else:
        os.truncate(path, length)
    node.open(NOW)
    node.sync()
    found = node.wheel.named("t", "29")
    assert found is not None
    assert found.offset == base + 29


def test_the_status_counts_names_and_what_became_of_those_before(node: Node) -> None:
    send(node, [("a", REPLACE, 60_000), ("b", REPLACE, 60_000), ("a", REPLACE, 60_000)])
    send(node, [("a", KEEP, 60_000), ("b", REPLACE, 2 * DAY_MS), ("c", REPLACE, 1_000)])
    [_, refused] = send_plain(node, [[("d", KEEP, 60_000)], [("a", REFUSE, 60_000)]])
    assert isinstance(refused, NameTaken)
    status = node.wheel.status()
    assert (status.names, status.names_replaced, status.names_kept) == (4, 2, 1)
    assert status.pending == 4
    left(node, NOW + 2_000)
    node.wheel.spill(NOW + 2_000, everything=True)
    assert node.wheel.status().names == 3
    node.reopen(NOW + 2_000)
    status = node.wheel.status()
    assert (status.names, status.names_replaced, status.names_kept) == (3, 0, 0)


def test_who_is_refused_for_many_names_learns_of_all_of_them_at_once(node: Node) -> None:
    first, _ = send(node, [(f"n{at}", IfExists.REPLACE, 60_000) for at in range(50)])
    again = [(f"n{at}", IfExists.REFUSE, 90_000) for at in range(40, 60)]
    twice = ("n55", IfExists.REFUSE, 90_000)
    with pytest.raises(NameTaken) as refused:
        send(node, [*again, twice])
    errors = from_wire(refused.value.to_wire())
    assert isinstance(errors, NameTaken)
    of_row = errors.by_row(21)
    assert sorted(of_row) == [*range(10), 20]
    for row in range(10):
        held = MessageId.parse(of_row[row].got)
        assert (held.due, held.offset) == (NOW + 60_000, first + 40 + row)
    assert of_row[20].got == "the name of an earlier message of the same batch, its row 15"
    assert [error.row for error in of_row.values()] == [None] * 11
    send(node, again[10:])


def test_a_caller_of_an_entry_learns_of_all_his_rows_and_of_no_others(node: Node) -> None:
    send(node, [(f"n{at}", IfExists.REPLACE, 60_000) for at in range(4)])
    taken = [(f"n{at}", IfExists.REFUSE, 90_000) for at in range(4)]
    free: Named = ("free", IfExists.REFUSE, 90_000)
    one, other, last = send_plain(node, [[free, *taken[:2]], [taken[2], free], [free]])
    assert isinstance(one, NameTaken)
    assert isinstance(other, NameTaken)
    assert list(one.by_row(3)) == [1, 2]
    assert list(other.by_row(2)) == [0]
    assert isinstance(last, PlainReceipt)
