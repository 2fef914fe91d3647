"""An answer that is asked for again: the first one, or *unknown*. What was cancelled stays known
for two hours, or a shorter horizon, whatever happens to the slot, the journal and the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.answers import CancelAnswer
from slotwheel.wheel.cancelrecord import COUNT_MAX, CancelRecord, is_incomplete
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.journal.payloads import CancelRows
from slotwheel.wheel.mark import BY_TOPICS, Mark, Marks
from slotwheel.wheel.slots import cancelled
from slotwheel.wheel.slots.cancelled import CancelledSeconds
from slotwheel.wheel.state import StateUpdate, StoredState
from support.damage import flip
from support.memstate import MemoryState
from support.wheels import NOW, Node, master_of, opened

CONFIG = WheelConfig(slots=60, cancels_remembered_max=2, disk_reserve_bytes=0)
CANCELLED, DELIVERED, UNKNOWN = (
    CancelAnswer.CANCELLED,
    CancelAnswer.DELIVERED,
    CancelAnswer.UNKNOWN,
)
LEFT = NOW + 5_000
"""All messages have left by then."""
Answers = Mapping[MessageId, CancelAnswer]


class Asked:
    """A node that has delivered, and what it answered. ``exact``: what has left is known by its
    topics, as under exactly-once."""

    def __init__(self, node: Node, *, exact: bool) -> None:
        self.node = node
        self.exact = exact
        self.now_ms = NOW
        self._begin()
        ids = self._send(12)
        node.wheel.spill(NOW, everything=True)
        self.first: dict[MessageId, CancelAnswer] = {}
        self.cancel(ids[:2])  # their cancels will lie in the slot's file ...
        self.move(ids[2])
        node.wheel.spill(NOW, everything=True)
        self.cancel(ids[4:6])  # ... these in the tail when the mark passes them
        self.move(ids[6])
        ids += self._send(4)
        self.cancel(ids[12:13])
        node.delivered(NOW + 1_500)
        self.cancel(ids[7:8])  # and this is a late answer: delivered
        node.delivered(LEFT)
        self.now_ms = LEFT
        self.cancel(ids)
        assert {CANCELLED, DELIVERED} == set(self.first.values())

    def _send(self, count: int) -> list[MessageId]:
        rows = [(NOW + 500 + 500 * (n % 5), "t", b"%d" % n) for n in range(count)]
        return self.node.ids_of(self.node.send(rows, NOW))

    def _begin(self) -> None:
        if self.exact:
            master_of(self.node.wheel).resume(self.now_ms, exact=BY_TOPICS)
        self.node.sync()

    def cancel(self, ids: Sequence[MessageId]) -> None:
        for one, answer in zip(ids, self.ask(ids), strict=True):
            assert self.first.setdefault(one, answer) == answer

    def move(self, one: MessageId) -> None:
        node = self.node
        answer, moved = node.blocking(lambda: node.wheel.reschedule(one, NOW + 3_000, NOW))
        assert answer is CANCELLED
        assert moved is not None
        self.first[one] = answer

    def ask(self, ids: Sequence[MessageId]) -> list[CancelAnswer]:
        return self.node.blocking(lambda: self.node.wheel.cancel(ids, self.now_ms))

    def check(self, what: object, *, known: bool = True) -> None:
        """Ask for everything again. ``known``: what was cancelled is."""
        again = dict(zip(self.first, self.ask(list(self.first)), strict=True))
        for one, answer in again.items():
            first = self.first[one]
            assert answer in (first, UNKNOWN), (what, one, first, answer)
            if first is CANCELLED and known:
                assert answer is CANCELLED, (what, one)

    # -- what happens to it ----------------------------------------------------------------------

    def spilled(self) -> None:
        self.node.wheel.spill(self.now_ms, everything=True)

    def cleaned(self) -> None:
        self.node.mark(self.now_ms)
        self.node.wheel.clean(self.now_ms)

    def killed(self) -> None:
        if self.exact:  # what has left is known, as the sink has a mark of its own
            self.node.mark(self.now_ms)
        self.node.reopen(self.now_ms)
        self._begin()
        self.node.delivered(self.now_ms)


@pytest.fixture(params=[False, True], ids=["at-least-once", "exactly-once"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Asked]:
    with opened(tmp_path, CONFIG, NOW) as node:
        yield Asked(node, exact=request.param)


EVENTS = ("spilled", "cleaned", "killed")


@pytest.mark.parametrize("order", list(permutations(EVENTS)), ids="-".join)
def test_an_answer_again_is_the_first_one_or_unknown(asked: Asked, order: Sequence[str]) -> None:
    """Under exactly-once nothing is unknown within a horizon, either."""
    for event in [*order, *order]:
        getattr(asked, event)()
        asked.check(event)
        if asked.exact:
            assert UNKNOWN not in asked.ask(list(asked.first)), event
    assert not any((asked.node.path / "slots").iterdir())


def test_what_is_older_than_a_horizon_is_unknown_and_takes_no_room(asked: Asked) -> None:
    """Never *already delivered*: nobody knows any more that it was not cancelled."""
    for event in EVENTS:
        getattr(asked, event)()
    assert asked.node.state.load().cancelled
    asked.now_ms = LEFT + 62_000
    asked.node.send([(asked.now_ms, "t", b"")], asked.now_ms)
    asked.node.delivered(asked.now_ms)
    for event in reversed(EVENTS):
        getattr(asked, event)()
        asked.check(event, known=False)
    assert not asked.node.state.load().cancelled
    asked.killed()
    assert set(asked.ask(list(asked.first))) == {UNKNOWN}


def test_on_a_wheel_of_a_day_what_left_two_hours_ago_is_known_and_no_longer(
    tmp_path: Path,
) -> None:
    """Else it would keep, load at each start and send with each snapshot a day of records."""
    config = WheelConfig(slots=86_400, disk_reserve_bytes=0)
    with opened(tmp_path, config, NOW) as node:
        asked = Asked(node, exact=True)
        for passed_ms, known in ((2 * 3_600_000 - 10_000, True), (2 * 3_600_000 + 10_000, False)):
            asked.now_ms = LEFT + passed_ms
            node.send([(asked.now_ms, "t", b"")], asked.now_ms)
            node.delivered(asked.now_ms)
            for event in EVENTS:
                getattr(asked, event)()
            asked.check(passed_ms, known=known)
            assert bool(node.state.load().cancelled) is known


def test_a_record_that_is_removed_meanwhile_is_not_known(asked: Asked) -> None:
    """The cleaner has removed it from the state, and has still to say so."""
    for event in EVENTS:
        getattr(asked, event)()
    kept = len(asked.node.wheel._cancels)
    asked.check("the records are there")
    assert len(asked.node.wheel._cancels) == kept, "what is read for an answer is not kept"
    state = asked.node.state
    state.commit(StateUpdate(cancelled_deleted=list(state.load().cancelled)))
    asked.check("the records are gone", known=False)


def test_a_directory_without_records_says_unknown_of_what_had_left(asked: Asked) -> None:
    asked.spilled()
    asked.cleaned()
    state = asked.node.state
    with state._env.begin(write=True) as txn:
        txn.drop(state._later[b"cancelled"])
        txn.delete(b"cancelled_floor", db=state._meta)
        txn.put(b"version", b"1", db=state._meta)
    del state._later[b"cancelled"]
    asked.killed()
    asked.check("an older directory", known=False)
    ids = [one for one, answer in asked.first.items() if answer is DELIVERED]
    assert set(asked.ask(ids)) == {UNKNOWN}


def test_a_damaged_file_that_is_deleted_leaves_an_incomplete_record(asked: Asked) -> None:
    asked.spilled()
    asked.killed()
    for path in (asked.node.path / "slots").iterdir():
        flip(path)
    asked.cleaned()
    assert any(is_incomplete(one) for one in asked.node.state.load().cancelled.values())
    asked.check("damage", known=False)
    asked.killed()
    asked.check("damage, and a kill", known=False)


@given(
    st.sets(st.integers(0, (1 << 62))),
    st.sets(st.integers(0, 300)) | st.none(),
    st.booleans(),
)
def test_a_record_comes_back(one: set[int], more: set[int] | None, incomplete: bool) -> None:
    record = CancelRecord(np.array(sorted(one), np.int64), incomplete)
    record = record.with_more(None if more is None else np.array([*more], np.int64))
    again = CancelRecord.decode(record.encode(), "here")
    assert again.offsets.tolist() == sorted(one | (more or set()))
    assert again.incomplete is (incomplete or more is None) is is_incomplete(record.encode())


def test_a_record_that_is_cut_or_too_large_is_damage() -> None:
    data = CancelRecord(np.arange(5)).encode()
    bomb = (COUNT_MAX + 1).to_bytes(4, "little") + data[4:]
    for bad in (*(data[:end] for end in range(len(data))), data + b"x", bomb):
        with pytest.raises(Damaged, match="here"):
            CancelRecord.decode(bad, "here")


def test_all_records_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest seconds go first, and the floor says so."""
    monkeypatch.setattr(cancelled, "BYTES_MAX", 100)
    state = MemoryState(StoredState(cancelled_floor=-1))
    kept = CancelledSeconds(state, 3_600_000)
    for second in range(20):
        due, named = np.full(second + 1, second * 1000), np.arange(second + 1)
        marks = Marks(Mark(second * 1000, 0, 100))
        update = kept.plan(CancelRows(due, named, named), marks)
        state.commit(
            StateUpdate(
                cancelled=update.records,
                cancelled_deleted=update.deleted,
                cancelled_floor=update.floor_ms,
            )
        )
        kept.committed(update)
    stored = state.load()
    assert 0 < sum(map(len, stored.cancelled.values())) <= 100
    assert stored.cancelled_floor == min(stored.cancelled) * 1000 - 1
    assert max(stored.cancelled) == 19
    due = np.array([stored.cancelled_floor, stored.cancelled_floor + 1])
    assert kept.known(due).tolist() == [False, True]
