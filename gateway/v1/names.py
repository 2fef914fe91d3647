"""The message of a topic for which a name stands: stored, found, moved and cancelled by that name.

A name is the last segment of the path, percent-encoded in UTF-8, so a slash in it is ``%2F``. By a
path that cannot be decoded another name would be meant than the caller wrote, so it is refused.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from ...client.cancels import ALREADY_CANCELLED, CANCELLED, UNKNOWN
from ...security.rights import Operation, Right
from ...wheel.checks import check_topic
from ...wheel.errors import InvalidMessage
from ...wheel.names import check_name
from ..authentication import identity_of
from ..endpoint import AnyEndpoint, Endpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError, from_slotwheel
from ..gathering import due_in
from ..idempotency import KEY_PARAMETER, idempotency_key
from ..pathroute import segment_of
from ..requests import Reply, as_json
from .cancelling import RescheduleBody, not_done, times_of
from .messages import SendMessages
from .types import NamedBody, StoredMessages

_PATH = "/v1/names/{topic}/{name}"


class NamedMessage(msgspec.Struct):
    """The message for which a name stands."""

    topic: str
    name: str
    id: str
    due_ms: int


class NamedAnswered(NamedMessage):
    """The message for which a name stood, and what became of it."""

    answer: str
    """``cancelled``."""


async def get_named(call: RouteCall[NoQuery, None]) -> Reply:
    """Find the message of a topic for which a name stands. 404: no message of that name is
    known."""
    topic, name = _place_of(call.scope)
    topics = call.services.patterns_for(Right.READ)
    message_id = await call.services.run(
        call.services.client.get, topic=topic, name=name, topics=topics
    )
    if message_id is None:
        raise _not_done(topic, name, None, UNKNOWN)
    return as_json(NamedMessage(topic, name, message_id, due_in(message_id)))


async def cancel_named(call: RouteCall[NoQuery, None]) -> Reply:
    """Cancel the message of a topic for which a name stands. 404 if no message of that name is
    known, 409 if it was delivered already. After a 503 nobody knows whether it was cancelled."""
    topic, name = _place_of(call.scope)
    topics = call.services.patterns_for(Right.CANCEL)
    cancel: Any = call.services.client.cancel
    answer, message_id = await call.services.run(cancel, topic=topic, name=name, topics=topics)
    if answer == CANCELLED and message_id is not None:
        return as_json(NamedAnswered(topic, name, message_id, due_in(message_id), answer))
    raise _not_done(topic, name, message_id, answer)


async def move_named(call: RouteCall[NoQuery, RescheduleBody]) -> Reply:
    """Give the message for which a name stands another due time, as `reschedule` does by an id. The
    name stands for the moved message then."""
    topic, name = _place_of(call.scope)
    answer, new_id = await call.services.run(
        call.services.client.reschedule,
        topic=topic,
        name=name,
        **times_of(call.body),
        topics=call.services.patterns_for(Right.CANCEL),
    )
    if new_id is None:
        answer = ALREADY_CANCELLED if answer == CANCELLED else answer
        raise _not_done(topic, name, None, answer)
    return as_json(NamedMessage(topic, name, new_id, due_in(new_id)))


async def put_named(call: RouteCall[NoQuery, NamedBody]) -> Reply:
    """Store a message under a name. `if_exists` says what happens where a pending message of the
    topic has the name already: it is cancelled in the same step (`replace`, which holds without
    it), or stays and the new one is dropped (`keep`), or the answer is 409 and nothing is stored
    (`refuse`). `before` of the answer is the message before, and what became of it."""
    topic, name = _place_of(call.scope)
    body = msgspec.json.encode(call.body)  # the same for each repeat
    key = idempotency_key(call.scope)
    message = call.body.message_for(topic, name)
    content = call.scope["raw_path"] + b"\n" + body
    return await SendMessages(call.services).store_one(
        message, content, key, identity_of(call.scope)
    )


def _not_done(topic: str, name: str, message_id: str | None, answer: str) -> HttpError:
    """The error for a message that was not found, cancelled or moved by its name: 404 if it is
    unknown, else 409. ``message_id``: of the message that the name stands for, if that is known."""
    asked = f"the name {name!r} in the topic {topic}"
    said = f"the message of {asked} was {answer}"
    if answer == UNKNOWN:
        said = f"nothing is known of a message of {asked}"
    return not_done(message_id, answer, "path name", said)


def _place_of(scope: Any) -> tuple[str, str]:
    """The topic and the name in a request's path. Errors: ``HttpError`` 422."""
    topic, name = _decoded(segment_of(scope, 3)), name_of(segment_of(scope, 4))
    try:
        check_topic(topic)
    except InvalidMessage as error:
        raise from_slotwheel(error, "path topic") from None
    return topic, name


def name_of(part: bytes) -> str:
    """The name of a message or a schedule that stands in a request's path, percent-encoded. Errors:
    ``HttpError`` 422."""
    name = _decoded(part)
    try:
        check_name(name)
    except InvalidMessage as error:
        raise from_slotwheel(error, "path name") from None
    return name


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise HttpError(
            422,
            "the path is no UTF-8",
            place="path",
            got=repr(error.object[:80]),
            limit="percent-encoded UTF-8",
            remedy="Encode the name in UTF-8, and its bytes as %XX",
        ) from None


_PUT: AnyEndpoint = Endpoint(
    Operation.APPEND,
    "PUT",
    _PATH,
    put_named,
    query=NoQuery,
    body=NamedBody,
    answers={201: StoredMessages},
    errors=(409,),
    headers=(KEY_PARAMETER,),
    name="putNamedMessage",
)

ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.NAMED,
        "GET",
        _PATH,
        get_named,
        {200: NamedMessage},
        (422,),
        name="getNamedMessage",
    ),
    _PUT,
    endpoint(
        Operation.CANCEL,
        "DELETE",
        _PATH,
        cancel_named,
        {200: NamedAnswered},
        (409, 422),
        name="cancelNamedMessage",
    ),
    endpoint(
        Operation.RESCHEDULE,
        "PATCH",
        _PATH,
        move_named,
        {200: NamedMessage},
        (409,),
        name="rescheduleNamedMessage",
    ),
]
