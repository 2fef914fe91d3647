"""A node with peers: replication's driver, and the master's threads while this peer is the master.

    driver (its own thread) -- serving / deposed --> "roles" loop -- starts, stops --> MasterThreads

Theory: the driver must never wait, so it only wakes the loop here, which starts the master's
threads and stops them. To stop them may take as long as a sink's answer; so it is the lease that
keeps a deposed master from delivering: the hand checks it before each chunk.

A hand-over has an order: appends are held, the hand finishes its chunk, the last mark is appended,
and the next master, once it has every entry, is asked to stand for election. Otherwise it would
repeat the chunk, or lack entries that were acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..replication.driver import Driver
from ..replication.rules.group import Group
from ..replication.status import missing_votes
from ..wheel.dispatcher import Dispatcher
from ..wheel.peers.peer import PeerWheel
from .events import NodeEvents
from .logs import event
from .masterthreads import MasterThreads

if TYPE_CHECKING:
    from ..security.tls import TlsFiles

log = logging.getLogger("slotwheel.node")

LOOK_EVERY_S = 0.1
_POLL_S = 0.005
_MASTER_STOP_S = 0.5
_LAST_CHUNK_S = 0.05
"""A hand-over waits for the chunk in flight for so long, s; later, the next master repeats it."""


class PeerNode:
    """A peer of a group. ``start_master`` starts the master's threads, which ask ``allowed`` before
    each delivery. ``clock`` returns the wall clock, ms. ``tls``: as of ``Transport``."""

    def __init__(
        self,
        group: Group,
        wheel: PeerWheel,
        clock: Callable[[], int],
        events: NodeEvents,
        start_master: Callable[[Dispatcher], MasterThreads],
        on_fatal: Callable[[BaseException], None],
        tls: TlsFiles | None = None,
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._start_master = start_master
        self._changed = threading.Event()
        self._handing_over = threading.Lock()
        self._paused = False
        self.master_threads: MasterThreads | None = None
        self.on_deposed: Callable[[], None] = lambda: None
        self.driver = Driver(
            wheel,
            group,
            clock=clock,
            events=events,
            changed=self._changed.set,
            on_fatal=on_fatal,
            tls=tls,
        )

    def allowed(self) -> bool:
        """Returns True while the hand may deliver: this peer holds the lease."""
        return not self._paused and self.driver.leased()

    def turn(self) -> float:
        """Start or stop the master's threads, as the wheel's role requires; for a loop."""
        self._changed.wait(LOOK_EVERY_S)
        self._changed.clear()
        dispatcher, threads = self._wheel.dispatcher, self.master_threads
        if threads is not None and threads.dispatcher is not dispatcher:
            if not threads.stopping:
                self.on_deposed()
                threads.request_stop()
            left = threads.stop(_MASTER_STOP_S)
            if left:  # the next threads wait: a sink has one hand
                event(log, logging.WARNING, "still waiting for the sink", threads=", ".join(left))
                return 0.0
            self.master_threads = None
        if self.master_threads is None and dispatcher is not None:
            self.master_threads = self._start_master(dispatcher)
        return 0.0

    def step_down(self, timeout_s: float) -> bool:
        """Hand over to another peer. Returns False on a standby, and if none took over in time."""
        with self._handing_over:
            dispatcher = self._wheel.dispatcher
            if dispatcher is None:
                return False
            deadline = time.monotonic() + timeout_s
            self._wheel.hold_appends(True)
            self._paused = True
            try:
                if (threads := self.master_threads) is not None:
                    threads.wait_for_chunk(_LAST_CHUNK_S)
                dispatcher.append_mark(self._clock(), at_once=True)
                return self.driver.step_down(max(0.0, deadline - time.monotonic()))
            finally:
                self._paused = False
                self._wheel.hold_appends(False)
                self._changed.set()

    def wait_for_master(self, timeout_s: float) -> str:
        """Wait until a master is known. Returns its node id; empty when the time is over."""
        deadline = time.monotonic() + timeout_s
        while not (master := self.status()["master"]) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return str(master or "")

    def status(self) -> dict[str, Any]:
        return self.driver.status()

    def unready(self) -> list[str]:
        """The reason for which the group does not serve now; empty if it does."""
        group = self.status()
        if group["master"]:
            return []
        return [f"no master is known: {missing_votes(group) or 'peers elect one'}"]
