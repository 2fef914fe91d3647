"""Following a master: its heartbeats, its entries, its offers of snapshots.

Theory: an ``Append`` names the entry before its first one. If that one is the same here, all before
it are, too; entries behind it that differ were never committed, and are cut off.

Rules
- Committed entries are the same in every master's log. A message that contradicts that is a fault,
  and nothing is cut off for it, or acknowledged messages would be lost.
- An acknowledgement names what is verified against this master and durable, never the log's end.
"""

from __future__ import annotations

from .logview import LogView
from .messages import Ack, Append, Heartbeat, SnapshotOffer
from .standing import Standing


class Following:
    """A standby's obedience. The caller has made sure that messages are of the epoch's master."""

    def __init__(self, standing: Standing, log: LogView) -> None:
        self._standing = standing
        self._log = log
        self._begin()

    def _begin(self) -> None:
        """Begin an epoch, of whose master no message was received yet."""
        self._epoch = self._standing.epoch
        self._commit = 0
        """The master's commit index, as far as this log is known to reach."""
        self._acknowledged = -1
        """The index in the last acknowledgement."""
        self._echo = -1.0
        """``sent_at`` of the message to be acknowledged once its entries are durable."""
        self._log.doubt()

    def obey(self, message: Append | Heartbeat | SnapshotOffer) -> None:
        if self._epoch != self._standing.epoch:
            self._begin()
        if isinstance(message, Append):
            self._append(message)
            return
        if isinstance(message, Heartbeat):
            self._commit = max(self._commit, message.commit)
            self._follow_commit()
        else:
            self._standing.out.fetch_from = message.sender
        self.acknowledge(message.sent_at)

    def persisted(self) -> None:
        """More of the log is durable: acknowledge it."""
        self._follow_commit()
        if self._log.acknowledged > self._acknowledged:
            self.acknowledge(self._echo)

    def acknowledge(self, sent_at: float, hint: int | None = None) -> None:
        """Report to the master what is durable. ``hint``: refuses an ``Append``, see ``Ack``."""
        standing, log = self._standing, self._log
        assert standing.master is not None
        self._acknowledged = log.acknowledged
        self._echo = -1.0
        standing.send(
            Ack(
                **standing.head(standing.master),
                durable=log.acknowledged,
                verified=log.verified,
                sent_at=sent_at,
                rejected=hint is not None,
                hint=hint or 0,
                voter=standing.hard.voter,
            )
        )

    def _append(self, append: Append) -> None:
        log, before = self._log, append.prev_index
        if before > log.commit and log.epochs.epoch_at(before) != append.prev_epoch:
            hint = min(before - 1, log.epochs.last_of_at_most(append.prev_epoch))
            self.acknowledge(append.sent_at, max(hint, log.commit))
            return
        if not self._append_entries(append):
            return
        log.verify(append.last_index)
        self._commit = max(self._commit, min(append.commit, append.last_index))
        self._follow_commit()
        if log.durable >= append.last_index:
            self.acknowledge(append.sent_at)
        else:
            self._echo = max(self._echo, append.sent_at)

    def _append_entries(self, append: Append) -> bool:
        """Append entries, and cut off those that differ; false if no master can have sent them."""
        standing, log, before = self._standing, self._log, append.prev_index
        if log.epochs.epoch_at(before) not in {None, append.prev_epoch}:
            standing.fault(append, f"differs at {before}, which was committed")
            return False
        epochs = [append.prev_epoch, *(meta.epoch for meta in append.entries), append.epoch]
        if epochs != sorted(epochs):
            standing.fault(append, "epochs fall")
            return False
        known = min(append.last_index, log.last_index)
        new = max(known, before) + 1
        for index in range(max(before, log.epochs.base_index) + 1, known + 1):
            if log.epochs.epoch_at(index) != append.entries[index - before - 1].epoch:
                if index <= max(log.commit, log.verified):
                    standing.fault(append, f"differs at {index}, which was committed or verified")
                    return False
                standing.event("truncated", from_index=index, to_index=log.last_index)
                log.cut(index - 1)
                standing.out.truncate_after = index - 1
                new = index
                break
        if new > append.last_index:
            return True
        for index in range(new, append.last_index + 1):
            meta = append.entries[index - before - 1]
            log.append(index, meta)
            if meta.stores is not None:
                # One by one: a store that one message removes and admits again is no voter until
                # the second configuration is committed.
                standing.settle(log)
        standing.out.receive = (new, append.last_index)
        return True

    def _follow_commit(self) -> None:
        log = self._log
        if log.advance(min(self._commit, log.acknowledged)):
            self._standing.out.commit = log.commit
            self._standing.settle(log)
