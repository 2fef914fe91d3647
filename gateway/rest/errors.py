"""Errors in the form of Kafka's REST proxy: ``{"error_code", "message"}`` and no other field.

``error_code`` is the status, or the status and two digits. The other parts of our errors - the
place in the input, the value, its limit, the remedy - stand in the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from ..errors import RETRY_AFTER_S, HttpError
from ..requests import Reply, error_reply
from .media import V2

KAFKA_REFUSES = 50002
NOT_NOW = 50302
NODE_AWAY = 50303
_DIGITS_MAX = 10


def error_form(error: HttpError, _scope: Any) -> Reply:
    """The answer for an error below a path of this interface."""
    code = NODE_AWAY if error.error_code == 503 else error.error_code
    return error_reply(error, msgspec.json.encode(_Error(code, _text(error))), V2)


class _Error(msgspec.Struct):
    error_code: int
    message: str


def _text(error: HttpError) -> str:
    message = error.message
    if message == HTTPStatus(error.status).phrase:  # the router's own
        message = f"HTTP {error.status} {message}"
    parts = [f"{error.place}: {message}" if error.place else message]
    if error.got is not None:
        parts.append(f"got {error.got}")
    if error.limit is not None:
        parts.append(f"allowed {error.limit}")
    text = "; ".join(parts)
    return f"{text}. {error.remedy}" if error.remedy else text


def no_topic(topic: str, place: str = "") -> HttpError:
    remedy = "GET /topics lists those that there are"
    return HttpError(
        404, "Topic not found.", error_code=40401, place=place, got=topic[:300], remedy=remedy
    )


def no_partition(topic: str, partition: Any, count: int, place: str = "") -> HttpError:
    return HttpError(
        404,
        "Partition not found.",
        error_code=40402,
        place=place,
        got=f"{partition} of {topic}",
        limit=f"0 to {count - 1}",
    )


def partition_in(path: Mapping[str, str]) -> int:
    """The partition in a request's path. Errors: 40402."""
    text = path["partition"]
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise HttpError(
            404, "Partition not found.", error_code=40402, got=text[:80], limit="a number"
        )
    return int(text)


def no_instance(group: str, name: str) -> HttpError:
    return HttpError(
        404,
        "Consumer instance not found.",
        error_code=40403,
        got=f"{group}/{name}"[:300],
        remedy="It may have expired, or be another gateway's: use its base_uri, or create it again",
    )


def illegal_state(message: str, remedy: str) -> HttpError:
    """The error for a request that a consumer instance cannot fulfil in its state."""
    return HttpError(409, f"Illegal state: {message}", error_code=40903, remedy=remedy)


def bad_instance(message: str, **more: Any) -> HttpError:
    """The error for unusable settings of a consumer instance."""
    return HttpError(422, f"Invalid consumer configuration: {message}", error_code=42204, **more)


def not_now(error: object) -> HttpError:
    """The error while Kafka's brokers do not answer, or the group is changing."""
    return HttpError(
        503,
        str(error),
        error_code=NOT_NOW,
        remedy="Try again later",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def not_json(topic: str, partition: int, offset: int) -> HttpError:
    """The error for a record that is not JSON. It is not passed over, as it might be lost without
    notice: the client decides."""
    return HttpError(
        422,
        "a record is not JSON",
        error_code=42203,
        got=f"{topic}, partition {partition}, offset {offset}",
        remedy=f"POST positions with offset {offset + 1} to go on behind it, or read it by a"
        " consumer with the format binary",
    )
