"""Whose rows a damaged slot file is made anew from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from slotwheel.node import healing as module
from slotwheel.node.healing import Healing
from slotwheel.wheel.errors import DamagedThere, NodeUnreachable, SlotwheelError
from slotwheel.wheel.peers.heal import DamagedRange, SlotRows
from slotwheel.wheel.slots.slot import path_of
from slotwheel.wheel.state import Loss, SlotInfo

SECOND = 1_800_000_000
WHOLE = SlotRows(SECOND, [])
PARTLY = SlotRows(SECOND, [], [Loss(SECOND, 6, 0)])
DAMAGED = DamagedThere("slots/x is damaged")
SILENT = NodeUnreachable("the peer is not reachable")


class Wheel:
    """Damaged until rows are taken."""

    def __init__(self) -> None:
        self.took: Sequence[Loss] | None = None
        self.closed = 0

    def damaged_ranges(self) -> list[DamagedRange]:
        files = {SECOND: SlotInfo(1, 10, 0, 9, 0)}
        return [] if self.took is not None else [DamagedRange(SECOND, 10, files)]

    def mending(self, damaged: DamagedRange) -> Wheel:
        return self

    def heal(self, mending: Wheel, losses: Sequence[Loss]) -> bool:
        self.took = losses
        return True

    def close(self) -> None:
        self.closed += 1


class Peers:
    def __init__(self, answers: dict[str, SlotRows | SlotwheelError]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def fetch_slot(self, peer: str, slot: int, upto: int) -> SlotRows:
        self.asked.append(peer)
        answer = self.answers[peer]
        if isinstance(answer, SlotwheelError):
            raise answer
        return answer


def taken(**answers: SlotRows | SlotwheelError) -> Sequence[Loss] | None:
    """The losses that came with the rows that were taken."""
    wheel, peers = Wheel(), Peers(answers)
    healing = Healing(cast(Any, wheel), cast(Any, peers), answers)
    for _ in range(2):
        healing.turn({path_of(SECOND)})
    assert len(peers.asked) <= 2 * len(answers), "asked again at once"
    return wheel.took


def test_a_loss_is_believed_only_when_all_have_answered_and_nobody_has_all() -> None:
    assert taken(a=PARTLY, b=WHOLE) == WHOLE.losses
    assert taken(a=PARTLY, b=DAMAGED) == PARTLY.losses
    assert taken(a=PARTLY, b=SILENT) is None
    assert taken(a=SILENT, b=WHOLE) == WHOLE.losses
    assert taken(a=DAMAGED, b=DAMAGED) is None


def test_a_large_file_is_mended_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the thread would find no other damage meanwhile, and not end with the node."""
    monkeypatch.setattr(module, "TURN_S", 0.0)
    added: list[pa.RecordBatch] = []
    wheel = Wheel()
    monkeypatch.setattr(Wheel, "add", lambda self, block: added.append(block), raising=False)

    def blocks() -> Iterator[Any]:
        yield from range(5)

    closed: list[str] = []
    rows = SlotRows(SECOND, blocks(), (), lambda: closed.append("closed"))
    healing = Healing(cast(Any, wheel), cast(Any, Peers({"a": rows})), ["a"])
    turns = 0
    while wheel.took is None:
        assert len(added) <= turns
        healing.turn({path_of(SECOND)})
        turns += 1
    assert added == list(range(5))
    assert turns > 5
    assert (closed, wheel.closed) == (["closed"], 1)


def test_files_of_one_range_are_mended_when_all_of_them_are_reported() -> None:
    wheel = Wheel()
    healing = Healing(cast(Any, wheel), cast(Any, Peers({"a": WHOLE})), ["a"])
    healing.turn(set())
    assert wheel.took is None
    healing.turn({path_of(SECOND), "another"})
    assert wheel.took == ()
