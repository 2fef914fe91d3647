"""What is done to a group of peers, or to a node alone: one method a fault. Each undoes it again
before it returns.

Between two faults the group becomes whole: there is a master, everyone is admitted and keeps up.
More than a minority may be down at a time, for their disks are still there; but a wiped disk is
never one of two that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from random import Random

from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import EntryKind
from slotwheel.wheel.journal.scan import walk
from slotwheel.wheel.mark import Marks
from support.arrivals import Arrivals
from support.datadirs import state_of
from support.namespaces import HOST
from support.peers import Peers
from support.promises import Death, Fault
from support.waiting import now_ms

PAUSE_S = (1.8, 3.5)
"""Past the lease (600 ms) and the election that follows it (at most 1.2 s)."""
CUT_S = (1.5, 4.0)
SLOW_BYTES_S = 100_000


class Faults:
    """``done`` is what was done so far, in order. ``arrivals``: what they are counted from when a
    node alone dies; ``exact``: nothing that was sent can arrive after such a death."""

    def __init__(self, peers: Peers, rng: Random, arrivals: Arrivals, *, exact: bool) -> None:
        self._peers = peers
        self._rng = rng
        self._arrivals = arrivals
        self._exact = exact
        self.done: list[Fault] = []

    # Processes

    def kill_alone(self) -> None:
        """SIGKILL to the node without peers. What arrived in which life is told by looking before
        the next process is started, and not by clocks; at the same moment the last mark on disk is
        read, which says exactly what may be repeated: the rows it does not cover."""
        [node] = self._peers.nodes.values()
        fault = self.begin("SIGKILL")
        node.kill()
        fault.death = Death(len(self._arrivals.look()), last_marks(node.data), self._exact)
        node.start()
        self._end(fault)

    def fail_over(self, *, pause: bool = False) -> None:
        """SIGKILL to the master, or SIGSTOP, until there is another one."""
        master = self._peers.master()
        node = self._peers[master]
        fault = self.begin(f"{'SIGSTOP' if pause else 'SIGKILL'} until the next, {master}")
        fault.held = pause
        (node.pause if pause else node.kill)()
        self._peers.master(other_than=master)
        (node.resume if pause else node.start)()
        self._end(fault)

    def kill_master(self) -> None:
        self._kill("SIGKILL, master", [self._peers.master()])

    def kill_standby(self) -> None:
        self._kill("SIGKILL, standby", [self._standby()])

    def kill_any(self) -> None:
        self._kill("SIGKILL", [self._rng.choice(self._peers.names)])

    def kill_two(self) -> None:
        chosen = self._rng.sample(self._peers.names, 2)
        self._kill("SIGKILL, two at once", chosen)

    def kill_all(self) -> None:
        self._kill("SIGKILL, all at once", self._peers.names)

    def pause_master(self) -> None:
        self._pause("SIGSTOP, master", self._peers.master())

    def pause_standby(self) -> None:
        self._pause("SIGSTOP, standby", self._standby())

    # Links

    def cut_master_off(self) -> None:
        master = self._peers.master()
        others = self._peers.standbys(master)
        links = [(master, one) for one in others] + [(one, master) for one in others]
        self._cut(f"links cut, master {master}", links)

    def mute_master(self) -> None:
        master = self._peers.master()
        self._cut(f"one way: {master} (master) to the others", self._links([master]))

    def deafen_master(self) -> None:
        master = self._peers.master()
        links = [(one, to) for to, one in self._links([master])]
        self._cut(f"one way: the others to {master} (master)", links)

    def cut_one_link(self) -> None:
        """The master does not reach one standby, which hears only the other one."""
        master, standby = self._peers.master(), self._standby()
        self._cut(f"one way: {master} (master) to {standby}", [(master, standby)])

    def part_standbys(self) -> None:
        master = self._peers.master()
        links = [(a, b) for a, b in self._links(self._peers.standbys(master)) if b != master]
        self._cut("links cut, between the standbys", links)

    def slow_link(self) -> None:
        master, standby = self._peers.master(), self._standby()
        fault = self.begin(f"slow link, {master} (master) to {standby}")
        self._peers.lab.slow(master, standby, SLOW_BYTES_S)
        self._end_of_links(fault)

    def cut_from_the_test(self) -> None:
        """The master reaches its peers, but neither clients nor Kafka."""
        master = self._peers.master()
        self._cut(f"links cut, {master} (master) to clients and Kafka", _both(master, HOST))

    # Disks

    def fill_disk(self) -> None:
        disk, name = self._peers.disk, self._peers.disk_of
        if disk is None:
            return
        role = "master" if self._peers.master() == name else "standby"
        fault = self.begin(f"full disk, {name} ({role})")
        try:
            disk.fill()
            self._wait(CUT_S)
        finally:
            disk.free()
        self._end(fault)

    def wipe_standby(self) -> None:
        self.wipe(self._standby())

    def wipe(self, name: str) -> None:
        fault = self.begin(f"disk wiped, {name}")
        self._peers.wipe(name)
        self._peers[name].start()
        self._peers.wait_until_whole()
        self._end(fault)

    # How

    def run(self, steps: Iterable[Callable[[], None]]) -> None:
        """One after the other; after each the group becomes whole, and has a quiet moment."""
        for step in steps:
            step()
            self.check_alive()
            self._peers.wait_until_whole()
            self._wait((0.3, 1.5))

    def check_alive(self) -> None:
        """Nobody ends but by us."""
        for name, node in self._peers.nodes.items():
            assert node.alive, f"{name} ended by itself:\n{self._peers.log_ends(40)}"

    def _standby(self) -> str:
        return self._rng.choice(self._peers.standbys(self._peers.master()))

    def _links(self, sources: list[str]) -> list[tuple[str, str]]:
        return [(one, to) for one in sources for to in self._peers.names if to != one]

    def _kill(self, what: str, names: list[str]) -> None:
        fault = self.begin(f"{what}: {' '.join(names)}")
        for name in names:
            self._peers[name].kill()
        self._wait((0.1, 1.8))
        self._peers.start()
        self._end(fault)

    def _pause(self, what: str, name: str) -> None:
        fault = self.begin(f"{what}: {name}")
        fault.held = True
        self._peers[name].pause()
        try:
            self._wait(PAUSE_S)
        finally:
            self._peers[name].resume()
        self._end(fault)

    def _cut(self, what: str, links: list[tuple[str, str]]) -> None:
        fault = self.begin(what)
        for link in links:
            self._peers.lab.cut(*link)
        self._end_of_links(fault)

    def _end_of_links(self, fault: Fault) -> None:
        try:
            self._wait(CUT_S)
        finally:
            self._peers.lab.heal()
        self._end(fault)

    def begin(self, what: str) -> Fault:
        """One that a test plays by itself; it may say when it ends."""
        now = now_ms()
        self.done.append(Fault(what, now, now))
        return self.done[-1]

    @staticmethod
    def _end(fault: Fault) -> None:
        fault.end_ms = now_ms()

    def _wait(self, between: tuple[float, float]) -> None:
        time.sleep(self._rng.uniform(*between))


def last_marks(data: Path) -> Marks:
    """The last mark on disk: of the journal, or of the checkpoint."""
    marks = state_of(data).checkpoint.marks
    with closing(OsFiles(data)) as files:
        for name in files.list("journal"):
            try:
                for located in walk(files, f"journal/{name}"):
                    item = located.entry
                    if item.kind is EntryKind.MARK:
                        marks = Marks.decode(bytes(item.payload), name)
            except Damaged:
                break  # the torn end
    return marks


def _both(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]
