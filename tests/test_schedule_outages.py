"""Schedules whose nodes were away for three hours, in the night in which clocks are set ahead, or
whose own clocks stepped: under each rule of missed runs exactly those become rows that a model
names, which knows the rules from the documentation; and each row is delivered.

Steps of other sizes: ``python -m pytest -m soak tests/test_schedule_outages.py``
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from slotwheel.client import Client, Message
from slotwheel.wheel.errors import Overloaded
from slotwheel.wheel.schedules import FiredRun
from support.firedruns import delivered_runs, logged, wrong_by_the_log, wrong_deliveries
from support.nodeprocess import run_cli
from support.peers import PEERS, PeerProcess, Peers
from support.scheduletimes import Expected, Span, expected_runs
from support.waiting import eventually, now_ms
from support.wallclock import WallClock

TOPIC = "beats"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
STEP_MS = 20_000
"""A node makes rows half a minute ahead, so it may sleep for so long and misses nothing."""
PROBE = "~"
"""Names of schedules begin so that are looked at behind all others that are looked at then."""


def at(hour: int, minute: int, second: int = 0) -> int:
    """A time of the night on which Berlin's clocks are set ahead, at 01:00, ms since the epoch."""
    return int(datetime(2026, 3, 29, hour, minute, second, tzinfo=UTC).timestamp() * 1000)


BEGIN_MS, AWAY_MS, PAUSED_MS, RESUMED_MS, END_MS = (
    *(at(0, 44, 10), at(0, 46, 10), at(0, 45, 25), at(3, 48, 10)),
    at(3, 52, 10),
)
RHYTHM = {"cron": "*/5 * * * *", "zone": "Europe/Berlin"}
KINDS: dict[str, dict[str, Any]] = {
    "rhythm": RHYTHM,
    "twice-an-hour": {"cron": "0,50 * * * *", "zone": "Europe/Berlin"},
    "skipped": {"cron": "30 2 * * *", "zone": "Europe/Berlin"},
    "half-hour": {"cron": "15,45 */1 * * *", "zone": "Australia/Lord_Howe"},
    "every": {"every_ms": 7 * 60_000, "anchor_ms": at(0, 43)},
    "jitter": {"every_ms": 11 * 60_000, "anchor_ms": at(0, 44), "jitter_ms": 180_000},
    "count": {**RHYTHM, "count": 3},
    "ended": {"every_ms": 300_000, "end_ms": at(2, 32)},
    "ending": {**RHYTHM, "end_ms": at(3, 47)},
    "begun": {**RHYTHM, "start_ms": at(1, 2)},
    "paused": RHYTHM,
}
RULES = list(product(("last", "skip", "all"), (HOUR_MS, 24 * HOUR_MS)))
SCHEDULES: dict[str, dict[str, Any]] = {
    f"{kind}-{missed}-{catch_up_ms}": {
        **rhythm,
        "name": f"{kind}-{missed}-{catch_up_ms}",
        "missed": missed,
        "catch_up_ms": catch_up_ms,
        "template": {"topic": TOPIC},
    }
    for kind, rhythm in KINDS.items()
    for missed, catch_up_ms in RULES
}
BEATS = [
    {"name": f"{PROBE}{missed}", "every_ms": ms, "missed": missed, "template": {"topic": TOPIC}}
    for missed, ms in (("skip", 1000), ("all", 5000), ("last", 5000))
]
"""Of these the log says whether a run was skipped or doubled; how many of them were missed depends
on the second in which a clock steps. The first is the probe."""
STEPS = [
    pytest.param(1000, id="1s", marks=pytest.mark.soak),
    pytest.param(HOUR_MS - 1000, id="59m59s", marks=pytest.mark.soak),
    pytest.param(3 * HOUR_MS, id="3h"),
    pytest.param(48 * HOUR_MS, id="2d", marks=pytest.mark.soak),
]


class Night:
    """Nodes whose machines sleep through the test, and whose clocks agree. ``spans``: when they
    were there."""

    def __init__(self, path: Path, names: Sequence[str], *options: str) -> None:
        offset_ms = BEGIN_MS - now_ms()
        self._clocks = [WallClock(path / f"clock-{name}", offset_ms) for name in names]
        variables = dict(zip(names, (clock.variables for clock in self._clocks), strict=True))
        self.peers = Peers(path, *options, names=names, variables=variables)
        self.spans: list[Span] = []
        self._paused_ms = 0
        self._pause: Span | None = None
        self._begun_ms = self.now_ms

    @property
    def now_ms(self) -> int:
        return now_ms() + self._clocks[0].offset_ms

    def sleep(self, ms: int) -> None:
        for clock in self._clocks:
            clock.sleep(ms)

    def put(self) -> None:
        with Client(self.peers.addresses) as client:
            for schedule in (*SCHEDULES.values(), *BEATS):
                client.schedules.put(schedule)

    def go_on_until(self, ms: int) -> None:
        """Sleep up to that time, a little each time, until all schedules were looked at."""
        with Client(self.peers.addresses) as client:
            while (left_ms := ms - self.now_ms) > 0:
                self.sleep(min(STEP_MS, left_ms))
                _wait_until_looked_at(client, self.now_ms)

    def set_paused(self, *, paused: bool) -> None:
        if paused:
            self._paused_ms = self.now_ms
        else:
            self._pause = Span(self._paused_ms, self.now_ms)
        with Client(self.peers.addresses) as client:
            act = client.schedules.pause if paused else client.schedules.resume
            for name in SCHEDULES:
                if name.startswith("paused-"):
                    act(name)

    def be_away(self, ms: int) -> None:
        """Kill all, and start them after that time."""
        self.end()
        for node in self.peers.nodes.values():
            node.kill()
        self.sleep(ms)
        self.begin()
        self.peers.start()

    def step(self, ms: int) -> None:
        """The wall clocks are set by so much."""
        self.end()
        self.set_clocks(ms)
        self.begin()

    def set_clocks(self, ms: int) -> None:
        for clock in self._clocks:
            clock.set(clock.offset_ms + ms)

    def begin(self) -> None:
        """Somebody is there from now on."""
        self._begun_ms = self.now_ms

    def end(self) -> None:
        self.spans.append(Span(self._begun_ms, self.now_ms))

    def fired(self) -> int:
        """How many runs became rows so far."""
        with Client(self.peers.addresses) as client:
            return sum(shown["runs"] for shown in client.schedules.list())

    def assert_nothing_fires(self) -> None:
        """For some seconds, in each of which a node looks at what is to become a row."""
        before = self.fired()
        time.sleep(2.5)
        assert self.fired() == before

    def delivered(self) -> Counter[FiredRun]:
        return delivered_runs([node.data for node in self.peers.nodes.values()], TOPIC)

    def expected(self) -> dict[str, list[Expected]]:
        return {
            name: expected_runs(
                schedule,
                BEGIN_MS,
                self.spans,
                self._pause if name.startswith("paused-") else None,
            )
            for name, schedule in SCHEDULES.items()
        }

    def wait_for_all(self) -> Counter[FiredRun]:
        """Until all is delivered that is due by now; what was."""
        due = {
            (name, run.number)
            for name, runs in self.expected().items()
            for run in runs
            if run.nominal_ms + SCHEDULES[name].get("jitter_ms", 0) <= self.now_ms
        }

        def missing() -> set[tuple[str, int]]:
            return due - {(run.name, run.number) for run in self.delivered()}

        eventually(lambda: not missing(), otherwise=lambda: f"not delivered: {missing()}")
        return self.delivered()


def _wait_until_looked_at(client: Client, at_ms: int) -> None:
    """Until all schedules were looked at since then."""

    def is_done() -> bool:
        last = client.schedules.get(f"{PROBE}skip")["last"]
        return last is not None and int(last["nominal_ms"]) >= at_ms + 25_000

    eventually(is_done, every_s=0.1)


def by_name(runs: Sequence[FiredRun]) -> dict[str, list[Expected]]:
    found: dict[str, list[Expected]] = {name: [] for name in SCHEDULES}
    for run in sorted(runs, key=lambda run: run.number):
        if run.name in SCHEDULES:
            found[run.name].append(Expected(run.number, run.nominal_ms, run.missed))
            assert 0 <= run.due_ms - run.nominal_ms <= SCHEDULES[run.name].get("jitter_ms", 0)
    return found


def live_through(night: Night) -> None:
    night.go_on_until(PAUSED_MS)
    night.set_paused(paused=True)
    night.go_on_until(AWAY_MS)
    night.be_away(3 * HOUR_MS)
    night.go_on_until(RESUMED_MS)
    night.set_paused(paused=False)
    night.go_on_until(END_MS)
    night.end()


def test_a_node_that_was_away_for_three_hours(tmp_path: Path) -> None:
    night = Night(tmp_path, ("a",), "--delivery", "exactly-once")
    with night.peers:
        night.put()
        live_through(night)
        night.wait_for_all()
        assert_as_expected(night)


def assert_as_expected(night: Night) -> None:
    """Of a node alone: its log has the runs that it has to have, and each was delivered once."""
    upto_ms = night.now_ms - 2 * STEP_MS
    night.peers.stop()
    log = logged(night.peers["a"].data)
    assert by_name([run for entry in log for run in entry.rows]) == night.expected()
    assert wrong_by_the_log(log) == []
    assert wrong_deliveries(log, night.delivered(), upto_ms, once=True) == []


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    made = Night(tmp_path, ("a",), "--delivery", "exactly-once", "--slots", "86400")
    with made.peers:
        made.put()
        made.go_on_until(PAUSED_MS)
        made.set_paused(paused=True)
        yield made


def finish(night: Night) -> None:
    """Go on for some minutes, up to some seconds behind a full one, and compare all."""
    begin_ms = night.now_ms - night.now_ms % MINUTE_MS + MINUTE_MS + 10_000
    night.go_on_until(begin_ms)
    night.set_paused(paused=False)
    night.go_on_until(begin_ms + 5 * MINUTE_MS)
    night.end()
    night.wait_for_all()
    assert_as_expected(night)


def wait_for_doubt(night: Night) -> PeerProcess:
    node = night.peers["a"]
    eventually(lambda: "--accept" in node.get("/readyz")[1], otherwise=node.log_text)
    return node


@pytest.mark.parametrize("ms", STEPS)
def test_a_clock_that_steps_ahead(night: Night, ms: int) -> None:
    """What is between is missed. A step of more than an hour counts from when it is accepted."""
    night.step(ms)
    if ms > HOUR_MS:
        node = wait_for_doubt(night)
        night.assert_nothing_fires()
        assert run_cli("clock", "--accept", "--node", node.address).returncode == 0
        night.begin()
    finish(night)


@pytest.mark.parametrize("ms", STEPS)
def test_a_clock_that_steps_back(night: Night, ms: int) -> None:
    """Nothing fires until it is where it was, whether its node is started again or not."""
    night.step(-ms)
    if ms > MINUTE_MS:
        night.assert_nothing_fires()
        night.be_away(0)
        night.assert_nothing_fires()
        night.sleep(ms - MINUTE_MS)
    finish(night)


def test_a_clock_that_is_ahead_for_a_moment_and_not_believed(night: Night) -> None:
    """Nothing fires, nothing is put, and once it is right nothing was missed."""
    night.set_clocks(48 * HOUR_MS)
    wait_for_doubt(night)
    night.assert_nothing_fires()
    with Client(night.peers.addresses) as client:
        new = {"name": "new", "every_ms": 1000, "template": {"topic": TOPIC}}
        paused = f"paused-last-{HOUR_MS}"
        for act in (
            lambda: client.schedules.put(new),
            lambda: client.schedules.resume(paused),
            lambda: client.schedules.run(paused),
        ):
            with pytest.raises(Overloaded, match="jumped"):
                act()
        client.schedules.pause(paused)  # nobody has to wait with that
    night.set_clocks(-48 * HOUR_MS)
    finish(night)


def test_peers_that_were_away_and_a_master_that_came_by_a_snapshot(tmp_path: Path) -> None:
    """It has the schedules from its snapshot alone, and is the master before the outage."""
    small = ("--segment-bytes", "64K", "--tail-age", "500ms", "--tail-keep", "200ms")
    night = Night(tmp_path, PEERS, *small, "--peer-journal", "64K")
    with night.peers as peers:
        night.put()
        fresh, third = peers.standbys(peers.wait_until_whole())
        peers.wipe(fresh)
        fill_the_journal(peers)
        peers.start()
        master = peers.wait_until_whole()
        assert "snapshot-installed" in peers[fresh].log_text()
        peers[third if master != third else PEERS[0]].kill()

        def is_master() -> bool:
            """Whoever has not noticed yet that the third is dead hands over to that one first."""
            if (now := peers.master()) != fresh:
                peers.step_down(now)
            return now == fresh

        eventually(is_master)
        peers.start()
        peers.wait_until_whole()
        live_through(night)
        found = by_name(list(night.wait_for_all()))
        for name, runs in night.expected().items():
            assert found[name] == runs[: len(found[name])]


def fill_the_journal(peers: Peers) -> None:
    """Send messages until no peer has the first entries in its journal any more."""
    alive = [node for node in peers.nodes.values() if node.alive]
    first = {node.oldest_segment() for node in alive}
    with Client(peers.addresses) as client:
        while {node.oldest_segment() for node in alive} & first:
            client.send_many([Message("filler", bytes(1000), delay=0)] * 100).result(60)
