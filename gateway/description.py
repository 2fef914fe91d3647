"""The OpenAPI description of the table of endpoints.

Theory: all of it comes from what decodes: types, their limits, docstrings of types and handlers,
and the texts that stand below fields. So nothing is described that is not so. What is served is
said as generators of clients read it (``generators.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import msgspec

from ..policy.fieldtexts import plain_text, texts_of
from ..policy.parameters import Parameter
from ..security.rights import Right
from .endpoint import AnyEndpoint, QueryDecoder
from .errors import ErrorBody
from .generators import Plain, either
from .pathroute import IN_PATH
from .requests import ARROW, JSON

OPENAPI = "3.0.3"
"""Generators of clients do not read 3.1 alike."""
_REF = "#/components/schemas/{name}"
_OF_ALL = (400, 401, 403, 404, 405, 408, 421, 429, 431, 503)
_BEARER = "token"
_OF_QUERIES = (422,)
_OF_BODIES = (413, 415, 422)
_STATUS = {
    200: "Done.",
    201: "Stored, or made.",
    202: "Begun.",
    204: "Done; the answer has no body.",
    400: "The request is malformed.",
    401: "A security file is in use, and nobody knows who calls. `WWW-Authenticate` says how to"
    " prove it.",
    403: "The caller has not the right for it, or a page of another site asks for it.",
    404: "There is no such thing.",
    405: "The path has no such method; `Allow` says which it has.",
    406: "None of the types that `Accept` names is to be had here.",
    408: "The request took too long to arrive.",
    409: "It cannot be done any more.",
    413: "The body is too large.",
    415: "The body is of a type that is not taken here, or compressed.",
    421: "The gateway is not known by the name in `Host`.",
    422: "The request is well-formed, and asks for what cannot be done.",
    429: "Too much at once; nothing was done. `Retry-After` says when to come again.",
    431: "The first line and the headers are too large.",
    500: "A defect of the gateway.",
    503: "The node cannot do it now. `Retry-After` says when to come again.",
}
_TAGS = dict.fromkeys(("status", "peers", "levels", "policies", "routes"), "group")
_TAGS |= dict.fromkeys(("cancel", "cancellations"), "messages")
"""What a path is about, where its first name does not say it."""


def describe(
    endpoints: Iterable[AnyEndpoint], version: str, *, narrow: bool = True
) -> dict[str, Any]:
    """The description, as JSON-able data that is the same for the same table. ``narrow``: of the
    forms that a field of a request may have, only the one that generators of clients know."""
    table = list(endpoints)
    kinds = [one.body for one in table if one.body is not None]
    kinds += [kind for one in table for kind in one.answers.values() if kind is not None]
    kinds.append(ErrorBody)
    unique = list(dict.fromkeys(kinds))
    found, components = msgspec.json.schema_components(unique, ref_template=_REF)
    schemas = dict(zip(unique, found, strict=True))
    for kind in unique:
        _add_texts(kind, components)
    for one in table:
        _merge_answers(one, schemas, components)
    paths: dict[str, Any] = {}
    for one in table:
        path = IN_PATH.sub(r"{\1}", one.path)
        operation = _operation(one, schemas)
        paths.setdefault(path, {})[one.method.lower()] = operation
    described: dict[str, Any] = {
        "openapi": OPENAPI,
        "info": {
            "title": "slotwheel gateway",
            "version": version,
            "description": "Send messages later over HTTP: store, find, cancel and reschedule them,"
            " look at dead letters and redrive them. Times are milliseconds since 1970, UTC.",
            "license": {
                "name": "Apache-2.0",
                "url": "https://www.apache.org/licenses/LICENSE-2.0",
            },
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                _BEARER: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the security file, or of an issuer of OpenID Connect"
                    " that the file names. In its place a client certificate, where the gateway"
                    " asks for one. Without a security file neither is needed.",
                }
            },
            "responses": {str(status): _error(status) for status in sorted(_statuses(table))},
        },
    }
    return Plain(_structs_in(unique), narrow=narrow).described(described)


def _structs_in(kinds: Iterable[Any]) -> dict[str, type[msgspec.Struct]]:
    """All structs that types are or hold, by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if is_struct and kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += get_type_hints(kind).values()
    return found


def _merge_answers(
    endpoint: AnyEndpoint, schemas: dict[Any, Any], components: dict[str, Any]
) -> None:
    """One schema for answers of several types: a generated client knows one an operation."""
    kinds = dict(sorted(endpoint.answers.items()))
    if len(set(kinds.values())) > 1:
        name = f"{endpoint.name[0].upper()}{endpoint.name[1:]}Answer"
        of_status = {status: kind.__name__ for status, kind in kinds.items()}
        components[name] = either(name, of_status, components)
        schemas[id(endpoint)] = {"$ref": _REF.format(name=name)}


def _statuses(table: Iterable[AnyEndpoint]) -> set[int]:
    return {status for one in table for status in _errors_of(one)}


def _errors_of(endpoint: AnyEndpoint) -> list[int]:
    found = {*_OF_ALL, *endpoint.errors}
    if QueryDecoder(endpoint.query).fields:
        found |= set(_OF_QUERIES)
    if endpoint.body is not None or endpoint.body_media:
        found |= set(_OF_BODIES)
    return sorted(found - set(endpoint.answers))


def _operation(endpoint: AnyEndpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    text, right = endpoint.description, endpoint.operation.right
    summary, _, rest = text.partition(". ")
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [_tag(endpoint.path)],
        "summary": summary.rstrip("."),
        "description": rest or text,
        # Without a security file nobody needs a token.
        "security": [{}] if right is Right.PUBLIC else [{_BEARER: []}, {}],
        "x-right": right.value,
    }
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer", "minimum": 0} if kind == "int" else {"type": "string"},
        }
        for name, kind in IN_PATH.findall(endpoint.path)
    ]
    in_query = map(_parameter, QueryDecoder(endpoint.query).fields.values())
    parameters = [*in_path, *in_query, *map(dict, endpoint.headers)]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        content = {JSON: {"schema": schemas[endpoint.body]}}
        content |= _others(endpoint.body_media)
        operation["requestBody"] = {"required": True, "content": content}
    responses: dict[str, Any] = {}
    for status, kind in sorted(endpoint.answers.items()):
        schema = schemas.get(id(endpoint), None if kind is None else schemas[kind])
        content = {} if schema is None else {JSON: {"schema": schema}}
        content |= _others(endpoint.answer_media)
        responses[str(status)] = {"description": _STATUS[status]}
        if status != 204:
            responses[str(status)]["content"] = content
    for status in _errors_of(endpoint):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    operation["responses"] = responses
    return operation


def _tag(path: str) -> str:
    _, first, *rest = path.split("/")
    if first == "v3":
        return "topics"
    return _TAGS.get(rest[0], rest[0]) if first == "v1" else "gateway"


def _others(media: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, text in media.items():
        binary = {"format": "binary"} if kind == ARROW else {}
        found[kind] = {"schema": {"type": "string", **binary, "description": text}}
    return found


def _error(status: int) -> dict[str, Any]:
    error: dict[str, Any] = {
        "description": _STATUS[status],
        "content": {JSON: {"schema": {"$ref": _REF.format(name=ErrorBody.__name__)}}},
    }
    if status in (429, 503):
        error["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
        }
    return error


def _parameter(declared: Parameter) -> dict[str, Any]:
    text = {"description": declared.text} if declared.text else {}
    found = {"name": declared.name, "in": "query", "required": False}
    return {**found, **text, "schema": declared.schema}


def _add_texts(kind: Any, components: dict[str, Any], seen: set[Any] | None = None) -> None:
    """Descriptions for the schema of a type, and of all types in it."""
    seen = set() if seen is None else seen
    if kind in seen:
        return
    seen.add(kind)
    for inner in get_args(kind):
        _add_texts(inner, components, seen)
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    for hint in get_type_hints(kind).values():
        _add_texts(hint, components, seen)
    schema = components.get(kind.__name__)
    if schema is None:
        return
    if "description" in schema:
        schema["description"] = plain_text(schema["description"])
    for name, text in texts_of(kind).items():
        schema["properties"][name] = {"description": text, **schema["properties"][name]}
