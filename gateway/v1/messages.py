"""``POST /v1/messages``: one message, or many that are stored whole or not at all.

With an ``Idempotency-Key`` a request is stored once, however often it is sent and through whichever
gateway, as the key is a producer of its own (``wheel/request.py``): a client whose answer was lost
asks again, and its messages are not delivered twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ...client import Message
from ...client.asynclink import MessageAnswer
from ...client.client import needs_policies
from ...client.httpconnection import ONE_WHEEL
from ...client.message import clock_ms
from ...client.predecessor import NamedId, Predecessor
from ...security.principals import Identity
from ...security.rights import Operation
from ...wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError
from ..arrowbody import read_table
from ..authentication import identity_of
from ..errors import HttpError, from_slotwheel, too_many_messages
from ..gathering import due_in, topics_in
from ..idempotency import idempotency_key, request_of
from ..predecessors import before_of
from ..requests import (
    ARROW,
    JSON,
    NDJSON,
    Reply,
    as_json,
    content_type_of,
    decoded,
    header_of,
    read_body,
)
from ..services import Services
from .types import MessageBody, StoredMessages

_ONE = msgspec.json.Decoder(MessageBody)
_MANY = msgspec.json.Decoder(list[MessageBody])
_MANY_ROWS = 1_000
_ONE_WHEEL = ONE_WHEEL.encode()


class SendMessages:
    """Answers ``POST /v1/messages``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Any, receive: Any) -> Reply:
        identity = identity_of(scope)
        self._services.authenticator.check(scope, Operation.APPEND)
        if self._services.front is not None and header_of(scope["headers"], _ONE_WHEEL):
            raise InvalidConfiguration(
                "a Client sends to one wheel, and this gateway is of a fleet; nothing was stored",
                got=self._services.settings.listen,
                limit="the gateway of a wheel",
                remedy="Send by Fleet, with the fleet's file; or by plain requests to"
                " /v1/messages, to which the ids of several wheels may be the answer",
            )
        kind = content_type_of(scope, (JSON, NDJSON, ARROW))
        key = idempotency_key(scope)
        body = await read_body(scope, receive, self._services.settings.body_bytes_max)
        if kind == JSON and not _is_array(body):
            given = decoded(_ONE, body, "", _names_in)
            return await self.store_one(given.message(), body, key, identity)
        if kind == ARROW:
            return await self._many(read_table(body, self._rows_max), body, key, identity)
        if kind == JSON:
            bodies = decoded(_MANY, body, "", _names_in_all)
            return await self._many(bodies, body, key, identity)
        lines = _lines(body, self._rows_max)
        try:
            return await self._many(list(lines.values()), body, key, identity)
        except SlotwheelError as error:
            if error.row is None:
                raise
            place = f"line {list(lines)[error.row]}"
            without_row(error)
            raise from_slotwheel(error, place) from None

    @property
    def _rows_max(self) -> int:
        return self._services.client.batch_limits[0]

    def begin(self, body: bytes, taker: MessageAnswer, identity: Identity) -> bool:
        """Store the one message in a body for a caller; ``taker`` gets its id, for ``stored_one``,
        or an error. False: there are several, or it has a level or a route; nothing was done.
        Errors: ``HttpError``, ``SlotwheelError``: it cannot be stored."""
        if _is_array(body):
            return False
        given = decoded(_ONE, body, "", _names_in)
        if given.route is not None or given.level is not None:
            return False
        self._begin(given.message(), body, taker, identity)
        return True

    def _begin(
        self, message: Message, body: bytes, taker: MessageAnswer, identity: Identity
    ) -> None:
        services = self._services
        flat = services.client.prepare(message, clock_ms())
        services.authenticator.admit_rows(identity, {flat.topic: 1}, len(body))
        services.gatherer.store_for(taker, flat, len(body))

    async def store_one(
        self, message: Message, body: bytes, key: str | None, identity: Identity
    ) -> Reply:
        """Store a message. ``body``: what a repeat with the Idempotency-Key ``key`` has to have in
        common with the first request. Errors: ``SlotwheelError``."""
        try:
            if key is None and not needs_policies(message):
                future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._begin(message, body, future, identity)
                return stored_one(await future)
            stored = await self._store([message], body, key, identity)
        except SlotwheelError as error:
            without_row(error)
            raise
        return as_json(_stored_messages(*stored, 1), 201)

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
        messages = given if isinstance(given, pa.Table) else _messages(given)
        stored = await self._store(messages, body, key, identity)
        return as_json(_stored_messages(*stored, len(given)))

    async def _store(
        self,
        given: Sequence[Message] | pa.Table,
        body: bytes,
        key: str | None,
        identity: Identity,
    ) -> tuple[list[str], Mapping[int, Predecessor]]:
        """Ids of all messages, and by their numbers the messages before of their names."""
        services, now_ms = self._services, clock_ms()
        prepare = services.client.prepare_many
        named = not isinstance(given, pa.Table) and any(map(needs_policies, given))
        if isinstance(given, pa.Table):
            try:
                rows, numbers = await services.run(prepare, given, now_ms)
            except (pa.ArrowException, UnicodeDecodeError) as error:  # an unknown time zone, say
                raise HttpError(422, f"a column that cannot be used: {str(error)[:200]}") from None
        elif named or len(given) > _MANY_ROWS:
            if named:
                await services.await_policies()
            # On a thread, as the loop has other requests to serve.
            rows, numbers = await services.run(prepare, given, now_ms)
        else:
            rows, numbers = prepare(given, now_ms)
        services.authenticator.admit_rows(identity, topics_in(rows), len(body))
        request = None
        if key is not None:
            request = request_of(key, body, rows if named else None, identity.rights)
        stored = await services.gatherer.store_whole(rows, request, len(body))
        try:
            return stored.ids(), stored.befores()
        except SlotwheelError as error:
            if error.row is not None:
                error.row = numbers[error.row]
            raise


def stored_one(message_id: str) -> Reply:
    """The answer to a request for one message; of one with a name the id is a ``NamedId``."""
    before = message_id.before if isinstance(message_id, NamedId) else None
    befores = {} if before is None else {0: before}
    return as_json(_stored_messages([str(message_id)], befores, 1), 201)


def _stored_messages(
    ids: list[str], befores: Mapping[int, Predecessor], count: int
) -> StoredMessages:
    """The answer to a request with so many messages."""
    stored = StoredMessages(ids[0], due_in(ids[0]), count, ids)
    if befores:
        stored.befores = [before_of(row, before) for row, before in befores.items()]
        stored.before = stored.befores[0] if 0 in befores else None
    return stored


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


def _lines(body: bytes, rows_max: int) -> dict[int, MessageBody]:
    """The messages of a body by the numbers of their lines, from 1 on; empty lines have none."""
    messages: dict[int, MessageBody] = {}
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            messages[number] = decoded(_ONE, line, f"line {number}", _names_in)
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
        + (given.name is not None)
        + (bool(headers) and 1 + (len(headers) if isinstance(headers, dict) else 0))
    )


def _names_in_all(given: Sequence[MessageBody]) -> int:
    return sum(map(_names_in, given))
