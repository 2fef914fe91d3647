"""The description holds to what generators of clients read alike: each rule, wherever it can be
broken. Clients that are made of it: ``test_generated_clients.py``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs/openapi.json"
DESCRIPTION: dict[str, Any] = json.loads(PAGE.read_text())
SCHEMAS: dict[str, Any] = DESCRIPTION["components"]["schemas"]
OPERATIONS: dict[str, dict[str, Any]] = {
    f"{method.upper()} {path}": operation
    for path, methods in DESCRIPTION["paths"].items()
    for method, operation in methods.items()
}
_WITHIN = ("properties", "schemas")
"""What holds schemas by name."""


def schemas(part: Any = DESCRIPTION, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas with their places."""
    if isinstance(part, list):
        for number, one in enumerate(part):
            yield from schemas(one, f"{place}/{number}")
    elif isinstance(part, dict):
        for name, one in part.items():
            where = f"{place}/{name}"
            if name in _WITHIN:
                for inner, schema in one.items():
                    yield f"{where}/{inner}", schema
                    yield from schemas(schema, f"{where}/{inner}")
                continue
            if name in ("schema", "items", "additionalProperties") and isinstance(one, dict):
                yield where, one
            yield from schemas(one, where)


def broken(*, rule: Any) -> list[str]:
    return [place for place, schema in schemas() if not rule(schema)]


def test_every_schema_is_one_that_generators_read_alike() -> None:
    assert len(list(schemas())) > 300
    assert not broken(rule=lambda one: one.get("type") != "integer" or one["format"] == "int64")
    assert not broken(rule=lambda one: one.get("type") != "number" or one["format"] == "double")
    assert not broken(rule=lambda one: not {"anyOf", "oneOf", "not", "prefixItems"} & one.keys())
    assert not broken(rule=lambda one: isinstance(one.get("type", ""), str))
    assert not broken(rule=lambda one: "default" not in one or one["default"] not in (None, "", []))
    assert not broken(rule=lambda one: "enum" not in one or one["type"] == "string")
    assert not broken(rule=lambda one: one.get("type") != "array" or "items" in one)
    assert not broken(rule=lambda one: "$ref" not in one or one.keys() == {"$ref"})
    assert not broken(rule=lambda one: one.get("required") != [])
    assert not broken(
        rule=lambda one: (
            not isinstance(one.get("exclusiveMaximum", True), int | float)
            or one.get("exclusiveMaximum", True) is True
        )
    )
    # A type that a field may have beside null is one type: one reference, or the type itself.
    assert not broken(rule=lambda one: "allOf" not in one or len(one["allOf"]) == 1)


def test_every_object_with_fields_has_a_name() -> None:
    unnamed = [
        place
        for place, schema in schemas()
        if "properties" in schema and not re.fullmatch(r"/components/schemas/\w+", place)
    ]
    assert not unnamed
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+[0-9]*", name) for name in SCHEMAS)
    used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DESCRIPTION)))
    assert used == SCHEMAS.keys()


def test_every_operation_has_a_name_of_its_own_and_schemas_for_its_parameters() -> None:
    names = [one["operationId"] for one in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name)] == []
    assert {"sendMessage", "searchMessages", "cancelMessage", "rescheduleMessage"} <= set(names)
    for name, one in OPERATIONS.items():
        for parameter in one.get("parameters", []):
            assert parameter["schema"], (name, parameter["name"])
    declared = {one["name"] for one in OPERATIONS["POST /v1/messages"]["parameters"]}
    assert "Idempotency-Key" in declared


def test_every_answer_that_is_no_error_is_one_schema_and_every_error_another() -> None:
    of_errors = {"$ref": "#/components/schemas/ErrorBody"}
    for name, one in OPERATIONS.items():
        done: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for status, response in one["responses"].items():
            named = DESCRIPTION["components"]["responses"].get(status)
            whole = named if "$ref" in response else response
            if status == "204":
                assert "content" not in whole, name
                continue
            (done if status < "300" else failed).append(whole["content"])
        # With two, a client in TypeScript has either, and has to find out which.
        assert all(len(content) == 1 for content in done), name
        as_json = [
            content["application/json"]["schema"]
            for content in done
            if "application/json" in content
        ]
        assert all(schema == as_json[0] for schema in as_json), name
        assert all(content == {"application/json": {"schema": of_errors}} for content in failed), (
            name
        )
    assert "compressed" in DESCRIPTION["components"]["responses"]["415"]["description"]
