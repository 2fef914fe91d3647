"""Rows and the mark behind them in one Kafka transaction, on which exactly-once delivery builds.

The mark is the offset that a consumer group without members has at partition 0 of one topic, with a
text beside it. Kafka makes it visible together with the rows of its transaction, or not at all. So
after any failure the stored mark shows if the rows count.

Two rules make that safe, and every implementation keeps them:

- ``start`` takes over both transactional ids before it reads the mark. Taking over an id fences the
  producer that had it, and ends its transaction: no mark can appear behind the one that was read.
- After an end that is neither a clean commit nor a clean abort, both producers are abandoned. They
  may end their transaction yet; the next ``start`` comes behind that as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ...wheel.errors import SlotwheelError
from .plan import KafkaSettings, SendFailure, SendPlan

METADATA_BYTES_MAX = 4095
"""The longest text beside a mark that a broker takes by default (``offset.metadata.max.bytes``)."""


class Fenced(Exception):
    """The transactional ids are lost: another master started with them, or the broker ended a
    transaction that had been open for too long."""


class Unclear(Exception):
    """Nobody knows how the transaction ended. The producers are abandoned: ``start`` again."""


class Aborted(Exception):
    """The transaction was aborted: no row of it counts. The producers are still good."""


class Refused(SlotwheelError):
    """The broker refuses the transactions as such: only a person can mend that."""

    code: ClassVar[str] = "transactions-refused"

    @classmethod
    def no_topic(cls, topic: str) -> Refused:
        message = f"topic {topic} does not exist, and the mark is stored for it"
        return cls(message, remedy="Create it: it is the topic of the dead letters")

    @classmethod
    def rights(cls, kind: str, reason: str) -> Refused:
        """The error for a missing right; ``kind`` is a key of ``RIGHTS``."""
        remedy = f"Give the user of this node the right {RIGHTS[kind]}"
        return cls(f"Kafka refuses the transactions: {reason}", remedy=remedy)


RIGHTS = {
    "id": "WRITE and DESCRIBE on transactional ids that begin with the group's name",
    "group": "READ on the consumer group that holds the mark",
    "topic": "READ and WRITE on the topic of the dead letters",
    "cluster": "IDEMPOTENT_WRITE on the cluster",
}
"""The rights that exactly-once delivery needs, besides that to write to each target topic."""


@dataclass(frozen=True, slots=True)
class StoredMark:
    """The group's offset in Kafka, and its text. ``members``: the number of the group's members,
    which should be 0, as a member could overwrite the mark."""

    offset: int
    metadata: str
    members: int = 0


class Transactions(ABC):
    """Transactions of one wheel group, one open at a time. Only ``close`` is thread-safe.

    ``group``: the consumer group whose offset at partition 0 of ``topic`` is the mark. It also
    names the two transactional ids, ``<group>-0`` and ``<group>-1``.
    """

    in_doubt = False
    """True after a commit that may or may not have taken place, until ``start`` finds a mark."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str) -> None:
        self.settings = settings
        self.group = group
        self.topic = topic

    @abstractmethod
    def start(self) -> StoredMark | None:
        """Abandon the producers, take over both ids, and only then read the mark, waiting for
        transactions that are about to end. None: there is no mark.

        Takes ``settings.delivery_timeout_s`` at most. Errors: ``Unreachable``, ``Refused``,
        ``Fenced``.
        """

    @abstractmethod
    def begin(self) -> None:
        """Open a transaction, with each id in turn; ``<group>-0`` has the first one after
        ``start``. Errors: ``Unclear``, ``Fenced``."""

    @abstractmethod
    def send(self, plan: SendPlan, *, singly: bool = False) -> dict[int, SendFailure]:
        """Send the plan's rows in the open transaction, and wait until each is acknowledged.

        Returns those that failed; then the transaction can only be aborted. Never raises for an
        error of Kafka: one that ended a producer is raised by the next ``commit`` or ``abort``.

        ``REFUSED`` without ``bystander``: the broker refuses this row for good. With it: a row of
        the same batch is refused, and nobody knows which. ``singly`` finds it: each row is sent
        after the one before it was accepted, up to the first refused one. Any other failure is
        ``UNKNOWN``, with ``bystander`` if another row is refused.
        """

    @abstractmethod
    def commit(self, offset: int, metadata: str) -> None:
        """Store the mark in the transaction and commit it. Returns only when that is certain.

        Errors: ``Aborted``, also if a row of the transaction failed; ``Fenced``; ``Unclear``;
        ``Refused``, where nothing counts. ``metadata``: at most ``METADATA_BYTES_MAX`` bytes.
        """

    @abstractmethod
    def abort(self) -> None:
        """Abort the open transaction. Returns only when it is certain that none of its rows counts.
        Errors: ``Fenced``, ``Unclear``."""

    @abstractmethod
    def close(self) -> None:
        """Abandon the producers. It is bounded in time, and may be called twice, by any thread."""
