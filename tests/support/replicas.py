"""Peers in one process: real drivers, real wheels over real files, real servers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.replication.driver import Driver
from slotwheel.replication.rules.group import Group
from slotwheel.replication.rules.timing import Timing
from slotwheel.wheel.answers import AppendReceipt
from slotwheel.wheel.config import WheelConfig
from slotwheel.wheel.due.chunk import Chunk
from slotwheel.wheel.errors import SlotwheelError
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.journal.entry import Entry
from slotwheel.wheel.peers.peer import PeerWheel
from slotwheel.wheel.state import LmdbState
from support.events import ToldEvents
from support.ports import free_address
from support.served import ServedIntake
from support.waiting import PATIENCE_S, eventually, now_ms
from support.wheels import batch, next_chunk

TIMING = Timing(
    heartbeat_s=0.05, lease_s=0.3, promise_s=0.4, election_spread_s=0.2, hand_over_s=0.15
)


class Replica:
    """One peer. ``stop`` is a stop without a farewell; ``start`` opens the directory again."""

    def __init__(
        self,
        path: Path,
        group: Group,
        config: WheelConfig,
        *,
        listen: str | None = None,
        dial: Mapping[str, str] | None = None,
        files: Callable[[Path], Any] = OsFiles,
    ) -> None:
        self.name = group.me
        self.path = path
        self.group = group
        self.config = config
        self.listen = listen or group.address
        self.dial = dict(group.peers) | dict(dial or {})
        self.events = ToldEvents()
        self.fatal: list[BaseException] = []
        self.running = False
        self._make_files = files

    def start(self) -> Replica:
        self.path.mkdir(exist_ok=True)
        self.files = self._make_files(self.path)
        self.state = LmdbState(self.path)
        self.wheel = PeerWheel.open(
            self.files, self.state, self.config, now_ms(), node_id=self.name
        )
        self.driver = Driver(
            self.wheel,
            self.group,
            clock=now_ms,
            events=self.events,
            on_fatal=self.fatal.append,
            address_of=self.dial.__getitem__,
        )
        self.server = ServedIntake(
            self.wheel, self.listen, peers=self.driver.port, group=self.driver.status
        )
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=turn, daemon=True) for turn in (self._sync, self._spill)
        ]
        for thread in self._threads:
            thread.start()
        self.driver.start()
        self.running = True
        return self

    def _sync(self) -> None:
        while not self._ending.is_set():
            self.wheel.write_pending(0.05)

    def _spill(self) -> None:
        while not self._ending.wait(0.05):
            now = now_ms()
            if self.wheel.spill_needed(now):
                self.wheel.spill(now)
            self.wheel.clean(now)

    def stop(self) -> None:
        if not self.running:
            return
        self.running = False
        self.driver.stop()
        self.server.close(0.2)
        self._ending.set()
        for thread in self._threads:
            thread.join(60)
        self.wheel.close()
        self.files.close()

    @property
    def is_master(self) -> bool:
        return self.running and self.wheel.serving and self.driver.leased()

    def entries(self) -> list[bytes]:
        """The committed entries in the journal, as bytes."""
        return [encoded(entry) for entry in self.committed()]

    def committed(self) -> list[Entry]:
        view = self.wheel.log_view()
        found: list[Entry] = []
        first = view.first
        while first <= view.commit:
            found += self.wheel.entries(first, view.commit, 1 << 20)
            first = found[-1].index + 1
        return found

    def deliver(self, until_ms: int) -> list[bytes]:
        """All that is due by then, as a hand would get it; nothing of one that was just deposed."""
        values: list[bytes] = []
        if (master := self.wheel.dispatcher) is None:
            return values

        def asked() -> Chunk | None:
            return next_chunk(master, until_ms, lambda: time.sleep(0.005))

        # Twice: the thread that syncs may commit the mark behind the first answer of *none*.
        while (chunk := asked() or asked()) is not None:
            values += chunk.rows.column("value").to_pylist()
            master.answer(chunk, np.ones(chunk.rows.num_rows, np.bool_))
        return values


def batch_of(*values: bytes, due_ms: int | None = None) -> pa.RecordBatch:
    """An INPUT batch, due in a minute unless told otherwise."""
    due = now_ms() + 60_000 if due_ms is None else due_ms
    return batch([(due, "t", value) for value in values])


def encoded(entry: Entry) -> bytes:
    return b"".join(bytes(part) for part in entry.encode())


class Replicas:
    """A group of them."""

    def __init__(
        self,
        path: Path,
        names: str = "abc",
        *,
        timing: Timing = TIMING,
        dial: Callable[[str, str], str | None] = lambda me, peer: None,
        **limits: Any,
    ) -> None:
        peers = {name: free_address() for name in names}
        config = WheelConfig(**({"disk_reserve_bytes": 0} | limits))
        self.all = {
            name: Replica(path / name, Group(name, peers, timing), config) for name in names
        }
        self._sequence = itertools.count()

    def start(self) -> Replicas:
        for one in self.all.values():
            one.start()
        return self

    def stop(self) -> None:
        for one in self.all.values():
            one.stop()

    @property
    def running(self) -> list[Replica]:
        return [one for one in self.all.values() if one.running]

    def master(self, timeout_s: float = 60.0) -> Replica:
        """The one that serves; waits for it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for one in self.running:
                if one.is_master:
                    return one
            time.sleep(0.005)
        raise AssertionError(f"no master: {[one.driver.status() for one in self.running]}")

    def standbys(self) -> list[Replica]:
        master = self.master()
        return [one for one in self.running if one is not master]

    def send(self, *values: bytes, due_ms: int | None = None) -> AppendReceipt:
        """Until it is committed, with as many tries as it takes, as a client would."""
        producer, sequence = 1 + next(self._sequence), 0
        now, rows = now_ms(), batch_of(*values, due_ms=due_ms)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                future = self.master().wheel.append(rows, now, producer=producer, sequence=sequence)
                return future.result(60)
            except (SlotwheelError, TimeoutError):
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def delivered(self, count: int) -> list[bytes]:
        """At least so many rows that are due within 100 s, from whoever is master by then. On a
        busy machine that may change in the middle; the next one may repeat what the one before has
        delivered."""
        values: list[bytes] = []

        def are_enough() -> bool:
            before = set(values)
            values.extend(
                value for value in self.master().deliver(now_ms() + 100_000) if value not in before
            )
            return len(values) >= count

        eventually(are_enough)
        return values

    def agree(self, timeout_s: float = 60.0) -> None:
        """Wait until all that run have committed the same, and that it is the same bytes."""

        def level() -> bool:
            views = [one.wheel.log_view() for one in self.running]
            return len({(view.commit, view.placed) for view in views}) == 1

        eventually(level, timeout_s)
        logs = [{entry.index: encoded(entry) for entry in one.committed()} for one in self.running]
        for other in logs[1:]:
            shared = logs[0].keys() & other.keys()
            assert {index: logs[0][index] for index in shared} == {
                index: other[index] for index in shared
            }
        assert [one.fatal for one in self.running] == [[]] * len(self.running)
