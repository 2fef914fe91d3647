"""The progress of a proof: real fractions on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass, field

from rich.console import Console

from slotwheel.cli.sparkprogress import SparkProgress
from support.waiting import eventually


@dataclass
class Stage:
    numTasks: int  # noqa: N815 - the name is Spark's
    numCompletedTasks: int  # noqa: N815


@dataclass
class Tracker:
    """Stands in for Spark's status tracker."""

    stages: dict[int, Stage] = field(default_factory=dict)
    asked: int = 0

    def getActiveStageIds(self) -> list[int]:
        self.asked += 1
        return list(self.stages)

    def getStageInfo(self, number: int) -> Stage | None:
        return self.stages.get(number)


def test_tasks_are_counted_over_the_stages_of_what_is_done() -> None:
    screen = io.StringIO()
    tracker = Tracker({4: Stage(10, 3)})
    with SparkProgress(Console(file=screen, force_terminal=True, width=80)) as progress:
        progress.phase("reading the files")
        progress.watch(tracker)
        eventually(lambda: "3/10" in screen.getvalue())
        tracker.stages = {5: Stage(4, 1)}
        eventually(lambda: "11/14" in screen.getvalue())
        progress.phase("judging the messages")
        tracker.stages = {5: Stage(4, 2), 6: Stage(8, 2)}
        eventually(lambda: "2/8" in screen.getvalue())
    assert "reading the files" in screen.getvalue()
    assert "judging the messages" in screen.getvalue()


def test_nothing_is_shown_or_asked_without_a_terminal() -> None:
    screen = io.StringIO()
    tracker = Tracker({1: Stage(2, 1)})
    with SparkProgress(Console(file=screen, force_terminal=False)) as progress:
        progress.watch(tracker)
        progress.phase("reading the files")
        time.sleep(0.5)
    assert screen.getvalue() == ""
    assert tracker.asked == 0


def test_a_spark_that_has_ended_is_not_asked_again() -> None:
    class Gone(Tracker):
        def getActiveStageIds(self) -> list[int]:
            self.asked += 1
            raise ConnectionRefusedError

    tracker = Gone()
    with SparkProgress(Console(file=io.StringIO(), force_terminal=True)) as progress:
        progress.watch(tracker)
        time.sleep(1)
    assert tracker.asked == 1
