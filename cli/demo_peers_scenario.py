"""The story of the demo with peers: three nodes, and the master is killed twice.

    0 s     sending begins; messages are due from 1 s after they are sent up to ``seconds``
    15 %    some are cancelled
    30 %    SIGKILL to the master; started again half a second after another one delivers
    60 %    SIGKILL to the master, whoever that is by now; the same
    80 %    all is sent; some more are cancelled
    100 %   the last one is due; all three are stopped cleanly

What each peer delivered while it was the master stands in topics of its own.
"""

from __future__ import annotations

import random
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..client import Client
from ..client.link import call, connect
from ..wheel.errors import NodeUnreachable, SlotwheelError
from ..wheel.protocol import STATUS
from .demo_arrivals import Arrivals
from .demo_node import START_MAX_S, STEP_S, NodeProcess
from .demo_proof import Arrived, Outage, Sent
from .demo_report import rows_in_slots
from .demo_sending import KEEPING, RECEIPTS, Plan, Sending, Show, now_ms

NAMES = ("a", "b", "c")
_PORTS = (12_000, 32_000)
_ASK_S = 1.0
_LOOK_AT_FILES_EVERY_S = 0.5


@dataclass(slots=True)
class PeersOutcome:
    sent: Sent
    arrived: Arrived
    outages: list[Outage]
    """From each kill to the next delivery."""
    killed: list[str]
    directories: dict[str, Path]
    cancel_answers: dict[str, int] = field(default_factory=dict)
    slot_seconds: list[int] = field(default_factory=list)


class PeersScenario:
    """As ``Scenario``, with a peer in each folder of ``directory``."""

    def __init__(
        self, directory: Path, messages: int, kept: int, seconds: float, show: Show
    ) -> None:
        self._directories = {name: directory / name for name in NAMES}
        self._plan = Plan(messages, kept, seconds, sent_at=0.8)
        self._show = show
        addresses = dict(zip(NAMES, _free_addresses(len(NAMES)), strict=True))
        peers = [word for name in NAMES for word in ("--peer", f"{name}={addresses[name]}")]
        self._nodes: dict[str, NodeProcess] = {}
        for name, path in self._directories.items():
            path.mkdir()
            own = ("--node-id", name, *peers, *KEEPING)
            self._nodes[name] = NodeProcess(path, *own, address=addresses[name])
        self._outages: list[Outage] = []
        self._killed: list[str] = []
        self._next_look_s = 0.0

    def run(self) -> PeersOutcome:
        """Errors: ``SlotwheelError`` when a node or the client fails as it should not."""
        paths = list(self._directories.values())
        with ExitStack() as closing:
            for node in self._nodes.values():
                closing.callback(node.stop)
                node.start()
            for node in self._nodes.values():
                node.wait_ready()
            master = self._first_master()
            self._show.event(
                f"three peers started, {master} is the master; data in {paths[0].parent}"
            )
            arrivals = Arrivals(*paths)
            closing.callback(arrivals.close)
            every = ",".join(node.address for node in self._nodes.values())
            receipts = paths[0].parent / RECEIPTS
            with Client(every, timeout_s=60.0, receipts=receipts) as client:
                sending = Sending(client, self._plan, arrivals, self._show)
                self._act(sending, arrivals)
            for name, node in self._nodes.items():
                if (code := node.stop()) != 0:
                    raise SlotwheelError(f"peer {name} ended with code {code} when told to stop")
            self._show.event("all three stopped")
        return PeersOutcome(
            sending.sent(),
            Arrivals.all(*paths),
            self._outages,
            self._killed,
            self._directories,
            sending.ledger.answers,
            sending.slot_seconds,
        )

    def _act(self, sending: Sending, arrivals: Arrivals) -> None:
        sending.begin()
        sending.until(0.15)
        sending.cancel_some()
        sending.until(0.3)
        self._kill_master(sending, arrivals)
        sending.until(0.6)
        sending.pause("all three keep up again", self._whole)
        self._kill_master(sending, arrivals)
        sending.until(0.8)
        sending.send_the_rest()
        sending.cancel_some()
        sending.until(1.0)
        sending.wait_for_the_rest(lambda: self._kept_in_files(sending.slot_seconds))

    def _kill_master(self, sending: Sending, arrivals: Arrivals) -> None:
        master = self._master()
        if master is None:
            raise NodeUnreachable("the peers have no master")
        node = self._nodes[master]
        killed_ms = now_ms()
        pid = node.kill()
        dead_ms = now_ms()
        self._show.event(f"SIGKILL to the master, {master} (process {pid})")
        sending.pause("another one delivers", lambda: arrivals.latest_ms > dead_ms)
        self._outages.append(Outage(killed_ms, _first_after(arrivals, dead_ms)))
        self._killed.append(master)
        gap = self._outages[-1].seconds
        self._show.event(f"{self._master() or 'another one'} delivers, {gap:.2f} s after the kill")
        back_ms = now_ms() + 500
        sending.pause("half a second", lambda: now_ms() > back_ms)
        node.start()
        sending.pause(f"peer {master} comes back", node.ready)
        self._show.event(f"{master} started again")

    def _first_master(self) -> str:
        limit = time.monotonic() + START_MAX_S
        while (found := self._master()) is None or not self._whole():
            if time.monotonic() > limit:
                raise NodeUnreachable(
                    "the peers did not find a master",
                    limit=f"{START_MAX_S:.0f} s",
                    remedy=f"Their logs are {self._nodes[NAMES[0]].data.parent}/*/node.log",
                )
            time.sleep(STEP_S)
        return found

    def _master(self) -> str | None:
        """Who says that it is the master, in the highest epoch."""
        found = [
            (int(view["epoch"]), name)
            for name, view in self._views().items()
            if view.get("role") == "master"
        ]
        return max(found)[1] if found else None

    def _whole(self) -> bool:
        """Whether each of them is admitted and keeps up."""
        master = self._master()
        seen = {} if master is None else self._views().get(master, {})
        others = [one for one in seen.get("peers", []) if one["id"] != master]
        return len(others) == len(NAMES) - 1 and all(
            one["admitted"] and one["state"] == "replicate" for one in others
        )

    def _views(self) -> dict[str, dict[str, Any]]:
        """How each of them that answers sees the group."""
        found = {}
        for name, node in self._nodes.items():
            try:
                client = connect(node.address)
                try:
                    found[name] = call(client, STATUS, {}, _ASK_S).get("replication", {})
                finally:
                    client.close()
            except SlotwheelError:
                continue
        return found

    def _kept_in_files(self, seconds: list[int]) -> bool:
        """Whether each peer has written the kept ones to its slot files; looks now and then."""
        if time.monotonic() < self._next_look_s:
            return False
        self._next_look_s = time.monotonic() + _LOOK_AT_FILES_EVERY_S
        rows = [rows_in_slots(path, seconds) for path in self._directories.values()]
        return min(rows) >= self._plan.kept


def _first_after(arrivals: Arrivals, at_ms: int) -> int:
    delivered = arrivals.result().delivered
    return int(delivered[delivered > at_ms].min())


def _free_addresses(count: int) -> list[str]:
    """Below the range that outgoing connections take their ports from: who dials a dead peer's port
    in that range again and again can be given this very port, and is then connected to itself."""
    found: list[str] = []
    while len(found) < count:
        address = ("127.0.0.1", random.randrange(*_PORTS))
        with suppress(OSError), socket.socket() as probe:
            probe.bind(address)
            if (text := "{}:{}".format(*address)) not in found:
                found.append(text)
    return found
