"""Consumer instances over HTTP: made, subscribed, read, committed, deleted.

Rules
- A record counts as given once the answer is about to leave; what is read for a client that has
  gone meanwhile waits for the next request.
- An empty answer means that there is nothing to read, never that the brokers are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ...consumer.message import Received, SourcePartition
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidMessage
from ..errors import HttpError
from ..requests import Reply, decoded, read_body
from .cluster import Cluster
from .errors import illegal_state, no_topic, not_json
from .instance import ConsumerInstance, size_of
from .instances import BYTES_MAX, TIMEOUT_MAX_MS, Instances
from .media import EmbeddedFormat, answer_type, check_body_type, records_answer_type
from .types import (
    ConsumedRecord,
    InstanceBody,
    InstanceCreated,
    OffsetOf,
    OffsetsOf,
    RecordHeader,
    SubscribedTopics,
    SubscriptionBody,
    TopicPartitionName,
    TopicPartitions,
)

T = TypeVar("T")
_BODY_BYTES_MAX = 1 << 20
_STEP_S = 0.5
"""How long a thread is held by a client that waits."""
_INSTANCE = msgspec.json.Decoder(InstanceBody)
_SUBSCRIPTION = msgspec.json.Decoder(SubscriptionBody)
_PARTITIONS = msgspec.json.Decoder(TopicPartitions)
_OFFSETS = msgspec.json.Decoder(OffsetsOf)
_RAW = msgspec.json.Decoder(msgspec.Raw)
_DONE = Reply(204, b"")


class Consuming:
    """Answers what stands below ``/consumers``."""

    def __init__(self, cluster: Cluster, instances: Instances) -> None:
        self._cluster = cluster
        self._instances = instances

    # Instances

    async def create(self, request: Request) -> Reply:
        """``POST /consumers/{group}``."""
        kind = answer_type(request.scope)
        body = await self._body(request)
        given = decoded(_INSTANCE, body) if body else InstanceBody()
        made = self._instances.create(request.path_params["group"], given)
        name = made.settings.name
        uri = f"{_origin(request)}/consumers/{made.group}/instances/{name}"
        return Reply(200, msgspec.json.encode(InstanceCreated(name, uri)), kind)

    async def delete(self, request: Request) -> Reply:
        """``DELETE …``: the instance."""
        await self._instances.end(self._instances.find(**request.path_params))
        return _DONE

    # What it reads

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
                for number, topic in enumerate(topics):
                    self._check_topic(topic, f"$.topics[{number}]")
                instance.subscribe(topics)

        await self._with_instance(request, subscribe)
        return _DONE

    def _check_topic(self, topic: str, place: str) -> None:
        if self._cluster.topics_appear:
            try:
                check_topic(topic)
            except InvalidMessage:
                raise no_topic(topic, place) from None
        else:
            self._cluster.check_partition(topic, 0, place)

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
            instance.assign(self._checked(given))

        await self._with_instance(request, assign)
        return _DONE

    async def assignments(self, request: Request) -> Reply:
        """``GET …/assignments``."""
        kind = answer_type(request.scope)
        found = await self._with_instance(request, lambda instance: instance.partitions)
        names = [TopicPartitionName(*one) for one in found]
        return Reply(200, msgspec.json.encode(TopicPartitions(names)), kind)

    # Positions

    async def seek(self, request: Request) -> Reply:
        """``POST …/positions``."""
        given = decoded(_OFFSETS, await self._body(request, needed=True)).offsets

        def seek(instance: ConsumerInstance) -> None:
            partitions = self._checked(given)
            instance.seek({at: one.offset for at, one in zip(partitions, given, strict=True)})

        await self._with_instance(request, seek)
        return _DONE

    async def seek_to_beginning(self, request: Request) -> Reply:
        """``POST …/positions/beginning``."""
        return await self._seek_to(request, lambda extent: extent.beginning_offset)

    async def seek_to_end(self, request: Request) -> Reply:
        """``POST …/positions/end``."""
        return await self._seek_to(request, lambda extent: extent.end_offset)

    async def _seek_to(self, request: Request, where: Callable[[Any], int]) -> Reply:
        given = decoded(_PARTITIONS, await self._body(request, needed=True)).partitions

        def seek(instance: ConsumerInstance) -> None:
            instance.seek({at: where(self._cluster.extent(*at)) for at in self._checked(given)})

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
            partitions = self._checked(given)
            instance.commit({at: one.offset + 1 for at, one in zip(partitions, given, strict=True)})

        await self._with_instance(request, commit)
        return Reply(200, b"[]", kind)

    async def committed(self, request: Request) -> Reply:
        """``GET …/offsets``: of the partitions in the body; without one, of all that it has."""
        kind = answer_type(request.scope)
        body = await self._body(request)
        given = decoded(_PARTITIONS, body).partitions if body else None

        def committed(instance: ConsumerInstance) -> list[OffsetOf]:
            wanted = instance.partitions if given is None else self._checked(given)
            found = instance.positions_of(wanted) if wanted else {}
            return [OffsetOf(*one, found[one]) for one in wanted if one in found]

        found = await self._with_instance(request, committed)
        return Reply(200, msgspec.json.encode(OffsetsOf(found)), kind)

    def _checked(self, given: Sequence[TopicPartitionName | OffsetOf]) -> list[SourcePartition]:
        """Errors: 40401, 40402, 503."""
        for number, one in enumerate(given):
            place = f"$[{number}]"
            self._check_topic(one.topic, place)
            self._cluster.check_partition(one.topic, one.partition, place)
        return [SourcePartition(one.topic, one.partition) for one in given]

    # Records

    async def records(self, request: Request) -> Reply:
        """``GET …/records``."""
        instance = self._instances.find(**request.path_params)
        settings = instance.settings
        kind = records_answer_type(request.scope, settings.embedded)
        query = _Query(request, settings.timeout_ms)
        async with self._instances.using(**request.path_params):
            taken = await self._taken(request, instance, query)
            try:
                rendered = list(_rendered(taken, settings.embedded, more=query.headers))
                if not taken:  # is there nothing, or nobody who could say so?
                    await self._instances.run(self._cluster.brokers)
            except BaseException:
                instance.put_back(taken)
                raise
            instance.put_back(taken[len(rendered) :])
            instance.gave(taken[: len(rendered)])
            return Reply(200, msgspec.json.encode(rendered), kind)

    async def _taken(
        self, request: Request, instance: ConsumerInstance, query: _Query
    ) -> list[Received]:
        loop, run = asyncio.get_running_loop(), self._instances.run
        deadline = loop.time() + query.timeout_ms / 1000
        await run(instance.commit_by_itself)
        taken: list[Received] = []
        nbytes = 0
        try:
            while True:
                left_s = max(0.0, deadline - loop.time())
                await run(instance.fetch, min(left_s, _STEP_S))
                found = instance.take(query.max_bytes - nbytes, first=not taken)
                nbytes += sum(size_of(one) for one in found)
                taken += found
                enough = taken and nbytes >= instance.settings.min_bytes
                if enough or instance.more_waits or instance.ended or not left_s:
                    return taken
                if await request.is_disconnected():
                    raise ClientDisconnect
        except BaseException:
            instance.put_back(taken)
            raise

    # What all of them need

    async def _with_instance(
        self, request: Request, function: Callable[[ConsumerInstance], T]
    ) -> T:
        """Errors: 40403, and those of the call."""
        async with self._instances.using(**request.path_params) as instance:
            return await self._instances.run(function, instance)

    async def _body(self, request: Request, *, needed: bool = False) -> bytes:
        body = await read_body(request.scope, request.receive, _BODY_BYTES_MAX)
        if body or needed:
            check_body_type(request.scope)
        return body


class _Query:
    """``timeout``, in ms; ``max_bytes``; ``headers``: whether records are to have them."""

    def __init__(self, request: Request, timeout_ms: int) -> None:
        given = request.query_params
        names = [name for name, _ in given.multi_items()]
        for name in names:
            if name not in ("timeout", "max_bytes", "headers") or names.count(name) > 1:
                raise HttpError(
                    422,
                    "unknown or repeated parameter",
                    place="query",
                    got=name,
                    limit="timeout, max_bytes, headers",
                )
        self.timeout_ms = _number(given.get("timeout"), "timeout", timeout_ms, TIMEOUT_MAX_MS)
        self.max_bytes = min(BYTES_MAX, _number(given.get("max_bytes"), "max_bytes", BYTES_MAX))
        headers = given.get("headers", "false")
        if headers not in ("true", "false"):
            raise _bad_parameter("headers", headers, "true or false")
        self.headers = headers == "true"


def _number(text: str | None, name: str, default: int, most: int = 1 << 62) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise _bad_parameter(name, text, f"0 to {most}")
    return int(text)


def _bad_parameter(name: str, got: str, limit: str) -> HttpError:
    return HttpError(422, "unusable parameter", place=f"query {name}", got=got, limit=limit)


def _origin(request: Request) -> str:
    """This very gateway, by the address that the request came to: behind a balancer, that is not
    the one that the client knows."""
    host, port = request.scope["server"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _rendered(
    taken: Iterable[Received], embedded: EmbeddedFormat, *, more: bool
) -> Iterable[ConsumedRecord]:
    """As an answer has them; with those before the first one that is not in the format. Errors:
    42203, if that is the very first."""
    for number, one in enumerate(taken):
        key: Any = one.key
        value: Any = one.value
        if embedded == "json":
            try:
                key, value = _as_json(key), _as_json(value)
            except ValueError:
                if number:
                    return
                raise not_json(one.topic, one.partition, one.offset) from None
        record = ConsumedRecord(one.topic, key, value, one.partition, one.offset)
        if more:
            record.timestamp = one.timestamp_ms
            record.headers = [RecordHeader(name, content) for name, content in one.headers]
        yield record


def _as_json(content: bytes | None) -> msgspec.Raw | None:
    """Errors: ``ValueError``."""
    if content is None:
        return None
    content.decode()
    try:
        return _RAW.decode(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
