"""Requests for topics, their partitions, and brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request

from ...consumer.message import SourcePartition
from ...security.rights import Right
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
        may = self._may(request)
        return await self._answer(
            request,
            lambda: [topic for topic in self._cluster.topics() if may is None or may(topic)],
        )

    async def topic(self, request: Request) -> Reply:
        """``GET /topics/{topic}``."""
        topic = self._visible_topic(request)
        return await self._answer(request, lambda: self._topic(topic))

    async def partitions(self, request: Request) -> Reply:
        """``GET /topics/{topic}/partitions``."""
        topic = self._visible_topic(request)
        return await self._answer(request, lambda: self._topic(topic).partitions)

    async def partition(self, request: Request) -> Reply:
        """``GET /topics/{topic}/partitions/{partition}``."""
        topic, partition = self._visible_topic(request), partition_in(request.path_params)
        return await self._answer(request, lambda: self._partition(topic, partition))

    async def offsets(self, request: Request) -> Reply:
        """``GET /topics/{topic}/partitions/{partition}/offsets``."""
        topic, partition = self._visible_topic(request), partition_in(request.path_params)

        def extent() -> PartitionExtent:
            self._partition(topic, partition)
            asked = SourcePartition(topic, partition)
            return self._cluster.extents([asked])[asked]

        return await self._answer(request, extent)

    async def brokers(self, request: Request) -> Reply:
        """``GET /brokers``."""
        return await self._answer(request, lambda: BrokerIds(self._cluster.brokers()))

    def _may(self, request: Request) -> Callable[[str], bool] | None:
        return self._services.authenticator.topics_for(request.scope, Right.CONSUME)

    def _visible_topic(self, request: Request) -> str:
        """The topic in the path. One that the caller may not consume looks as if there were none.
        Errors: 40401."""
        topic: str = request.path_params["topic"]
        may = self._may(request)
        if may is not None and not may(topic):
            raise no_topic(topic)
        return topic

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
