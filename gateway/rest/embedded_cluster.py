"""Embedded topics: files in the data directory of the node beside the gateway.

Each has one partition, 0, and the node is its broker. A topic comes into being with the first
message that is delivered to it, so messages may be addressed to any name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

from ...consumer.embedded_source import EmbeddedSource
from ...consumer.message import SourcePartition
from ...consumer.source import Assignment, PositionedSource
from ...reading.topicreader import extent, topics
from ...wheel.checks import is_topic
from ...wheel.files import OsFiles
from .cluster import Cluster
from .types import PartitionDescription, PartitionExtent, Replica, TopicDescription

NODE_ID = 0
PARTITIONS = 1


class EmbeddedCluster(Cluster):
    """The embedded topics of the data directory ``root``."""

    topics_appear = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def topics(self) -> list[str]:
        with closing(OsFiles(self._root)) as files:
            return topics(files)

    def describe(self, topic: str) -> TopicDescription | None:
        if not is_topic(topic) or self._extent(topic) is None:
            return None
        alone = PartitionDescription(0, NODE_ID, [Replica(NODE_ID, leader=True, in_sync=True)])
        return TopicDescription(topic, {}, [alone])

    def extents(
        self, partitions: Collection[SourcePartition]
    ) -> dict[SourcePartition, PartitionExtent]:
        extents = {partition: self._extent(partition.topic) or (0, 0) for partition in partitions}
        return {at: PartitionExtent(first, end) for at, (first, end) in extents.items()}

    def _extent(self, topic: str) -> tuple[int, int] | None:
        with closing(OsFiles(self._root)) as files:
            return extent(files, topic)

    def brokers(self) -> list[int]:
        return [NODE_ID]

    def known_partitions(self, topics: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(topics, PARTITIONS)

    def ask_partitions(self, topics: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(topics, PARTITIONS)

    def open_source(
        self,
        group: str,
        assignment: Assignment,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[SourcePartition] = (),
        latest: bool,
    ) -> PositionedSource:
        names = topics or [partition.topic for partition in partitions]
        return EmbeddedSource(self._root, group, names, assignment, latest=latest)

    def close(self) -> None: ...
