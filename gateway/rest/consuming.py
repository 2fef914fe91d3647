"""Consumer instances over HTTP: made, subscribed, moved, committed, deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from ...consumer.message import SourcePartition
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidMessage
from ..authentication import identity_of
from ..errors import HttpError
from ..requests import Reply, decoded, read_body
from .cluster import Cluster
from .consumer_types import (
    InstanceBody,
    InstanceCreated,
    OffsetOf,
    OffsetsOf,
    SubscribedTopics,
    SubscriptionBody,
    TopicPartitionName,
    TopicPartitions,
)
from .errors import illegal_state, no_topic
from .instance import ConsumerInstance
from .instances import Instances
from .media import answer_type, check_body_type

T = TypeVar("T")
_BODY_BYTES_MAX = 1 << 20
_INSTANCE = msgspec.json.Decoder(InstanceBody)
_SUBSCRIPTION = msgspec.json.Decoder(SubscriptionBody)
_PARTITIONS = msgspec.json.Decoder(TopicPartitions)
_OFFSETS = msgspec.json.Decoder(OffsetsOf)
_DONE = Reply(204, b"")


class Consuming:
    """Answers requests below ``/consumers``, except those for records."""

    def __init__(self, cluster: Cluster, instances: Instances) -> None:
        self._cluster = cluster
        self._instances = instances

    # Instances

    async def create(self, request: Request) -> Reply:
        """``POST /consumers/{group}``."""
        kind = answer_type(request.scope)
        body = await self._body(request)
        given = decoded(_INSTANCE, body) if body else InstanceBody()
        host = (request.scope.get("client") or ("",))[0]
        owner = identity_of(request.scope).principal
        made = self._instances.create(request.path_params["group"], given, host, owner)
        name = made.settings.name
        uri = f"{_origin(request)}/consumers/{made.group}/instances/{name}"
        return Reply(200, msgspec.json.encode(InstanceCreated(name, uri)), kind)

    async def delete(self, request: Request) -> Reply:
        """``DELETE …``: the instance."""
        await self._instances.end(self._instances.find_for(request))
        return _DONE

    # Subscriptions and assignments

    async def subscribe(self, request: Request) -> Reply:
        """``POST …/subscription``."""
        given = decoded(_SUBSCRIPTION, await self._body(request, needed=True))
        if given.topics is not None and given.topic_pattern is not None:
            raise illegal_state(
                "subscription to topics, partitions and pattern are mutually exclusive",
                "Give topics or topic_pattern",
            )
        if given.topics is None and given.topic_pattern is None:
            raise HttpError(422, "nothing to subscribe to", limit="topics or topic_pattern")

        def subscribe(instance: ConsumerInstance) -> None:
            if given.topic_pattern is not None:
                instance.subscribe_to_pattern(given.topic_pattern)
            else:
                topics = list(dict.fromkeys(given.topics or ()))
                places = [(name, f"$.topics[{at}]") for at, name in enumerate(topics)]
                self._check_topics(instance, places)
                instance.subscribe(topics)

        await self._with_instance(request, subscribe)
        return _DONE

    def _check_topics(self, instance: ConsumerInstance, places: Sequence[tuple[str, str]]) -> None:
        """Check topics; beside each is its place in the request. Errors: 40401, 503."""
        for topic, place in places:
            instance.check_topic(topic, place)
        if not self._cluster.topics_appear:
            first = [(SourcePartition(topic, 0), place) for topic, place in places]
            self._cluster.check_partitions(first)
            return
        for topic, place in places:
            try:
                check_topic(topic)
            except InvalidMessage:
                raise no_topic(topic, place) from None

    async def subscription(self, request: Request) -> Reply:
        """``GET …/subscription``."""
        kind = answer_type(request.scope)
        topics = await self._with_instance(request, lambda instance: instance.topics)
        return Reply(200, msgspec.json.encode(SubscribedTopics(topics)), kind)

    async def unsubscribe(self, request: Request) -> Reply:
        """``DELETE …/subscription``."""
        await self._with_instance(request, lambda instance: instance.unsubscribe())
        return _DONE

    async def assign(self, request: Request) -> Reply:
        """``POST …/assignments``."""
        given = decoded(_PARTITIONS, await self._body(request, needed=True)).partitions

        def assign(instance: ConsumerInstance) -> None:
            instance.assign(self._checked(instance, given))

        await self._with_instance(request, assign)
        return _DONE

    async def assignments(self, request: Request) -> Reply:
        """``GET …/assignments``."""
        kind = answer_type(request.scope)
        held = await self._with_instance(request, lambda instance: instance.holdings.partitions)
        names = [TopicPartitionName(partition.topic, partition.partition) for partition in held]
        return Reply(200, msgspec.json.encode(TopicPartitions(names)), kind)

    # Positions

    async def seek(self, request: Request) -> Reply:
        """``POST …/positions``."""
        given = decoded(_OFFSETS, await self._body(request, needed=True)).offsets

        def seek(instance: ConsumerInstance) -> None:
            partitions = zip(self._checked(instance, given), given, strict=True)
            instance.seek({partition: item.offset for partition, item in partitions})

        await self._with_instance(request, seek)
        return _DONE

    async def seek_to_beginning(self, request: Request) -> Reply:
        """``POST …/positions/beginning``."""
        return await self._seek_to(request, lambda extent: extent.beginning_offset)

    async def seek_to_end(self, request: Request) -> Reply:
        """``POST …/positions/end``."""
        return await self._seek_to(request, lambda extent: extent.end_offset)

    async def _seek_to(self, request: Request, offset_of: Callable[[Any], int]) -> Reply:
        given = decoded(_PARTITIONS, await self._body(request, needed=True)).partitions

        def seek(instance: ConsumerInstance) -> None:
            extents = self._cluster.extents(self._checked(instance, given))
            instance.seek({at: offset_of(extent) for at, extent in extents.items()})

        await self._with_instance(request, seek)
        return _DONE

    async def commit(self, request: Request) -> Reply:
        """``POST …/offsets``. An offset is that of the last record that is done: the group goes on
        behind it."""
        kind = answer_type(request.scope)
        body = await self._body(request)
        given = decoded(_OFFSETS, body).offsets if body else None

        def commit(instance: ConsumerInstance) -> None:
            if given is None:
                instance.commit()
                return
            partitions = zip(self._checked(instance, given), given, strict=True)
            instance.commit({partition: item.offset + 1 for partition, item in partitions})

        await self._with_instance(request, commit)
        return Reply(200, b"[]", kind)

    async def committed(self, request: Request) -> Reply:
        """``GET …/offsets``: of the partitions in the body; without one, of all that it has."""
        kind = answer_type(request.scope)
        body = await self._body(request)
        given = decoded(_PARTITIONS, body).partitions if body else None

        def committed(instance: ConsumerInstance) -> list[OffsetOf]:
            partitions = (
                instance.holdings.partitions if given is None else self._checked(instance, given)
            )
            positions = instance.positions_of(partitions) if partitions else {}
            return [
                OffsetOf(partition.topic, partition.partition, positions[partition])
                for partition in partitions
                if partition in positions
            ]

        offsets = await self._with_instance(request, committed)
        return Reply(200, msgspec.json.encode(OffsetsOf(offsets)), kind)

    def _checked(
        self, instance: ConsumerInstance, given: Sequence[TopicPartitionName | OffsetOf]
    ) -> list[SourcePartition]:
        """The partitions of a request's items, which exist. Errors: 40401, 40402, 503."""
        places_of_topics = [(item.topic, f"$[{number}]") for number, item in enumerate(given)]
        self._check_topics(instance, places_of_topics)
        partitions = [SourcePartition(item.topic, item.partition) for item in given]
        places = [(partition, f"$[{number}]") for number, partition in enumerate(partitions)]
        self._cluster.check_partitions(places)
        return partitions

    # Common to all requests

    async def _with_instance(
        self, request: Request, function: Callable[[ConsumerInstance], T]
    ) -> T:
        """Call with the instance in the request's path. Errors: 40403, and those of the call."""
        async with self._instances.using(request) as instance:
            return await self._instances.call(instance, function, instance)

    async def _body(self, request: Request, *, needed: bool = False) -> bytes:
        body = await read_body(request.scope, request.receive, _BODY_BYTES_MAX)
        if body or needed:
            check_body_type(request.scope)
        return body


def _origin(request: Request) -> str:
    """The URL of this gateway by the address that the request came to: an instance lives here, and
    a balancer, whose address the client has, might pass the next request to another gateway."""
    scheme, (host, port) = request.scope["scheme"], request.scope["server"]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
