"""Endpoints: one table of which the routes and their description are made, so that they agree.

Theory: what a request may hold is a type. The type decodes the request, checks it, and describes
it; a parameter that is not in the type is refused. A handler gets what was decoded, and nothing
else of the request.

Rules
- One path, one resource: a method that it does not have is 405 with those that it has.
- A parameter of the query is text, a whole number, or true or false; one of a tuple may be given
  several times.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.routing import Route

from .errors import HttpError, from_decoding
from .requests import FORM, JSON, Reply, content_type_of, decoded, read_body
from .services import Services

_PARAMETERS_MAX = 1000
_WHOLE_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_TRUTH = {"true": True, "false": False}


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameter."""


Q = TypeVar("Q", bound=msgspec.Struct)
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class RouteCall(Generic[Q, B]):
    """What a handler gets of a request. ``path``: values of the path's parameters."""

    services: Services
    scope: Any
    path: Mapping[str, Any]
    query: Q
    body: B


Handler = Callable[[RouteCall[Q, B]], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, B]):
    """A method of a path.

    ``name``: of the operation, in the description, by which generated clients call it.
    ``handler``: its docstring is the description, the first sentence is the summary; None where
    something else answers, and ``text`` describes it then. ``body``: None takes no body; ``form``:
    it is an HTML form's and no JSON.
    ``answers``: type of each answer that is no error, by status; None: it is no JSON.
    ``answer_media``: the media type of an answer that is no JSON, and what it holds;
    ``body_media``: those that a body may have besides JSON.
    ``headers``: parameters of the request that are headers, as the description has them.
    ``errors``: statuses besides those that every endpoint has.
    """

    method: str
    path: str
    handler: Handler[Q, B] | None
    query: type[Q]
    body: type[B] | None
    answers: Mapping[int, Any]
    errors: Sequence[int] = ()
    text: str = ""
    answer_media: Mapping[str, str] = field(default_factory=dict)
    body_media: Mapping[str, str] = field(default_factory=dict)
    headers: Sequence[Mapping[str, Any]] = ()
    form: bool = False
    name: str = ""

    @property
    def description(self) -> str:
        text = self.text or (self.handler.__doc__ if self.handler else "") or ""
        return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


AnyEndpoint = Endpoint[Any, Any]


def endpoint(
    method: str,
    path: str,
    handler: Handler[Any, Any],
    answers: Mapping[int, Any],
    errors: Sequence[int] = (),
    *,
    name: str,
    answer_media: Mapping[str, str] | None = None,
) -> AnyEndpoint:
    """An ``Endpoint`` that takes the query and the body of its handler's ``RouteCall``."""
    call, *_ = get_type_hints(handler).values()
    query, body = get_args(call)
    return Endpoint(
        method,
        path,
        handler,
        query=query,
        body=None if body is NoneType else body,
        answers=answers,
        errors=errors,
        answer_media=answer_media or {},
        name=name,
    )


def resources(endpoints: Iterable[AnyEndpoint], services: Services) -> list[Route]:
    """A route for each path, in the order of the table."""
    by_path: dict[str, list[AnyEndpoint]] = {}
    for one in endpoints:
        by_path.setdefault(one.path, []).append(one)
    return [Route(path, _Resource(path, found, services)) for path, found in by_path.items()]


class _Resource:
    """A path, as an ASGI application. ``__name__``: by which its requests are counted."""

    def __init__(self, path: str, endpoints: Sequence[AnyEndpoint], services: Services) -> None:
        self.__name__ = path
        self._services = services
        self._methods = {
            one.method: (one, QueryDecoder(one.query), _body_decoder(one))
            for one in endpoints
            if one.handler is not None
        }
        allowed = sorted({one.method for one in endpoints})
        self._allowed = ", ".join(allowed + (["HEAD"] if "GET" in allowed else []))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        found = self._methods.get(method)
        if found is None:
            raise HttpError(
                405,
                "no such method here",
                got=scope["method"],
                limit=self._allowed,
                headers={"Allow": self._allowed},
            )
        endpoint, query_decoder, body_decoder = found
        query = query_decoder.decode(scope["query_string"])
        body = None
        if body_decoder is not None:
            content_type_of(scope, (FORM if endpoint.form else JSON,))
            limit = self._services.settings.body_bytes_max
            body = body_decoder(await read_body(scope, receive, limit))
        assert endpoint.handler is not None
        call = RouteCall(self._services, scope, scope["path_params"], query, body)
        reply = await endpoint.handler(call)
        await reply(scope, receive, send)


def _body_decoder(endpoint: AnyEndpoint) -> Callable[[bytes], Any] | None:
    if endpoint.body is None:
        return None
    if endpoint.form:
        return QueryDecoder(endpoint.body, "form").decode
    return partial(decoded, msgspec.json.Decoder(endpoint.body))


class QueryDecoder(Generic[Q]):
    """Makes a query string, or a form in that encoding, a value of ``kind``. ``place``: which of
    the two, for errors."""

    def __init__(self, kind: type[Q], place: str = "query") -> None:
        self._kind = kind
        self._place = place
        self.fields = {name: _of_field(hint) for name, hint in get_type_hints(kind).items()}
        """By name: what a value is, and whether there may be several."""

    def decode(self, text: bytes) -> Q:
        """Errors: ``HttpError`` 400 for what is no query string, 422 for the rest."""
        try:
            pairs = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_PARAMETERS_MAX,
            )
        except ValueError as error:
            raise HttpError(
                400, f"the {self._place} cannot be read: {error}"[:200], place=self._place
            ) from None
        given: dict[str, Any] = {}
        for name, value in pairs:
            if name not in self.fields:
                raise HttpError(
                    422,
                    "no such parameter",
                    place=self._place,
                    got=name,
                    limit=", ".join(self.fields) or "none",
                )
            what, several = self.fields[name]
            if several:
                given.setdefault(name, []).append(_parsed(f"{self._place} {name}", what, value))
            elif name in given:
                raise HttpError(
                    422,
                    "a parameter that may be given once",
                    place=f"{self._place} {name}",
                    got=value,
                )
            else:
                given[name] = _parsed(f"{self._place} {name}", what, value)
        try:
            return msgspec.convert(given, self._kind)
        except msgspec.ValidationError as error:
            raise from_decoding(error, self._place, self._kind) from None


def _of_field(hint: Any) -> tuple[type, bool]:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    if get_origin(hint) is tuple:
        return _of_field(get_args(hint)[0])[0], True
    if get_origin(hint) is Literal:
        return str, False
    assert hint in (str, int, bool), hint
    return hint, False


def _parsed(place: str, what: type, value: str) -> Any:
    if what is int:
        if _WHOLE_NUMBER.fullmatch(value):
            return int(value)
        raise HttpError(
            422, "not a whole number", place=place, got=value, limit="19 digits at most"
        )
    if what is bool:
        if value in _TRUTH:
            return _TRUTH[value]
        raise HttpError(
            422, "neither true nor false", place=place, got=value, limit="true or false"
        )
    return value
