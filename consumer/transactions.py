"""Positions, outputs, retries and dead letters in one Kafka transaction.

Rules
- A transaction names the member that its positions were assigned to, so that the brokers refuse
  that of a member which has lost its partitions (KIP-447).
- A producer whose transaction did not end cleanly is not used again. The next one takes its id
  over, which ends the open transaction; only then the committed positions are true, and are read.
- The message of an output that the brokers refuse for good becomes a dead letter: otherwise the
  transaction would fail again for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from .inflight import CommitBatch
from .message import SourcePartition

TRANSACTION_S = 10.0
"""The brokers themselves abort a transaction that has been open for longer."""
END_S = 8.0
"""The longest time, s, that a consumer gives a whole transaction."""


class TransactionFailed(Exception):
    """A transaction failed; it may be committed all the same. ``refused``: partition and offset of
    the message whose output is at fault. ``fenced``: another process has taken the transactional id
    over."""

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
        """Take the id over from any process. Errors: ``SourceAway``, ``ConsumerFailed``."""

    @abstractmethod
    def commit(self, batch: CommitBatch) -> None:
        """Commit outputs and positions in one transaction. Errors: ``TransactionFailed``: call
        ``start`` next."""

    @abstractmethod
    def partitions(self, topic: str) -> int | None:
        """The number of a topic's partitions; 0: no such topic; None: no broker answers."""

    def unclear(self, batch: CommitBatch, reason: str) -> TransactionFailed:
        """The error of a transaction in which no record's own answer has the reason. It names an
        output whose topic or partition is gone: the clients wait for those in vain."""
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
        """Free the producer without waiting for it."""
