"""The topics that a gateway can read, and their partitions: one interface over embedded topics and
Kafka.

Rules
- Calls wait, for a bounded time, and come from any thread.
- Errors are ``HttpError``. When the brokers do not answer it is 503, never 404: a client would take
  the topic for deleted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...consumer.message import SourcePartition
from ...consumer.source import Assignment, PositionedSource
from .errors import no_partition, no_topic
from .types import PartitionExtent, TopicDescription


class Cluster(ABC):
    """The topics of a Kafka or a data directory. ``topics_appear``: a topic may be read before it
    exists."""

    topics_appear = False

    @abstractmethod
    def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    @abstractmethod
    def describe(self, topic: str) -> TopicDescription | None:
        """The description of a topic; None: there is no such topic."""

    @abstractmethod
    def extents(
        self, partitions: Collection[SourcePartition]
    ) -> dict[SourcePartition, PartitionExtent]:
        """The range of positions of each of ``partitions`` that exists, in one request."""

    @abstractmethod
    def brokers(self) -> list[int]: ...

    @abstractmethod
    def known_partitions(self, topics: Collection[str]) -> dict[str, int]:
        """The numbers of partitions of topics, as far as they are known without asking Kafka. Does
        not wait."""

    @abstractmethod
    def ask_partitions(self, topics: Collection[str]) -> dict[str, int]:
        """The numbers of partitions of the topics that exist, in one request."""

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
        """Read topics as a member of a group, or partitions without being a member. ``latest``:
        partitions without a position of the group are read from their end. Errors: also
        ``SlotwheelError``."""

    @abstractmethod
    def close(self) -> None: ...

    def check_partitions(self, places: Sequence[tuple[SourcePartition, str]]) -> None:
        """Check that partitions exist; beside each is its place in the request, for the error.
        Errors: 40401, 40402, 503."""
        topics = {partition.topic for partition, _ in places}
        counts = self.known_partitions(topics)
        if missing := topics - counts.keys():
            counts |= self.ask_partitions(missing)
        check_counts(counts, places)


def check_counts(counts: Mapping[str, int], places: Iterable[tuple[SourcePartition, str]]) -> None:
    """Check partitions (``Cluster.check_partitions``) against the numbers of partitions of topics
    that exist. Errors: 40401, 40402."""
    for (topic, partition), place in places:
        count = counts.get(topic)
        if count is None:
            raise no_topic(topic, place)
        if partition >= count:
            raise no_partition(topic, partition, count, place)
