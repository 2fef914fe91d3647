"""Which topics there are, and where: one interface over embedded topics and Kafka.

Rules
- Calls wait, for a bounded time, and come from any thread.
- Errors are ``HttpError``: 503 when the brokers do not answer, which is no reason to say that a
  topic is not there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

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
    def extents(
        self, partitions: Collection[SourcePartition]
    ) -> dict[SourcePartition, PartitionExtent]:
        """The range of positions of each partition that exists; all are asked for at once."""

    @abstractmethod
    def brokers(self) -> list[int]: ...

    @abstractmethod
    def known_partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has, as far as that is known without asking Kafka. Does
        not wait."""

    @abstractmethod
    def ask_partitions(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions each topic has that exists; all are asked for at once."""

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

    def check_partitions(self, places: Sequence[tuple[SourcePartition, str]]) -> None:
        """``places``: where in the request each partition is named. Errors: 40401, 40402, 503."""
        topics = {partition.topic for partition, _ in places}
        counts = self.known_partitions(topics)
        if missing := topics - counts.keys():
            counts |= self.ask_partitions(missing)
        check_counts(counts, places)


def check_counts(counts: Mapping[str, int], places: Iterable[tuple[SourcePartition, str]]) -> None:
    """``counts``: how many partitions each topic has that exists. Errors: 40401, 40402."""
    for (topic, partition), place in places:
        count = counts.get(topic)
        if count is None:
            raise no_topic(topic, place)
        if partition >= count:
            raise no_partition(topic, partition, count, place)
