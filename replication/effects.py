"""Carries out the core's decisions: by the wheel, the transport, or a fetch of a snapshot.

Theory: a ``Ready`` has everything that follows from one input of the core, and the order of its
fields keeps the promises of the rules (``rules/ready.py``).

    Ready --> promise -> stand_by -> cut_after -> receive -> send -> commit -> lead

Rules
- A ``Ready`` is done in its order, and completely, before the core gets another event: a vote that
  left before it was on disk could be given to another peer after a restart.
- An error while it is done leaves an unknown state: it passes through, and the process ends.
- A promise for which there is no room on the disk is tried again; meanwhile this peer is silent.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from threading import Event

from ..wheel.errors import NotRunning, SlotwheelError
from ..wheel.journal.entry import Entry
from ..wheel.peers.peer import PeerWheel
from .backlog import Backlog
from .rules.core import Core
from .rules.group import Group
from .rules.messages import HardState
from .rules.ready import Elected, Ready
from .rules.states import Role
from .rules.timing import NEVER
from .snapshots.fetching import Fetching
from .status import master_address
from .transport.transport import ReplicationEvents, Transport

PROMISE_RETRY_S = 0.05
OFTEN_EVERY_S = 5.0
_OFTEN = frozenset({"hand-over-failed", "hand-over-impossible", "log-cut"})
"""Events that come many times a second while a disk is full or a last peer is to stop."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class Effects:
    """Carries out decisions. All methods belong to the driver's thread; before it starts,
    to the one that starts it.

    ``clock``: the wall clock in ms; ``monotonic``: the driver's clock. ``look``: called when the
    core's view of the log may be wrong. ``stopping``: set when the driver is to end.
    """

    def __init__(
        self,
        wheel: PeerWheel,
        group: Group,
        transport: Transport,
        fetching: Fetching,
        backlog: Backlog,
        events: ReplicationEvents,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        look: Callable[[], None],
        stopping: Event,
    ) -> None:
        self._wheel = wheel
        self._group = group
        self._transport = transport
        self._fetching = fetching
        self._backlog = backlog
        self._events = events
        self._clock = clock
        self._now = monotonic
        self._look = look
        self._stopping = stopping
        self._published_master: str | None = None
        self._logged_at: dict[str, float] = {}
        self.refused_hand_overs = 0
        """Counts hand-overs for which no other peer could take over."""

    def carry_out(self, core: Core, ready: Ready, entries: Sequence[Entry], nbytes: int) -> None:
        """Do what ``ready`` has, in the order of its fields, with the ``entries`` just received, of
        ``nbytes`` in the backlog."""
        wheel = self._wheel
        if ready.hard is not None:
            self._promise(ready.hard)
        if ready.deposed:
            self._transport.forget_shipments()
            self._published_master = (
                master_address(core, self._group, self._transport.clients_at) or ""
            )
            wheel.stand_by(self._published_master)
        if ready.truncate_after is not None:
            wheel.cut_after(ready.truncate_after)
        if ready.receive is not None:
            self._receive(ready.receive, entries, nbytes)
        for message in ready.send:
            self._transport.send(message)
        if ready.commit is not None:
            wheel.commit(core.commit)
        if ready.elected is not None:
            self._published_master = None
            self._lead(core, ready.elected)
        if ready.admit is not None:
            wheel.admit_stores(ready.admit.stores)
        if ready.fetch_from is not None:
            self._fetching.want(ready.fetch_from)
        for name, fields in ready.events:
            self._event(name, fields)

    def publish_master(self, core: Core) -> bool:
        """Publish the master's address, for redirects of callers. True if it has changed."""
        if core.role is Role.MASTER:
            return False
        address = master_address(core, self._group, self._transport.clients_at) or ""
        if address == self._published_master:
            return False
        self._published_master = address
        self._wheel.stand_by(address)
        if self._fetching.progress is not None and core.master is not None:
            self._fetching.keep_only(core.master)
        return True

    def _lead(self, core: Core, won: Elected) -> None:
        try:
            self._wheel.lead(won.epoch, won.stores, self._clock(), after=core.last_index)
        except LookupError:  # gone since the election: the next look at the log reports that
            self._look()

    def _promise(self, hard: HardState) -> None:
        while True:
            try:
                self._wheel.promise(hard.epoch, hard.vote, hard.voter)
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._transport.alarm("promise-failed", self._group.me, error)
                if self._stopping.wait(PROMISE_RETRY_S):
                    raise

    def _receive(self, span: tuple[int, int], entries: Sequence[Entry], nbytes: int) -> None:
        """Pass entries to the journal; the next look at the log reports those it refuses."""
        first, last = span
        at = first - entries[0].index
        if self._wheel.log_view().placed >= first:
            self._wheel.cut_after(first - 1)
        try:
            self._wheel.receive(entries[at : at + last - first + 1])
            self._backlog.queued(last, nbytes)
        except (LookupError, SlotwheelError) as error:
            self._backlog.dropped(nbytes)
            if isinstance(error, NotRunning):
                self._stopping.set()
            elif isinstance(error, SlotwheelError):
                self._transport.alarm("entries-refused", str(self._published_master), error)
            self._look()

    def _event(self, name: str, fields: Mapping[str, object]) -> None:
        if name in {"hand-over-failed", "hand-over-impossible"}:
            self.refused_hand_overs += 1
        if name == "fault":
            text = ", ".join(f"{key} {value}" for key, value in fields.items())
            error = SlotwheelError(f"a peer broke the protocol: {text}")
            self._transport.alarm("peer-fault", str(fields.get("peer")), error)
        elif name not in _OFTEN or self._not_logged_lately(name):
            self._events.event(f"replication-{name}", **fields)

    def _not_logged_lately(self, name: str) -> bool:
        now = self._now()
        if now - self._logged_at.get(name, NEVER) < OFTEN_EVERY_S:
            return False
        self._logged_at[name] = now
        return True
