"""Endpoints: one table of which the routes and their description are made, so that they agree.

Theory: what a request may hold is a type. The type decodes the request, checks it, and describes
it; a parameter that is not in the type is refused. A handler gets what was decoded, and nothing
else of the request.

Rules
- One path, one resource: a method that it does not have is 405 with those that it has.
- Each endpoint is one operation, by which its right is known: nobody reaches one that has none.
- Of a body that everybody may send, ``PUBLIC_BODY_BYTES_MAX`` are read: a stranger could otherwise
  fill the memory.
- A parameter of the query is read as its field is written (``policy/parameters.py``); one of a
  tuple may be given several times.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl, unquote_plus

import msgspec

from ..policy.parameters import Question, parameters_of
from ..policy.written import WayIn
from ..security.principals import Identity
from ..security.rights import Operation, Right
from ..wheel.errors import SlotwheelError
from .authentication import identity_of
from .errors import HttpError, from_slotwheel
from .front.front import ASKED_WHEEL, WHEEL
from .pathroute import PathRoute
from .requests import FORM, JSON, Reply, content_type_of, decoded, read_body
from .services import Services

_PARAMETERS_MAX = 1000
PUBLIC_BODY_BYTES_MAX = 16 << 10


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """No parameter."""


Q = TypeVar("Q", bound=msgspec.Struct)
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class RouteCall(Generic[Q, B]):
    """What a handler gets of a request. ``services``: as its caller may use them. ``path``: values
    of the path's parameters."""

    services: Services
    scope: Any
    path: Mapping[str, Any]
    query: Q
    body: B

    @property
    def identity(self) -> Identity:
        return self.services.identity


WHEELS = "wheels"
"""Where the scope of a request over a fleet has the names of the wheels."""
Handler = Callable[[RouteCall[Q, B]], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Q, B]):
    """A method of a path.

    ``operation``: what its caller does, and so the right that it needs.
    ``name``: of the operation, in the description, by which generated clients call it.
    ``handler``: its docstring is the description, the first sentence is the summary; None where
    something else answers, and ``text`` describes it then. ``body``: None takes no body; ``form``:
    it is an HTML form's and no JSON.
    ``answers``: type of each answer that is no error, by status; None: it is no JSON.
    ``answer_media``: the media type of an answer that is no JSON, and what it holds;
    ``body_media``: those that a body may have besides JSON.
    ``any_query``: parameters that it does not know are passed over, as another site adds its own.
    ``headers``: parameters of the request that are headers, as the description has them.
    ``errors``: statuses besides those that every endpoint has.
    ``names_topic``: its handler checks the operation for the topic that the request names, so that
    the access log has it.
    """

    operation: Operation
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
    any_query: bool = False
    names_topic: bool = False

    @property
    def description(self) -> str:
        text = self.text or (self.handler.__doc__ if self.handler else "") or ""
        return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


AnyEndpoint = Endpoint[Any, Any]


def endpoint(
    operation: Operation,
    method: str,
    path: str,
    handler: Handler[Any, Any],
    answers: Mapping[int, Any],
    errors: Sequence[int] = (),
    *,
    name: str,
    answer_media: Mapping[str, str] | None = None,
    names_topic: bool = False,
) -> AnyEndpoint:
    """An ``Endpoint`` that takes the query and the body of its handler's ``RouteCall``."""
    call, *_ = get_type_hints(handler).values()
    query, body = get_args(call)
    return Endpoint(
        operation,
        method,
        path,
        handler,
        query=query,
        body=None if body is NoneType else body,
        answers=answers,
        errors=errors,
        answer_media=answer_media or {},
        name=name,
        names_topic=names_topic,
    )


def resources(endpoints: Iterable[AnyEndpoint], services: Services) -> list[PathRoute]:
    """A route for each path, in the order of the table."""
    by_path: dict[str, list[AnyEndpoint]] = {}
    for each in endpoints:
        by_path.setdefault(each.path, []).append(each)
    return [PathRoute(path, _Resource(path, those, services)) for path, those in by_path.items()]


class _Resource:
    """A path, as an ASGI application. ``__name__``: by which its requests are counted.
    ``operations``: what a caller does by each method."""

    def __init__(self, path: str, endpoints: Sequence[AnyEndpoint], services: Services) -> None:
        self.__name__ = path
        self._services = services
        self.operations = {one.method: one.operation for one in endpoints}
        self._methods = {
            one.method: (
                one,
                QueryDecoder(one.query, any_query=one.any_query),
                _body_decoder(one),
            )
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
        services = self._services.used_by(identity_of(scope))
        if endpoint.names_topic:
            services.authenticator.demand(scope, endpoint.operation)
        else:
            services.authenticator.check(scope, endpoint.operation)
        written = scope["query_string"]
        if services.front is not None:
            wheel, written = wheel_in(written)
            ASKED_WHEEL.set("")
            scope[WHEELS] = services.front.names
            if wheel:
                services.narrow(wheel)
                ASKED_WHEEL.set(wheel)  # not before: links of a refusal would lead to it again
        query = query_decoder.decode(written)
        body = None
        if body_decoder is not None:
            content_type_of(scope, (FORM if endpoint.form else JSON,))
            limit = self._services.settings.body_bytes_max
            if endpoint.operation.right is Right.PUBLIC:
                limit = min(limit, PUBLIC_BODY_BYTES_MAX)
            body = body_decoder(await read_body(scope, receive, limit))
        assert endpoint.handler is not None
        call = RouteCall(services, scope, scope["path_params"], query, body)
        with services.identity.doing(endpoint.operation):
            reply = await endpoint.handler(call)
        await reply(scope, receive, send)


def wheel_in(query: bytes) -> tuple[str, bytes]:
    """The wheel that a query names, and the rest of the query: over a fleet each question may be
    about one wheel. Empty: it names none. Errors: ``HttpError`` 422: it names several."""
    begin = f"{WHEEL}=".encode()
    parts = query.split(b"&")
    names = [part.removeprefix(begin) for part in parts if part.startswith(begin)]
    if len(names) > 1:
        raise HttpError(422, "a parameter that may be given once", place=f"query {WHEEL}")
    rest = b"&".join(part for part in parts if not part.startswith(begin))
    return unquote_plus(names[-1].decode("ascii", "replace")) if names else "", rest


def _body_decoder(endpoint: AnyEndpoint) -> Callable[[bytes], Any] | None:
    if endpoint.body is None:
        return None
    if endpoint.form:
        return QueryDecoder(endpoint.body, "form").decode
    decoder = msgspec.json.Decoder(endpoint.body)
    if Question in getattr(endpoint.body, "__mro__", ()):
        return partial(_decoded_question, decoder)
    return partial(decoded, decoder)


def _decoded_question(decoder: msgspec.json.Decoder[Question], body: bytes) -> Question:
    """A body that asks a question gets the errors of a query that asks it: of a number the decoder
    says neither what it was nor all of its bounds. Errors: as of ``decoded``; as of
    ``Parameter.check`` and ``Question.check``."""
    try:
        question = decoded(decoder, body)
    except HttpError as error:
        if error.status == 422 and isinstance(given := msgspec.json.decode(body), dict):
            for name, parameter in parameters_of(decoder.type).items():
                if type(value := given.get(name)) in (int, parameter.kind):
                    with _placed(f"$.{name}"):
                        parameter.check(value, str(value))
        raise
    question.check()
    return question


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Errors that are raised inside become the answer's, with the place in the input."""
    try:
        yield
    except SlotwheelError as error:
        raise from_slotwheel(error, place) from None


class QueryDecoder(Generic[Q]):
    """Makes a query string, or a form in that encoding, a value of ``kind``. ``place``: which of
    the two, for errors. ``any_query``: what it does not know is passed over."""

    def __init__(self, kind: type[Q], place: str = "query", *, any_query: bool = False) -> None:
        self._kind = kind
        self._any_query = any_query
        self._place = place
        self.fields = {
            name: parameter
            for name, parameter in parameters_of(kind).items()
            if parameter.written.in_queries
        }

    def decode(self, text: bytes) -> Q:
        """Errors: ``HttpError`` 400 for what is no query string, 422 for the rest; as of
        ``Question.check``."""
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
        for name, written in pairs:
            if name not in self.fields:
                if self._any_query:
                    continue
                raise HttpError(
                    422,
                    "no such parameter",
                    place=self._place,
                    got=name,
                    limit=", ".join(self.fields) or "none",
                )
            parameter, place = self.fields[name], f"{self._place} {name}"
            if parameter.field in given and not parameter.several:
                raise HttpError(422, "a parameter that may be given once", place=place, got=written)
            with _placed(place):
                value = parameter.read(written, WayIn())
            if parameter.several:
                value = (*given.get(parameter.field, ()), value)
            given[parameter.field] = value
        asked = self._kind(**given)
        if isinstance(asked, Question):
            asked.check()
        return asked
