"""Routes: from a message's headers to its topics, and what is no route."""

from __future__ import annotations

from typing import Any

import pytest

from slotwheel.policy.routes import TARGETS_MAX, Route, find_route
from slotwheel.policy.rule import TERMS_MAX
from slotwheel.wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError

EU = {"header": "region", "equals": "eu"}
INVOICES = Route.parse(
    "invoices",
    [
        {"where": EU, "to": ["invoices-eu", "audit"]},
        {"where": {"header": "kind", "prefix": "big"}, "to": ["audit", "big"]},
        {"where": {"header": "test", "exists": True}, "to": ["test"]},
    ],
)


@pytest.mark.parametrize(
    ("headers", "topics"),
    [
        ([("region", b"eu")], ["invoices-eu", "audit"]),
        ([("kind", b"bigger")], ["audit", "big"]),
        ([("kind", b"big"), ("region", b"us"), ("region", b"eu")], ["invoices-eu", "audit", "big"]),
        ([("test", None)], ["test"]),
    ],
)
def test_all_branches_that_match_add_their_topics_once_each(
    headers: list[tuple[str, bytes | None]], topics: list[str]
) -> None:
    assert INVOICES.topics(headers) == topics


def test_a_branch_without_a_rule_takes_each_message() -> None:
    route = Route.parse("r", [{"where": EU, "to": ["eu"]}, {"to": ["all"]}])
    assert route.topics([]) == ["all"]
    assert route.topics([("region", b"eu")]) == ["eu", "all"]


def test_a_message_that_no_branch_takes_is_told_what_it_had() -> None:
    with pytest.raises(InvalidMessage, match="route invoices: no rule matches") as caught:
        INVOICES.topics([("region", b"us"), ("x", None)])
    assert caught.value.got == "region=b'us', x=None"
    assert caught.value.remedy
    with pytest.raises(InvalidMessage) as caught:
        INVOICES.topics([("x" * 1000, b"y" * 1000)] * 1000)
    assert len(str(caught.value)) < 1000


def test_an_unknown_route_is_told_which_there_are() -> None:
    with pytest.raises(InvalidMessage, match="no such route") as caught:
        find_route({"b": INVOICES, "a": INVOICES}, "c" * 1000)
    assert caught.value.limit == "one of a, b"
    assert len(caught.value.got) < 100
    with pytest.raises(InvalidMessage, match="there are no routes"):
        find_route({}, "a")


def deep(levels: int) -> Any:
    found: Any = EU
    for _ in range(levels):
        found = {"any": [found]}
    return found


@pytest.mark.parametrize(
    "branches",
    [
        None,
        {},
        {"to": ["t"]},
        "t",
        [],
        [None],
        ["t"],
        [{}],
        [{"where": EU}],
        [{"to": []}],
        [{"to": "t"}],
        [{"to": [5]}],
        [{"to": [None]}],
        [{"to": ["a b"]}],
        [{"to": [""]}],
        [{"to": ["t"], "when": EU}],
        [{"to": ["t"], "where": []}],
        [{"to": ["t"], "where": False}],
        [{"to": ["t"], "where": {}}],
        [{"to": ["t"], "where": deep(600)}],
        [{"to": deep(600)}],
        [{"to": ["t"]}] * (TERMS_MAX + 1),
        [{"to": [f"t{n}" for n in range(TARGETS_MAX + 1)]}],
        [{"to": [f"t{n}" for n in range(start, start + 40)]} for start in (0, 40)],
    ],
    ids=lambda _: "route",
)
def test_what_is_no_route_gets_an_error_that_says_all(branches: Any) -> None:
    with pytest.raises(SlotwheelError) as caught:
        Route.parse("r", branches)
    assert caught.value.got is not None
    assert caught.value.limit
    assert caught.value.remedy
    assert len(str(caught.value)) < 1000


def test_the_name_of_a_route() -> None:
    with pytest.raises(InvalidConfiguration, match="name of a route"):
        Route.parse("no route", [{"to": ["t"]}])


def test_a_route_reads_as_it_was_written() -> None:
    written = [{"where": EU, "to": ["a", "b"]}, {"to": ["c"]}]
    route = Route.parse("r", written)
    assert route.to_list() == written
    assert Route.parse("r", route.to_list()) == route


def test_as_many_topics_as_there_may_be() -> None:
    topics = [f"t{n}" for n in range(TARGETS_MAX)]
    assert Route.parse("r", [{"to": topics}, {"to": topics[:3]}]).topics([]) == topics
