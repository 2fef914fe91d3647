"""Being master: shipping, counting, the lease, admission, handing over.

Theory: a master's commit is the highest index that a majority has on disk, if that entry is of its
own epoch; older entries commit with it. Its lease begins, for each peer, at the *sending* of what
the peer has answered last; the majority-th newest of these decides.

Rules
- The stores admitted by the last configuration in the log count, and of those only what they said
  as voters. A store that took the place of another becomes a voter when it sees its admission
  committed: until then every majority is one of the old stores alone, and so a majority by the old
  configuration as well.
- No lease before an entry of the own epoch is committed, so none that rests on a configuration that
  may still be cut off.
- One admission at a time, and none before the one before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .election import majority
from .logview import LogView
from .messages import Ack, Admission, Append, Heartbeat, Message, SnapshotOffer, StoreIds, TakeOver
from .progress import MESSAGE_ENTRIES, NEVER, WINDOW_MESSAGES, Progress, Shipping
from .ready import Ready, Value
from .states import Why
from .timing import Timing

ADMIT_WITHIN = WINDOW_MESSAGES
"""A store is admitted when it lacks fewer entries than this: few enough to be under way."""
ADMIT_AGAIN_S = 1.0
"""An admission that was not appended so long after it was asked for is asked for again."""


class Master:
    """Made anew for each epoch won."""

    def __init__(
        self,
        *,
        me: str,
        store: bytes,
        peers: Sequence[str],
        epoch: int,
        stores: StoreIds,
        log: LogView,
        timing: Timing,
        out: Callable[[], Ready],
        now: float,
    ) -> None:
        """``stores``: what the epoch's first entry will say. ``peers``: the others."""
        self.epoch = epoch
        self.stores = stores
        self.first_index = 0
        """Of the own epoch's first entry; 0 until it is written."""
        self.lease_until = NEVER
        self.handing_to = ""
        self._handing_since = 0.0
        self._me = me
        self._store = store
        self._log = log
        self._timing = timing
        self._out = out
        self._began = now
        self._beat_due = now
        self._admit_due = now
        self.progress = {peer: Progress(peer, log.last_index + 1) for peer in peers}

    # What happens

    def tick(self, now: float) -> Why | None:
        """Whatever is due; why to stop being master, if so."""
        if self._heard(now) + self._timing.promise_s < now:
            return Why.LOST_MAJORITY
        if not self.first_index and self._began + 2 * self._timing.promise_s < now:
            return Why.CANNOT_WRITE
        if self.handing_to and self._hand_over(now):
            return Why.HANDED_OVER
        if now >= self._beat_due:
            self._beat_due = now + self._timing.heartbeat_s
            self._beat(now)
        self._admit(now)
        return None

    def answered(self, ack: Ack, now: float) -> None:
        """``ack`` is of this epoch."""
        peer = self.progress[ack.sender]
        if ack.durable > self._log.last_index or ack.verified > self._log.last_index:
            self._event("fault", peer=ack.sender, what="acknowledges what was never sent")
            return
        changed = peer.store not in {b"", ack.store}
        if changed and ack.sent_at <= peer.echo:
            return  # a late word of a store that another has replaced since
        peer.store = ack.store
        if changed:
            self._event("store-changed", peer=ack.sender)
            peer.reset(ack.store, self._log.last_index + 1)
        peer.heard = now
        counted, relied_on = peer.counted, peer.relied_on
        peer.accepted(ack)
        if ack.rejected:
            peer.rejected(ack.hint)
        if peer.state is Shipping.SNAPSHOT and peer.verified >= self._log.epochs.base_index:
            peer.probe(peer.verified + 1, NEVER)
        if peer.counted > counted:
            self.count()
        if changed or peer.relied_on > relied_on:
            self.measure_lease()

    def appended(self, index: int, *, configuration: bool) -> None:
        if not self.first_index:
            self.first_index = index
        if configuration:
            self._admit_due = NEVER

    def unsent(self, name: str, from_index: int, now: float) -> None:
        """Entries from ``from_index`` on could not be shipped: try again a little later."""
        peer = self.progress[name]
        following = min(peer.next, from_index)
        peer.probe(following, now + self._timing.heartbeat_s)

    def count(self) -> None:
        """Move commit to what a majority has."""
        log = self._log
        if not self.first_index:
            return
        limit = self._majority(log.durable, lambda peer: peer.counted)
        if limit >= self.first_index and log.advance(int(limit)):
            self._out().commit = log.commit
            self.measure_lease()

    def measure_lease(self) -> None:
        """When the lease ends, by what is known now."""
        if self.first_index and self._log.commit >= self.first_index:
            self.lease_until = self._majority_relied_on() + self._timing.lease_s

    @property
    def may_propose(self) -> bool:
        return not self.handing_to

    def begin_hand_over(self, to: str | None, now: float) -> None:
        """``to``: which peer; ``None``: the one that has most."""
        fit = [
            peer
            for peer in self.progress.values()
            if self._log.latest.get(peer.peer) == peer.store
            and peer.counted
            and now - peer.heard <= 4 * self._timing.heartbeat_s
            and to in {None, peer.peer}
        ]
        if self.handing_to or not fit:
            self._event("hand-over-impossible", to=to or "")
            return
        best = max(fit, key=lambda peer: (peer.match, peer.peer))
        self.handing_to, self._handing_since = best.peer, now
        self._event("hand-over", to=best.peer)

    def ship(self, now: float) -> None:
        """Send what may be sent."""
        for peer in self.progress.values():
            if peer.state is Shipping.REPLICATE:
                self._ship_entries(peer, now)
            elif now >= peer.due:
                peer.due = now + self._timing.heartbeat_s
                if peer.next <= self._log.epochs.base_index:
                    self._offer(peer, now)
                else:
                    self._send(self._append(peer, peer.next - 1, now))

    # How

    def _ship_entries(self, peer: Progress, now: float) -> None:
        last = self._log.last_index
        if peer.next <= self._log.epochs.base_index:
            peer.probe(peer.next, NEVER)
            return
        while peer.next <= last and peer.has_room:
            until = min(peer.next + MESSAGE_ENTRIES - 1, last)
            self._send(self._append(peer, until, now))
            peer.shipped(until)

    def _append(self, peer: Progress, until: int, now: float) -> Append:
        before = peer.next - 1
        epoch = self._log.epochs.epoch_at(before)
        assert epoch is not None, f"epoch of {before} is not known"
        metas = self._log.metas(peer.next, until) if until > before else ()
        return Append(*self._head(peer), before, epoch, metas, self._log.commit, now)

    def _offer(self, peer: Progress, now: float) -> None:
        """What comes next is not in the journal. But the peer may have it, only not verified (after
        a start of its own): so it is asked first, and again, for the entry before the journal."""
        epochs, head = self._log.epochs, self._head(peer)
        before = epochs.base_index, epochs.base_epoch
        self._send(Append(*head, *before, (), self._log.commit, now))
        if peer.state is Shipping.SNAPSHOT:
            self._send(SnapshotOffer(*head, now))
        peer.state = Shipping.SNAPSHOT

    def _beat(self, now: float) -> None:
        for peer in self.progress.values():
            commit = min(self._log.commit, peer.match)
            self._send(Heartbeat(*self._head(peer), commit, now))
            if peer.beat():
                self._event("pipeline-lost", peer=peer.peer)
                peer.probe(max(peer.verified, peer.match) + 1, NEVER)

    def _admit(self, now: float) -> None:
        log = self._log
        if now < self._admit_due or not (self.first_index and log.settled) or self.handing_to:
            return
        for peer in self.progress.values():
            there = now - peer.echo <= 4 * self._timing.heartbeat_s
            if (there and log.latest.get(peer.peer) != peer.store) and (
                log.last_index - peer.match < ADMIT_WITHIN and peer.match >= self.first_index
            ):
                self._admit_due = now + ADMIT_AGAIN_S
                self._out().admit = Admission({**log.latest, peer.peer: peer.store})
                self._event("admission", peer=peer.peer)
                return

    def _hand_over(self, now: float) -> bool:
        peer = self.progress[self.handing_to]
        if peer.match == self._log.last_index and now > self._handing_since:
            self._send(TakeOver(*self._head(peer)))
            return True
        if now - self._handing_since > self._timing.hand_over_s:
            self._event("hand-over-failed", to=self.handing_to)
            self.handing_to = ""
        return False

    def _majority_relied_on(self) -> float:
        """When what a majority has answered was sent."""
        return self._majority(float("inf"), lambda peer: peer.relied_on)

    def _heard(self, now: float) -> float:
        """When a majority was last there, for sure."""
        relied_on = self._majority_relied_on() if self.first_index else NEVER
        return max(min(relied_on, now), self._began)

    def _majority(self, mine: float, of: Callable[[Progress], float]) -> float:
        """The highest value that a majority of the admitted stores has reached."""
        values = []
        for name, store in self._log.latest.items():
            peer = self.progress.get(name)
            if peer is not None:
                values.append(of(peer) if store == peer.store else NEVER)
            else:
                values.append(mine if store == self._store else NEVER)
        values.sort(reverse=True)
        return values[majority(self._log.latest) - 1]

    def _head(self, peer: Progress) -> tuple[str, str, bytes, int]:
        return self._me, peer.peer, self._store, self.epoch

    def _send(self, message: Message) -> None:
        self._out().send.append(message)

    def _event(self, name: str, **fields: Value) -> None:
        self._out().events.append((name, {"epoch": self.epoch, **fields}))
