"""Records to topics: they go into the wheel, and from there to their topics when they are due.

Rules
- A request is stored whole or not at all, so that its answer is one status.
- 2xx means stored; with an ``Idempotency-Key`` once, however often the request comes.
- What Kafka refuses when it is due, as too large, say, is a dead letter then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from starlette.requests import Request

from ...client import Message
from ...client.message import clock_ms
from ...consumer.message import SourcePartition
from ...wheel.errors import InvalidMessage, SlotwheelError
from ...wheel.ids import MessageId
from ...wheel.request import RequestKey
from ..errors import HttpError, from_slotwheel
from ..idempotency import idempotency_key, request_of
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
"""Records, their headers, and objects in their values, in one request."""
_MANY = 500


@dataclass(frozen=True, slots=True)
class _Given:
    """``key``: the Idempotency-Key; ``content``: what a repeat has in common with its first time,
    which is the path, too."""

    records: Sequence[Any]
    key: str | None
    content: bytes

    @property
    def named(self) -> bool:
        """Whether one of them has a level."""
        return any(one.level is not None for one in self.records)

    def request(self, rows: pa.RecordBatch) -> RequestKey | None:
        """``rows``: what the records became."""
        if self.key is None:
            return None
        return request_of(self.key, self.content, rows if self.named else None)


class Producing:
    """``cluster``: None: nothing is known of topics, and any is taken."""

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
        for number, one in enumerate(given.records):
            if partition is not None and one.partition is not None:
                raise HttpError(
                    422,
                    "the path has the partition already",
                    place=f"$.records[{number}].partition",
                    got=one.partition,
                    remedy="Leave it out",
                )
        if partition is not None:
            await self._check({SourcePartition(topic, partition): ""})
        stored = await self._store(given, [topic] * len(given.records), partition)
        offsets = [ProducedOffset(partition, own, due_ms) for _, partition, own, due_ms in stored]
        return Reply(200, msgspec.json.encode(ProducedOffsets(offsets)), answer)

    async def to_many_topics(self, request: Request) -> Reply:
        """``POST /topics``: records that name their topics."""
        answer = answer_type(request.scope)
        given = await self._given(request, _MANY_TOPICS)
        stored = await self._store(given, [one.topic for one in given.records], None)
        offsets = [
            TopicOffset(partition, own, due_ms, topic=topic)
            for topic, partition, own, due_ms in stored
        ]
        return Reply(200, msgspec.json.encode(ProducedOffsets(offsets)), answer)

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
        return _Given(records, key, request.scope["path"].encode() + b"\n" + body)

    async def _store(
        self, given: _Given, topics: Sequence[str], partition: int | None
    ) -> list[tuple[str, int | None, str, int]]:
        """Store all of them, or none; returns of each its topic, partition, id and due time."""
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
                own = await services.gatherer.store(flat)
                stored = [(own, MessageId.parse(own).due)]
            else:
                prepare = services.client.prepare_many
                if named:
                    await services.await_policies()
                # Many take longer than others should wait.
                if named or len(records) > _MANY:
                    rows, _ = await services.run(prepare, messages, now_ms)
                else:
                    rows, _ = prepare(messages, now_ms)
                whole = await services.gatherer.store_whole(rows, given.request(rows))
                dues = [receipt.due_ms for receipt in whole.receipts]
                stored = list(zip(whole.ids(), dues, strict=True))
        except SlotwheelError as error:
            raise _refused(error, error.row if alone is None else alone) from None
        return [
            (message.topic, message.partition, own, due_ms)
            for message, (own, due_ms) in zip(messages, stored, strict=True)
        ]

    async def _check_places(self, messages: Sequence[Message]) -> None:
        """That topics are there, and the partitions that are named."""
        wanted: dict[SourcePartition, str] = {}
        for number, message in enumerate(messages):
            at = SourcePartition(message.topic, message.partition or 0)
            wanted.setdefault(at, f"$.records[{number}]")
        await self._check(wanted)

    async def _check(self, places: dict[SourcePartition, str]) -> None:
        """``places``: where in the request each partition is named. Errors: 40401, 40402, 503."""
        cluster = self._cluster
        if cluster is None:
            return
        topics = {one.topic for one in places}
        counts = cluster.known_partitions(topics)
        if missing := topics - counts.keys():
            counts |= await self._services.run(cluster.ask_partitions, missing)
        check_counts(counts, places.items())


def _messages(
    records: Sequence[ProducedRecord], topics: Sequence[str], partition: int | None
) -> list[Message]:
    """Errors: ``InvalidMessage`` with the number of the first that is bad."""
    messages: list[Message] = []
    try:
        for record, topic in zip(records, topics, strict=True):
            messages.append(record.message(topic, partition))
    except InvalidMessage as error:
        error.row = len(messages)
        raise
    return messages


def _check_text(body: bytes) -> None:
    """Keys and values are cut out of the body as they stand, so it must be text all over."""
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
