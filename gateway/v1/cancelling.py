"""Messages that are cancelled or rescheduled by their ids."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ...client.cancels import ALREADY_CANCELLED, CANCELLED, UNKNOWN, answers, is_id
from ...policy.written import Instant
from ...security.rights import Operation, Right
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError
from ..requests import Reply, SpanMilliseconds, as_json
from ..services import Services

IDS_MAX = 10_000


class CancelBody(msgspec.Struct, forbid_unknown_fields=True):
    """Ids of messages."""

    ids: Annotated[list[str], Meta(min_length=1, max_length=IDS_MAX)]


class IdAnswer(msgspec.Struct):
    """What became of a message that was to be cancelled."""

    id: str
    answer: str
    """``cancelled``; ``already delivered``: too late, it has left or is leaving; or ``unknown``: it
    cannot be told, or the id is none of this group."""


class IdAnswers(msgspec.Struct):
    """One answer for each id, in their order."""

    answers: list[IdAnswer]


class RescheduleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The new due time of a message: one of the two."""

    due_ms: Instant | None = None
    """Milliseconds since 1970, UTC."""
    delay_ms: SpanMilliseconds | None = None
    """Milliseconds from now by the clock of the node."""

    def __post_init__(self) -> None:
        """The fields are checked by their own names: the client's, `due` and `delay`, are none that
        a body may have."""
        if (self.due_ms is None) == (self.delay_ms is None):
            raise ValueError("write exactly one of due_ms and delay_ms")


class MovedMessage(msgspec.Struct):
    """A message with another due time, and so with another id."""

    id: str
    new_id: str


async def cancel_many(call: RouteCall[NoQuery, CancelBody]) -> Reply:
    """Cancel messages. Each id gets an answer of its own, and one that is unknown is no error of
    the others. To cancel again does no harm."""
    return as_json(IdAnswers(await cancelled(call.services, call.body.ids)))


async def cancel_one(call: RouteCall[NoQuery, None]) -> Reply:
    """Cancel a message. 404 if it is unknown, 409 if it was delivered already."""
    (reply,) = await cancelled(call.services, [call.path["id"]])
    if reply.answer == CANCELLED:
        return as_json(reply)
    raise not_done(reply.id, reply.answer)


async def cancelled(services: Services, ids: list[str]) -> list[IdAnswer]:
    """Cancel messages; the answer to each, in their order."""
    topics = services.patterns_for(Right.CANCEL)

    def ask() -> list[IdAnswer]:  # a list, as a generator would wait for the node on the loop
        return [IdAnswer(*pair) for pair in answers(services.client.cancel, ids, topics)]

    return await services.run(ask)


async def reschedule(call: RouteCall[NoQuery, RescheduleBody]) -> Reply:
    """Give a message another due time. It is cancelled and stored again in one step, so it has a
    new id. 404 if it is unknown; 409 if it was cancelled or delivered already. After a 503 nobody
    knows whether it happened: ask again, and `already-cancelled` means that it did."""
    return as_json(await moved(call.services, call.path["id"], call.body))


async def moved(services: Services, message_id: str, given: RescheduleBody) -> MovedMessage:
    """Give a message another due time. Errors: ``HttpError`` 404: it is unknown; 409: it was
    cancelled or delivered already."""
    if not is_id(message_id):
        raise not_done(message_id, UNKNOWN)
    answer, new_id = await services.run(
        services.client.reschedule,
        message_id,
        **times_of(given),
        topics=services.patterns_for(Right.CANCEL),
    )
    if new_id is None:
        raise not_done(message_id, ALREADY_CANCELLED if answer == CANCELLED else answer)
    return MovedMessage(message_id, new_id)


def times_of(given: RescheduleBody) -> dict[str, Any]:
    """The new due time as ``Client.reschedule`` takes it."""
    delay = None if given.delay_ms is None else timedelta(milliseconds=given.delay_ms)
    return {"due": given.due_ms, "delay": delay}


def not_done(
    message_id: str | None, answer: str, place: str = "path id", said: str = ""
) -> HttpError:
    """The error for a message that was not cancelled or moved: 404 if it is unknown, else 409.
    ``said``: its text, if it is another one."""
    unknown = answer == UNKNOWN
    said = said or ("nothing is known of this message" if unknown else f"the message was {answer}")
    return HttpError(
        404 if unknown else 409,
        said,
        code=answer.replace(" ", "-"),
        place=place,
        got=message_id,
    )


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.CANCEL, "POST", "/v1/cancel", cancel_many, {200: IdAnswers}, name="cancelMessages"
    ),
    endpoint(
        Operation.CANCEL,
        "DELETE",
        "/v1/messages/{id}",
        cancel_one,
        {200: IdAnswer},
        (404, 409),
        name="cancelMessage",
    ),
    endpoint(
        Operation.RESCHEDULE,
        "POST",
        "/v1/messages/{id}/reschedule",
        reschedule,
        {200: MovedMessage},
        (404, 409),
        name="rescheduleMessage",
    ),
]
