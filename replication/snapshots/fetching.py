"""The driver's fetch of a snapshot: begun when needed, given up when it stalls, tried again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from ...wheel.errors import SyncFailed
from ...wheel.peers.snapshot_sink import SnapshotSink
from ..rules.group import Group
from ..transport.handshake import SNAPSHOT
from ..transport.transport import ReplicationEvents, Transport
from .transfer import SnapshotFetch

RETRY_S = 0.5
REFUSED_RETRY_S = 5.0
"""Pause after an error that lasts, s: no room, a damaged file."""

REMOVED_AT_ONCE = 50
"""Files of an unneeded snapshot that are removed at a time, which takes a few ms."""

_PASSING = frozenset({"node-unreachable", "not-running"})


class Fetching:
    """At most one snapshot at a time. All methods belong to the driver's thread, but ``give_up``:
    at the node's end another calls it, also beside a driver whose step takes long.

    ``done``: called in the fetch's own thread when it has ended. ``commit``: gives the commit
    index; when that moves without a snapshot, the log goes on without one, and the partial snapshot
    is removed.
    """

    def __init__(
        self,
        group: Group,
        transport: Transport,
        sink: Callable[[], SnapshotSink],
        done: Callable[[SnapshotFetch], None],
        commit: Callable[[], int],
        events: ReplicationEvents,
        clock: Callable[[], float],
    ) -> None:
        self._group = group
        self._transport = transport
        self._sink = sink
        self._done = done
        self._commit = commit
        self._events = events
        self._clock = clock
        self._fetch: SnapshotFetch | None = None
        self._not_before = float("-inf")
        self._wanted_at = commit()
        self._removing = sink().discard()  # left by an earlier process

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes received and expected of the snapshot that is being fetched."""
        return None if self._fetch is None else self._fetch.progress

    def want(self, peer: str) -> None:
        """A snapshot is needed, and ``peer`` has one. Called again and again while that is so."""
        self.keep_only(peer)
        if self._fetch is not None or self._clock() < self._not_before:
            return
        sink = self._sink()
        self._wanted_at = self._commit()
        self._removing = sink.discard()
        self._fetch = SnapshotFetch(
            peer,
            self._transport.address_of(peer),
            self._transport.identity(peer, SNAPSHOT),
            sink,
            self._done,
            self._events.event,
            self._clock,
            self._transport.secure_to(peer),
        )
        self._events.event("snapshot-fetch", peer=peer)
        self._fetch.start()

    def watch(self) -> None:
        """Give up a fetch that stalls; remove the rest of one that is not needed any more."""
        if self._fetch is not None and self._fetch.is_stalled():
            self.give_up("nothing came for long")
        if self._fetch is None and self._commit() != self._wanted_at:
            for _ in islice(self._removing, REMOVED_AT_ONCE):
                pass

    def keep_only(self, peer: str) -> None:
        """Give up a fetch from any other peer."""
        if self._fetch is not None and self._fetch.peer != peer:
            self.give_up("another master")

    def give_up(self, why: str) -> None:
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            self._events.event("snapshot-lost", peer=fetch.peer, error=why)
            fetch.abandon()
            self._not_before = self._clock() + RETRY_S

    def ended(self, fetch: SnapshotFetch) -> bool:
        """Note the end of a fetch; True if it is complete and wanted. Errors: ``SyncFailed``."""
        if fetch is not self._fetch:
            return False
        self._fetch = None
        error = fetch.error
        if error is None:
            return True
        if isinstance(error, SyncFailed):
            raise error
        # The journal may have been shipped past the snapshot meanwhile: then nothing is wrong.
        passes = isinstance(error, LookupError) or getattr(error, "code", "") in _PASSING
        self._not_before = self._clock() + (RETRY_S if passes else REFUSED_RETRY_S)
        event = self._events.event if passes else self._events.alarm
        event("snapshot-lost", peer=fetch.peer, error=str(error))
        return False
