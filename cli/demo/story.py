"""The demo's story: a node, or several peers, and the one that delivers is killed twice.

      0 %    sending begins; a message is due from 1 s after it is sent up to the end
     15 %    some are cancelled
     30 %    SIGKILL to the node that delivers, in the middle of it all
     60 %    SIGKILL to the node that delivers by now
     80 %    all is sent; some more are cancelled
    100 %    the last one is due; all nodes are stopped cleanly

A node that was killed is started again half a second later; before that, one of its peers has to
deliver, if it has any. Of a fleet, one wheel after the other is killed; the others go on meanwhile.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from ...client import Client
from ...client.groupstatus import MASTER, REPLICATION, group_status
from ...client.message import clock_ms
from ...fleet.fleet import Fleet, receipts_of
from ...wheel.errors import NodeUnreachable, SlotwheelError
from ...wheel.slots.slot import path_of
from .nodes import FLEET_FILE, make_nodes, make_wheels
from .proof import Arrivals, Outage, Promises
from .screen import Screen
from .secured import Secured
from .traffic import STEP_S, Inbox, Traffic, Workload

RECEIPTS = "receipts.arrows"
_GATEWAY_ADDRESS = "127.0.0.1:0"
_WAIT_S = 60.0
_REST_S = 12.0
_LOOK_AT_FILES_EVERY_S = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The result of the story: the client's receipts, and the files."""

    promises: Promises
    arrivals: Arrivals
    outages: list[Outage]
    cancel_answers: dict[str, int]
    directories: dict[str, Path]
    """The nodes' data directories, by name."""
    kept_seconds: list[int]
    """Slots of the messages that are due in an hour."""
    receipts: dict[str, Path]
    """The client's files of receipts: of a fleet by the wheels' names, else one without a name."""

    @property
    def is_fleet(self) -> bool:
        """True if each directory has messages of its own, and not those of its peers."""
        return self.receipts.keys() == self.directories.keys()

    def kept_in_files(self) -> dict[str, int]:
        """The number of kept messages in the slot files of each node, by its name."""
        return {
            name: rows_in_slots(path, self.kept_seconds) for name, path in self.directories.items()
        }


class Story:
    """Runs the nodes, the client and the kills. ``peers``: 1 for a node without peers; ``wheels``:
    of a fleet of nodes without peers, 1: there is none. ``secured``: the files by which all of them
    prove themselves; None: without TLS. Errors: ``SlotwheelError`` when a node or the client fails
    unexpectedly."""

    def __init__(
        self,
        directory: Path,
        peers: int,
        load: Workload,
        screen: Screen,
        secured: Secured | None = None,
        wheels: int = 1,
    ) -> None:
        self._directory = directory
        self._secured = secured
        self._is_fleet = wheels > 1
        self._nodes = (
            make_wheels(directory, wheels)
            if self._is_fleet
            else make_nodes(directory, peers, secured)
        )
        self._directories = {name: node.data for name, node in self._nodes.items()}
        self._load = load
        self._screen = screen
        self._outages: list[Outage] = []

    def run(self) -> Aftermath:
        with ExitStack() as stack:
            for node in self._nodes.values():
                stack.callback(node.stop)
                node.start()
            self._wait("the start", lambda: all(node.ready() for node in self._nodes.values()))
            inbox = stack.enter_context(closing(Inbox(self._directories.values())))
            addresses = [node.address for node in self._nodes.values()]
            with self._client() as client:
                self._wait("peers that follow a master", lambda: self._master(client))
                several = "wheels" if self._is_fleet else "peers"
                nodes_text = f"{len(addresses)} {several}" if len(addresses) > 1 else "the node"
                place = f"on {', '.join(addresses)}, data in {self._directory}"
                self._screen.event(f"{nodes_text} started {place}")
                if self._secured is not None:
                    self._screen.event(f"with TLS; while they run: {self.by_hand}")
                traffic = Traffic(client, self._load, inbox, self._screen)
                self._act(client, traffic, inbox)
            for name, node in self._nodes.items():
                if (code := node.stop()) != 0:
                    raise SlotwheelError(f"{name} ended with code {code} when told to stop")
            self._screen.event(f"{nodes_text} stopped")
        # Read again: the proof is about the files at the end.
        with closing(Inbox(self._directories.values())) as inbox:
            inbox.read()
        return Aftermath(
            traffic.promises(),
            inbox.arrivals(),
            self._outages,
            dict(traffic.answers),
            self._directories,
            traffic.kept_seconds,
            self._receipts,
        )

    @property
    def _receipts(self) -> dict[str, Path]:
        whole = self._directory / RECEIPTS
        return {n: receipts_of(whole, n) for n in self._nodes} if self._is_fleet else {"": whole}

    @property
    def by_hand(self) -> str:
        """The command with which a person looks at the nodes while they run."""
        if self._is_fleet:
            return f"slotwheel fleet status --fleet {self._directory / FLEET_FILE}"
        words = ["slotwheel", "status", "--node", self._nodes_text]
        return shlex.join([*words, *(self._secured.client_options() if self._secured else ())])

    @property
    def _nodes_text(self) -> str:
        addresses = ",".join(node.address for node in self._nodes.values())
        return f"tls://{addresses}" if self._secured is not None else addresses

    @property
    def _with_gateway(self) -> tuple[str, ...]:
        proof = () if self._secured is None else self._secured.gateway_options()
        return ("--http", _GATEWAY_ADDRESS, *proof)

    def _client(self) -> Client | Fleet:
        receipts = self._directory / RECEIPTS
        if self._is_fleet:
            return Fleet(self._directory / FLEET_FILE, timeout_s=60.0, receipts=receipts)
        tls = token = None
        if self._secured is not None:
            from ...security.tls import Tls  # OpenSSL: 5 MB that a plain client lacks

            tls, token = Tls(ca=self._secured.ca), f"file:{self._secured.token}"
        return Client(self._nodes_text, timeout_s=60.0, receipts=receipts, tls=tls, token=token)

    @contextmanager
    def staying(self) -> Iterator[str]:
        """Run the nodes again, with a gateway beside the first; gives its address. Errors: as of
        ``run``."""
        nodes = list(self._nodes.values())
        with ExitStack() as stack:
            for node in nodes:
                stack.callback(node.stop)
                node.start(*(self._with_gateway if node is nodes[0] else ()))
            self._wait("the start", lambda: all(node.ready() for node in nodes))
            yield self._wait("the gateway", lambda: nodes[0].gateway() if nodes[0].ready() else "")

    def _act(self, client: Client | Fleet, traffic: Traffic, inbox: Inbox) -> None:
        traffic.until(0.15)
        traffic.cancel_some()
        for share in (0.3, 0.6):
            traffic.until(share)
            self._kill(client, traffic, inbox)
        traffic.until(0.8)
        traffic.send_the_rest()
        traffic.cancel_some()
        traffic.until(1.0)
        self._wait_for_the_rest(traffic)

    def _kill(self, client: Client | Fleet, traffic: Traffic, inbox: Inbox) -> None:
        def wait(event: str, condition: Callable[[], T | None]) -> T:
            return self._wait(event, condition, traffic.step)

        def delivered() -> int:
            """The time of the first delivery after the kill, or now if none is left; 0: not yet. Of
            a fleet, that of the wheel that was killed: the others deliver all the time."""
            if not self._is_fleet:
                return inbox.first_after(dead_ms) or (clock_ms() if traffic.complete else 0)
            with closing(Inbox([node.data])) as own:
                own.read()
                return own.first_after(dead_ms) or (clock_ms() if traffic.complete else 0)

        has_no_peers = len(self._nodes) == 1 or self._is_fleet
        name = wait("peers that follow a master", lambda: self._master(client))
        node = self._nodes[name]
        killed_ms = clock_ms()
        pid = node.kill()
        dead_ms = clock_ms()
        victim = "the node" if len(self._nodes) == 1 else f"the master, {name}"
        victim = f"the wheel {name}" if self._is_fleet else victim
        self._screen.event(f"SIGKILL to {victim} (process {pid}), in the middle of it all")
        if not has_no_peers:
            wait("a delivery by another peer", delivered)
        start_ms = clock_ms() + 500
        wait("half a second to pass", lambda: clock_ms() >= start_ms)
        node.start()
        wait(f"the start of {name}", node.ready)
        outage = Outage(killed_ms, wait("a delivery", delivered), name)
        self._outages.append(outage)
        delay = f"{outage.seconds:.2f} s after the kill"
        self._screen.event(f"messages came again {delay}; {name} is started again")

    def _master(self, client: Client | Fleet) -> str | None:
        """The node that delivers, once all its peers have caught up with it."""
        if isinstance(client, Fleet):  # one after the other
            return list(self._nodes)[len(self._outages) % len(self._nodes)]
        if len(self._nodes) == 1:
            return next(iter(self._nodes))
        group = group_status(client).get(REPLICATION, {})
        if group.get("role") != MASTER:
            return None
        others = [peer for peer in group["peers"] if peer["id"] != group["me"]]
        caught_up = [peer["admitted"] and peer["state"] == "replicate" for peer in others]
        return group["me"] if all(caught_up) else None

    def _wait(
        self, event: str, condition: Callable[[], T | None], step: Callable[[], None] | None = None
    ) -> T:
        """Wait until ``condition`` returns a true result, and return that."""
        limit = time.monotonic() + _WAIT_S
        while not (result := condition()):
            if time.monotonic() > limit:
                raise NodeUnreachable(
                    f"waited in vain for {event}",
                    limit=f"{_WAIT_S:.0f} s",
                    remedy=f"Each node's log is node.log in its folder, in {self._directory}",
                )
            if step is not None:
                step()
            time.sleep(STEP_S)
        return result

    def _wait_for_the_rest(self, traffic: Traffic) -> None:
        """Wait until all expected messages have arrived, and kept ones are in all slot files."""
        limit = time.monotonic() + _REST_S
        while time.monotonic() < limit:
            traffic.step()
            if traffic.complete and self._kept_are_in_files(traffic.kept_seconds):
                return
            time.sleep(_LOOK_AT_FILES_EVERY_S)
        self._screen.event("not everything came in time; the proof will say what is missing")

    def _kept_are_in_files(self, seconds: list[int]) -> bool:
        """Returns True when the slots of the kept messages have all of them, each peer's or those
        of all wheels together."""
        counts = [rows_so_far(path, seconds) for path in self._directories.values()]
        return (sum(counts) if self._is_fleet else min(counts)) >= self._load.kept


def rows_so_far(directory: Path, seconds: list[int]) -> int:
    """The number of rows in these slots, to which a node may be appending; 0: not known yet."""
    try:
        return rows_in_slots(directory, seconds)
    except (pa.ArrowInvalid, OSError):
        return 0  # a block of which not all is written yet


def rows_in_slots(directory: Path, seconds: list[int]) -> int:
    """The number of rows in these slots, counted with pyarrow alone."""
    rows = 0
    for second in seconds:
        path = directory / path_of(second)
        if path.exists():
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                rows += sum(batch.num_rows for batch in stream)
    return rows
