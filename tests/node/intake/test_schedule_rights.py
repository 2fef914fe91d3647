"""Who may put, run and see schedules: rights count for the topic that a schedule sends to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwheel.node.intake.callers import Callers, ConnectedCaller
from slotwheel.node.intake.scheduling import ScheduleActions
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.security.tokens import digest_of
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import Forbidden, UnknownSchedule
from support.securing import parsed
from support.wheels import NOW, Node

ROLES = {
    "orders": "schedule = ['orders']\nread = ['orders']",
    "pay": "schedule = ['pay']\nread = ['pay']",
    "both": "schedule = ['orders', 'pay']",
    "reader": "read = ['orders']",
}
FILE = "\n".join(
    [
        *(
            f"[tokens.{role}]\nsha256 = '{digest_of('swt_' + role)}'\n[roles.{role}]\n{text}"
            for role, text in ROLES.items()
        ),
        "[members]",
        *(f"'token:{role}' = ['{role}']" for role in ROLES),
    ]
)


class Rig:
    def __init__(self, path: Path) -> None:
        self.node = Node(path, WheelConfig(), NOW)
        self.actions = ScheduleActions(self.node.wheel, lambda: NOW, deque())
        self._callers = Callers(Authenticator(parsed(FILE)))

    def do(self, role: str, action: str, **fields: Any) -> dict[str, Any]:
        proof = IdentityProof.of((), f"swt_{role}")
        identity = self._callers.authenticator.authenticate(proof)
        caller = ConnectedCaller(self._callers, identity, proof, "127.0.0.1")
        call = getattr(self.actions, action)
        answer: dict[str, Any] = self.node.blocking(lambda: call(caller, fields))
        return answer

    def put(self, role: str, topic: str, every_ms: int = 60_000) -> dict[str, Any]:
        schedule = {"name": "s", "every_ms": every_ms, "template": {"topic": topic}}
        return self.do(role, "put", schedule=schedule)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    made.node.sync()
    yield made
    made.node.close()


def test_a_schedule_is_no_way_around_the_right_to_send(rig: Rig) -> None:
    with pytest.raises(Forbidden, match="schedule-put for topic 'pay'"):
        rig.put("orders", "pay")
    with pytest.raises(Forbidden):
        rig.put("reader", "orders")
    assert rig.node.wheel.schedule_names() == []
    rig.put("orders", "orders")


def test_a_schedule_of_another_topic_is_not_replaced(rig: Rig) -> None:
    rig.put("pay", "pay")
    with pytest.raises(Forbidden):
        rig.put("orders", "orders")
    rig.put("both", "orders")
    assert rig.do("reader", "show", name="s")["schedule"]["schedule"]["template"] == {
        "topic": "orders"
    }


@pytest.mark.parametrize("action", ["pause", "resume", "run", "delete"])
def test_who_may_only_read_may_change_nothing(rig: Rig, action: str) -> None:
    rig.put("orders", "orders")
    with pytest.raises(Forbidden, match=f"schedule-{action}"):
        rig.do("reader", action, name="s")
    with pytest.raises(UnknownSchedule):
        rig.do("pay", action, name="s")
    rig.do("orders", action, name="s")


def test_what_may_not_be_read_looks_unknown(rig: Rig) -> None:
    rig.put("orders", "orders")
    with pytest.raises(UnknownSchedule) as unknown:
        rig.do("pay", "show", name="s")
    assert "orders" not in str(unknown.value)
    assert rig.do("pay", "list")["schedules"] == []
    assert len(rig.do("reader", "list")["schedules"]) == 1
