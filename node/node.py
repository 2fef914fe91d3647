"""One running node: it puts the rooms together, and starts the threads that turn them.

    ways in: wire, delay topic                        seen from outside: metrics and health
                    |                                              |
                  wheel  <-- syncer, slot-files                    +-- Loop, events, status
                    |
    ways out: the master's threads (hand, prefetcher) --> sink, dead letters

Rules
- A thread that fails goes on: it logs, raises an alarm, waits and tries again. Only an error that
  makes the journal untrustworthy ends the process: a failed sync, and an unforeseen error of the
  syncer, which may have left entries half-way. A restart recovers from the disk.
- Stopping is bounded. The gateway ends first, as its last sums for the audit go to this node; then
  the ways in, the hand, and the last mark. A thread that does not end in time (a broker that does
  not answer) is left behind: everything acknowledged is on disk, as at every other moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ..broker.sources import SourceTable
from ..replication.rules.group import Group
from ..wheel.dispatcher import Dispatcher
from ..wheel.errors import AddressInUse
from ..wheel.files import DirectoryLock, OsFiles
from . import budget, descriptors, work
from .clock import NodeClock, OperatedClock
from .config import NodeConfig, with_port
from .damage import Damage, remedy_of
from .events import NodeEvents
from .gateway import GatewayProcess
from .health import HealthServer, pages_of
from .intake.agreeing import acknowledge_unread
from .intake.delay_topic import DelayTopicIntake
from .intake.scheduling import ScheduleActions
from .intake.wire import WireIntake, check_free
from .logs import event
from .masterthreads import MasterThreads
from .metrics import Metrics, Scrape
from .opening import open_wheel
from .pendingwatch import PendingWatch
from .policies import GroupPolicies
from .secured import NodeTls
from .securitywatch import NodeRights
from .sinks import WaysOut
from .threads import Threads

if TYPE_CHECKING:
    from .intake.peerport import PeerServer
    from .peer import PeerNode

log = logging.getLogger("slotwheel.node")

STOP_WITHIN_S = 1.3
_LAST_MARK_S = 0.4
"""The part of that time, s, that is reserved for the last mark and for closing."""
_HAND_OVER_S = 0.3
_GATEWAY_GONE_S = 5.0
_SUCCESSOR_S = 0.2
_PEER_SERVER_S = 0.2
SWITCH_INTERVAL_S = 0.002
"""A thread keeps the interpreter for so long, s: shorter than usual, so that the hand is punctual;
not shorter still, as each thread that waits for the interpreter wakes that often."""
EXIT_FATAL = 3
_SET_BACK = (
    ". Delivery goes on when it has caught up; if it was ahead before, and is right now,"
    " 'slotwheel clock --set-back' goes on at once"
)


def end_process(error: BaseException) -> None:
    """End the process at once, as the default handler of fatal errors: a clean-up could write."""
    log.critical(
        "the node ends: %s: %s; a restart recovers from what is on disk",
        type(error).__name__,
        error,
        exc_info=error,
    )
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(EXIT_FATAL)


class Node:
    """One node, from ``start`` to ``stop``; its threads do the work. Cannot be started twice.

    Errors of ``start``: ``DirectoryInUse``, ``AddressInUse``, ``Damaged``, ``UnsupportedVersion``,
    ``InvalidConfiguration``, ``MissingExtra``, ``OSError``; no thread is left running then.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        clock: Callable[[], int] | None = None,
        on_fatal: Callable[[BaseException], None] = end_process,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.events = NodeEvents(self.metrics)
        self.listening = ""
        """The address, ``host:port``, with the real port."""
        self.metrics_at = ""
        self._clock: Callable[[], int] = clock or NodeClock()
        self._on_fatal = on_fatal
        self._threads = Threads(self.events.failed, on_fatal)
        self._single: MasterThreads | None = None
        self._peers: PeerNode | None = None
        self._peer_server: PeerServer | None = None
        self._started = False
        self._stopping = False
        self._undo = contextlib.ExitStack()
        self._pages = pages_of(self.metrics.render, self.unhealthy, self.unready)
        self._gateway: GatewayProcess | None = None
        self._schedules: deque[str] = deque()
        """Names of schedules that were changed, for the thread that fires them."""

    # Starting

    def start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        with contextlib.ExitStack() as undo:
            self._lock = DirectoryLock(self.config.data)
            undo.callback(self._lock.release)
            check_free(self.config.listen)
            if self.config.peer_cert is not None:
                check_free(self.config.peers_at, "--peer-listen")
            if self.config.http is not None:
                _wait_until_free(self.config.http)
            self._connections_max = descriptors.for_connections(
                self.config.wheel, descriptors.limit()
            )
            if self.config.tls_cert is not None:
                self._connections_max = budget.secured_connections(
                    self._connections_max, self.config.memory
                )
            if self.config.metrics is not None:
                self._health = HealthServer(
                    self.config.metrics, self._pages, self.config.http_names
                )
                undo.callback(self._health.close)
                self.metrics_at = with_port(self.config.metrics, self._health.port)
            self._tls = NodeTls(self.config, self.events)
            self._rights = NodeRights(self.config, self.events)
            undo.callback(self._rights.close)
            self._files = OsFiles(self.config.data)
            undo.callback(self._files.close)
            self.wheel = open_wheel(self.config, self._files, self._clock, self.metrics)
            undo.callback(self.wheel.close)
            self._pending = PendingWatch(
                self.wheel, self.config.data, self._rights.authenticator.pending
            )
            self._policies = GroupPolicies(self.wheel, self.config.policies, self.events)
            self._out = WaysOut(self.config, self._files, self.wheel.mint, self._clock, self.events)
            undo.callback(self._close_sinks)
            self._damage = Damage(
                self.wheel,
                self._out.damaged_topics,
                remedy_of(str(self.config.data), has_peers=bool(self.config.peers)),
                self._clock,
                self.events,
                self.metrics,
            )
            self.metrics.watch(self._scrape)
            undo.callback(self._stop_threads)
            self._start_threads()
            self._wire = self._listen()
            self._threads.loop("wire", self._wire.turn)
            self._listen_for_peers()
            if self._tls.is_on:
                self._threads.loop("certificates", self._tls.turn)
            if self._rights.is_on:
                renew = self._wire.renew_callers
                self._threads.loop("rights", lambda: self._rights.turn(renew))
            if self.config.security is not None:
                self._threads.loop("pending-count", self._pending.turn)
            if self._peers is not None:
                self._peers.driver.start()
            self.listening = with_port(self.config.listen, self._wire.port)
            if self.config.http is not None:
                self._gateway = GatewayProcess(self.config, self.listening)
                self._threads.loop("gateway", self._gateway.turn)
            self._undo = undo.pop_all()
        self._started = True
        event(
            log,
            logging.INFO,
            f"listening on {self.listening}",
            metrics=self.metrics_at or "off",
            http=self.config.http or "off",
            data=str(self.config.data),
            sink=self.config.sink,
            delivery=self.config.delivery,
            group=self.config.wheel.group,
            pid=os.getpid(),
        )
        self._log_memory()
        for text in self.config.exposed():
            self.events.alarm("insecure", reason=f"{text}, by --allow-insecure")

    def _log_memory(self) -> None:
        """Log the memory limit and the node's limits; raise an alarm when these exceed it."""
        wheel, limit = self.config.wheel, self.config.memory
        if limit is None:
            return
        chosen = {name: getattr(wheel, name) for name in budget.FIELDS}
        event(log, logging.INFO, "memory", bytes=limit.nbytes, source=limit.source, **chosen)
        needed = budget.needed(wheel, gateway=self.config.http is not None)
        if needed > limit.nbytes:
            self.events.alarm(
                "memory",
                reason=f"{limit.nbytes} bytes may be used, by {limit.source}, and the node's limits"
                f" allow for {needed}: it may be killed. Raise that limit, or lower --tail-bytes,"
                " --tail-bytes-refuse, --window-bytes and --chunk-bytes, or leave them out",
            )

    def _start_threads(self) -> None:
        wheel, clock = self.wheel, self._clock
        slot_files = work.SlotFileWork(wheel, clock, self.metrics)
        # An error in the midst of a group commit may have left entries half-way.
        threads = self._threads
        threads.loop("syncer", self._sync, fatal=(Exception,))
        threads.loop("slot-files", slot_files.turn)
        threads.watch(lambda: slot_files.archive.failing)
        threads.watch(lambda: self.events.departures.failing)
        threads.loop("scrubber", self._damage.turn)
        if (group := self.config.group()) is not None:
            self._start_peers(group)
        else:
            assert wheel.dispatcher is not None, "alone, a node is its own master"
            self._single = self._start_master(wheel.dispatcher)
        if isinstance(clock, NodeClock):
            threads.loop("clock", work.ClockWatch(clock, self.events).turn)
        if self.config.trace_retain_ms:
            threads.loop("departures", lambda: work.clean(self._out.departures, clock))
        if self.config.to_kafka:
            target = f"Kafka at {self.config.bootstrap}"
            reached = partial(threads.request_stop, "sink-check")
            check = work.SinkCheck(self._out.sink, self.events, target, reached)
            threads.loop("sink-check", check.turn)
        if self._out.book is not None:
            threads.loop("topic-book", self._out.book.turn)

    def _start_peers(self, group: Group) -> None:
        # Replication is a tenth of the time to start, and a node alone has none.
        from ..wheel.peers.peer import PeerWheel
        from .healing import Healing
        from .peer import PeerNode

        wheel = self.wheel
        assert isinstance(wheel, PeerWheel), "a group has a wheel among peers"
        self._peers = peers = PeerNode(
            group,
            wheel,
            self._clock,
            self.events,
            self._start_master,
            self._on_fatal,
            self._tls.peers,
        )
        self._threads.loop("roles", peers.turn)
        self._damage.heal = Healing(wheel, peers.driver, group.others).turn

    def _start_master(self, dispatcher: Dispatcher) -> MasterThreads:
        return MasterThreads(
            self.config,
            self.wheel,
            dispatcher,
            self._out,
            self._policies,
            self._clock,
            self.events,
            self._on_fatal,
            self._schedules,
            authenticator=self._rights.authenticator,
            allowed=(lambda: True) if self._peers is None else self._peers.allowed,
        )

    def _listen(self) -> WireIntake:
        make = partial(
            WireIntake,
            self.wheel,
            self.config.listen,
            self._clock,
            events=self.events,
            connections_max=self._connections_max,
            facts=lambda: {
                "delivery": self.config.delivery,
                "damaged_files": self._damage.all(),
                "policies": self._policies.current.version,
                **({"insecure": exposed} if (exposed := self.config.exposed()) else {}),
                **self._delay_topics(),
                **self._out.facts,
                **self._pending.facts(),
                "limits": {name: getattr(self.config.wheel, name) for name in budget.FIELDS},
            },
            policies=self._policies,
            operated_clock=OperatedClock(self._clock, self.wheel, self.events),
            acknowledge=lambda: acknowledge_unread(self.wheel),
            pages=self._pages,
            schedules=ScheduleActions(self.wheel, self._clock, self._schedules, self._out.door),
            door=self._out.door,
            commit=self._commit,
            tls=self._tls.clients,
            callers=self._rights.callers,
        )
        peers = self._peers
        if peers is None:
            return make()
        wire = make(
            group=peers.status,
            step_down=peers.step_down,
            peers=None if self._tls.peers is not None else peers.driver.port,
        )
        peers.on_deposed = wire.depose
        return wire

    def _listen_for_peers(self) -> None:
        """Serve peers at an address of their own, if they use TLS."""
        if self._peers is None or self._tls.peers is None:
            return
        from .intake.peerport import PeerServer

        port = self._peers.driver.port
        server = PeerServer(self.config.peers_at, self._tls.peers, port, self.events)
        self._peer_server = server
        self._threads.loop("peer-wire", server.turn)

    def _sync(self) -> float:
        work.sync(self.wheel, self.metrics)
        return 0.0

    def _commit(self) -> bool:
        """Commit queued entries, in the wire's thread. Returns True if more are queued."""
        try:
            work.sync(self.wheel, self.metrics, 0.0)
            return self.wheel.has_queued
        except Exception as error:  # it may have left entries half-way
            self._on_fatal(error)
            raise

    @property
    def _master_threads(self) -> MasterThreads | None:
        return self._single if self._peers is None else self._peers.master_threads

    @property
    def _sources(self) -> DelayTopicIntake | None:
        threads = self._master_threads
        return None if threads is None or threads.stopping else threads.sources

    def _delay_topics(self) -> dict[str, Any]:
        """The status of the delay topics; empty on a node that has none."""
        table, sources = SourceTable.from_dict(self.wheel.sources), self._sources
        if not self.config.delay_topics and not table.notes:
            return {}
        topics: dict[str, Any] = {
            "sources": [] if sources is None else list(map(asdict, sources.states())),
            "not_stored": "" if sources is None else sources.unstored,
            "not_read": [row for note in table.notes for row in note.rows()],
            "not_read_dropped": table.dropped,
        }
        if sources is not None and (fleet := sources.fleet_state) is not None:
            topics["fleet"] = asdict(fleet)
        return {"delay_topics": topics}

    # Running

    def _scrape(self) -> Scrape:
        sources = self._sources
        return Scrape(
            self.wheel.status(),
            self._clock(),
            self._files.free_bytes(),
            sink_up=self.events.sink_problem is None,
            sources=() if sources is None else sources.states(),
            fleet=None if sources is None else sources.fleet_state,
            notes=len(SourceTable.from_dict(self.wheel.sources).notes),
            damaged=len(self._damage.all()),
            group={} if self._peers is None else self._peers.status(),
            ready=not (self.unhealthy() or self.unready()),
        )

    def unhealthy(self) -> list[str]:
        """The reasons to restart the process; empty without one."""
        threads = self._master_threads
        return self._threads.unhealthy() + ([] if threads is None else threads.unhealthy())

    def unready(self) -> list[str]:
        """The reasons for which the node does not do its whole job now; empty if it does."""
        if self._stopping:
            return ["the node is shutting down"]
        if not self._started:
            return ["the node is starting"]
        reasons = []
        if (problem := self.events.sink_problem) is not None:
            reasons.append(f"the sink cannot be reached: {problem}")
        if self._peers is not None:
            reasons += self._peers.unready()
        if (sources := self._sources) is not None:
            reasons += sources.unready()
        reasons += sorted(set(self._out.sink.problems.values()))[:1]
        reasons += self._tls.problems() + self._rights.problems()
        reasons += self._damage.slot_files() + self._threads.failing()
        threads = self._master_threads
        reasons += [] if threads is None else threads.failing()
        if isinstance(self._clock, NodeClock) and (doubt := self._clock.why_not_believed()):
            reasons.append(doubt)
        mark_c = self.wheel.status().mark_c
        behind_ms = mark_c - self._clock()
        if behind_ms > 0:
            reasons.append(f"the clock stands {behind_ms} ms behind what was delivered{_SET_BACK}")
        free = self._files.free_bytes()
        reserve = self.config.wheel.disk_reserve_bytes
        if free < reserve:
            reasons.append(f"the disk has {free} bytes free, {reserve} are kept in reserve")
        return reasons

    # Stopping

    def stop(self, within_s: float = STOP_WITHIN_S) -> list[str]:
        """Stop within about ``within_s`` seconds, and ``GATEWAY_END_S`` more if there is a gateway.
        Returns the names of threads that did not end: the files are still open then, and the
        process must end. May be called again."""
        if not self._started or self._stopping:
            return []
        self._stopping = True
        if self._gateway is not None:
            self._gateway.stop()
        deadline = time.monotonic() + within_s
        if self._peers is not None:
            self._hand_over(self._peers)
        if (threads := self._master_threads) is not None:
            threads.request_stop()
        self._wire.close(grace_s=within_s / 4)
        if self._peer_server is not None:
            self._peer_server.close(_PEER_SERVER_S)
        # The syncer ends last: other threads may wait for a commit.
        left = self._stop_threads(deadline - _LAST_MARK_S)
        if "syncer" not in left and self._peers is None:
            self._write_the_last_mark(deadline)
        if left:
            event(log, logging.WARNING, "threads left behind", threads=", ".join(left))
            return left
        closing = threading.Thread(target=self._undo.close, name="closing", daemon=True)
        closing.start()
        closing.join(max(_LAST_MARK_S, deadline - time.monotonic()))
        if closing.is_alive():
            return [closing.name]
        event(log, logging.INFO, "stopped")
        return []

    def _hand_over(self, peers: PeerNode) -> None:
        """Hand over to another peer, so that nobody waits for an election."""
        try:
            if peers.step_down(_HAND_OVER_S):
                # The request to take over is sent until the next master is heard.
                heard = peers.wait_for_master(_SUCCESSOR_S)
                event(log, logging.INFO, "handed over", to=heard or "nobody yet")
        except Exception:
            log.exception("the hand-over failed; the others will elect a master")
        peers.driver.stop()

    def _write_the_last_mark(self, deadline: float) -> None:
        """Append a mark, so that the next start delivers nothing again."""
        try:
            if self.wheel.dispatcher is not None:
                self.wheel.dispatcher.append_mark(self._clock(), at_once=True)
            while self.wheel.write_pending(0.0) and time.monotonic() < deadline:
                pass
        except Exception as error:
            self._on_fatal(error)

    def _stop_threads(self, deadline: float | None = None) -> list[str]:
        """Stop the threads, also when ``start`` failed half-way; a second call finds none."""
        deadline = time.monotonic() + 1.0 if deadline is None else deadline
        if self._peers is not None:
            self._peers.driver.stop()
        threads = self._master_threads
        left = [] if threads is None else threads.stop(deadline - time.monotonic())
        left += self._threads.stop(deadline, last="syncer")
        # A peer may have become master just now. No thread is left that could start further ones.
        late = self._master_threads
        if late is not None and late is not threads:
            left += late.stop(deadline - time.monotonic())
        return left

    def _close_sinks(self) -> None:
        with contextlib.suppress(Exception):  # the process is ending: no error changes that
            self._out.close()


def _wait_until_free(http: str) -> None:
    """Wait until the gateway's address is free. When a node is killed while its gateway starts,
    that ends only once it has begun, and listens until then. Errors: ``AddressInUse``,
    ``OSError``."""
    deadline = time.monotonic() + _GATEWAY_GONE_S
    while True:
        try:
            check_free(http, "--http")
            return
        except AddressInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
