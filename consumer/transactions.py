"""Positions, outputs, retries and dead letters in one Kafka transaction.

Rules
- A transaction names the member that its positions were assigned to, so that the brokers refuse one
  of a member that was rebalanced away (KIP-447).
- A producer whose transaction did not end cleanly is not used again. The next one takes its id
  over, which ends what is open; then the committed positions are true, and are read again.
- An output that the brokers refuse for good would be refused for ever: its message is named, and
  becomes a dead letter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from .inflight import CommitBatch
from .message import SourcePartition

TRANSACTION_S = 10.0
"""The brokers themselves abort a transaction that has been open for longer."""
END_S = 8.0
"""How long, s, a whole transaction may take here."""


class TransactionFailed(Exception):
    """Perhaps it was committed, perhaps not. ``refused``: the message whose output is at fault.
    ``fenced``: somebody has taken the transactional id over."""

    def __init__(
        self,
        reason: str,
        refused: tuple[SourcePartition, int] | None = None,
        *,
        fenced: bool = False,
    ) -> None:
        super().__init__(reason, refused)
        self.reason, self.refused, self.fenced = reason, refused, fenced

    def __str__(self) -> str:
        return self.reason


class Transactor(ABC):
    """One transactional id. One thread calls all but ``partitions`` and ``close``."""

    @abstractmethod
    def start(self) -> None:
        """Take the id over from whoever had it. Errors: ``SourceAway``, ``ConsumerFailed``."""

    @abstractmethod
    def commit(self, batch: CommitBatch) -> None:
        """Everything or nothing. Errors: ``TransactionFailed``: then ``start`` comes next."""

    @abstractmethod
    def partitions(self, topic: str) -> int | None:
        """How many the topic has, 0: there is no such topic; None: the brokers do not answer."""

    def unclear(self, batch: CommitBatch, reason: str) -> TransactionFailed:
        """What has failed for no reason that a record's own answer gives: the target of one may be
        gone, for which the clients wait in vain."""
        for partition, offset, output in batch.outputs:
            count = self.partitions(output.topic)
            if count is None:
                break
            if (output.partition or 0) >= count:
                gone = f"no topic {output.topic} with {(output.partition or 0) + 1} partitions"
                return TransactionFailed(gone, (partition, offset))
        return TransactionFailed(reason)

    @abstractmethod
    def close(self) -> None:
        """Free everything; does not wait."""
