"""Which topics there are, and where: one interface over embedded topics and Kafka.

Rules
- Calls wait, for a bounded time, and come from any thread.
- Errors are ``HttpError``: 503 when the brokers do not answer, which is no reason to say that a
  topic is not there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...consumer.message import SourcePartition
from ...consumer.source import Assignment, PositionedSource
from .errors import no_partition, no_topic
from .types import PartitionExtent, TopicDescription


class Cluster(ABC):
    """``topics_appear``: a topic may be read before it is there."""

    topics_appear = False

    @abstractmethod
    def topics(self) -> list[str]:
        """Names, sorted."""

    @abstractmethod
    def describe(self, topic: str) -> TopicDescription | None:
        """None: there is no such topic."""

    @abstractmethod
    def extent(self, topic: str, partition: int) -> PartitionExtent:
        """Of a partition that there is."""

    @abstractmethod
    def brokers(self) -> list[int]: ...

    @abstractmethod
    def known_partitions(self, topic: str) -> int | None:
        """How many partitions a topic has that messages may be addressed to; None: ask. Does not
        wait."""

    @abstractmethod
    def ask_partitions(self, topic: str) -> int | None:
        """The same; None: there is no such topic."""

    @abstractmethod
    def open_source(
        self,
        group: str,
        assignment: Assignment,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[SourcePartition] = (),
        latest: bool,
    ) -> PositionedSource:
        """Read topics as a member of a group, or partitions for it. ``latest``: what the group has
        no position of is read from its end. Errors: also ``SlotwheelError``."""

    @abstractmethod
    def close(self) -> None: ...

    def check_partition(self, topic: str, partition: int, place: str = "") -> None:
        """Errors: 40401, 40402, 503."""
        count = self.known_partitions(topic)
        if count is None:
            count = self.ask_partitions(topic)
        if count is None:
            raise no_topic(topic, place)
        if partition >= count:
            raise no_partition(topic, partition, count, place)
