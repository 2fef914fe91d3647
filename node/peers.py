"""A node among peers: replication's driver, and a reign while this node is the master.

    driver (its own thread) -- serving / deposed --> "roles" loop -- begins and ends --> Reign

Theory: the driver must never wait, so it only wakes the loop here, which starts the master's
threads and stops them. What keeps a deposed master from delivering is not the stopping, which may
take as long as a sink takes to answer, but the lease: the hand asks for it before each chunk.

A hand-over, in order: nothing new is taken, the hand finishes its chunk, the last mark is told, and
the next master, once it has all of that, is told to stand for election.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..replication.driver import Driver
from ..replication.rules.group import Group
from ..wheel.master import Master
from ..wheel.peers.peer import PeerWheel
from .config import NodeConfig
from .events import NodeEvents
from .logs import event
from .reign import Reign

log = logging.getLogger("slotwheel.node")

LOOK_EVERY_S = 0.1
_POLL_S = 0.005
_REIGN_STOP_S = 0.5
_LAST_CHUNK_S = 0.05
"""How long a hand-over waits for the chunk that is being delivered; one that is answered later is
repeated by the next master."""


def group_of(config: NodeConfig) -> Group:
    """The peers, and how long they wait for one another, of a node that has any."""
    group = config.group()
    assert group is not None
    return group


class Peers:
    """``begin_reign`` starts the master's threads; they ask ``allowed`` before each hand-over."""

    def __init__(
        self,
        group: Group,
        wheel: PeerWheel,
        clock: Callable[[], int],
        events: NodeEvents,
        begin_reign: Callable[[Master], Reign],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._wheel = wheel
        self._clock = clock
        self._begin_reign = begin_reign
        self._changed = threading.Event()
        self._handing_over = threading.Lock()
        self._paused = False
        self.reign: Reign | None = None
        self.on_deposed: Callable[[], None] = lambda: None
        self.driver = Driver(
            wheel,
            group,
            clock=clock,
            events=events.intake,
            changed=self._role_changed,
            on_fatal=on_fatal,
        )

    def _role_changed(self) -> None:
        """From the driver's thread."""
        self._changed.set()

    def allowed(self) -> bool:
        """Whether the hand may hand over now: the lease is held."""
        return not self._paused and self.driver.leased()

    def turn(self) -> float:
        """One look at who is master; for a loop."""
        self._changed.wait(LOOK_EVERY_S)
        self._changed.clear()
        master = self._wheel.master
        if self.reign is not None and self.reign.master is not master:
            if not self.reign.told:
                self.on_deposed()
                self.reign.tell()
            left = self.reign.stop(_REIGN_STOP_S)
            if left:  # the next reign waits: one sink serves one hand
                event(log, logging.WARNING, "still waiting for the sink", threads=", ".join(left))
                return 0.0
            self.reign = None
        if self.reign is None and master is not None:
            self.reign = self._begin_reign(master)
        return 0.0

    def step_down(self, timeout_s: float) -> bool:
        """Hand over to another peer; whether it happened. A standby has nothing to hand over."""
        with self._handing_over:
            master = self._wheel.master
            if master is None:
                return False
            deadline = time.monotonic() + timeout_s
            self._wheel.hold_appends(True)
            self._paused = True
            try:
                if self.reign is not None:
                    self.reign.wait_for_chunk(_LAST_CHUNK_S)
                master.tell_mark(self._clock(), at_once=True)
                return self.driver.step_down(max(0.0, deadline - time.monotonic()))
            finally:
                self._paused = False
                self._wheel.hold_appends(False)
                self._changed.set()

    def wait_for_master(self, timeout_s: float) -> str:
        """Wait until a master is known; its node id, empty if none is in time."""
        deadline = time.monotonic() + timeout_s
        while not (master := self.status()["master"]) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return str(master or "")

    def status(self) -> dict[str, Any]:
        return self.driver.status()
