"""A node under load that is killed again and again, and the account of what came out.

What arrived in which life is told by looking after each death, before the next process is started,
and not by clocks. At the same moment the last mark on disk is read, which says exactly what may be
repeated: the rows it does not cover.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from slotwheel.wheel.errors import Damaged
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import EntryKind
from slotwheel.wheel.journal.scan import walk
from slotwheel.wheel.mark import Marks
from support.chaosaccount import Arrival
from support.datadirs import state_of
from support.load import Load
from support.nodeprocess import NodeProcess
from support.ports import free_address
from support.waiting import now_ms

BATCH_ROWS = 200
SEND_EVERY_S = 0.05
DUE_AHEAD_MS = 3_000
SMALL = ("--segment-bytes", "1M", "--tail-age", "1500ms", "--tail-keep", "500ms")
"""So that spilling, cleaning and dropping segments happen all the time."""


@dataclass
class Death:
    killed_ms: int
    arrivals: int
    """How much had arrived by then, in all lives so far."""
    marks: Marks


def last_marks(data: Path) -> Marks:
    """The last mark on disk: of the journal, or of the checkpoint."""
    found = state_of(data).checkpoint.marks
    with closing(OsFiles(data)) as files:
        for name in files.list("journal"):
            try:
                for located in walk(files, f"journal/{name}"):
                    item = located.entry
                    if item.kind is EntryKind.MARK:
                        found = Marks.decode(bytes(item.payload), name)
            except Damaged:
                break  # the torn end
    return found


@dataclass
class Report:
    sent: int
    arrivals: int
    lost: int
    early: int
    strangers: int
    """Arrivals that nobody sent, or with another due time than was asked for."""
    renamed: int
    """Messages that arrived under two ids."""
    repeated: int
    repeated_marked: int
    """Repeats of rows that a mark on disk had covered: there must be none."""
    repeated_in_one_life: int
    longest_unmarked_ms: int
    """How long before the kill the oldest repeated row had been delivered."""
    kills: int
    seconds: float
    clock_step_ms: int
    """How far the wall clock has moved against the monotonic one meanwhile."""
    examples: list[tuple[Arrival, Arrival]] = field(default_factory=list)
    """Repeats in one life, the first few."""

    def line(self) -> str:
        return (
            f"{self.kills} kills in {self.seconds:.0f} s: {self.sent} with a receipt, "
            f"{self.lost} lost, {self.early} early, {self.repeated} repeated "
            f"(at most {self.longest_unmarked_ms} ms before the kill, "
            f"{self.repeated_marked} of them under a mark)"
        )


class Killing:
    """Runs a node with ``options`` on ``data`` and kills it ``kills`` times. ``receipts``: where
    the client keeps what it was promised."""

    def __init__(
        self,
        data: Path,
        topics: list[str],
        seed: int,
        *options: str,
        receipts: Path | None = None,
    ) -> None:
        self.address = free_address()
        self.node = NodeProcess(data, "--listen", self.address, *SMALL, *options)
        self.topics = topics
        self.rng = Random(seed)
        self.receipts = receipts
        self.deaths: list[Death] = []

    def run(
        self, kills: int, arrived: Callable[[], list[Arrival]], *, wait_s: float = 15.0
    ) -> Report:
        """``arrived``: everything at the target so far, what is new at the end. It is asked after
        each death, and in the end until nothing is missing, at most ``wait_s`` after the last one
        is due."""
        started, clock = time.monotonic(), time.time()
        with self.node:
            load = Load(
                self.address,
                self.topics,
                self._soon,
                rows=BATCH_ROWS,
                every_s=SEND_EVERY_S,
                receipts=self.receipts,
            )
            for _ in range(kills):
                time.sleep(self.rng.uniform(0.05, 1.2))
                self._kill(arrived)
            time.sleep(0.3)
            load.stop()
            found = self._wait(load, arrived, wait_s)
            self.node.signal()
        seconds = time.monotonic() - started
        step_ms = round((time.time() - clock - seconds) * 1000)
        return self._account(load, found, seconds, step_ms)

    def _soon(self, numbers: range) -> list[int]:
        now = now_ms()
        return [now + self.rng.randint(0, DUE_AHEAD_MS) for _ in numbers]

    def _kill(self, arrived: Callable[[], list[Arrival]]) -> None:
        killed = now_ms()
        self.node.kill()
        self.deaths.append(Death(killed, len(arrived()), last_marks(self.node.data)))
        self.node.start()

    @staticmethod
    def _wait(load: Load, arrived: Callable[[], list[Arrival]], wait_s: float) -> list[Arrival]:
        deadline = time.monotonic() + DUE_AHEAD_MS / 1000 + wait_s
        while True:
            found = arrived()
            if len({one.number for one in found}) >= len(load.due):
                time.sleep(0.3)
                return arrived()
            if time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def _account(self, load: Load, found: list[Arrival], seconds: float, step_ms: int) -> Report:
        ends = [death.arrivals for death in self.deaths]
        lives = np.searchsorted(ends, np.arange(len(found)), side="right").tolist()
        seen: dict[int, tuple[Arrival, int]] = {}
        report = Report(
            sent=len(load.due),
            arrivals=len(found),
            lost=0,
            early=sum(one.at_ms < one.due for one in found),
            strangers=0,
            renamed=0,
            repeated=0,
            repeated_marked=0,
            repeated_in_one_life=0,
            longest_unmarked_ms=0,
            kills=len(self.deaths),
            seconds=seconds,
            clock_step_ms=step_ms,
        )
        for one, life in zip(found, lives, strict=True):
            if one.number >= len(load.due) or load.due[one.number] != one.due:
                report.strangers += 1
                continue
            before = seen.get(one.number)
            seen[one.number] = one, life
            if before is None:
                continue
            report.repeated += 1
            report.renamed += before[0].offset != one.offset
            if before[1] == life:
                report.repeated_in_one_life += 1
                if len(report.examples) < 5:
                    report.examples.append((before[0], one))
                continue
            report.repeated_marked += self.deaths[life - 1].marks.main.covers(one.due, one.offset)
            unmarked = self.deaths[before[1]].killed_ms - before[0].at_ms
            report.longest_unmarked_ms = max(report.longest_unmarked_ms, unmarked)
        report.lost = len(load.due) - len(seen)
        return report
