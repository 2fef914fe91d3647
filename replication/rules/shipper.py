"""Sends a master's messages to its peers: entries, questions, offers of a snapshot, heartbeats.

Theory: each peer's ``Progress`` says what may be sent to it, the log what there is to send. Entries
are named here by their indexes; the transport loads them.
"""

from __future__ import annotations

from .logview import LogView
from .messages import Append, EntryMeta, Heartbeat, SnapshotOffer
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
        head = self._standing.head(peer.peer)
        self._standing.send(Heartbeat(**head, commit=commit, sent_at=now))
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
        self._send_append(peer, before, epoch, metas, now)

    def _offer(self, peer: Progress, now: float) -> None:
        """Offer a snapshot, as the next entry is not in the journal. The peer may have it, only not
        verified (after a restart): so it is also asked for the entry before the journal."""
        epochs = self._log.epochs
        self._send_append(peer, epochs.base_index, epochs.base_epoch, (), now)
        if peer.state is Shipping.SNAPSHOT:
            self._standing.send(SnapshotOffer(**self._standing.head(peer.peer), sent_at=now))
        peer.become_snapshot()

    def _send_append(
        self, peer: Progress, before: int, epoch: int, metas: tuple[EntryMeta, ...], now: float
    ) -> None:
        """Send ``metas``. ``before``: the entry that stands before them; ``epoch``: its epoch."""
        self._standing.send(
            Append(
                **self._standing.head(peer.peer),
                prev_index=before,
                prev_epoch=epoch,
                entries=metas,
                commit=self._log.commit,
                sent_at=now,
            )
        )
