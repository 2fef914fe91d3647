"""Where a consumer reads: one interface over two Kafka clients and embedded topics.

Rules
- All calls but ``Assignment``'s come from one thread; a source's own thread may call those.
- Every call is bounded in time, whatever the brokers do.
- Records come in each partition's order, committed ones only.
- Positions of a partition that is revoked are committed before another member gets it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..wheel.errors import InvalidConfiguration, SlotwheelError
from ..wheel.rows import Header
from .message import Received, SourcePartition

COMMIT_S = 5.0
"""How long, s, a commit may take."""
CLOSE_S = 0.7
"""How long, s, leaving the group may take."""
POLL_INTERVAL_S = 0.1


class SourceAway(Exception):
    """The brokers do not answer now, or the group is about to change; later the same call may
    work."""


class ConsumerFailed(SlotwheelError):
    """A consumer cannot go on: the brokers refuse what it needs."""

    code = "consumer-failed"


class Assignment(Protocol):
    """Who is told which partitions this member has."""

    def assigned(self, partitions: Sequence[SourcePartition], member: Any) -> None:
        """These are read from their committed positions on. ``member``: what proves to the brokers
        that we are a member, for transactions."""

    def finished(self, partitions: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        """The positions to commit before another member may get these."""

    def committed(self, positions: Mapping[SourcePartition, int]) -> None:
        """That has been done."""

    def revoked(self, partitions: Sequence[SourcePartition]) -> None:
        """Another member may have these by now."""


class Source(ABC):
    """A group's subscription to topics, as one member of it.

    ``unwanted``: says by topic and headers which records nobody needs: no message is made of them.
    ``seen``: after a poll, the offset of the last record of each partition that it read, wanted or
    not; or of what stands behind that and is none, such as a mark of a transaction.
    """

    unwanted: Callable[[str, Sequence[Header]], bool] | None = None
    seen: Mapping[SourcePartition, int] = {}

    @abstractmethod
    def poll(self, timeout_s: float, count: int) -> list[Received]:
        """The next messages, of about ``count`` records at most; waits for the first record. Also
        takes part in the group's changes. Errors: ``SourceAway``, ``ConsumerFailed``."""

    @abstractmethod
    def commit(self, positions: Mapping[SourcePartition, int]) -> None:
        """Commit, and wait for it. Errors: ``SourceAway``: perhaps nothing is committed."""

    def stored(self, positions: Mapping[SourcePartition, int]) -> None:  # noqa: B027
        """A transaction has committed these."""

    @abstractmethod
    def hold(self, partitions: Collection[SourcePartition]) -> None:
        """Read no more of these for now, and of all others again."""

    @abstractmethod
    def rewind(self, starts: Mapping[SourcePartition, int]) -> None:
        """Read all partitions of ``starts`` again from what is committed; where nothing is, from
        the given position. Errors: ``SourceAway``."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; nothing is committed."""


class PositionedSource(Source):
    """A source whose topics and positions can be changed, for who passes them on to others."""

    @abstractmethod
    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics instead; of those that stay, go on. Errors: ``SourceAway``."""

    @abstractmethod
    def seek(self, positions: Mapping[SourcePartition, int]) -> None:
        """Read on from there; partitions that this member has. Errors: ``SourceAway``."""

    @abstractmethod
    def committed(self, partitions: Collection[SourcePartition]) -> dict[SourcePartition, int]:
        """The group's positions, of those partitions that have one. Errors: ``SourceAway``."""


def refuse_cooperative(strategies: Iterable[str]) -> None:
    """A member gives all its partitions back at a rebalance. With an assignor by which it keeps
    some, these would be read anew from an older position, and committed as another generation's.
    Errors: ``InvalidConfiguration``."""
    if found := [one for one in strategies if "cooperative" in one]:
        raise InvalidConfiguration(
            "a partition.assignment.strategy by which a member keeps partitions",
            got=", ".join(found),
            limit="range, roundrobin",
            remedy="Leave it out, in all members of the group",
        )


def no_topic(missing: Sequence[str], there: Sequence[str]) -> InvalidConfiguration:
    """The error for topics that do not exist."""
    known = [name for name in sorted(there) if not name.startswith("__")]
    return InvalidConfiguration(
        f"no such topic{'s' * (len(missing) > 1)}",
        got=", ".join(missing),
        limit=f"topics that exist: {', '.join(known[:20]) or 'none'}",
        remedy="Create them; create_topics=True makes the retry topic and the dead-letter topic",
    )
