"""Requests for topics, their partitions, and brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

from ...consumer.message import SourcePartition
from ..requests import Reply
from ..services import Services
from .cluster import Cluster
from .errors import no_partition, no_topic, partition_in
from .media import answer_type
from .types import BrokerIds, PartitionDescription, PartitionExtent, TopicDescription


class Browsing:
    """Answers requests about a cluster's topics. Errors: those of ``Cluster``; 40401, 40402."""

    def __init__(self, services: Services, cluster: Cluster) -> None:
        self._services = services
        self._cluster = cluster

    async def topics(self, request: Request) -> Reply:
        """``GET /topics``."""
        return await self._answer(request, self._cluster.topics)

    async def topic(self, request: Request) -> Reply:
        """``GET /topics/{topic}``."""
        topic = request.path_params["topic"]
        return await self._answer(request, lambda: self._topic(topic))

    async def partitions(self, request: Request) -> Reply:
        """``GET /topics/{topic}/partitions``."""
        topic = request.path_params["topic"]
        return await self._answer(request, lambda: self._topic(topic).partitions)

    async def partition(self, request: Request) -> Reply:
        """``GET /topics/{topic}/partitions/{partition}``."""
        topic, partition = request.path_params["topic"], partition_in(request.path_params)
        return await self._answer(request, lambda: self._partition(topic, partition))

    async def offsets(self, request: Request) -> Reply:
        """``GET /topics/{topic}/partitions/{partition}/offsets``."""
        topic, partition = request.path_params["topic"], partition_in(request.path_params)

        def extent() -> PartitionExtent:
            self._partition(topic, partition)
            asked = SourcePartition(topic, partition)
            return self._cluster.extents([asked])[asked]

        return await self._answer(request, extent)

    async def brokers(self, request: Request) -> Reply:
        """``GET /brokers``."""
        return await self._answer(request, lambda: BrokerIds(self._cluster.brokers()))

    async def _answer(self, request: Request, question: Callable[[], Any]) -> Reply:
        kind = answer_type(request.scope)
        answer = await self._services.run(question)
        return Reply(200, msgspec.json.encode(answer), kind)

    def _topic(self, topic: str) -> TopicDescription:
        described = self._cluster.describe(topic)
        if described is None:
            raise no_topic(topic)
        return described

    def _partition(self, topic: str, partition: int) -> PartitionDescription:
        partitions = self._topic(topic).partitions
        for description in partitions:
            if description.partition == partition:
                return description
        raise no_partition(topic, partition, len(partitions))
