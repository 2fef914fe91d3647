"""Whose rows a damaged slot file is made anew from."""

from __future__ import annotations

from typing import Any, cast

from slotwheel.node.healing import Healing
from slotwheel.wheel.errors import DamagedThere, NodeUnreachable, SlotwheelError
from slotwheel.wheel.peers.heal import SlotRows
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
        self.took: SlotRows | None = None

    def damaged_slots(self) -> dict[int, tuple[int, SlotInfo]]:
        return {} if self.took else {SECOND: (10, SlotInfo(1, 10, 0, 9, 0))}

    def heal(self, rows: SlotRows, upto: int, info: SlotInfo) -> bool:
        self.took = rows
        return True


class Peers:
    def __init__(self, answers: dict[str, SlotRows | SlotwheelError]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def fetch_slot(self, peer: str, second: int, upto: int) -> SlotRows:
        self.asked.append(peer)
        answer = self.answers[peer]
        if isinstance(answer, SlotwheelError):
            raise answer
        return answer


def taken(**answers: SlotRows | SlotwheelError) -> SlotRows | None:
    wheel, peers = Wheel(), Peers(answers)
    healing = Healing(cast(Any, wheel), cast(Any, peers), answers)
    for _ in range(2):
        healing.turn({path_of(SECOND)})
    assert len(peers.asked) <= len(answers), "asked again at once"
    return wheel.took


def test_a_loss_is_believed_only_when_all_have_answered_and_nobody_has_all() -> None:
    assert taken(a=PARTLY, b=WHOLE) is WHOLE
    assert taken(a=PARTLY, b=DAMAGED) is PARTLY
    assert taken(a=PARTLY, b=SILENT) is None
    assert taken(a=SILENT, b=WHOLE) is WHOLE
    assert taken(a=DAMAGED, b=DAMAGED) is None
