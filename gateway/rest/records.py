"""Requests for the records of a consumer instance.

Rules
- A record counts as given once the answer is about to leave; records that were read for a client
  that has gone wait for the next request: otherwise they would be lost.
- An empty answer means that there is no record to read, never that the brokers are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request

from ...consumer.message import Received
from ..authentication import RequestAuthenticator, identity_of
from ..endpoint import QueryDecoder
from ..requests import Reply
from .cluster import Cluster
from .consumer_types import ConsumedRecord
from .errors import not_json
from .holdings import size_of
from .instance import ConsumerInstance
from .instances import BYTES_MAX, TIMEOUT_MAX_MS, Instances
from .media import EmbeddedFormat, records_answer_type
from .types import RecordHeader

RECORDS_MAX = 5_000
"""The most records in an answer."""
_STEP_S = 0.5
"""A client that waits holds a thread for so long, s, at a time."""
_RAW = msgspec.json.Decoder(msgspec.Raw)


class RecordsQuery(msgspec.Struct):
    """How long is waited for records, in ms, at most how many bytes are given, and whether their
    headers are."""

    timeout: Annotated[int, Meta(ge=0, le=TIMEOUT_MAX_MS)] | None = None
    max_bytes: Annotated[int, Meta(ge=0, lt=1 << 62)] = BYTES_MAX
    headers: bool = False


_QUERY = QueryDecoder(RecordsQuery)


class Records:
    """Answers requests for records."""

    def __init__(
        self, cluster: Cluster, instances: Instances, authenticator: RequestAuthenticator
    ) -> None:
        self._cluster = cluster
        self._instances = instances
        self._authenticator = authenticator

    async def get(self, request: Request) -> Reply:
        """``GET …/records``."""
        instance = self._instances.find_for(request)
        settings, holdings = instance.settings, instance.holdings
        kind = records_answer_type(request.scope, settings.embedded)
        query = _QUERY.decode(request.scope["query_string"])
        async with self._instances.using(request):
            taken = await self._taken(request, instance, query)
            try:
                rendered = list(_rendered(taken, settings.embedded, more=query.headers))
                if not taken:  # this raises while the brokers are away
                    await self._instances.run(self._cluster.brokers)
            except BaseException:
                holdings.put_back(taken)
                raise
            holdings.put_back(taken[len(rendered) :])
            holdings.gave(taken[: len(rendered)])
            return Reply(200, msgspec.json.encode(rendered), kind)

    async def _taken(
        self, request: Request, instance: ConsumerInstance, query: RecordsQuery
    ) -> list[Received]:
        loop, call = asyncio.get_running_loop(), self._instances.call
        holdings = instance.holdings
        wait_ms = instance.settings.timeout_ms if query.timeout is None else query.timeout
        deadline = loop.time() + wait_ms / 1000
        await call(instance, instance.commit_by_itself)
        taken: list[Received] = []
        nbytes = 0
        try:
            while True:
                left_s = max(0.0, deadline - loop.time())
                enough = taken and nbytes >= instance.settings.min_bytes
                await call(instance, instance.fetch, 0.0 if enough else min(left_s, _STEP_S))
                # Who waits for a minute may have lost its rights meanwhile.
                identity = self._authenticator.renewed(identity_of(request.scope))
                instance.limit_to(identity.rights)
                room = min(BYTES_MAX, query.max_bytes) - nbytes, RECORDS_MAX - len(taken)
                further = holdings.take(*room, first=not taken)
                nbytes += sum(map(size_of, further))
                taken += further
                nothing_comes = not further and (enough or not left_s)
                if nothing_comes or holdings.more_waits or instance.ended:
                    return taken
                if await request.is_disconnected():
                    raise ClientDisconnect
        except BaseException:
            holdings.put_back(taken)
            raise


def _rendered(
    taken: Iterable[Received], embedded: EmbeddedFormat, *, more: bool
) -> Iterable[ConsumedRecord]:
    """Yields records in the form of an answer, up to the first one that is not in the format.
    Errors: 42203, if that is the very first."""
    for number, received in enumerate(taken):
        key: Any = received.key
        value: Any = received.value
        if embedded == "json":
            try:
                key, value = _as_json(key), _as_json(value)
            except ValueError:
                if number:
                    return
                raise not_json(received.topic, received.partition, received.offset) from None
        record = ConsumedRecord(received.topic, key, value, received.partition, received.offset)
        if more:
            record.timestamp = received.timestamp_ms
            # A name that is not UTF-8 has a type of its own, which JSON's encoder does not know.
            record.headers = [RecordHeader(str(name), value) for name, value in received.headers]
        yield record


def _as_json(content: bytes | None) -> msgspec.Raw | None:
    """Content as raw JSON. Errors: ``ValueError``: it is none."""
    if content is None:
        return None
    content.decode()
    try:
        return _RAW.decode(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
