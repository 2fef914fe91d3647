"""The source that a consumer reads: one interface over two Kafka clients and embedded topics.

Rules
- One thread makes all calls of a source; a source's own thread may call ``Assignment``.
- Every call is bounded in time, whatever the brokers do: the thread has to poll, or its member
  loses its place in the group.
- Records come in each partition's order, committed ones only.
- Positions of a partition that is revoked are committed before another member gets it: otherwise
  that one would repeat finished messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..wheel.errors import InvalidConfiguration, SlotwheelError
from ..wheel.rows import Header
from .message import Received, SourcePartition

COMMIT_S = 5.0
"""The longest time, s, of a commit."""
CLOSE_S = 0.7
"""The longest time, s, of leaving the group."""
POLL_INTERVAL_S = 0.1


class SourceAway(Exception):
    """The brokers do not answer, or the group is changing; later the call may work."""


class ConsumerFailed(SlotwheelError):
    """A consumer cannot go on: the brokers refuse what it needs."""

    code = "consumer-failed"


class Assignment(Protocol):
    """Gets the changes of this member's partitions."""

    def assigned(self, partitions: Sequence[SourcePartition], member: Any) -> None:
        """This member got ``partitions``, and reads them from their committed positions on.
        ``member``: its proof of membership for a transaction."""

    def finished(self, partitions: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        """Returns the positions to commit before another member gets ``partitions``."""

    def committed(self, positions: Mapping[SourcePartition, int]) -> None:
        """``positions`` were committed."""

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        """Another member may have ``partitions`` by now."""


class Source(ABC):
    """A group's subscription to topics, as one member of it.

    ``unwanted`` returns True, by topic and headers, for records of which no message is made.
    ``seen``: after a poll, the last offset that it passed in each partition, also that of an
    unwanted record, or of a mark of a transaction.
    """

    unwanted: Callable[[str, Sequence[Header]], bool] | None = None
    seen: Mapping[SourcePartition, int] = {}

    @abstractmethod
    def poll(self, timeout_s: float, count: int) -> list[Received]:
        """The next messages, of about ``count`` records at most; waits ``timeout_s`` for the first
        record. Rebalances happen in it. Errors: ``SourceAway``, ``ConsumerFailed``."""

    @abstractmethod
    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        """Commit and wait. Errors: ``SourceAway``: perhaps not committed; ``ConsumerFailed``."""

    def stored(self, positions: Mapping[SourcePartition, int]) -> None:  # noqa: B027
        """Note ``positions`` that a transaction has committed."""

    @abstractmethod
    def hold(self, partitions: Collection[SourcePartition]) -> None:
        """Read no more of ``partitions`` for now, and read all others again."""

    @abstractmethod
    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        """Read all partitions of ``starts`` again from their committed position; without one, from
        that in ``starts``. Errors: ``SourceAway``."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group without a commit."""


class PositionedSource(Source):
    """A source whose topics and positions its owner can change, as a consumer instance of the
    gateway does for its client."""

    @abstractmethod
    def subscribe(self, topics: Sequence[str]) -> None:
        """Read ``topics`` from now on; those read already go on. Errors: ``SourceAway``."""

    @abstractmethod
    def seek(self, positions: Mapping[SourcePartition, int]) -> None:
        """Read on from ``positions`` in partitions of this member. Errors: ``SourceAway``."""

    @abstractmethod
    def committed(self, partitions: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        """The group's positions of those ``partitions`` that have one. Errors: ``SourceAway``."""


def refuse_cooperative(strategies: Iterable[str]) -> None:
    """Refuse assignors by which a member keeps partitions at a rebalance: here it gives all of them
    back, so kept ones would be read anew from an older position, and committed as another
    generation's. Errors: ``InvalidConfiguration``."""
    if cooperative := [strategy for strategy in strategies if "cooperative" in strategy]:
        raise InvalidConfiguration(
            "a partition.assignment.strategy by which a member keeps partitions",
            got=", ".join(cooperative),
            limit="range, roundrobin",
            remedy="Leave it out, in all members of the group",
        )


def no_topic(missing: Sequence[str], there: Sequence[str]) -> InvalidConfiguration:
    """The error for ``missing`` topics, where those of ``there`` exist."""
    known = [name for name in sorted(there) if not name.startswith("__")]
    return InvalidConfiguration(
        f"no such topic{'s' * (len(missing) > 1)}",
        got=", ".join(missing),
        limit=f"topics that exist: {', '.join(known[:20]) or 'none'}",
        remedy="Create them; create_topics=True makes the retry topic and the dead-letter topic",
    )
