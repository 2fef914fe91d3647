"""What finds false answers and two pending messages of a name can find each of them: every kind is
planted once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotwheel.client.predecessor import Predecessor
from slotwheel.wheel.answers import Before, CancelAnswer
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.namer import NameDecisions, Namer
from slotwheel.wheel.errors import NameTaken, NodeUnreachable
from slotwheel.wheel.ids import MessageId
from slotwheel.wheel.names import NAME_HEADER
from slotwheel.wheel.rows import from_columns
from support.namecallers import ModelRow, NameAction, NameCallers
from support.namedlog import NamedLog
from support.promises import Fate
from support.wheels import NOW, Node

SENT, DUE = NOW, NOW + 10_000
Told = Callable[[NameCallers], None]


def id_of(offset: int) -> str:
    return str(MessageId("default", DUE, offset, 0))


def two_rows(what: Before | None = Before.REPLACED) -> NameCallers:
    """A model of two messages of one name; ``what`` the second is told of the first."""
    callers = NameCallers("127.0.0.1:1", "t", names=1, ahead_ms=1, callers=0)
    callers._sent += [
        ModelRow(number, "order-1", DUE, SENT + number, SENT + 100 + number, number)
        for number in range(2)
    ]
    if what is not None:
        callers._sent[1].before = Predecessor(what, id_of(0))
    return callers


def row(callers: NameCallers, **fields: Any) -> None:
    """A third message, with these fields."""
    made = ModelRow(2, "order-1", DUE, SENT + 200, SENT + 300, 2)
    for name, value in fields.items():
        setattr(made, name, value)
    callers._sent.append(made)


def test_answers_that_are_true_are_not_objected_to() -> None:
    callers = two_rows()
    row(callers, before=Predecessor(Before.REPLACED, id_of(1)))
    promised = callers.stop()
    assert promised.wanted() == {2}
    assert promised.count(Fate.CANCELLED) == 2
    assert callers.false_answers({2: DUE + 5}) == []


@pytest.mark.parametrize(
    ("told", "what", "arrived", "says"),
    [
        (Before.REPLACED, {"before": Predecessor(Before.REPLACED, id_of(0))}, {}, "replaced twice"),
        (Before.REPLACED, {"before": Predecessor(Before.REPLACED, id_of(9))}, {}, "was pending"),
        (Before.DELIVERED, {}, {}, "which arrived at None"),
        (Before.DELIVERED, {}, {0: DUE}, "which arrived at"),
        (None, {}, {}, "was pending"),
        (
            Before.REPLACED,
            {"name": "order-2", "before": Predecessor(Before.REPLACED, id_of(1))},
            {},
            "which is order-1",
        ),
        (
            Before.REPLACED,
            {"before": Predecessor(Before.KEPT, id_of(0), id_of(2))},
            {},
            "which was gone",
        ),
        (
            Before.REPLACED,
            {"offset": -1, "error": NameTaken("taken", got=id_of(0))},
            {},
            "which was gone",
        ),
    ],
)
def test_a_false_answer_is_found(
    told: Before | None, what: dict[str, Any], arrived: dict[int, int], says: str
) -> None:
    callers = two_rows(told)
    row(callers, **what)
    callers.stop()
    assert any(says in each for each in callers.false_answers(arrived))


def test_a_cancel_that_says_delivered_of_what_had_not_arrived_is_found() -> None:
    callers = two_rows()
    callers._actions.append(NameAction("order-1", CancelAnswer.DELIVERED, 1, SENT, SENT + 5))
    callers.stop()
    assert len(callers.false_answers({1: DUE})) == 1


def test_what_is_in_doubt_may_go_either_way_and_nothing_else() -> None:
    callers = two_rows()
    row(callers, offset=-1, error=NodeUnreachable("gone", uncertain=True))
    callers._sent.append(ModelRow(3, "order-1", DUE, SENT + 400, SENT + 500, 3))
    promised = callers.stop()
    assert {at: meddled.fate for at, meddled in promised.meddled.items()} == {
        0: Fate.CANCELLED,
        1: Fate.UNCERTAIN,
        2: Fate.UNCERTAIN,
    }
    assert promised.wanted() == {3}, "it was sent when the doubt was over"


def send(node: Node, name: bytes) -> int:
    rows = from_columns([DUE], ["t"], [None], [None], [b"x"], [[(NAME_HEADER, name)]])
    future = node.wheel.append(rows, NOW)
    node.sync()
    return future.result(0).base_offset


def test_the_log_shows_two_pending_messages_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, WheelConfig(), NOW)
    first, other = send(node, b"order-1"), send(node, b"order-2")
    assert [*NamedLog.of(tmp_path).violations({first: DUE, other: DUE}, lambda _: DUE)] == []
    second = send(node, b"order-1")
    assert [*NamedLog.of(tmp_path).violations({second: DUE, other: DUE}, lambda _: DUE)] == []
    decide = Namer.decide

    def without_cancels(self: Namer, *given: Any) -> NameDecisions:
        decided = decide(self, *given)
        decided.due, decided.offset = [], []
        return decided

    monkeypatch.setattr(Namer, "decide", without_cancels)
    third = send(node, b"order-1")
    node.close()
    log = NamedLog.of(tmp_path)
    assert log.successions == [(second, third)]
    arrived = dict.fromkeys((second, third, other), DUE)
    assert len([*log.violations(arrived, lambda _: SENT)]) == 1
    assert [*log.violations(arrived, lambda _: DUE)] == [], "it had left by then"
    assert len([*log.violations({**arrived, first: DUE}, lambda _: DUE)]) == 1, "cancelled"
    assert len([*log.violations({second: DUE, third: DUE}, lambda _: DUE)]) == 1, "lost"
