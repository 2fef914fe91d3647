"""The thread that owns the core: passes events to it, and has its decisions carried out.

Theory: the core decides (``rules/core.py``), the wheel stores (``wheel/peers/peer.py``), the
transport carries. Here is one thread between them with one inbox; so no event reaches the core that
is older than its last decision, and no decision is overtaken by another.

    transport -- messages, unsent --> inbox --> core -- Ready --> effects
    wheel ---- its log changed -----> inbox -->
    clock ----- every 20 ms ------------------>

Rules
- A lease that ends is published before anything else is done.
- An error while a ``Ready`` is carried out (``effects.py``) ends the process (``on_fatal``), and
  recovery decides. Errors of links, and of what peers sent, never do that.
- The wheel only wakes the driver, which then reads the log's positions itself, so they are never
  stale.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..wheel.journal.entry import Entry
from ..wheel.peers.heal import SlotRows
from ..wheel.peers.peer import PeerWheel
from .backlog import BACKLOG_BYTES_MAX, Backlog
from .effects import Effects
from .rules.core import Core
from .rules.group import Group
from .rules.messages import EntryMeta, HardState, PeerMessage
from .rules.states import Role
from .rules.timing import NEVER
from .snapshots.fetching import Fetching
from .snapshots.slots import fetch_slot, send_slot
from .snapshots.transfer import SnapshotFetch, send_snapshot
from .status import status_of
from .transport.handshake import SLOT, fingerprint
from .transport.incoming import Incoming
from .transport.transport import ReplicationEvents, Transport

if TYPE_CHECKING:
    from ..security.tls import TlsFiles

TICK_S = 0.02
"""Time between two ticks, s; a quarter of a heartbeat, if that is less."""
SLOW_TICK_S = 0.2
JOURNAL_FAILS_S = 1.0
"""A master whose journal cannot be written for so long, s, hands over, if another peer can lead."""
HAND_OVER_AGAIN_S = 10.0
_STEP_DOWN_RETRY_S = 0.05
_STOP_S = 2.0

Call = Callable[[float], None]
"""Work for the driver's thread; the argument is the time, s."""


# A lease measured by a clock that stands still while the machine sleeps would still be valid for
# its holder long after another master was elected.
def boottime() -> float:
    """Seconds since the machine started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Driver:
    """One peer of a group, from ``start`` to ``stop``.

    ``clock``: the wall clock in ms, for the wheel. ``changed`` is called, from any thread and under
    any lock, when role, master or ``wheel.serving`` may have changed: it must only wake a thread.
    ``on_fatal`` is called once, in the driver's thread, which then ends. ``address_of`` is for
    tests: where to connect to. ``tls``: as of ``Transport``.
    """

    def __init__(
        self,
        wheel: PeerWheel,
        group: Group,
        *,
        clock: Callable[[], int],
        events: ReplicationEvents,
        changed: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
        address_of: Callable[[str], str] | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._wheel = wheel
        self._group = group
        self._events = events
        self._changed = changed
        self._on_fatal = on_fatal
        self._inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._backlog = Backlog()
        self._look_asked = False
        self.transport = Transport(
            group,
            wheel.config.group,
            wheel.store_id,
            self,
            wheel.entries,
            partial(send_snapshot, wheel.snapshot, events.event, events.alarm),
            partial(send_slot, wheel.slot_rows),
            key=lambda: fingerprint(wheel.group_key),
            events=events,
            address_of=address_of,
            tls=tls,
            clock=boottime,
        )
        self._fetching = Fetching(
            group,
            self.transport,
            wheel.snapshot_sink,
            lambda fetch: self._inbox.put(lambda now: self._fetched(fetch, now)),
            lambda: wheel.commit_index,
            events,
            boottime,
        )
        self._stopping = threading.Event()
        self._effects = Effects(
            wheel,
            group,
            self.transport,
            self._fetching,
            self._backlog,
            events,
            clock,
            boottime,
            self._log_changed,
            self._stopping,
        )
        self._core: Core  # set by ``start``
        self._lease_until = NEVER
        self._status: dict[str, Any] = {}
        self._role_moved = threading.Condition()
        self._slow_due = NEVER
        self._first = 0
        self._failing_since: float | None = None
        self._handed_over = NEVER
        self._thread = threading.Thread(target=self._run, name="replication", daemon=True)

    # -- for the node ----------------------------------------------------------------------------

    @property
    def port(self) -> Incoming:
        """Serves the connections of peers that the node's server passes on."""
        return self.transport.incoming

    def start(self) -> None:
        """Start the thread. Call it when the node's server listens, or just before."""
        wheel, now = self._wheel, boottime()
        epoch, vote, voter = wheel.hard()
        self._core = Core(
            self._group.me,
            tuple(self._group.peers),
            self._group.timing,
            store=wheel.store_id,
            hard=HardState(epoch, vote, voter),
            epochs=wheel.epochs(),
            stores=wheel.admitted_stores(),
            commit=wheel.commit_index,
            now=now,
            random=random.Random(),
        )
        self._publish(now)
        wheel.on_serving = self._changed
        wheel.log_changed = self._log_changed
        self.transport.start()
        self._thread.start()

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """End at once, without a hand-over. A master calls ``step_down`` first."""
        self._stopping.set()
        self._lease_until = NEVER
        self._inbox.put(lambda _: None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        self._fetching.give_up("the node ends")
        self.transport.stop(timeout_s)

    def leased(self) -> bool:
        """True if this peer is master and no other can be. Cheap; from any thread."""
        return boottime() < self._lease_until

    def status(self) -> dict[str, Any]:
        """The group as this peer sees it, at most 0.2 s old: the fields of ``status.py``, and
        ``lease_ms``. Cheap; from any thread."""
        left_s = self._lease_until - boottime()
        return {**self._status, "lease_ms": max(0, int(left_s * 1000)) if left_s > 0 else 0}

    def step_down(self, timeout_s: float) -> bool:
        """Hand over to the most advanced peer. Returns True once this one is master no longer."""
        deadline = time.monotonic() + timeout_s
        with self._role_moved:
            while self._is_master():
                refused = self._effects.refused_hand_overs
                self._inbox.put(self._hand_over)
                while self._is_master() and refused == self._effects.refused_hand_overs:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._stopping.is_set():
                        return False
                    self._role_moved.wait(min(left, 0.1))
                if self._is_master():
                    self._role_moved.wait(_STEP_DOWN_RETRY_S)
        return True

    def fetch_slot(self, peer: str, slot: int, upto: int) -> SlotRows:
        """Fetch the rows of a slot's time below offset ``upto`` from ``peer``. Waits for the first
        of them, and for the others while they are iterated.

        Errors, also then: ``SlotwheelError``.
        """
        greeting = self.transport.identity(peer, SLOT)
        address, secure = self.transport.address_of(peer), self.transport.secure_to(peer)
        return fetch_slot(address, greeting, slot, upto, secure)

    # -- for the transport (Receiver), from its threads ------------------------------------------

    def receive(self, message: PeerMessage, entries: Sequence[Entry]) -> None:
        nbytes = sum(len(entry.payload) for entry in entries)
        if nbytes:
            self._backlog.received(nbytes)
        self._inbox.put(lambda now: self._step(message, entries, nbytes, now))

    def unsent(self, peer: str, index: int) -> None:
        self._inbox.put(lambda now: self._unsent(peer, index, now))

    def room(self) -> bool:
        return self._backlog.nbytes < BACKLOG_BYTES_MAX and not self._wheel.tail_is_full

    def _log_changed(self) -> None:
        """Ask for a look at the log, in a thread that writes; it serves all changes before it."""
        if not self._look_asked:
            self._look_asked = True
            self._inbox.put(self._look)

    # -- the driver's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._turn_until_stopped()
        except BaseException as error:
            self._lease_until = NEVER
            if not self._stopping.is_set():
                self._events.alarm("replication-failed", error=repr(error))
                self._on_fatal(error)

    def _turn_until_stopped(self) -> None:
        tick_s = min(TICK_S, self._group.timing.heartbeat_s / 4)
        tick_due = boottime()
        self._look(tick_due)
        while not self._stopping.is_set():
            wait_s = tick_due - boottime()
            try:
                call = self._inbox.get(wait_s > 0, max(wait_s, 0.0) or None)
            except queue.Empty:
                call = None
            now = boottime()
            if call is not None and not self._stopping.is_set():
                call(now)
            if now >= tick_due:
                tick_due = now + tick_s
                self._core.tick(now)
                self._after(now)
                if now >= self._slow_due:
                    self._slow_due = now + SLOW_TICK_S
                    self._slow_tick(now)

    def _after(self, now: float, entries: Sequence[Entry] = (), nbytes: int = 0) -> None:
        core = self._core
        self._publish_lease()
        ready = core.ready()
        if nbytes and (ready is None or ready.receive is None):
            self._backlog.dropped(nbytes)
        if ready is not None:
            self._effects.carry_out(core, ready, entries, nbytes)
            if ready.events or ready.hard is not None:
                self._publish(now)

    def _step(
        self, message: PeerMessage, entries: Sequence[Entry], nbytes: int, now: float
    ) -> None:
        self._core.step(message, now)
        self._after(now, entries, nbytes)

    def _unsent(self, peer: str, index: int, now: float) -> None:
        self._core.unsent(peer, index, now)
        self._after(now)

    def _look(self, now: float) -> None:
        """The log has changed: report its positions to the core."""
        self._look_asked = False
        core, wheel = self._core, self._wheel
        view = wheel.log_view()
        if view.placed < core.last_index:
            core.write_failed(view.placed, now)
            self._after(now)
            view = wheel.log_view()
        self._failing_since = (self._failing_since or now) if view.failing else None
        self._backlog.update(view.written, view.placed)
        if core.role is Role.MASTER:
            # All entries that one look finds are shipped together.
            written = wheel.written_after(core.last_index)
            for index, epoch, stores in written:
                core.appended(index, EntryMeta(epoch, stores), now)
            if written:
                self._after(now)
        core.persisted(min(view.durable, core.last_index), now)
        self._after(now)
        if view.first != self._first:
            self._first = view.first
            core.log_begins(min(view.first, core.commit + 1))
            self._after(now)
        wheel.commit(core.commit)

    def _slow_tick(self, now: float) -> None:
        core = self._core
        self._look(now)  # a spill drops old entries, and wakes no one
        self._fetching.watch()
        if self._effects.publish_master(core):
            self._changed()
        failing = self._failing_since is not None and now - self._failing_since > JOURNAL_FAILS_S
        if failing and core.may_propose and now - self._handed_over > HAND_OVER_AGAIN_S:
            peers = core.progress.values()
            if any(peer.match >= core.last_index for peer in peers):
                self._handed_over = now
                self._events.alarm(
                    "master-cannot-write", error="the journal cannot be written; handing over"
                )
                self._hand_over(now)
        self._publish(now)

    def _hand_over(self, now: float) -> None:
        self._core.hand_over(now)
        self._after(now)

    def _fetched(self, fetch: SnapshotFetch, now: float) -> None:
        """A fetch of a snapshot has ended: install it, if it is complete."""
        core = self._core
        if not self._fetching.ended(fetch):
            return
        ends = fetch.update.checkpoint
        # Checked again: the entries may have been received and acknowledged meanwhile.
        if not core.wants_snapshot(ends.index, ends.epoch):
            self._events.event("snapshot-lost", peer=fetch.peer, error="not needed any more")
            return
        began = boottime()
        index, epoch, stores = self._wheel.install(fetch.update)
        self._events.event(
            "snapshot-installed", peer=fetch.peer, index=index, seconds=boottime() - began
        )
        view = self._wheel.log_view()
        self._backlog.update(view.written, view.placed)
        now = boottime()
        core.snapshot_installed(index, epoch, stores, now)
        self._after(now)
        self._look(now)

    # -- visible outside ---------------------------------------------------------------------------

    def _is_master(self) -> bool:
        return self._status.get("role") == Role.MASTER.value

    def _publish_lease(self) -> None:
        self._lease_until = NEVER if self._stopping.is_set() else self._core.lease_until

    def _publish(self, now: float) -> None:
        """Make the core's state visible outside; wake threads that wait for a role."""
        core, before = self._core, self._status
        self._publish_lease()
        self._status = status_of(
            core, self._group, now, self.transport.status, self.transport.clients_at
        )
        moved = any(before.get(name) != self._status[name] for name in ("role", "master", "epoch"))
        with self._role_moved:
            self._role_moved.notify_all()
        if moved:
            self._effects.publish_master(core)
            self._changed()
