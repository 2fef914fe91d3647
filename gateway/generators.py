"""The description as generators of clients read it.

Theory: generators make one type of each field. Of a union they make nonsense or code that does not
compile, of ``null`` beside a type only what OpenAPI 3.0 calls ``nullable``, of a number without a
format one of 32 bits, which a time in milliseconds overflows.

Rules
- An answer is described as it is: ``null`` where it can stand, and any value where several types
  can. A client that is generated of it reads every answer.
- Of the forms that a field of a request may have, one is described, the one that holds the most. To
  leave a field out means ``null``.
- Every number has a format, every enumeration a type, and a default that is empty is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_SCHEMAS = "#/components/schemas/"
_NULL = {"type": "null"}
_FORMATS = {"integer": "int64", "number": "double"}
_EMPTY: tuple[Any, ...] = (None, "", [], (), {})
_HOLDS_MORE = {
    frozenset(("object", "array")): "object",
    frozenset(("text", "array")): "array",
    frozenset(("text", "object")): "text",
}
"""Which of two forms of a field is described: headers by name, not as pairs; one message, not
several; several topics, not one; text, not an object around bytes."""


class Plain:
    """``structs``: the types of components, by name. ``narrow``: what of requests is described, as
    of ``describe``."""

    def __init__(self, structs: Mapping[str, type[msgspec.Struct]], *, narrow: bool) -> None:
        self._structs = structs
        self._narrow = narrow

    def described(self, description: dict[str, Any]) -> dict[str, Any]:
        schemas = {
            name: self._component(name, schema)
            for name, schema in description["components"]["schemas"].items()
        }
        components = {**description["components"], "schemas": schemas}
        whole = {**self._walked(description), "components": self._walked(components)}
        used = set[str]()
        _find_used(whole["paths"], schemas, used)
        _find_used(components["responses"], schemas, used)
        whole["components"]["schemas"] = {name: schemas[name] for name in sorted(used)}
        return whole

    def _component(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        kind = self._structs.get(name)
        asked = kind is not None and kind.__struct_config__.forbid_unknown_fields
        left_out = kind is not None and kind.__struct_config__.omit_defaults
        plain = self._schema({**schema, "properties": {}}, asked=asked)
        if "properties" not in schema:
            del plain["properties"]
            return plain
        for field, one in schema["properties"].items():
            optional = field not in schema.get("required", ())
            never_null = optional and (left_out or (asked and self._narrow))
            plain["properties"][field] = self._schema(one, asked=asked, never_null=never_null)
        return plain

    def _walked(self, part: Any) -> Any:
        """A part of the description, with the schemas in it."""
        if isinstance(part, list):
            return [self._walked(one) for one in part]
        if not isinstance(part, dict):
            return part
        asked = "requestBody" in part or part.get("in") in ("query", "path", "header")
        found = {}
        for name, one in part.items():
            if name == "schema":
                found[name] = self._schema(one, asked=asked, never_null=asked)
            elif name == "requestBody":
                found[name] = self._body(one)
            elif name == "schemas":
                found[name] = one
            else:
                found[name] = self._walked(one)
        return found

    def _body(self, body: dict[str, Any]) -> dict[str, Any]:
        content = {
            media: {"schema": self._schema(one["schema"], asked=True)}
            for media, one in body["content"].items()
        }
        return {**body, "content": content}

    def _schema(
        self, schema: dict[str, Any], *, asked: bool, never_null: bool = False
    ) -> dict[str, Any]:
        """``asked``: of a request. ``never_null``: where it is not there, it is left out."""
        if "anyOf" in schema:
            return self._union(schema, asked=asked, never_null=never_null)
        found = {name: one for name, one in schema.items() if name != "contentEncoding"}
        if schema.get("contentEncoding") == "base64":
            found["format"] = "byte"
        for name in ("default", "required"):
            if name in found and found[name] in _EMPTY:
                del found[name]
        if "enum" in found:
            found.setdefault("type", "string")
        kind = found.get("type")
        if kind in _FORMATS:
            found.setdefault("format", _FORMATS[kind])
            _inclusive(found)
        if "prefixItems" in found:
            # A pair of different types: of a list, 3.0 knows only one type for all.
            del found["prefixItems"]
            found["items"] = {}
        elif "items" in found:
            found["items"] = self._schema(found["items"], asked=asked)
        if kind == "object" and "properties" not in found:
            of_each = found.get("additionalProperties")
            within = self._schema(of_each, asked=asked) if isinstance(of_each, dict) else {}
            found["additionalProperties"] = within or True
        return found

    def _union(self, schema: dict[str, Any], *, asked: bool, never_null: bool) -> dict[str, Any]:
        kinds = [one for one in schema["anyOf"] if one != _NULL]
        null = len(kinds) < len(schema["anyOf"]) and not never_null
        rest = {name: one for name, one in schema.items() if name != "anyOf"}
        if len(kinds) > 1 and asked and self._narrow:
            by_form = {_form(one): one for one in kinds}
            kinds = [by_form[_HOLDS_MORE[frozenset(by_form)]]]
            null = False
        if len(kinds) > 1 and asked:
            inner = [self._schema(one, asked=asked) for one in kinds]
            whole = {**rest, "anyOf": inner}
            whole.pop("default", None)
        elif len(kinds) > 1:
            whole = rest
        elif "$ref" in kinds[0] and (rest or null):
            whole = {**rest, "allOf": kinds}
        else:
            whole = {**rest, **kinds[0]}
        if len(kinds) == 1:
            whole = self._schema(whole, asked=asked)
        return {**whole, "nullable": True} if null else whole


def _form(schema: dict[str, Any]) -> str:
    if "$ref" in schema or schema["type"] == "object":
        return "object"
    return "array" if schema["type"] == "array" else "text"


def _inclusive(schema: dict[str, Any]) -> None:
    """A bound that does not belong to the range, as OpenAPI 3.0 writes it."""
    for name, bound, step in (("Maximum", "maximum", -1), ("Minimum", "minimum", 1)):
        limit = schema.pop(f"exclusive{name}", None)
        if limit is None:
            continue
        if schema["type"] == "integer":
            schema[bound] = limit + step
        else:
            schema |= {bound: limit, f"exclusive{name}": True}


def either(name: str, kinds: Mapping[int, str], components: Mapping[str, Any]) -> dict[str, Any]:
    """An object with the fields of several, as ``kinds`` names them by status of an answer. What
    not all of them have may be missing."""
    properties: dict[str, Any] = {}
    for kind in kinds.values():
        for field, schema in components[kind]["properties"].items():
            assert properties.setdefault(field, schema) == schema, (name, field)
    required = [
        field
        for field in properties
        if all(field in components[kind].get("required", ()) for kind in kinds.values())
    ]
    said = "; ".join(f"{status}: the fields of `{kind}`" for status, kind in kinds.items())
    found = {"title": name, "description": f"{said}.", "type": "object", "properties": properties}
    return {**found, "required": required} if required else found


def _find_used(part: Any, schemas: Mapping[str, Any], used: set[str]) -> None:
    """Names of the schemas that a part of the description needs."""
    if isinstance(part, list):
        for one in part:
            _find_used(one, schemas, used)
    elif isinstance(part, dict):
        for name, one in part.items():
            if name != "$ref":
                _find_used(one, schemas, used)
            elif one.startswith(_SCHEMAS) and (to := one.removeprefix(_SCHEMAS)) not in used:
                used.add(to)
                _find_used(schemas[to], schemas, used)
