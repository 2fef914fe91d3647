"""A node whose wall clock jumps ahead, as a process: nothing that it does by that clock stays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from slotwheel import Client
from slotwheel.node.clock import NodeClock, OperatedClock
from slotwheel.node.config import NodeConfig
from slotwheel.node.events import NodeEvents
from slotwheel.node.metrics import Metrics
from slotwheel.node.opening import open_wheel
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.errors import NotMaster, NotRunning, Overloaded
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.state import StoredState
from slotwheel.wheel.texts import time_text
from support.broker import Broker
from support.kafkaread import Reader
from support.memstate import MemoryState
from support.nodeprocess import NodeProcess, run_cli
from support.waiting import eventually
from support.wallclock import WallClock
from support.wheels import NOW, batch, master_of, next_chunk, opened

DAY_MS = 24 * 3_600_000


def why_not(node: NodeProcess) -> str:
    status, body = node.get("/readyz")
    return "" if status == 200 else "; ".join(json.loads(body)["reasons"])


def due_soon() -> int:
    return time.time_ns() // 1_000_000 + 300


def test_a_day_ahead_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    """What is due the next day stays, what is due leaves, and a restart in between believes it as
    little. Accepted, it counts; then the mark is ahead once the clock is right, until it is set
    back."""
    clock = WallClock(tmp_path / "clock")
    options = ("--slots", "86400", "--metrics", "127.0.0.1:0")
    with NodeProcess(tmp_path / "data", *options, **clock.variables) as node:
        with Client(node.address, timeout_s=30) as client:
            client.send("t", b"tomorrow", delay=3 * 3600).result(60)
            client.send("t", b"first", due=due_soon()).result(60)
            node.wait_for("t", 1)
            client.send("t", b"second", delay=3).result(60)
            clock.set(DAY_MS)
            eventually(lambda: "--accept" in why_not(node))
            with Client(node.address, timeout_s=4) as other, pytest.raises(Overloaded) as refused:
                other.send("t", b"by which clock?", delay=1).result(60)
            shown = json.loads(run_cli("clock", "--json", "--node", node.address).stdout)
            for ms in (shown["clock"]["now_ms"], shown["clock"]["wall_ms"]):
                assert time_text(ms)[:14] in str(refused.value)
            assert "--accept" in refused.value.remedy
            node.wait_for("t", 2)
        node.kill()
        node.start()
        assert "--accept" in why_not(node)
        clock.set(0)
        eventually(lambda: not why_not(node))
        with Client(node.address, timeout_s=30) as client:
            client.send("t", b"third", due=due_soon()).result(60)
            node.wait_for("t", 3)
            clock.set(DAY_MS)
            shown = run_cli("clock", "--node", node.address)
            assert "ahead, not believed" in shown.stdout
            assert run_cli("clock", "--accept", "--node", node.address).returncode == 0
            node.wait_for("t", 4)
            clock.set(0)
            eventually(lambda: "--set-back" in why_not(node))
            client.send("t", b"fourth", due=due_soon()).result(60)
            shown = run_cli("clock", "--set-back", "--node", node.address)
            assert "is set back" in shown.stdout, shown.stderr
            node.wait_for("t", 5)
            assert not why_not(node)
        values = [row["value"] for row in node.delivered("t")]
        assert values == [b"first", b"second", b"third", b"tomorrow", b"fourth"]


@pytest.mark.kafka
def test_what_left_by_a_clock_a_day_ahead_stays_so_exactly_once(
    tmp_path: Path, broker: Broker
) -> None:
    """Also behind a kill, and beside a new message of the same second: it is in Kafka once, and a
    cancel of it is told so. (librdkafka waits until times of the wall clock, so with one that is
    only simulated it waits for a day.)"""
    topic, dead = (broker.create_topic(f"a-day-ahead-{name}") for name in ("topic", "dead"))
    clock = WallClock(tmp_path / "clock")
    options = ["--slots", "86400", "--metrics", "127.0.0.1:0", "--delivery", "exactly-once"]
    options += [
        "--sink",
        "kafka-python",
        "--bootstrap",
        broker.bootstrap,
        "--dead-letter-topic",
        dead,
    ]
    with NodeProcess(tmp_path / "data", *options, **clock.variables) as node:
        operate = partial(run_cli, "clock", "--node", node.address)
        due_ms = due_soon() + 3 * 3_600_000
        with Client(node.address, timeout_s=60) as client:
            early = client.send(topic, b"early", due=due_ms)
            early.result(60)
            clock.set(DAY_MS)
            eventually(lambda: "--accept" in why_not(node))
            assert operate("--accept").returncode == 0
            eventually(lambda: node.metric("slotwheel_delivered_total") == 1)
            clock.set(0)
            eventually(lambda: "--set-back" in why_not(node))
            later = client.send(topic, b"later", due=due_ms)
            later.result(60)
            done = operate("--set-back")
            assert done.returncode == 0, done.stderr
            client.send(topic, b"between", due=due_soon()).result(60)
            eventually(lambda: node.metric("slotwheel_delivered_total") == 2)
        node.kill()
        node.start()
        with Client(node.address, timeout_s=60) as client:
            client.send(topic, b"behind", due=due_soon()).result(60)
            with closing(Reader(broker.bootstrap, [topic])) as reader:
                values = [one.value for one in reader.read(3)]
            assert values == [b"early", b"between", b"behind"]
            assert client.cancel([early, later]) == ["already delivered", "cancelled"]
            assert client.status()["pending"] == 0


def test_a_clock_that_a_mark_was_set_back_to_is_noted_then(tmp_path: Path) -> None:
    """A kill before the next look at the clock, a second later, must not hide a jump to the wrong
    time from which the mark was set back."""
    wall, state = [NOW + DAY_MS], MemoryState(StoredState())
    clock = NodeClock(lambda: wall[-1], lambda: 5, lambda: "boot")
    clock.begin(state, "")
    clock.note()
    with opened(tmp_path, WheelConfig(disk_reserve_bytes=0), NOW) as node:
        assert node.delivered(clock()) == []
        node.mark(clock())
        wall.append(NOW)
        assert clock() == NOW
        operated = OperatedClock(clock, node.wheel, cast(NodeEvents, Quiet()))
        node.blocking(operated.set_back)
        assert node.wheel.mark_ms == NOW
    again = NodeClock(lambda: NOW + DAY_MS, lambda: 5, lambda: "boot")
    again.begin(state, state.durable.clock)
    assert again.ahead_ms == DAY_MS


class Quiet:
    """Events that nobody reads."""

    def event(self, name: str, **_: object) -> None:
        pass


@pytest.mark.parametrize("boot", ["this-one", ""])
def test_what_a_run_before_has_noted_counts_for_this_start_of_the_machine(boot: str) -> None:
    """Behind a start of the machine, or where there is none to know it by, nothing can be told."""
    state = MemoryState(StoredState())
    before = NodeClock(lambda: 10 * DAY_MS, lambda: 5, lambda: boot)
    before.begin(state, "")
    before.note()
    assert bool(state.durable.clock) is bool(boot)
    for again, ahead_ms in ((boot, DAY_MS if boot else 0), ("another", 0)):
        clock = NodeClock(lambda: 11 * DAY_MS, lambda: 5, partial(str, again))
        clock.begin(state, state.durable.clock)
        assert clock.ahead_ms == ahead_ms


def test_a_machine_that_starts_with_a_clock_of_last_year(tmp_path: Path) -> None:
    """Before NTP has set it: what has left until yesterday says that it is wrong, so nothing new is
    taken, and where it goes then is no jump. From then on a jump is one."""
    config = NodeConfig(tmp_path, wheel=WheelConfig(disk_reserve_bytes=0))
    yesterday = 20_000 * DAY_MS

    def run(boot: str, *walls_ms: int) -> list[str]:
        """Why a message is refused at each of these readings; the mark follows the last one."""
        wall, said = [walls_ms[0]], []
        clock = NodeClock(lambda: wall[-1], lambda: 5, lambda: boot)
        with closing(OsFiles(tmp_path)) as files:
            wheel = open_wheel(config, files, clock, Metrics())
            for wall_ms in walls_ms:
                wall.append(wall_ms)
                try:
                    wheel.append(batch([(clock() + 5, "t", b"")]), clock())
                    said.append("")
                except Overloaded as error:
                    said.append(str(error))
            clock.note()
            if next_chunk(wheel, clock(), lambda: wheel.write_pending(0)) is None:
                master_of(wheel).queue_mark(clock())
            while wheel.write_pending(0):
                pass
            wheel.close()
        return said

    assert run("first", yesterday) == [""]
    began_wrong = yesterday - 300 * DAY_MS
    said = run("second", began_wrong, yesterday - DAY_MS, yesterday + 9 * DAY_MS)
    assert [bool(text) for text in said] == [True, True, False]
    assert "--set-back" in said[0]
    assert time_text(yesterday)[:10] in said[0]
    assert time_text(began_wrong)[:10] in said[0]
    assert "--accept" in run("second", yesterday + 10 * DAY_MS)[0]
    assert run("third", yesterday + 10 * DAY_MS) == [""]


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("mark_ms", [9 * DAY_MS, 11 * DAY_MS])
def test_a_clock_that_is_hours_behind_the_committed_mark_takes_nothing(
    accepted: bool, mark_ms: int
) -> None:
    """Also where it was believed at first: a peer has an old mark until it has caught up."""
    wall, marks = [10 * DAY_MS], [mark_ms]
    clock = NodeClock(lambda: wall[-1], lambda: 5, lambda: "boot")
    clock.begin(MemoryState(StoredState()), "")
    clock.follow(lambda: marks[-1])
    assert (clock.doubts(clock()) is None) is (mark_ms < wall[0])
    marks.append(wall[0] + 5 * 3_600_000)
    if accepted:
        clock.accept()
    refused = clock.doubts(clock())
    assert refused is not None
    assert "--set-back" in refused.remedy
    wall.append(marks[-1])
    assert clock.doubts(clock()) is None
    wall.append(10 * DAY_MS)
    assert clock.doubts(clock()) is None, "it has seen its clock step back"


@pytest.mark.parametrize("meanwhile", ["it is committed", "nothing is written", "it is deposed"])
def test_a_mark_is_said_to_be_set_back_once_that_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """A crash, or another master, would go on from the mark before."""
    said: list[str] = []

    class Events:
        def event(self, name: str, **_: object) -> None:
            said.append(name)

    with opened(tmp_path, WheelConfig(slots=86_400, disk_reserve_bytes=0), NOW) as node:
        assert node.delivered(NOW + DAY_MS) == []
        node.mark(NOW + DAY_MS)
        clock = OperatedClock(lambda: NOW + 4_000, node.wheel, cast(NodeEvents, Events()))
        with monkeypatch.context() as patch:
            patch.setattr("slotwheel.node.clock._TRIES", 3)
            steps: dict[str, Callable[[], object]] = {
                "it is committed": node.sync,
                "nothing is written": lambda: None,
                "it is deposed": lambda: patch.setattr(node.wheel, "_dispatcher", None),
            }
            patch.setattr(time, "sleep", lambda _: steps[meanwhile]())
            if meanwhile == "it is committed":
                clock.set_back()
                assert node.wheel.mark_ms == NOW + 4_000
            else:
                with pytest.raises(NotRunning) as error:
                    clock.set_back()
                assert isinstance(error.value, NotMaster) is (meanwhile == "it is deposed")
        assert said == (["mark-set-back"] if meanwhile == "it is committed" else [])
