"""What a request that cannot be done gets: a status, a body with a code, and what to do.

Theory: whoever caused an error decides its class. What the request says is 4xx, and the same
request fails again; what the node cannot do now is 429 or 503 with ``Retry-After``, and the same
request may work later. 500 is a bug. ``error_code`` is the status, or the status with two digits
more where one status has several causes (as Kafka's REST proxy numbers them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from ..wheel.errors import (
    Draining,
    Forbidden,
    InvalidBatch,
    InvalidConfiguration,
    InvalidMessage,
    NameTaken,
    NodeUnreachable,
    NotRunning,
    Overloaded,
    OverQuota,
    ScheduleChanged,
    SequenceTooOld,
    SlotwheelError,
    Unauthenticated,
    UnknownId,
    UnknownSchedule,
    UnsupportedVersion,
)

RETRY_AFTER_S = 1
_CALLERS_FAULT = (InvalidMessage, InvalidBatch, InvalidConfiguration, UnknownId, SequenceTooOld)
_UNAVAILABLE = (Draining, NodeUnreachable, NotRunning)
TEXT_MAX = 300
_UNKNOWN_FIELD = "Object contains unknown field"
_UNKNOWN_CHOICE = "Invalid enum value"
"""How msgspec begins these messages."""
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")
"""Of msgspec's path: into a field, or into a list or an object of any names."""
_HALF_CHARACTER = re.compile(
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F].."
)
_VALUE_MAX = 80
"""A value that is refused is shown with at most so many characters."""
_LOOKED_THROUGH_MAX = 256 << 10


class HttpError(Exception):
    """An answer that is an error. ``place``: where in the input, as ``$.headers[2]`` or ``line 7``;
    ``got``, ``limit``, ``remedy``: as of ``SlotwheelError``; ``code``: its name, if it has one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_code: int = 0,
        code: str = "",
        place: str = "",
        got: Any = None,
        limit: Any = None,
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_code = error_code or status
        self.code = code
        self.place = place
        self.got = None if got is None else str(got)[:TEXT_MAX]
        self.limit = None if limit is None else str(limit)[:TEXT_MAX]
        self.remedy = remedy
        self.headers = dict(headers or {})
        self.retry_after_ms = retry_after_ms

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """``headers`` as a ``Reply`` has them."""
        return [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]

    def body(self) -> bytes:
        """As JSON; fields that are not known are left out."""
        return msgspec.json.encode(error_body(self))


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """An error as JSON."""

    error_code: int
    message: str
    code: str = ""
    """Name of the error, as the command line's ``--json`` has it."""
    place: str = ""
    """Where in the input: a path as ``$.due_ms``, or a line."""
    got: str | None = None
    limit: str | None = None
    remedy: str = ""
    retry_after_ms: int = 0
    """The same request may be sent again after so long."""


def error_body(error: HttpError) -> ErrorBody:
    return ErrorBody(
        error.error_code,
        error.message,
        code=error.code,
        place=error.place,
        got=error.got,
        limit=error.limit,
        remedy=error.remedy,
        retry_after_ms=error.retry_after_ms,
    )


def too_many_messages(rows_max: int, place: str = "") -> HttpError:
    return HttpError(
        422,
        "too many messages in one request",
        place=place,
        limit=rows_max,
        remedy="Send them in several requests",
    )


def from_slotwheel(error: SlotwheelError, place: str = "") -> HttpError:
    """The answer to a request that ended with one of our errors. ``place``: where in the input, if
    that is known; otherwise the error's row."""
    headers: dict[str, str] = {}
    retry_after_ms = 0
    if error.uncertain:  # 4xx would say that nothing was done
        status = 503
    elif isinstance(error, NameTaken | ScheduleChanged):
        status = 409
    elif isinstance(error, UnknownSchedule):
        status = 404
    elif isinstance(error, _CALLERS_FAULT):
        status = 422
    elif isinstance(error, Unauthenticated):
        status = 401
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, Forbidden):
        status = 403
    elif isinstance(error, OverQuota):
        status, retry_after_ms = 429, error.retry_after_ms
    elif isinstance(error, Overloaded):
        status = 429
    elif isinstance(error, _UNAVAILABLE):
        status = 503
    elif isinstance(error, UnsupportedVersion):
        status = 501
    else:
        status = 500
    if status in (429, 503):
        headers["Retry-After"] = str(max(RETRY_AFTER_S, -(-retry_after_ms // 1000)))
    return HttpError(
        status,
        error.message,
        code=error.code,
        place=place if error.row is None else f"$[{error.row}]",
        got=error.got,
        limit=error.limit,
        remedy=error.remedy,
        headers=headers,
        retry_after_ms=retry_after_ms,
    )


def from_decoding(error: Exception, place: str, kind: Any, body: bytes) -> HttpError:
    """The answer to a body that msgspec could not decode: 400 for what is no JSON, 422 for JSON
    that is not what is asked for, with the value. ``place``: of what was decoded, within the body.
    ``kind``: the type that it should have been, so that an unknown field is answered with those
    that are known. ``body``: what was decoded."""
    text = str(error)
    if isinstance(error, RecursionError):
        return HttpError(400, "the JSON is nested too deeply", place=place)
    if not isinstance(error, msgspec.ValidationError):
        if half := _HALF_CHARACTER.search(
            body
        ):  # msgspec says of some that the body ends too early
            return HttpError(
                400,
                "the body has half of a surrogate pair, which is no character",
                place=place or f"byte {half.start()}",
                got=half[0].decode(),
                limit="characters of Unicode",
                remedy="Write the whole character, in UTF-8 or as both halves of its pair",
            )
        return HttpError(400, f"the body is not valid JSON: {text[:TEXT_MAX]}", place=place)
    what, at, path = text.rpartition(" - at `")
    inside = path.rstrip("`") if at else "$"
    message = what if at else text
    return HttpError(
        422,
        message[:TEXT_MAX],
        place=f"{place} {inside}" if place else inside,
        got=_value_at(body, inside),
        limit=_limit_at(kind, inside, message),
    )


def _value_at(body: bytes, path: str) -> str | None:
    """The value at ``path`` (``$.records[0]``) of a body, as JSON; None for a place in an object of
    any names (``$.headers[...]``), where msgspec does not say which one it is, in a body that is
    no JSON behind it, and in a large one: objects of a body of ``{},{},…`` take a hundred times its
    bytes."""
    if len(body) > _LOOKED_THROUGH_MAX:
        return None
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    for name, number in _STEP.findall(path):
        if not name and not number.isdecimal():
            return None
        value = value[name] if name else value[int(number)]
    return msgspec.json.encode(value).decode()[:_VALUE_MAX]


def _limit_at(kind: Any, path: str, message: str) -> str | None:
    """The fields that an object at ``path`` (``$.records[0]``) of a value may have, or the choices
    there, if the message is that what was given is none of them."""
    if not message.startswith((_UNKNOWN_FIELD, _UNKNOWN_CHOICE)):
        return None
    types = _without_unions(inspect.type_info(kind))
    for name, _ in _STEP.findall(path):
        types = [inner for outer in types for inner in _inner(outer, name)]
    allowed: list[str] = []
    for each in types:
        if message.startswith(_UNKNOWN_FIELD):
            allowed += [field.encode_name for field in getattr(each, "fields", ())]
        elif isinstance(each, inspect.LiteralType):
            allowed += map(str, each.values)
        elif isinstance(each, inspect.EnumType):
            allowed += [str(choice.value) for choice in each.cls]
    return ", ".join(dict.fromkeys(allowed))


def _inner(kind: inspect.Type, name: str) -> list[inspect.Type]:
    """What a field of that name holds, or, without a name, what a list or an object of any names
    does."""
    match kind:
        case inspect.StructType() if name:
            inner = [one.type for one in kind.fields if one.encode_name == name]
        case inspect.DictType() if not name:
            inner = [kind.value_type]
        case inspect.ListType() | inspect.VarTupleType() if not name:
            inner = [kind.item_type]
        case inspect.TupleType() if not name:
            inner = list(kind.item_types)
        case _:
            inner = []
    return [plain for one in inner for plain in _without_unions(one)]


def _without_unions(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _without_unions(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [plain for one in kind.types for plain in _without_unions(one)]
    return [kind]
