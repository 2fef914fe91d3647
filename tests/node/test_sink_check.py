"""The check of the sink at a node's start must not hide what the hand has to say."""

from __future__ import annotations

from typing import Any

import pytest

from slotwheel.node.events import NodeEvents
from slotwheel.node.metrics import Metrics
from slotwheel.node.work import SinkCheck


class Reachable:
    up = False

    def healthy(self) -> bool:
        return self.up


@pytest.mark.parametrize(
    "reason", ["Kafka holds no mark of this group any more", "no answer from Kafka at b:1"]
)
def test_it_takes_back_only_what_it_said_itself(reason: str) -> None:
    """The hand may say something at any moment, also between a look and an answer to it."""
    events, done = NodeEvents(Metrics()), list[str]()
    sink: Any = Reachable()
    check = SinkCheck(sink, events, "Kafka at b:1", lambda: done.append("done"))
    check.turn()
    assert events.sink_problem == "no answer from Kafka at b:1"
    sink.up = True
    events.sink_down(reason)
    check.turn()
    assert done == ["done"]
    assert events.sink_problem == reason
    events.sink_up()
    assert events.sink_problem is None


def test_a_sink_that_answers_is_up() -> None:
    events, done = NodeEvents(Metrics()), list[str]()
    sink: Any = Reachable()
    check = SinkCheck(sink, events, "Kafka at b:1", lambda: done.append("done"))
    check.turn()
    sink.up = True
    check.turn()
    assert events.sink_problem is None
    assert done == ["done"]
