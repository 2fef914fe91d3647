"""Sends a master's messages to its peers: entries, questions, offers of a snapshot, heartbeats.

Theory: each peer's ``Progress`` says what may be sent to it, the log what there is to send. Entries
are named here by their indexes; the transport loads them.
"""

from __future__ import annotations

from .logview import LogView
from .messages import Append, Heartbeat, SnapshotOffer
from .progress import MESSAGE_ENTRIES, Progress, Shipping
from .standing import Standing
from .timing import Timing


class Shipper:
    def __init__(self, standing: Standing, log: LogView, timing: Timing) -> None:
        self._standing = standing
        self._log = log
        self._timing = timing

    def ship(self, peer: Progress, now: float) -> None:
        """Send what the peer's state allows now."""
        before_journal = peer.next <= self._log.epochs.base_index
        if peer.state is Shipping.REPLICATE:
            if before_journal:
                peer.become_probe(peer.next)
            else:
                self._entries(peer, now)
        elif now >= peer.ask_at:
            peer.asked(again_at=now + self._timing.heartbeat_s)
            if before_journal:
                self._offer(peer, now)
            else:
                self._append(peer, peer.next - 1, now)

    def beat(self, peer: Progress, now: float) -> None:
        """Send a heartbeat."""
        commit = min(self._log.commit, peer.match)
        self._standing.send(Heartbeat(*self._standing.head(peer.peer), commit, now))
        if peer.beat():
            self._standing.event("pipeline-lost", peer=peer.peer)

    def _entries(self, peer: Progress, now: float) -> None:
        last = self._log.last_index
        while peer.next <= last and peer.has_room:
            until = min(peer.next + MESSAGE_ENTRIES - 1, last)
            self._append(peer, until, now)
            peer.shipped(until)

    def _append(self, peer: Progress, until: int, now: float) -> None:
        log, before = self._log, peer.next - 1
        epoch = log.epochs.epoch_at(before)
        assert epoch is not None, f"epoch of {before} is not known"
        metas = log.metas(peer.next, until) if until > before else ()
        head = self._standing.head(peer.peer)
        self._standing.send(Append(*head, before, epoch, metas, log.commit, now))

    def _offer(self, peer: Progress, now: float) -> None:
        """Offer a snapshot, as the next entry is not in the journal. The peer may have it, only not
        verified (after a restart): so it is also asked for the entry before the journal."""
        head, log = self._standing.head(peer.peer), self._log
        before = log.epochs.base_index, log.epochs.base_epoch
        self._standing.send(Append(*head, *before, (), log.commit, now))
        if peer.state is Shipping.SNAPSHOT:
            self._standing.send(SnapshotOffer(*head, now))
        peer.become_snapshot()
