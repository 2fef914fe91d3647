"""``POST /v1/messages``: one message, or many that are stored whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...client import Message
from ...client.message import FlatMessage
from ...wheel.errors import InvalidMessage, SlotwheelError
from ..errors import HttpError
from ..requests import JSON, NDJSON, Reply, as_json, content_type_of, decoded, read_body
from ..services import Services
from .types import MessageBody, StoredMessage, StoredMessages

_ONE = msgspec.json.Decoder(MessageBody)
_MANY = msgspec.json.Decoder(list[MessageBody])


class SendMessages:
    """Answers ``POST /v1/messages``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Any, receive: Any) -> Reply:
        kind = content_type_of(scope, (JSON, NDJSON))
        body = await read_body(scope, receive, self._services.settings.body_bytes_max)
        if kind == JSON and not body.lstrip(b" \t\r\n").startswith(b"["):
            return await self._one(decoded(_ONE, body))
        given = _lines(body) if kind == NDJSON else decoded(_MANY, body)
        return await self._many(given)

    async def _one(self, given: MessageBody) -> Reply:
        services, message = self._services, given.message()
        if message.route is None and message.level is None:
            (flat,) = services.client.prepare(message)
            try:
                own = await services.gatherer.store(flat)
            except SlotwheelError as error:
                error.row = None  # of the batch that it shared with others
                raise
            return as_json(StoredMessage(own, flat.due_ms), 201)
        flats = await services.run(services.client.prepare, message)
        stored = await services.gatherer.store_whole(flats)
        ids = stored.ids()
        return as_json(
            StoredMessage(ids[0], flats[0].due_ms, [] if given.route is None else ids), 201
        )

    async def _many(self, given: Sequence[MessageBody]) -> Reply:
        if not given:
            raise HttpError(422, "there is no message", limit="at least one")
        services = self._services
        messages = [_numbered(number, one) for number, one in enumerate(given)]
        if any(one.level is not None or one.route is not None for one in messages):
            flats = await services.run(self._prepared, messages)
        else:
            flats = self._prepared(messages)
        stored = await services.gatherer.store_whole(flats)
        return as_json(StoredMessages(len(flats), stored.ids()))

    def _prepared(self, messages: Sequence[Message]) -> list[FlatMessage]:
        """Errors: ``InvalidMessage`` with the number of the first that is bad."""
        flats: list[FlatMessage] = []
        for number, message in enumerate(messages):
            try:
                flats += self._services.client.prepare(message)
            except InvalidMessage as error:
                error.row = number
                raise
        return flats


def _numbered(number: int, given: MessageBody) -> Message:
    try:
        return given.message()
    except InvalidMessage as error:
        error.row = number
        raise


def _lines(body: bytes) -> list[MessageBody]:
    return [
        decoded(_ONE, line, f"line {number}")
        for number, line in enumerate(body.split(b"\n"), 1)
        if line.strip()
    ]
