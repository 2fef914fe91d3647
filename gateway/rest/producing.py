"""Requests that produce records: they are stored in the wheel, and leave for their topics when they
are due.

Rules
- A request is stored whole or not at all: its answer has one status, and a client that repeats the
  request must not store a part of it twice.
- 2xx means stored; with an ``Idempotency-Key`` once, however often the request comes.
- A record that Kafka refuses when it is due, as too large, say, becomes a dead letter then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from ...client import Message
from ...client.message import clock_ms
from ...client.predecessor import NamedId, Predecessor
from ...consumer.message import SourcePartition
from ...security.rights import Rights
from ...wheel.errors import InvalidMessage, SlotwheelError
from ...wheel.request import RequestKey
from ..authentication import identity_of
from ..errors import HttpError, from_slotwheel
from ..gathering import due_in
from ..idempotency import idempotency_key, request_of
from ..predecessors import NameBefore, before_of
from ..requests import Reply, check_objects, decoded, read_body
from ..services import Services
from .cluster import Cluster, check_counts
from .errors import partition_in
from .media import EmbeddedFormat, answer_type, format_of_body
from .types import (
    BinaryRecords,
    BinaryTopicRecords,
    JsonRecords,
    JsonTopicRecords,
    ProducedOffset,
    ProducedOffsets,
    ProducedRecord,
    TopicOffset,
)

_ONE_TOPIC: dict[EmbeddedFormat, msgspec.json.Decoder[Any]] = {
    "binary": msgspec.json.Decoder(BinaryRecords),
    "json": msgspec.json.Decoder(JsonRecords),
}
_MANY_TOPICS: dict[EmbeddedFormat, msgspec.json.Decoder[Any]] = {
    "binary": msgspec.json.Decoder(BinaryTopicRecords),
    "json": msgspec.json.Decoder(JsonTopicRecords),
}

_OBJECTS_MAX = 200_000
"""The most records, their headers, and objects in their values, in one request."""
_MANY = 500


@dataclass(frozen=True, slots=True)
class _Given:
    """The records of a request. ``key``: the Idempotency-Key. ``content``: the path and the body,
    which a repeat must have in common with the first request. ``rights``: of its caller."""

    records: Sequence[Any]
    key: str | None
    content: bytes
    rights: Rights

    @property
    def named(self) -> bool:
        return any(record.level is not None for record in self.records)

    def request(self, rows: pa.RecordBatch) -> RequestKey | None:
        """The request's key for the wheel; None without one. ``rows``: those of the records."""
        if self.key is None:
            return None
        return request_of(self.key, self.content, rows if self.named else None, self.rights)


class Producing:
    """Answers requests that produce. ``cluster`` None: any topic is taken, as none is known."""

    def __init__(self, services: Services, cluster: Cluster | None) -> None:
        self._services = services
        self._cluster = cluster

    async def to_topic(self, request: Request) -> Reply:
        """``POST /topics/{topic}``, ``POST /topics/{topic}/partitions/{partition}``."""
        answer = answer_type(request.scope)
        topic, partition = request.path_params["topic"], None
        if "partition" in request.path_params:
            partition = partition_in(request.path_params)
        given = await self._given(request, _ONE_TOPIC)
        for number, record in enumerate(given.records):
            if partition is not None and record.partition is not None:
                raise HttpError(
                    422,
                    "the path has the partition already",
                    place=f"$.records[{number}].partition",
                    got=record.partition,
                    remedy="Leave it out",
                )
        topics = [topic] * len(given.records)
        self._admit(request, given, topics)
        if partition is not None:
            await self._check({SourcePartition(topic, partition): ""})
        stored = await self._store(given, topics, partition)
        offsets = [
            ProducedOffset(partition, id_, due_in(id_), before)
            for _, partition, id_, before in stored
        ]
        return Reply(200, msgspec.json.encode(ProducedOffsets(offsets)), answer)

    async def to_many_topics(self, request: Request) -> Reply:
        """``POST /topics``: records that name their topics."""
        answer = answer_type(request.scope)
        given = await self._given(request, _MANY_TOPICS)
        topics = [record.topic for record in given.records]
        self._admit(request, given, topics)
        stored = await self._store(given, topics, None)
        offsets = [
            TopicOffset(partition, id_, due_in(id_), before, topic=topic)
            for topic, partition, id_, before in stored
        ]
        return Reply(200, msgspec.json.encode(ProducedOffsets(offsets)), answer)

    def _admit(self, request: Request, given: _Given, topics: Sequence[str]) -> None:
        """Errors: ``Forbidden``, ``OverQuota``, before anybody looks whether the topics exist."""
        identity = identity_of(request.scope)
        size = len(given.content)
        self._services.authenticator.admit_rows(identity, Counter(topics), size)

    async def _given(
        self, request: Request, decoders: dict[EmbeddedFormat, msgspec.json.Decoder[Any]]
    ) -> _Given:
        embedded = format_of_body(request.scope)
        key = idempotency_key(request.scope)
        limit = self._services.settings.body_bytes_max
        body = await read_body(request.scope, request.receive, limit)
        check_objects(body, _OBJECTS_MAX)
        if embedded == "json":
            _check_text(body)
        records: Sequence[Any] = decoded(decoders[embedded], body).records
        if not records:
            raise HttpError(422, "records may not be empty", place="$.records")
        rows_max, _ = self._services.client.batch_limits
        if len(records) > rows_max:
            raise HttpError(
                422,
                "more records than can be stored at once",
                place="$.records",
                got=len(records),
                limit=rows_max,
                remedy="Send them in several requests",
            )
        content = request.scope["path"].encode() + b"\n" + body
        return _Given(records, key, content, identity_of(request.scope).rights)

    async def _store(
        self, given: _Given, topics: Sequence[str], partition: int | None
    ) -> list[tuple[str, int | None, str, NameBefore | UnsetType]]:
        """Store all records, or none. Returns topic, partition, id, and the message before of its
        name, of each."""
        services, now_ms = self._services, clock_ms()
        records = given.records
        alone = 0 if len(records) == 1 else None
        try:
            messages = _messages(records, topics, partition)
            if partition is None:
                await self._check_places(messages)
            named = given.named
            if alone == 0 and not named and given.key is None:
                flat = services.client.prepare(messages[0], now_ms)
                stored = await services.gatherer.store(flat)
                before = stored.before if isinstance(stored, NamedId) else None
                ids, befores = [str(stored)], {} if before is None else {0: before}
            else:
                prepare = services.client.prepare_many
                if named:
                    await services.await_policies()
                # Preparing many would keep the loop busy for too long.
                if named or len(records) > _MANY:
                    rows, _ = await services.run(prepare, messages, now_ms)
                else:
                    rows, _ = prepare(messages, now_ms)
                whole = await services.gatherer.store_whole(rows, given.request(rows))
                ids, befores = whole.ids(), whole.befores()
        except SlotwheelError as error:
            raise _refused(error, error.row if alone is None else alone) from None
        return [
            (message.topic, message.partition, id_, _before_in(befores, row))
            for row, (message, id_) in enumerate(zip(messages, ids, strict=True))
        ]

    async def _check_places(self, messages: Sequence[Message]) -> None:
        """Check that topics exist, and the partitions that messages name. Errors: as of
        ``_check``."""
        places: dict[SourcePartition, str] = {}
        for number, message in enumerate(messages):
            at = SourcePartition(message.topic, message.partition or 0)
            places.setdefault(at, f"$.records[{number}]")
        await self._check(places)

    async def _check(self, places: dict[SourcePartition, str]) -> None:
        """Check that partitions exist; ``places``: their places in the request. Errors: 40401,
        40402, 503."""
        cluster = self._cluster
        if cluster is None:
            return
        topics = {partition.topic for partition in places}
        counts = cluster.known_partitions(topics)
        if missing := topics - counts.keys():
            counts |= await self._services.run(cluster.ask_partitions, missing)
        check_counts(counts, places.items())


def _messages(
    records: Sequence[ProducedRecord], topics: Sequence[str], partition: int | None
) -> list[Message]:
    """The messages of records. Errors: ``InvalidMessage`` with the number of the first bad one."""
    messages: list[Message] = []
    try:
        for record, topic in zip(records, topics, strict=True):
            messages.append(record.message(topic, partition))
    except InvalidMessage as error:
        error.row = len(messages)
        raise
    return messages


def _before_in(befores: Mapping[int, Predecessor], row: int) -> NameBefore | UnsetType:
    return before_of(row, befores[row]) if row in befores else UNSET


def _check_text(body: bytes) -> None:
    """Check that the body is UTF-8, as keys and values are cut out of it undecoded."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, "the body is not UTF-8", place=f"byte {error.start}") from None


def _refused(error: SlotwheelError, row: int | None) -> HttpError:
    refused = from_slotwheel(error)
    if refused.status < 429 and row is not None:
        refused.place = f"$.records[{row}]"
    elif refused.status >= 429:
        refused.place = ""
    return refused
