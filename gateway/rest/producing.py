"""Records to topics: they go into the wheel, and from there to their topics when they are due.

Rules
- A request is stored whole or not at all, so that its answer is one status.
- 2xx means stored. What Kafka refuses later, as too large, say, is a dead letter then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from ...client.message import FlatMessage
from ...wheel.errors import SlotwheelError
from ..errors import HttpError, from_slotwheel
from ..requests import Reply, check_objects, decoded, read_body
from ..services import Services
from .cluster import Cluster
from .errors import no_partition, no_topic, partition_in
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
        records = await self._records(request, _ONE_TOPIC)
        for number, one in enumerate(records):
            if partition is not None and one.partition is not None:
                raise HttpError(
                    422,
                    "the path has the partition already",
                    place=f"$.records[{number}].partition",
                    got=one.partition,
                    remedy="Leave it out",
                )
        if partition is not None:
            await self._check(topic, {partition: ""})
        flats, ids = await self._store(records, [topic] * len(records), partition)
        offsets = [
            ProducedOffset(flat.partition, own, flat.due_ms)
            for flat, own in zip(flats, ids, strict=True)
        ]
        return Reply(200, msgspec.json.encode(ProducedOffsets(offsets)), answer)

    async def to_many_topics(self, request: Request) -> Reply:
        """``POST /topics``: records that name their topics."""
        answer = answer_type(request.scope)
        records = await self._records(request, _MANY_TOPICS)
        flats, ids = await self._store(records, [one.topic for one in records], None)
        offsets = [
            TopicOffset(flat.partition, own, flat.due_ms, topic=flat.topic)
            for flat, own in zip(flats, ids, strict=True)
        ]
        return Reply(200, msgspec.json.encode(ProducedOffsets(offsets)), answer)

    async def _records(
        self, request: Request, decoders: dict[EmbeddedFormat, msgspec.json.Decoder[Any]]
    ) -> Sequence[Any]:
        embedded = format_of_body(request.scope)
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
        return records

    async def _store(
        self, records: Sequence[ProducedRecord], topics: Sequence[str], partition: int | None
    ) -> tuple[list[FlatMessage], list[str]]:
        """Store all of them, or none; returns the messages, and their ids."""
        services = self._services
        # Policies may have to be asked for; and many take longer than others should wait.
        if len(records) > _MANY or any(one.level is not None for one in records):
            flats = await services.run(self._prepared, records, topics, partition)
        else:
            flats = self._prepared(records, topics, partition)
        if partition is None:
            await self._check_places(flats)
        try:
            if len(flats) == 1:
                stored = await services.gatherer.store(flats[0])
            else:
                stored = await services.gatherer.store_whole(flats)
            return flats, stored.ids()
        except SlotwheelError as error:
            raise _refused(error, 0 if len(flats) == 1 else error.row) from None

    def _prepared(
        self, records: Sequence[ProducedRecord], topics: Sequence[str], partition: int | None
    ) -> list[FlatMessage]:
        prepare = self._services.client.prepare
        flats: list[FlatMessage] = []
        for number, (record, topic) in enumerate(zip(records, topics, strict=True)):
            try:
                flats += prepare(record.message(topic, partition))
            except SlotwheelError as error:
                raise _refused(error, number) from None
        return flats

    async def _check_places(self, flats: Sequence[FlatMessage]) -> None:
        """That topics are there, and the partitions that are named."""
        wanted: dict[str, dict[int, str]] = {}
        for number, flat in enumerate(flats):
            places = wanted.setdefault(flat.topic, {})
            places.setdefault(flat.partition or 0, f"$.records[{number}]")
        for topic, places in wanted.items():
            await self._check(topic, places)

    async def _check(self, topic: str, places: dict[int, str]) -> None:
        """``places``: where in the request each partition is named. Errors: 40401, 40402, 503."""
        cluster = self._cluster
        if cluster is None:
            return
        count = cluster.known_partitions(topic)
        if count is None:
            count = await self._services.run(cluster.ask_partitions, topic)
        for partition, place in places.items():
            if count is None:
                raise no_topic(topic, place)
            if partition >= count:
                raise no_partition(topic, partition, count, place)


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
