"""Requests for the records of a consumer instance.

Rules
- A record counts as given once the answer is about to leave; records that were read for a client
  that has gone wait for the next request: otherwise they would be lost.
- An empty answer means that there is no record to read, never that the brokers are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from ...consumer.message import Received
from ..errors import HttpError
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


class Records:
    """Answers requests for records."""

    def __init__(self, cluster: Cluster, instances: Instances) -> None:
        self._cluster = cluster
        self._instances = instances

    async def get(self, request: Request) -> Reply:
        """``GET …/records``."""
        instance = self._instances.find(**request.path_params)
        settings, holdings = instance.settings, instance.holdings
        kind = records_answer_type(request.scope, settings.embedded)
        query = _Query(request, settings.timeout_ms)
        async with self._instances.using(**request.path_params):
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
        self, request: Request, instance: ConsumerInstance, query: _Query
    ) -> list[Received]:
        loop, run = asyncio.get_running_loop(), self._instances.run
        holdings = instance.holdings
        deadline = loop.time() + query.timeout_ms / 1000
        await run(instance.commit_by_itself)
        taken: list[Received] = []
        nbytes = 0
        try:
            while True:
                left_s = max(0.0, deadline - loop.time())
                enough = taken and nbytes >= instance.settings.min_bytes
                await run(instance.fetch, 0.0 if enough else min(left_s, _STEP_S))
                room = query.max_bytes - nbytes, RECORDS_MAX - len(taken)
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


class _Query:
    """The parameters of a request: ``timeout`` in ms, ``max_bytes``, and ``headers``: records have
    them in the answer. Errors: 422."""

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
