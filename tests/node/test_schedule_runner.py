"""The thread that fires schedules, over a real wheel and with a given clock: what a node does that
was away for hours, or whose clock stepped, or whose disk was full."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from slotwheel.node.events import NodeEvents
from slotwheel.node.intake import scheduling
from slotwheel.node.intake.callers import local_caller
from slotwheel.node.intake.scheduling import ScheduleActions
from slotwheel.node.metrics import Metrics
from slotwheel.node.schedulerunner import ScheduleRunner
from slotwheel.policy.schedules.spec import Schedule
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import InvalidMessage, Overloaded, SlotwheelError
from slotwheel.wheel.schedules import FiredRun, SchedulePut
from support.wheels import Node, master_of

HOUR_MS = 3_600_000
START_MS = 1_799_999_980_000 // HOUR_MS * HOUR_MS + HOUR_MS
"""An hour, UTC."""


class Alarms(NodeEvents):
    def __init__(self) -> None:
        super().__init__(Metrics())
        self.kinds: list[str] = []

    def alarm(self, name: str, **fields: object) -> None:
        self.kinds.append(name)


class Rig:
    """A node's schedules without its threads."""

    def __init__(self, path: Path, config: WheelConfig = WheelConfig()) -> None:  # noqa: B008
        self.now_ms = START_MS
        self.node = Node(path, config, self.now_ms)
        self.events = Alarms()
        self.left: list[tuple[int, dict[str, Any]]] = []
        """When each message left, and its headers of a schedule."""
        self.begin()

    def begin(self) -> None:
        """As a new master."""
        self.node.sync()
        changed: deque[str] = deque()
        self.runner = ScheduleRunner(self.node.wheel, self.clock, self.events, changed)
        self.actions = ScheduleActions(self.node.wheel, self.clock, changed)

    def clock(self) -> int:
        return self.now_ms

    def do(self, action: str, **fields: Any) -> dict[str, Any]:
        call = getattr(self.actions, action)
        answer: dict[str, Any] = self.node.blocking(lambda: call(local_caller(), fields))
        return answer

    def put(self, **fields: Any) -> dict[str, Any]:
        schedule = {"name": "s", "template": {"topic": "t", "value": "x"}, **fields}
        shown: dict[str, Any] = self.do("put", schedule=schedule)["schedule"]
        return shown

    def turn(self) -> None:
        while self.runner.turn() < 1.0:
            self.node.sync()
        self.node.sync()

    def pass_time(self, ms: int, step_ms: int = 1_000) -> None:
        """The node works for so long."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + step_ms)
            self.turn()
            self.deliver()

    def deliver(self) -> None:
        while (chunk := self.node.next_chunk(self.now_ms)) is not None:
            rows = chunk.rows.to_pylist()
            for row in rows:
                assert row["due"].timestamp() * 1000 <= self.now_ms, "early"
                headers = {name.removeprefix("slotwheel-schedule"): v for name, v in _pairs(row)}
                self.left.append((self.now_ms, headers))
            master_of(self.node.wheel).answer(chunk, np.ones(len(rows), np.bool_))

    def runs(self) -> list[tuple[int, int, int]]:
        """Of what has left: number, nominal minutes after the start, missed before it."""
        return [
            (
                int(headers["-run"]),
                (int(headers["-due-ms"]) - START_MS) // 60_000,
                int(headers["-missed"]),
            )
            for _, headers in self.left
        ]


def _pairs(row: dict[str, Any]) -> list[tuple[str, bytes]]:
    headers = row["headers"]
    return [(each["key"], each["value"]) if isinstance(each, dict) else each for each in headers]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.node.close()


@pytest.mark.parametrize(
    ("missed", "after"),
    [
        ("last", [(2, 180, 2), (3, 240, 0)]),
        ("skip", [(2, 240, 3)]),
        ("all", [(2, 60, 0), (3, 120, 0), (4, 180, 0), (5, 240, 0)]),
    ],
)
def test_a_node_that_was_away_for_three_hours(
    rig: Rig, missed: str, after: list[tuple[int, int, int]]
) -> None:
    rig.put(cron="0 * * * *", missed=missed)
    rig.pass_time(60_000)
    assert rig.runs() == [(1, 0, 0)]
    rig.node.crash()
    rig.now_ms += 3 * HOUR_MS + 60_000
    rig.node.open(rig.now_ms)
    rig.begin()
    rig.pass_time(HOUR_MS, 15_000)
    assert rig.runs() == [(1, 0, 0), *after]
    is_missed = any(run[2] for run in after)
    assert ("schedule-missed" in rig.events.kinds) == is_missed
    assert rig.node.wheel.status().schedule_missed == sum(run[2] for run in after)


def test_what_is_older_than_the_catch_up_is_not_made_up(rig: Rig) -> None:
    rig.put(cron="0 * * * *", missed="all", catch_up_ms=2 * HOUR_MS - 1)
    rig.pass_time(60_000)
    rig.now_ms += 3 * HOUR_MS
    rig.pass_time(60_000)
    assert rig.runs() == [(1, 0, 0), (2, 120, 1), (3, 180, 0)]


def test_a_clock_that_goes_back_fires_nothing_twice(rig: Rig) -> None:
    rig.put(every_ms=60_000)
    rig.pass_time(10 * 60_000, 10_000)
    count = len(rig.left)
    assert count == 11
    rig.now_ms -= 5 * 60_000
    rig.begin()  # and a new master does not, either
    for _ in range(4 * 6):
        rig.now_ms += 10_000
        rig.turn()
    assert len(rig.left) == count
    rig.now_ms = START_MS + 10 * 60_000
    rig.pass_time(2 * 60_000, 10_000)
    numbers = [number for number, _, _ in rig.runs()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [minute for _, minute, _ in rig.runs()] == list(range(len(numbers)))


def test_a_clock_that_goes_ahead_makes_the_runs_between_missed_ones(rig: Rig) -> None:
    rig.put(every_ms=60_000)
    rig.pass_time(60_000)
    rig.now_ms += 10 * 60_000
    rig.pass_time(60_000, 10_000)
    assert rig.runs()[1:] == [(2, 1, 0), (3, 11, 9), (4, 12, 0)]


def test_a_schedule_does_not_begin_by_a_clock_that_is_in_doubt(rig: Rig) -> None:
    """Else all that was due between the wrong time and the right one would be missed."""
    rig.put(every_ms=60_000, missed="all")
    rig.pass_time(60_000, 10_000)
    rig.do("pause", name="s")
    right_ms, rig.now_ms = rig.now_ms, rig.now_ms - 7 * 24 * HOUR_MS
    rig.node.wheel.doubts = lambda now_ms: Overloaded("behind") if now_ms < right_ms else None
    acts: list[Callable[[], Any]] = [
        lambda: rig.put(name="new", every_ms=60_000, missed="all"),
        lambda: rig.do("resume", name="s"),
        lambda: rig.do("run", name="s"),
    ]
    for act in acts:
        with pytest.raises(Overloaded, match="behind"):
            act()
    rig.put(name="paused", every_ms=60_000, paused=True)
    rig.now_ms = right_ms
    rig.do("resume", name="paused")
    rig.do("resume", name="s")
    rig.put(name="new", every_ms=60_000, missed="all")
    rig.left.clear()
    rig.pass_time(120_000, 10_000)
    assert all(missed == 0 and minute >= 1 for _, minute, missed in rig.runs()), rig.runs()
    assert {headers[""] for _, headers in rig.left} == {b"new", b"paused", b"s"}


def test_every_second_is_fired_in_time_and_once(rig: Rig) -> None:
    rig.put(every_ms=1_000)
    rig.pass_time(90_000)
    assert [number for number, _, _ in rig.runs()] == list(range(1, 92))
    assert all(left == int(headers["-due-ms"]) for left, headers in rig.left[1:])


def test_runs_that_could_not_be_written_are_fired_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule of once a day must not lose a day to a disk that was full for a moment."""
    rig.put(cron="0 1 * * *")
    rig.pass_time(24 * HOUR_MS - 120_000, HOUR_MS)
    rig.left.clear()
    log: Any = rig.node.wheel._log

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log.journal, "append", full)
        rig.now_ms = START_MS + 24 * HOUR_MS + _until_one_ms() - 20_000
        rig.runner.turn()
        assert rig.node.wheel.write_pending(0) is False
    state = rig.node.wheel.schedule("s")
    assert state is not None
    number = state.runs
    rig.pass_time(30_000)
    after = rig.node.wheel.schedule("s")
    assert after is not None
    assert after.runs == number + 1
    assert len(rig.left) == 1


def test_each_run_that_is_made_up_is_planned_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hours of each second are more than one call decides: what is planned before that is
    stored would be the same runs once more."""
    rig.put(every_ms=1_000, missed="all")
    rig.turn()
    asked: list[int] = []
    fire = rig.node.wheel.fire

    def counted(runs: Sequence[FiredRun], *further: Any) -> list[FiredRun]:
        asked.extend(run.number for run in runs)
        return fire(runs, *further)

    monkeypatch.setattr(rig.node.wheel, "fire", counted)
    before = rig.node.wheel.status().schedule_runs
    rig.now_ms += 3 * HOUR_MS
    rig.turn()
    assert asked == list(range(before + 1, before + len(asked) + 1))
    assert len(asked) == 3 * 3600


def _until_one_ms() -> int:
    return (25 * HOUR_MS - START_MS % (24 * HOUR_MS)) % (24 * HOUR_MS)


def test_what_a_paused_schedule_would_have_sent_is_not_made_up(rig: Rig) -> None:
    rig.put(every_ms=60_000, missed="all")
    rig.pass_time(90_000, 10_000)
    assert rig.do("pause", name="s")["schedule"]["next_ms"] == []
    rig.pass_time(10 * 60_000, 10_000)
    rig.do("resume", name="s")
    rig.pass_time(120_000, 10_000)
    assert rig.runs() == [(1, 0, 0), (2, 1, 0), (3, 12, 0), (4, 13, 0)]


def test_a_run_now_has_the_next_number_and_moves_no_other(rig: Rig) -> None:
    rig.put(every_ms=60_000)
    rig.pass_time(40_000)
    answer = rig.do("run", name="s")
    rig.pass_time(60_000)
    assert answer["run"] == 3, "the run of the next minute was a row already"
    assert [(number, minute) for number, minute, _ in sorted(rig.runs())] == [
        *((1, 0), (2, 1), (3, 0)),
    ]
    rig.pass_time(60_000)
    assert sorted(rig.runs())[-1] == (4, 2, 0)


def test_a_run_replaces_the_one_before_that_has_not_left(rig: Rig) -> None:
    """While no sink takes messages those of the template's name do not gather."""
    rig.put(every_ms=60_000, template={"topic": "t", "name": "latest"})
    rig.put(name="unnamed", every_ms=60_000, template={"topic": "t"})
    for _ in range(15):
        rig.now_ms += 10_000
        rig.turn()
    rig.deliver()
    names = [headers[""].decode() for _, headers in rig.left]
    assert names.count("unnamed") == 3
    assert [headers["-run"] for _, headers in rig.left if headers[""] == b"s"] == [b"3"]
    rig.pass_time(60_000, 10_000)
    assert [headers["-run"] for _, headers in rig.left if headers[""] == b"s"] == [b"3", b"4"]


def test_a_run_expires_by_its_due_time_however_late_it_is_made_up(rig: Rig) -> None:
    rig.put(
        cron="0 * * * *",
        missed="all",
        jitter_ms=60_000,
        template={"topic": "t", "ttl_ms": HOUR_MS},
    )
    rig.pass_time(120_000)
    rig.now_ms += 3 * HOUR_MS
    rig.pass_time(120_000)
    assert len(rig.left) == 4
    for _, headers in rig.left:
        nominal_ms, expires_ms = int(headers["-due-ms"]), int(headers["slotwheel-expires-ms"])
        assert 0 <= expires_ms - HOUR_MS - nominal_ms <= 60_000
    late = [left for left, headers in rig.left if int(headers["slotwheel-expires-ms"]) < left]
    assert len(late) == 2, "of the two that are older than an hour the sink makes dead letters"


def test_the_answer_to_a_change_is_of_that_change_and_not_of_the_next_one(rig: Rig) -> None:
    """Else who puts with the version of his answer would replace what he has not seen."""
    specs = [b'{"name":"s","every_ms":%d000,"template":{"topic":"t"}}' % ms for ms in (1, 2)]
    wheel = rig.node.wheel
    futures = [
        wheel.change_schedules([(SchedulePut("s", spec, rig.now_ms), None)], rig.now_ms)
        for spec in specs
    ]
    rig.node.sync()
    states = [future.result(0)[0] for future in futures]
    assert [state and state.spec for state in states] == specs
    assert states[1] == wheel.schedule("s")
    versions = [0 if state is None else state.version for state in states]
    assert 0 < versions[0] < versions[1]


def test_what_is_there_already_is_answered_once_it_is_committed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that comes again finds the first one, which a full disk may yet take back."""
    wheel, log = rig.node.wheel, cast(Any, rig.node.wheel)._log
    rig.put(every_ms=60_000)
    spec = b'{"name":"s","every_ms":2000,"template":{"topic":"t"}}'

    def put() -> Any:
        return wheel.change_schedules([(SchedulePut("s", spec, rig.now_ms), None)], rig.now_ms)

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    put()
    lost = wheel.settled_schedules(["s"])
    with monkeypatch.context() as patch:
        patch.setattr(log.journal, "append", full)
        assert not lost.done()
        wheel.write_pending(0)
    assert isinstance(lost.exception(0), SlotwheelError)
    put()
    kept = wheel.settled_schedules(["s"])
    assert not kept.done()
    rig.node.sync()
    [state] = kept.result(0)
    assert state is not None
    assert state.spec == spec


def test_a_count_ends_a_schedule(rig: Rig) -> None:
    rig.put(every_ms=1_000, count=3)
    rig.pass_time(10_000)
    assert len(rig.left) == 3
    assert rig.do("show", name="s")["schedule"]["next_ms"] == []


def test_a_count_below_what_was_sent_already_is_refused(rig: Rig) -> None:
    rig.put(every_ms=1_000, count=3)
    rig.pass_time(10_000)
    with pytest.raises(
        InvalidMessage, match=r"count: it has sent all .*; got 3; .* more than the 3"
    ):
        rig.put(every_ms=2_000, count=3)
    rig.put(every_ms=2_000, count=4)
    rig.pass_time(60_000)
    assert len(rig.left) == 4


@pytest.mark.parametrize("missed", ["skip", "last"])
def test_no_run_that_is_coming_lies_in_the_past(rig: Rig, missed: str) -> None:
    rig.put(cron="0 0 * * *", missed=missed, catch_up_ms=HOUR_MS)
    rig.now_ms += 50 * HOUR_MS
    rig.begin()
    rig.turn()
    assert "schedule-missed" in rig.events.kinds
    shown = rig.do("show", name="s")["schedule"]
    assert len(shown["next_ms"]) == 10
    assert shown["next_ms"][0] > rig.now_ms
    rig.pass_time(24 * HOUR_MS, 60_000)
    run_ms = START_MS + rig.runs()[0][1] * 60_000
    assert run_ms == shown["next_ms"][0]


def test_a_schedule_of_a_zone_that_is_not_known_here_hides_no_other_one(rig: Rig) -> None:
    spec = json.dumps(
        {"name": "far", "template": {"topic": "t"}, "cron": "* * * * *", "zone": "Mars/Olympus"}
    ).encode()
    future = rig.node.wheel.change_schedules([(SchedulePut("far", spec, START_MS), 0)], START_MS)
    rig.node.sync()
    future.result(0)
    rig.put(every_ms=60_000)
    rig.begin()
    rig.turn()
    assert rig.events.kinds == ["schedule-unreadable"]
    listed = rig.do("list")["schedules"]
    assert [each["schedule"]["name"] for each in listed] == ["far", "s"]
    assert listed[0]["schedule"] == json.loads(spec)
    with pytest.raises(InvalidMessage, match="'Mars/Olympus'"):
        rig.do("resume", name="far")
    rig.do("delete", name="far")
    assert [each["schedule"]["name"] for each in rig.do("list")["schedules"]] == ["s"]


def test_a_page_of_the_list_goes_on_behind_its_last_name(rig: Rig) -> None:
    for name in "cab":
        rig.put(name=name, every_ms=60_000)
    page = rig.do("list", limit=2)
    assert [shown["schedule"]["name"] for shown in page["schedules"]] == ["a", "b"]
    assert page["after"] == "b"
    page = rig.do("list", after="b", limit=2)
    assert [shown["schedule"]["name"] for shown in page["schedules"]] == ["c"]
    assert page["after"] is None


def _listed(rig: Rig, **fields: Any) -> tuple[list[str], str | None]:
    page = rig.do("list", **fields)
    return [shown["schedule"]["name"] for shown in page["schedules"]], page["after"]


def test_a_list_is_filtered_by_names_and_topics(rig: Rig) -> None:
    for name, topic in (("a", "t"), ("b-1", "t"), ("b-2", "u-1"), ("b-3", "u-2"), ("c", "u-2")):
        rig.put(name=name, every_ms=60_000, template={"topic": topic})
    assert _listed(rig, prefix="b-") == (["b-1", "b-2", "b-3"], None)
    assert _listed(rig, prefix="b-1") == (["b-1"], None), "a name is its own prefix"
    assert _listed(rig, prefix="b-", after="b-1", limit=1) == (["b-2"], "b-2")
    assert _listed(rig, prefix="b-", after="a", limit=1) == (["b-1"], "b-1")
    assert _listed(rig, topic="u-*") == (["b-2", "b-3", "c"], None)
    assert _listed(rig, topic="u-2", prefix="b") == (["b-3"], None)
    assert _listed(rig, topic="u-2", topics=["u-1", "t"]) == ([], None)
    assert _listed(rig, topic="u") == ([], None)
    for fields in ({"prefix": 5}, {"topic": ["u"]}):
        with pytest.raises(InvalidMessage, match="no usable"):
            rig.do("list", **fields)


def test_a_page_ends_where_the_node_has_looked_long_enough(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a filter that lets nothing through would keep a node with 100,000 schedules from
    firing. Where a page ends is never a name that the caller may not see."""
    monkeypatch.setattr(scheduling, "_LOOKED_MAX", 10)
    for number in range(25):
        topic = "hidden" if 9 <= number < 20 else "t"
        rig.put(name=f"s{number:02}", every_ms=60_000, template={"topic": topic})
    assert _listed(rig, topic="nobody") == ([], "s09")
    assert _listed(rig, topic="nobody", after="s09") == ([], "s19")
    assert _listed(rig, topic="nobody", after="s19") == ([], None)
    assert _listed(rig, topic="nobody", topics=["t"]) == ([], "s08")
    assert _listed(rig, topic="nobody", topics=["t"], after="s08") == ([], "s20")
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = _listed(rig, topics=["t"], after=after)
        names += page
    assert len(names) == 14


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"every_ms": 10 * HOUR_MS, "jitter_ms": 3 * HOUR_MS}, "jitter_ms; got 10800000"),
        ({"every_ms": 1_000, "template": {"topic": "t", "name": "n"}}, "would replace the one"),
        (
            {"every_ms": 60_000, "missed": "all", "template": {"topic": "t", "name": "n"}},
            "missed: runs that are made up together",
        ),
        ({"every_ms": 999}, "every_ms"),
    ],
)
def test_a_schedule_that_could_not_be_fired_is_refused(
    rig: Rig, fields: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidMessage, match=match):
        rig.put(**fields)


def test_a_horizon_of_less_than_half_a_minute_takes_no_schedule(tmp_path: Path) -> None:
    rig = Rig(tmp_path, WheelConfig(slots=29))
    with pytest.raises(InvalidMessage, match="a horizon of 29000 ms; limit 30000 ms at least"):
        rig.put(every_ms=1_000)
    rig.node.close()


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_many_at_one_instant_are_rows_before_it(
    rig: Rig, count: int, figure: Callable[[str], None]
) -> None:
    """By the processor's time of the thread that fires: it must take less than the half minute."""
    specs = [
        Schedule.from_json(
            {"name": f"s{number}", "cron": "0 * * * *", "template": {"topic": "t", "value": "x"}}
        )
        for number in range(count)
    ]
    for start in range(0, count, 10_000):
        changes = [
            (SchedulePut(each.name, each.encoded(), rig.now_ms + 1), 0)
            for each in specs[start : start + 10_000]
        ]
        future = rig.node.wheel.change_schedules(list(changes), rig.now_ms)
        rig.node.sync()
        future.result(0)
    began_s = time.thread_time()
    rig.begin()
    rig.turn()
    rebuilt_s = time.thread_time() - began_s
    assert rig.node.wheel.status().schedule_runs == 0
    rig.now_ms = START_MS + HOUR_MS - 27_000
    began_s = time.thread_time()
    rig.turn()
    fired_s = time.thread_time() - began_s
    assert rig.node.wheel.status().schedule_runs == count
    figure(f"{count} at one instant: {fired_s:.1f} s to fire, {rebuilt_s:.1f} s after a failover")
    assert fired_s < 20.0 * max(1, count / 100_000)
    rig.node.wheel.spill(rig.now_ms, everything=True)
    rig.node.crash()
    began_s = time.thread_time()
    rig.node.open(rig.now_ms)
    figure(f"{count}: {time.thread_time() - began_s:.2f} s to open")
    assert rig.node.wheel.status().schedules == count
    assert json.loads(rig.node.wheel.schedule("s1").spec)["name"] == "s1"  # type: ignore[union-attr]
