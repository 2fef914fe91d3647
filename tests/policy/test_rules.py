"""Rules over headers, held against a plain model; and everything that is no rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.rule import DEPTH_MAX, TERMS_MAX, HeaderRule, parse_rule
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.rows import Header

NAMES = st.sampled_from(["region", "kind", "ä", ""])
TEXTS = st.sampled_from(["", "e", "eu", "eu-west", "us", "ä"])
VALUES = st.one_of(st.none(), TEXTS.map(str.encode), st.sampled_from([b"\xff", b"eu\xff", b"\0"]))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5)
NAMED = NAMES.filter(bool)
TESTS = st.one_of(
    st.fixed_dictionaries({"header": NAMED, "equals": TEXTS}),
    st.fixed_dictionaries({"header": NAMED, "in": st.lists(TEXTS, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"header": NAMED, "prefix": TEXTS}),
    st.fixed_dictionaries({"header": NAMED, "exists": st.booleans()}),
)


def combined(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    if depth == DEPTH_MAX:
        return TESTS
    parts = st.lists(st.deferred(lambda: combined(depth + 1)), min_size=1, max_size=3)
    return st.one_of(TESTS, *(st.fixed_dictionaries({one: parts}) for one in ("all", "any")))


def model(rule: dict[str, Any], headers: Sequence[Header]) -> bool:
    """A rule's meaning in a few lines."""
    if "all" in rule:
        return all(model(part, headers) for part in rule["all"])
    if "any" in rule:
        return any(model(part, headers) for part in rule["any"])
    mine = [value for name, value in headers if name == rule["header"]]
    if "exists" in rule:
        return bool(mine) is rule["exists"]
    there = [value for value in mine if value is not None]
    if "prefix" in rule:
        return any(value[: len(p := rule["prefix"].encode())] == p for value in there)
    wanted = rule["in"] if "in" in rule else [rule["equals"]]
    return any(value == text.encode() for value in there for text in wanted)


@given(rule=combined(1), headers=HEADERS)
def test_a_rule_matches_what_it_says(rule: dict[str, Any], headers: list[Header]) -> None:
    parsed = parse_rule(rule)
    assert parsed.matches(headers) is model(rule, headers)
    again = parse_rule(json.loads(str(parsed)))
    assert again == parsed
    assert again.to_dict() == parsed.to_dict()
    assert again.matches(headers) is parsed.matches(headers)


def test_the_order_of_values_makes_no_other_rule() -> None:
    one, other = ({"header": "h", "in": values} for values in (["b", "a", "a"], ["a", "b"]))
    assert parse_rule(one) == parse_rule(other)
    assert parse_rule(one) != parse_rule({"header": "h", "in": ["a", "b", "c"]})


def deep(levels: int, rule: object = None) -> dict[str, Any]:
    found: Any = rule or {"header": "h", "equals": "x"}
    for _ in range(levels - 1):
        found = {"all": [found]}
    return dict(found)


BAD: list[Any] = [
    None,
    True,
    5,
    "header == 'x'",
    [],
    [{"header": "h", "equals": "x"}],
    {},
    {"header": "h"},
    {"equals": "x"},
    {"header": "", "equals": "x"},
    {"header": None, "equals": "x"},
    {"header": 5, "equals": "x"},
    {"header": ["h"], "equals": "x"},
    {"header": "\ud800", "equals": "x"},
    {"header": "h", "equals": 5},
    {"header": "h", "equals": None},
    {"header": "h", "equals": ["x"]},
    {"header": "h", "equals": "\ud800"},
    {"header": "h", "equals": "\udc80"},
    {"header": "h", "equals": "x", "prefix": "y"},
    {"header": "h", "matches": ".*"},
    {"header": "h", "eval": "1"},
    {"header": "h", "in": []},
    {"header": "h", "in": "xyz"},
    {"header": "h", "in": ["x", 5]},
    {"header": "h", "in": ["x"] * (TERMS_MAX + 1)},
    {"header": "h", "prefix": b"x"},
    {"header": "h", "exists": "true"},
    {"header": "h", "exists": 1},
    {"header": "h", "exists": None},
    {"all": []},
    {"any": {}},
    {"all": "x"},
    {"all": [None]},
    {"all": [{"header": "h", "equals": "x"}] * (TERMS_MAX + 1)},
    {"all": [{"header": "h", "equals": "x"}], "any": [{"header": "h", "equals": "x"}]},
    {"not": {"header": "h", "equals": "x"}},
    {"header": "h", "all": [{"header": "h", "equals": "x"}]},
    deep(DEPTH_MAX + 1),
    deep(600),
    {"header": deep(600)},
    {"header": "h", "equals": deep(600)},
    {"header": "h", "in": [deep(600)]},
    {"all": deep(600)},
    {"header": "h", "equals": list(range(100_000))},
    {"x" * 100_000: "y"},
]


@pytest.mark.parametrize("fields", BAD, ids=lambda _: "rule")
def test_what_is_no_rule_gets_an_error_that_says_all(fields: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="rule: ") as caught:
        parse_rule(fields)
    assert caught.value.got
    assert caught.value.limit
    assert "equals" in caught.value.remedy
    assert len(str(caught.value)) < 1000


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=3)),
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(
            st.sampled_from(["all", "any", "header", "equals", "in", "prefix", "exists", "x"]),
            part,
            max_size=3,
        ),
    ),
)


@given(ANYTHING)
def test_anything_is_a_rule_or_the_one_error(fields: object) -> None:
    try:
        rule = parse_rule(fields)
    except InvalidConfiguration:
        return
    assert parse_rule(rule.to_dict()) == rule


def test_nothing_in_a_rule_is_run(tmp_path: Path) -> None:
    there = tmp_path / "run"
    code = f"__import__('pathlib').Path({str(there)!r}).touch()"
    for fields in (
        {"header": code, "equals": code},
        {"header": "h", "prefix": "${" + code + "}"},
        {"header": "h", "in": [code, "{{" + code + "}}", "%s %(x)s {0.__class__}"]},
    ):
        rule = parse_rule(fields)
        assert not rule.matches([("h", b"x"), (code, b"")])
        assert parse_rule(json.loads(str(rule))) == rule
    with pytest.raises(InvalidConfiguration):
        parse_rule(code)
    assert not there.exists()


def test_the_deepest_rule_is_read() -> None:
    assert parse_rule(deep(DEPTH_MAX)).matches([("h", b"x")])


def test_a_null_is_there_and_equals_nothing() -> None:
    headers: list[Header] = [("h", None)]
    assert HeaderRule("h", "exists", ()).matches(headers)
    for test in ("equals", "prefix"):
        assert not parse_rule({"header": "h", test: ""}).matches(headers)
