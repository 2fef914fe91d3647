"""``POST /v1/messages``: one message, or many that are stored whole or not at all.

With an ``Idempotency-Key`` a request is stored once, however often it is sent and through whichever
gateway, as the key is a producer of its own (``wheel/request.py``): a client whose answer was lost
asks again, and its messages are not delivered twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ...client import Message
from ...client.asynclink import MessageAnswer
from ...client.message import clock_ms
from ...security.principals import Identity
from ...security.rights import Operation
from ...wheel.errors import InvalidMessage, SlotwheelError
from ..arrowbody import read_table
from ..authentication import identity_of
from ..errors import HttpError, too_many_messages
from ..gathering import topics_in
from ..idempotency import idempotency_key, request_of
from ..requests import (
    ARROW,
    JSON,
    NDJSON,
    Reply,
    as_json,
    content_type_of,
    decoded,
    read_body,
)
from ..services import Services
from .types import MessageBody, StoredMessages

_ONE = msgspec.json.Decoder(MessageBody)
_MANY = msgspec.json.Decoder(list[MessageBody])
_MANY_ROWS = 1_000


class SendMessages:
    """Answers ``POST /v1/messages``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Any, receive: Any) -> Reply:
        identity = identity_of(scope)
        self._services.authenticator.check(scope, Operation.APPEND)
        kind = content_type_of(scope, (JSON, NDJSON, ARROW))
        key = idempotency_key(scope)
        body = await read_body(scope, receive, self._services.settings.body_bytes_max)
        if kind == JSON and not _is_array(body):
            return await self._one(decoded(_ONE, body, "", _names_in), body, key, identity)
        if kind == ARROW:
            return await self._many(read_table(body, self._rows_max), body, key, identity)
        given = (
            _lines(body, self._rows_max)
            if kind == NDJSON
            else decoded(_MANY, body, "", _names_in_all)
        )
        return await self._many(given, body, key, identity)

    @property
    def _rows_max(self) -> int:
        return self._services.client.batch_limits[0]

    def begin(self, body: bytes, taker: MessageAnswer, identity: Identity) -> bool:
        """Store the one message in a body for a caller; ``taker`` gets its id, for ``stored_one``,
        or an error. False: there are several, or it has a level or a route; nothing was done.
        Errors: ``HttpError``, ``SlotwheelError``: it cannot be stored."""
        if _is_array(body):
            return False
        return self._begin(decoded(_ONE, body, "", _names_in), body, taker, identity)

    def _begin(
        self, given: MessageBody, body: bytes, taker: MessageAnswer, identity: Identity
    ) -> bool:
        if given.route is not None or given.level is not None:
            return False
        services = self._services
        flat = services.client.prepare(given.message(), clock_ms())
        services.authenticator.admit_rows(identity, {flat.topic: 1}, len(body))
        services.gatherer.store_for(taker, flat, len(body))
        return True

    async def _one(
        self, given: MessageBody, body: bytes, key: str | None, identity: Identity
    ) -> Reply:
        try:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            if key is None and self._begin(given, body, future, identity):
                return stored_one(await future)
            ids, due_ms = await self._store([given], body, key, identity)
        except SlotwheelError as error:
            without_row(error)
            raise
        return as_json(StoredMessages(ids[0], due_ms, 1, ids), 201)

    async def _many(
        self,
        given: Sequence[MessageBody] | pa.Table,
        body: bytes,
        key: str | None,
        identity: Identity,
    ) -> Reply:
        if not len(given):
            raise HttpError(422, "there is no message", limit="at least one")
        if len(given) > self._rows_max:
            raise too_many_messages(self._rows_max)
        ids, due_ms = await self._store(given, body, key, identity)
        return as_json(StoredMessages(ids[0], due_ms, len(given), ids))

    async def _store(
        self,
        given: Sequence[MessageBody] | pa.Table,
        body: bytes,
        key: str | None,
        identity: Identity,
    ) -> tuple[list[str], int]:
        """Ids of all messages, and when the first of them is due."""
        services, now_ms = self._services, clock_ms()
        prepare = services.client.prepare_many
        named = not isinstance(given, pa.Table) and any(sent.level or sent.route for sent in given)
        if isinstance(given, pa.Table):
            try:
                rows, numbers = await services.run(prepare, given, now_ms)
            except (pa.ArrowException, UnicodeDecodeError) as error:  # an unknown time zone, say
                raise HttpError(422, f"a column that cannot be used: {str(error)[:200]}") from None
        elif named or len(given) > _MANY_ROWS:
            if named:
                await services.await_policies()
            # On a thread, as the loop has other requests to serve.
            rows, numbers = await services.run(prepare, _messages(given), now_ms)
        else:
            rows, numbers = prepare(_messages(given), now_ms)
        services.authenticator.admit_rows(identity, topics_in(rows), len(body))
        request = None
        if key is not None:
            request = request_of(key, body, rows if named else None, identity.rights)
        stored = await services.gatherer.store_whole(rows, request, len(body))
        try:
            return stored.ids(), stored.receipts[0].due_ms
        except SlotwheelError as error:
            if error.row is not None:
                error.row = numbers[error.row]
            raise


def stored_one(message_id: str) -> Reply:
    """The answer to a request for one message. The second field of its id is its due time."""
    due_ms = int(message_id.split(".", 2)[1])
    return as_json(StoredMessages(message_id, due_ms, 1, [message_id]), 201)


def without_row(error: SlotwheelError) -> None:
    """Take the row off an error: a single message shares a batch with those of other callers, and
    its row there says nothing to its own."""
    error.row = None


def _is_array(body: bytes) -> bool:
    return body.lstrip(b" \t\r\n").startswith(b"[")


def _messages(given: Sequence[MessageBody]) -> list[Message]:
    """Errors: ``InvalidMessage`` with the number of the first that is bad."""
    messages: list[Message] = []
    try:
        for body in given:
            messages.append(body.message())
    except InvalidMessage as error:
        error.row = len(messages)
        raise
    return messages


def _lines(body: bytes, rows_max: int) -> list[MessageBody]:
    messages: list[MessageBody] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            messages.append(decoded(_ONE, line, f"line {number}", _names_in))
            if len(messages) > rows_max:
                raise too_many_messages(rows_max)
    return messages


def _names_in(given: MessageBody) -> int:
    """How many names of fields the message's JSON has at least, for ``decoded``."""
    headers = given.headers
    return (
        bool(given.topic)
        + (given.value is not None)
        + (given.key is not None)
        + (given.delay_ms is not None)
        + (given.due_ms is not None)
        + (bool(headers) and 1 + (len(headers) if isinstance(headers, dict) else 0))
    )


def _names_in_all(given: Sequence[MessageBody]) -> int:
    return sum(map(_names_in, given))
