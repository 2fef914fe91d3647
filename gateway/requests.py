"""Reading a request: its body within limits, what it is, and what its caller takes as an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect

from ..wheel.checks import PARTITION_MAX
from .errors import HttpError, from_decoding

T = TypeVar("T")

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PartitionNumber = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
SpanMilliseconds = Annotated[int, Meta(ge=0, lt=1 << 56)]
"""Milliseconds, fewer than a ``timedelta`` can hold."""

RawHeaders = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. Names of ``headers`` are in lower case."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Sequence[tuple[bytes, bytes]] = field(default=())

    @property
    def all_headers(self) -> list[tuple[bytes, bytes]]:
        if self.status == 204:
            return [*self.headers]
        return [
            *self.headers,
            (b"content-type", self.content_type.encode()),
            (b"content-length", b"%d" % len(self.body)),
        ]

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Send it, as an ASGI application."""
        headers = self.all_headers
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(status, msgspec.json.encode(value))


def error_reply(error: HttpError, body: bytes | None = None, content_type: str = JSON) -> Reply:
    sent = error.body() if body is None else body
    return Reply(error.status, sent, content_type, error.raw_headers)


def header_of(headers: RawHeaders, name: bytes) -> str | None:
    """The value of a header that may occur once; ``name`` in lower case. Errors: ``HttpError``."""
    found: bytes | None = None
    for key, value in headers:
        if key == name:
            if found is not None:
                raise HttpError(400, f"header {name.decode()} occurs twice")
            found = value
    return None if found is None else found.decode("latin-1")


def cookie_of(headers: RawHeaders, name: str) -> str:
    """The value of a cookie; empty: the browser has none. Cookies of other programs of this host
    come along, whatever their form. Errors: as of ``header_of``."""
    pairs = (pair.strip() for pair in (header_of(headers, b"cookie") or "").split(";"))
    start = f"{name}="
    return next((pair[len(start) :] for pair in pairs if pair.startswith(start)), "")


class _Arriving:
    """Bytes of bodies that have come in part, of all requests together."""

    nbytes = 0


ARRIVING_MAX = 128 << 20


async def read_body(scope: Any, receive: Any, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes. Errors: ``HttpError`` 413, 415 for a compressed
    body, and 503 while the bodies of all requests take too much memory; ``ClientDisconnect``."""
    _check_encoding(scope["headers"])
    length = header_of(scope["headers"], b"content-length")
    if length is not None and int(length) > limit:  # the parser has checked that it is a number
        raise _too_large(length, limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message["body"]
    if not message["more_body"] and len(body) <= limit:
        return body
    parts, size = [body], len(body)
    _Arriving.nbytes += size
    try:
        while True:
            if size > limit:
                raise _too_large(f"more than {limit}", limit)
            if _Arriving.nbytes > ARRIVING_MAX:
                raise HttpError(
                    503,
                    "too many bodies are on their way",
                    limit=f"{ARRIVING_MAX} bytes together",
                    remedy="Send it again in a moment",
                    headers={"Retry-After": "1"},
                )
            if not message["more_body"]:
                return b"".join(parts)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message["body"])
            size += len(message["body"])
            _Arriving.nbytes += len(message["body"])
    finally:
        _Arriving.nbytes -= size


def _check_encoding(headers: RawHeaders) -> None:
    """Nothing is decompressed: a body of some kilobytes could become gigabytes. Errors:
    ``HttpError`` 415."""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise HttpError(
                415,
                "the body is encoded in a way that is not taken here",
                place="header Content-Encoding",
                got=value.decode("latin-1"),
                limit="identity",
                remedy="Send the body as it is, not compressed",
                headers={"Accept-Encoding": "identity"},
            )


def _too_large(got: str, limit: int) -> HttpError:
    return HttpError(
        413,
        "the body is too large",
        got=f"{got} bytes",
        limit=f"{limit} bytes",
        remedy="Send it in several requests",
    )


def content_type_of(scope: Any, allowed: Sequence[str]) -> str:
    """The request's media type, which must be among ``allowed``. Errors: ``HttpError`` 415.

    None at all is refused, too: a page of another site could send such a request by a browser.
    """
    given = header_of(scope["headers"], b"content-type") or ""
    kind = media_type(given)
    if kind not in allowed:
        raise HttpError(
            415,
            "the body is of a type that is not taken here",
            place="header Content-Type",
            got=given or "none",
            limit=" or ".join(allowed),
        )
    return kind


def media_type(given: str) -> str:
    """The media type that ``Content-Type`` names, in lower case; empty if it names a charset other
    than UTF-8, by which every body is read."""
    kind, *parameters = (part.strip().lower() for part in given.split(";"))
    for one in parameters:
        name, _, value = one.partition("=")
        charset = value.strip(' "')
        if name.strip() == "charset" and charset not in ("utf-8", "utf8", "us-ascii"):
            return ""
    return kind


def wanted_type(scope: Any, offered: Sequence[str]) -> str:
    """Which of the ``offered`` media types the caller wants most, by ``Accept`` and its q-values;
    the first of them if it does not say. Errors: ``HttpError`` 406."""
    given = ", ".join(
        value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"
    )
    if not given.strip():
        return offered[0]
    ranges = [_media_range(part) for part in given.split(",") if part.strip()]
    best, best_q = "", 0.0
    for one in offered:
        matching = [(rank, q) for kind, q in ranges if (rank := _matches(kind, one))]
        q = max(matching)[1] if matching else 0.0
        if q > best_q:
            best, best_q = one, q
    if not best:
        raise HttpError(
            406,
            "none of the types that you accept is to be had here",
            place="header Accept",
            got=given,
            limit=", ".join(offered),
        )
    return best


def _media_range(text: str) -> tuple[str, float]:
    kind, *parameters = (part.strip().lower() for part in text.split(";"))
    q = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                q = min(1.0, max(0.0, float(value)))
            except ValueError:
                raise HttpError(
                    400, "unusable q-value", place="header Accept", got=text.strip(), limit="0 to 1"
                ) from None
    return kind, q


def _matches(given: str, offered: str) -> int:
    """How exactly a media range names a type; 0: not at all."""
    if given == offered:
        return 3
    main, _, sub = given.partition("/")
    if sub == "*" and offered.startswith(main + "/") and main != "*":
        return 2
    return 1 if given in ("*/*", "*") else 0


def check_objects(body: bytes, limit: int) -> None:
    """Refuse JSON that could become more objects than ``limit``: a body of ``{},{},…`` takes a
    hundred times its bytes of memory, and seconds. Errors: ``HttpError`` 413."""
    count = body.count(b"{")
    if count > limit:
        raise HttpError(
            413,
            "too many objects in one request",
            got=count,
            limit=limit,
            remedy="Send them in several requests",
        )


def decoded(
    decoder: msgspec.json.Decoder[T],
    body: bytes,
    place: str = "",
    names_in: Callable[[T], int] | None = None,
) -> T:
    """A body, checked against the decoder's type, and for names that occur twice in an object.

    ``names_in``: how many names of fields the decoded value shows. A body with no more colons than
    that has no name twice, and is not looked through again. Errors: ``HttpError`` with the place.
    """
    try:
        value = decoder.decode(body)
        # There are as many colons as names, and those in texts.
        if names_in is None or body.count(b":") > names_in(value):
            _NAMES.decode(body.decode())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise from_decoding(error, place, decoder.type, body) from None
    except _NameTwiceError as error:
        raise HttpError(
            422,
            "a name occurs twice in an object",
            place=place,
            got=error,
            limit="each name once",
            remedy="Leave one of them out: which of the two is meant cannot be told",
        ) from None
    return value


class _NameTwiceError(Exception):
    """A name that an object of a body has twice."""


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise _NameTwiceError(next(one for one in names if names.count(one) > 1))


_NAMES = JSONDecoder(object_pairs_hook=_check_names, parse_int=len, parse_float=len)
"""Reads a body a second time, for its names alone: of two equal ones msgspec takes the last."""
