"""The state of a master: commit, lease, admission, hand-over.

Theory: a master's commit is the highest index that a majority has on disk, if that entry is of its
own epoch; older entries commit with it. Its lease is counted, for each peer, from the *sending* of
the message that the peer has answered last; the majority-th newest of these decides.

*Example.* Of three, b answered a message sent at 10.00 s, and c one sent at 10.05 s. With itself
the master needs one more, so its lease of 0.6 s runs until 10.65 s.

Rules
- Only stores count that the last configuration in the log admits, and only by what they answered
  as voters. A store that replaces another (c's new disk, among a, b, c) becomes a voter when it
  sees its admission committed. Until then only a and b can make a majority, and together they are
  one by the old configuration as well.
- No lease before an entry of the own epoch is committed, as an older configuration may still be cut
  off.
- One admission at a time, and none before the previous one is committed: of groups that differ in
  two stores there could be two majorities without a store in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .election import majority
from .logview import LogView
from .messages import Ack, Admission, TakeOver
from .progress import WINDOW_MESSAGES, Progress, Shipping
from .shipper import Shipper
from .standing import Standing
from .states import Why
from .timing import NEVER, Timing

ADMIT_WITHIN = WINDOW_MESSAGES
"""A store is admitted when it lacks fewer entries than this: few enough to be in flight."""
ADMIT_AGAIN_S = 1.0
"""An admission that was not appended so long after the request, s, is requested again."""


class MasterState:
    """The state of one master in one epoch. ``peers``: the others."""

    def __init__(
        self, standing: Standing, log: LogView, peers: Iterable[str], timing: Timing, now: float
    ) -> None:
        self.progress = {peer: Progress(peer, log.last_index + 1) for peer in peers}
        self._standing = standing
        self._log = log
        self._timing = timing
        self._shipper = Shipper(standing, log, timing)
        self._began = now
        self._first_index = 0  # index of the own epoch's first entry; 0 until it is written
        self._lease_until = NEVER
        self._handing_to = ""
        self._handing_since = 0.0
        self._beat_due = now
        self._admit_due = now

    @property
    def may_propose(self) -> bool:
        return not self._handing_to

    @property
    def lease_until(self) -> float:
        return NEVER if self._handing_to else self._lease_until

    # Events

    def tick(self, now: float) -> Why | None:
        """Do what is due. Returns a reason to stop being master, or None."""
        if self._majority_alive_at(now) + self._timing.promise_s < now:
            return Why.LOST_MAJORITY
        if not self._first_index and self._began + 2 * self._timing.promise_s < now:
            return Why.CANNOT_WRITE
        if self._handing_to and self._handed_over(now):
            return Why.HANDED_OVER
        if now >= self._beat_due:
            self._beat_due = now + self._timing.heartbeat_s
            for peer in self.progress.values():
                self._shipper.beat(peer, now)
        self._admit(now)
        return None

    def answered(self, ack: Ack, now: float) -> None:
        """A peer has answered; ``ack`` is of this epoch."""
        peer, log = self.progress[ack.sender], self._log
        if ack.sent_at > now:
            self._standing.fault(ack, "echoes what was not sent yet")
            return
        if ack.durable > log.last_index or ack.verified > log.last_index:
            self._standing.fault(ack, "acknowledges what was never sent")
            return
        changed = peer.store not in {b"", ack.store}
        if changed:
            if ack.sent_at <= peer.echo:
                return  # a late answer of a store that another has replaced since
            self._standing.event("store-changed", peer=ack.sender)
            peer = self.progress[ack.sender] = Progress(ack.sender, log.last_index + 1)
        counted, relied_on = peer.counted, peer.relied_on
        peer.answered(ack, now)
        if peer.state is Shipping.SNAPSHOT and peer.verified >= log.epochs.base_index:
            peer.become_probe(peer.verified + 1)
        if peer.counted > counted:
            self.count()
        if changed or peer.relied_on > relied_on:
            self._measure_lease()

    def appended(self, index: int, *, configuration: bool) -> None:
        """An entry of the own epoch was written."""
        if not self._first_index:
            self._first_index = index
        if configuration:
            self._admit_due = NEVER

    def unsent(self, name: str, from_index: int, now: float) -> None:
        """Entries from ``from_index`` on could not be sent: try again after a heartbeat."""
        peer = self.progress[name]
        peer.become_probe(min(peer.next, from_index), now + self._timing.heartbeat_s)

    def hand_over(self, to: str | None, now: float) -> None:
        """Begin to hand over. ``to``: the peer; None: the most advanced one."""
        fit = [
            peer
            for peer in self.progress.values()
            if self._log.latest.get(peer.peer) == peer.store
            and peer.counted
            and self._recent(peer.answered_at, now)
            and to in {None, peer.peer}
        ]
        if self._handing_to or not fit:
            self._standing.event("hand-over-impossible", to=to or "")
            return
        best = max(fit, key=lambda peer: (peer.match, peer.peer))
        self._handing_to, self._handing_since = best.peer, now
        self._standing.event("hand-over", to=best.peer)

    def ship(self, now: float) -> None:
        """Send entries, questions and offers to every peer that may get some."""
        for peer in self.progress.values():
            self._shipper.ship(peer, now)

    # Counting

    def count(self) -> None:
        """Move commit to the highest index that a majority has."""
        log = self._log
        if not self._first_index:
            return
        limit = self._majority(log.durable, lambda peer: peer.counted)
        if limit >= self._first_index and log.advance(int(limit)):
            self._standing.out.commit = log.commit
            self._measure_lease()

    def _measure_lease(self) -> None:
        if self._first_index and self._log.commit >= self._first_index:
            self._lease_until = self._relied_on() + self._timing.lease_s

    def _majority_alive_at(self, now: float) -> float:
        """The latest time, s, at which a majority is known to have been alive."""
        relied_on = self._relied_on() if self._first_index else NEVER
        return max(min(relied_on, now), self._began)

    def _relied_on(self) -> float:
        """The time, s, at which the messages were sent that a majority has answered."""
        return self._majority(float("inf"), lambda peer: peer.relied_on)

    def _majority(self, own: float, of: Callable[[Progress], float]) -> float:
        """The highest value that a majority of the admitted stores has reached."""
        values = []
        for name, store in self._log.latest.items():
            if name == self._standing.me:
                values.append(own if store == self._standing.store else NEVER)
            else:
                peer = self.progress.get(name)
                values.append(of(peer) if peer is not None and store == peer.store else NEVER)
        values.sort(reverse=True)
        return values[majority(self._log.latest) - 1]

    def _recent(self, then: float, now: float) -> bool:
        return now - then <= 4 * self._timing.heartbeat_s

    # Admission and hand-over

    def _admit(self, now: float) -> None:
        log = self._log
        if now < self._admit_due or not (self._first_index and log.settled) or self._handing_to:
            return
        for peer in self.progress.values():
            admitted = log.latest.get(peer.peer) == peer.store
            near = log.last_index - peer.match < ADMIT_WITHIN and peer.match >= self._first_index
            if not admitted and near and self._recent(peer.echo, now):
                self._admit_due = now + ADMIT_AGAIN_S
                self._standing.out.admit = Admission({**log.latest, peer.peer: peer.store})
                self._standing.event("admission", peer=peer.peer)
                return

    def _handed_over(self, now: float) -> bool:
        """True if the other peer has every entry: it is asked to take over then."""
        peer = self.progress[self._handing_to]
        if peer.match == self._log.last_index and now > self._handing_since:
            self._standing.send(TakeOver(**self._standing.head(peer.peer)))
            return True
        if now - self._handing_since > self._timing.hand_over_s:
            self._standing.event("hand-over-failed", to=self._handing_to)
            self._handing_to = ""
        return False
