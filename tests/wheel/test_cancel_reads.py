"""What a cancel reads: each slot's file once a request, and never while it holds the lock."""

from __future__ import annotations

import errno
from collections import Counter
from typing import Any

import numpy as np
import pytest

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.due import canceller
from slotwheel.wheel.due.lines import Lines
from slotwheel.wheel.errors import Overloaded
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.names import NAME_HEADER
from slotwheel.wheel.rows import from_columns
from slotwheel.wheel.schema import times
from slotwheel.wheel.slots.lookup import cancelled_rows
from slotwheel.wheel.slots.storage import Storage
from support.damage import flip
from support.wheels import NOW, Node, master_of

IDS = 10_000


class Reads(Counter[int]):
    """Counts the reads of each slot's file, and refuses one that is made under the lock."""

    def __init__(self, node: Node, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        read_blocks = Storage.read_blocks
        lock: Any = node.wheel._lock

        def read(storage: Storage, second: int, *known: Any) -> Any:
            assert not lock._is_owned(), "a slot file is read while the lock is held"
            self[second] += 1
            return read_blocks(storage, second, *known)

        patch.setattr(Storage, "read_blocks", read)


@pytest.fixture
def held(usual: Node) -> Any:
    """Two slots whose rows are due, of two topics in turn; the sink has taken all of ``other``."""
    rows = [(NOW + 1000 + 1000 * (n % 2), ("t", "other")[n // 2 % 2], b"") for n in range(IDS)]
    usual.send(rows, NOW)
    usual.wheel.spill(NOW, everything=True)
    while (chunk := usual.next_chunk(NOW + 5_000)) is not None:
        topics = chunk.rows.column("topic").to_pylist()
        master_of(usual.wheel).answer(chunk, np.array([topic != "t" for topic in topics], np.bool_))
    assert master_of(usual.wheel).held_topics() == ["t"]
    ids = [usual.wheel.mint.one(row[0], offset) for offset, row in enumerate(rows)]
    return usual, ids, [row[1] for row in rows]


def test_ids_of_a_held_topic_read_each_slot_once(
    held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, ids, topics = held
    reads = Reads(node, monkeypatch)
    answers = node.blocking(lambda: node.wheel.cancel(ids, NOW + 5_000))
    expected = {"t": CancelAnswer.CANCELLED, "other": CancelAnswer.DELIVERED}
    assert answers == [expected[topic] for topic in topics]
    assert sorted(reads.values()) == [1, 1]


def test_ids_that_are_not_due_are_not_looked_up(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their topic cannot matter yet, whatever is held back."""
    node, _, _ = held
    node.send([(NOW + 60_000, "t", b"")] * 100, NOW + 5_000)
    node.wheel.spill(NOW + 5_000, everything=True)
    reads = Reads(node, monkeypatch)
    ids = [node.wheel.mint.one(NOW + 60_000, IDS + n) for n in range(100)]
    answers = node.blocking(lambda: node.wheel.cancel(ids, NOW + 5_000))
    assert answers == [CancelAnswer.CANCELLED] * 100
    assert not reads


def test_a_topic_that_is_held_back_in_between(usual: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was free when the first rows were decided about, and is not when the others are."""
    usual.send([(NOW + 1000, "t", b"")] * 10, NOW)
    usual.wheel.spill(NOW, everything=True)
    chunk = usual.next_chunk(NOW + 1000)
    assert chunk is not None
    reads = Reads(usual, monkeypatch)
    ids: list[MessageId] = [usual.wheel.mint.one(NOW + 1000, offset) for offset in range(10)]
    has_left, asked = Lines.has_left, 0

    def refused_meanwhile(lines: Lines, *rows: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            master_of(usual.wheel).answer(chunk, np.zeros(10, np.bool_))
        return has_left(lines, *rows)

    monkeypatch.setattr(Lines, "has_left", refused_meanwhile)
    monkeypatch.setattr(canceller, "_SHARE", 5)
    answers = usual.blocking(lambda: usual.wheel.cancel(ids, NOW + 1000))
    assert answers == [CancelAnswer.CANCELLED] * 10
    assert list(reads.values()) == [1]


def test_a_disk_that_fills_up_within_a_request(
    usual: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """*Overloaded* says that nothing was stored: not where the first rows' cancels were."""
    usual.send([(NOW + 2000, "t", b"")] * 3, NOW)
    journal: Any = usual.wheel._log.journal
    written, room = journal.append, 1

    def append(entries: Any) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written(entries)

    monkeypatch.setattr(journal, "append", append)
    monkeypatch.setattr(canceller, "_SHARE", 1)
    ids = [usual.wheel.mint.one(NOW + 2000, offset) for offset in range(3)]
    answers = usual.blocking(lambda: usual.wheel.cancel(ids, NOW))
    assert answers == [CancelAnswer.CANCELLED, CancelAnswer.UNKNOWN, CancelAnswer.UNKNOWN]
    with pytest.raises(Overloaded):
        usual.blocking(lambda: usual.wheel.cancel(ids[1:], NOW))
    room = 100
    assert usual.blocking(lambda: usual.wheel.cancel(ids, NOW)) == [CancelAnswer.CANCELLED] * 3


def test_an_id_of_lost_rows_does_not_stand_for_the_row_that_has_its_offset_now(
    usual: Node,
) -> None:
    """It was given early, by a master whose rows were lost with it: the cancel it gets is in
    another slot, and must not be the answer for the row that is there."""
    usual.send([(NOW + 2000, "t", b"")], NOW)
    ids = [usual.wheel.mint.one(NOW + later, 0) for later in (5000, 2000)]
    assert usual.blocking(lambda: usual.wheel.cancel(ids, NOW))[1] is CancelAnswer.CANCELLED
    chunk = usual.next_chunk(NOW + 10_000)
    assert chunk is not None
    assert chunk.rows.num_rows == 0
    assert times(chunk.cancelled, "due").tolist() == [NOW + 2000]


def test_two_ids_of_one_offset_in_a_slot_with_a_held_topic(held: Any) -> None:
    """Each finds the topic: without it, a row that waits would be said to have left."""
    node, (real, *_), _ = held
    lost = node.wheel.mint.one(real.due + 1, real.offset)
    answers = node.blocking(lambda: node.wheel.cancel([lost, real], NOW + 5_000))
    assert answers[1] is CancelAnswer.CANCELLED


def test_a_damaged_slot_makes_its_own_ids_unknown(held: Any) -> None:
    node, ids, topics = held
    first, *_ = sorted((node.path / "slots").iterdir())
    flip(first)
    node.wheel.scrubber.turn(1 << 20)  # or the rows of a file that is open would still be sound
    answers = node.blocking(lambda: node.wheel.cancel(ids[:8], NOW + 5_000))
    sound = {"t": CancelAnswer.CANCELLED, "other": CancelAnswer.DELIVERED}
    expected = [sound[topic] if at % 2 else CancelAnswer.UNKNOWN for at, topic in enumerate(topics)]
    assert answers == expected[:8]


def test_a_large_request_waits_once_for_a_commit_that_does_not_come(usual: Node) -> None:
    """As with a majority away: what was not asked for yet is not queued behind it."""
    usual.send([(NOW + 60_000, "t", b"")] * 2_000, NOW)
    ids = [usual.wheel.mint.one(NOW + 60_000, offset) for offset in range(2_000)]
    before = usual.wheel._log.next_offset
    assert usual.wheel.cancel(ids, NOW, 0.01) == [CancelAnswer.UNKNOWN] * 2_000
    assert usual.wheel._log.next_offset - before < 2_000


def test_who_may_cancel_some_topics_gets_unknown_for_all_others(
    held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for one of their own that has left by another's will is nothing told of the others'."""
    node, ids, topics = held
    reads = Reads(node, monkeypatch)
    wheel = node.wheel
    may = {"t": CancelAnswer.CANCELLED, "other": CancelAnswer.UNKNOWN}
    answers = node.blocking(lambda: wheel.cancel(ids, NOW + 5_000, may="t".__eq__))
    assert answers == [may[topic] for topic in topics]
    assert max(reads.values()) <= 2  # for the topics, and for what a held-back topic makes depend
    none = node.blocking(lambda: wheel.cancel(ids, NOW + 5_000, may=lambda _topic: False))
    assert none == [CancelAnswer.UNKNOWN] * len(ids)
    everything = node.blocking(lambda: wheel.cancel(ids, NOW + 5_000))
    assert everything.count(CancelAnswer.CANCELLED) == topics.count("t")


def test_who_may_move_some_topics_moves_no_other(usual: Node) -> None:
    usual.send([(NOW + 60_000, "t", b"a"), (NOW + 60_000, "other", b"b")], NOW)
    first, second = (usual.wheel.mint.one(NOW + 60_000, offset) for offset in (0, 1))

    def move(message_id: MessageId) -> Any:
        moved = usual.wheel.reschedule(message_id, NOW + 90_000, NOW, may="t".__eq__)
        return moved[0], moved[1] is not None

    assert usual.blocking(lambda: move(second)) == (CancelAnswer.UNKNOWN, False)
    assert usual.blocking(lambda: move(first)) == (CancelAnswer.CANCELLED, True)
    ids = [first, second]
    answers = usual.blocking(lambda: usual.wheel.cancel(ids, NOW))
    assert answers == [CancelAnswer.CANCELLED] * 2


def test_a_message_that_has_a_name_is_cancelled_without_a_look_into_files(
    usual: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it was not cancelled before is known by its name; of an id slot files are asked."""
    none = [None, None]
    headers = [((NAME_HEADER, f"order-{number}"),) for number in range(2)]
    due = [NOW + 60_000, NOW + 60_001]
    future = usual.wheel.append(from_columns(due, ["t"] * 2, none, none, [b"v"] * 2, headers), NOW)
    usual.sync()
    first, second = usual.ids_of(future.result(0))
    usual.wheel.spill(NOW, everything=True)
    asked: list[int] = []

    def counted(storage: Any, due: Any, offset: Any, **given: Any) -> Any:
        asked.extend(offset.tolist())
        return cancelled_rows(storage, due, offset, **given)

    monkeypatch.setattr(canceller, "cancelled_rows", counted)
    by_name = usual.blocking(lambda: usual.wheel.cancel_named("t", "order-0", NOW))
    assert by_name == (CancelAnswer.CANCELLED, first)
    assert asked == []
    assert usual.blocking(lambda: usual.wheel.cancel([second], NOW)) == [CancelAnswer.CANCELLED]
    assert asked == [second.offset]
    again = usual.blocking(lambda: usual.wheel.cancel_named("t", "order-1", NOW))
    assert again == (CancelAnswer.UNKNOWN, None)
