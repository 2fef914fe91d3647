"""Obeying a master: its heartbeats, its entries, its offers.

Theory: an ``Append`` names the entry before its first one. If that is the same here, all before it
is, too; what follows and differs was never committed, and gives way.

Rules
- What is at or below commit is the same in every master's log. A message that says otherwise is a
  fault, and nothing is cut off for it.
- An acknowledgement names what is verified against this master and durable, never the log's end.
"""

from __future__ import annotations

from .messages import Ack, Append, Heartbeat, SnapshotOffer
from .states import Why
from .voting import Voting


class Following(Voting):
    def _hear_master(self, message: Append | Heartbeat | SnapshotOffer) -> bool:
        """Whether this is the master of the epoch; if so, it may rely on this peer from now on.

        A store that knows of no group heeds only a master that has something committed: what has
        not may be a founding that failed, and having followed it would bar the store from the next.
        """
        if self._knows_no_group and not isinstance(message, SnapshotOffer) and not message.commit:
            self._observe(message.epoch, hears_group=False)
            return False
        if message.epoch < self.epoch:
            self._send(Ack(self.me, message.sender, self.store, self.epoch, 0, 0))
            return False
        if message.epoch > self.epoch:
            self._observe(message.epoch, hears_group=True)
        elif self.master not in {None, message.sender}:
            self._fault(message, f"two masters in an epoch, {self.master} is the other")
            return False
        if self._candidacy is not None:
            self._become(Why.MASTER_HEARD)
        if self.master is None:
            self.master = message.sender
            self._event("follows", master=message.sender)
        self._promised_until = self._now + self.timing.promise_s
        self._await_election()
        return True

    def _obey(self, message: Append | Heartbeat | SnapshotOffer) -> None:
        if isinstance(message, Append):
            self._on_append(message)
            return
        if isinstance(message, Heartbeat):
            self._master_commit = max(self._master_commit, message.commit)
            self._follow_commit()
        elif message.sender == self.master:
            self._out.fetch_from = message.sender
        self._acknowledge(message.sender, message.sent_at)

    def _on_append(self, append: Append) -> None:
        log, before = self.log, append.prev_index
        if before > log.commit and log.epochs.epoch_at(before) != append.prev_epoch:
            hint = min(before - 1, log.epochs.last_of_at_most(append.prev_epoch))
            self._acknowledge(append.sender, append.sent_at, max(hint, log.commit))
            return
        if not self._take(append):
            return
        log.verified = max(log.verified, append.last_index)
        self._master_commit = max(self._master_commit, min(append.commit, append.last_index))
        self._follow_commit()
        if log.durable >= append.last_index:
            self._acknowledge(append.sender, append.sent_at)
        else:
            self._echo = max(self._echo, append.sent_at)

    def _take(self, append: Append) -> bool:
        """Bring the log in line with the entries; false if no master can have sent them."""
        log, before = self.log, append.prev_index
        if log.epochs.epoch_at(before) not in {None, append.prev_epoch}:
            self._fault(append, f"differs at {before}, which was committed")
            return False
        epochs = [append.prev_epoch, *(meta.epoch for meta in append.entries), append.epoch]
        if epochs != sorted(epochs):
            self._fault(append, "epochs fall")
            return False
        known = min(append.last_index, log.last_index)
        new = max(known, before) + 1
        for index in range(max(before, log.epochs.base_index) + 1, known + 1):
            if log.epochs.epoch_at(index) != append.entries[index - before - 1].epoch:
                if index <= max(log.commit, log.verified):
                    self._fault(append, f"differs at {index}, which was committed or verified")
                    return False
                self._event("truncated", from_index=index, to_index=log.last_index)
                log.cut(index - 1)
                self._out.truncate_after = index - 1
                new = index
                break
        if new > append.last_index:
            return True
        for index in range(new, append.last_index + 1):
            meta = append.entries[index - before - 1]
            log.append(index, meta)
            if meta.stores is not None:
                # One by one: a store that is left out and taken in again by one message is no
                # voter until it sees the second committed.
                self._settle()
        self._out.receive = (new, append.last_index)
        return True

    def _follow_commit(self) -> None:
        log = self.log
        if log.advance(min(self._master_commit, log.acknowledged)):
            self._out.commit = log.commit
            self._settle()

    def _acknowledge(self, to: str, sent_at: float, hint: int | None = None) -> None:
        log = self.log
        self._acknowledged = log.acknowledged
        self._echo = -1.0
        head = self.me, to, self.store, self.epoch
        rejected = hint is not None
        voter = self._hard.voter
        self._send(Ack(*head, log.acknowledged, log.verified, sent_at, rejected, hint or 0, voter))

    def _on_ack(self, ack: Ack) -> None:
        if ack.epoch > self.epoch:
            self._observe(ack.epoch, hears_group=False)
        elif ack.epoch == self.epoch and self._leading is not None:
            if ack.sent_at > self._now:
                self._fault(ack, "echoes what was not sent yet")
                return
            self._leading.answered(ack, self._now)
            self._settle()
