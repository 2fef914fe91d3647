"""The policies of a group: read from TOML, stored as JSON, changed version by version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.policy.policyset import (
    BYTES_MAX,
    GROUPS_BYTES_MAX,
    GROUPS_MAX,
    RULE_BYTES_MAX,
    PolicySet,
)
from slotwheel.policy.rule import parse_rule
from slotwheel.wheel.errors import InvalidConfiguration, InvalidMessage, SlotwheelError

TOML = """
levels = ["5s", "10s", "1m"]

[policies.orders]
levels = ["1s", "2s", "4s"]
jitter = 0.1
dead-letters = "orders-dead"

[[routes.invoices]]
where = { header = "region", equals = "eu" }
to = ["invoices-eu", "audit"]

[[routes.invoices]]
to = ["audit"]
"""
EU = parse_rule({"header": "region", "equals": "eu"})
US = parse_rule({"header": "region", "equals": "us"})


def read(text: str) -> PolicySet:
    return PolicySet.from_toml(text, "policies.toml")


def test_what_a_file_says() -> None:
    found = read(TOML)
    assert dict(found.levels) == {"5s": 5000, "10s": 10_000, "1m": 60_000}
    assert found.policies["default"].delays_ms == (5000, 10_000, 60_000)
    orders = found.policies["orders"]
    assert (orders.delays_ms, orders.jitter) == ((1000, 2000, 4000), 0.1)
    assert orders.dead_letters == "orders-dead"
    assert found.routes["invoices"].topics([]) == ["audit"]
    assert (found.version, found.groups) == (0, {})


def test_it_stays_the_same_by_json_and_back() -> None:
    found = PolicySet().changed(read(TOML)).registered("billing", EU).registered("all", None)
    again = PolicySet.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert again.to_dict() == found.to_dict()
    assert again.version == 3


def test_an_empty_file_is_what_holds_without_one() -> None:
    assert read("") == PolicySet()
    assert PolicySet.from_dict({}) == PolicySet()
    assert PolicySet.from_dict(PolicySet().to_dict()) == PolicySet()


def test_each_change_is_one_version_further_and_nothing_is_none() -> None:
    first = PolicySet().changed(read(TOML))
    assert first.version == 1
    assert first.changed(read(TOML)) is first
    assert first.changed(read(TOML + "\n# a comment")) is first
    second = first.changed(read(TOML.replace('"10s", ', "")))
    assert (second.version, second.policies["default"].delays_ms) == (2, (5000, 60_000))
    assert second.changed(read("")).version == 3
    assert PolicySet().changed(read("")).version == 0


def test_a_group_keeps_its_rule_until_it_is_forgotten() -> None:
    found = PolicySet().registered("g", EU)
    assert found.registered("g", parse_rule(EU.to_dict())) is found
    with pytest.raises(InvalidMessage, match="another rule") as caught:
        found.registered("g", US)
    assert "us" in str(caught.value.got)
    assert "eu" in str(caught.value.limit)
    assert "slotwheel routes forget g" in caught.value.remedy
    with pytest.raises(InvalidMessage) as caught:
        found.registered("g", None)
    assert caught.value.got == "no rule"
    gone = found.forgotten("g")
    assert (gone.version, gone.groups) == (2, {})
    assert gone.forgotten("g") is gone
    assert gone.registered("g", US).groups == {"g": US}
    everything = gone.registered("g", None)
    assert everything.registered("g", None) is everything
    with pytest.raises(InvalidMessage, match="another rule") as caught:
        everything.registered("g", EU)
    assert caught.value.limit == "no rule"


def test_a_file_changes_no_group() -> None:
    found = PolicySet().registered("g", EU).changed(read(TOML))
    assert found.groups == {"g": EU}
    with pytest.raises(InvalidConfiguration, match="no such setting") as caught:
        read("[groups]\ng = { header = 'region', equals = 'eu' }")
    assert caught.value.got == "groups"


def test_too_many_groups() -> None:
    groups = {f"g{n}": None for n in range(GROUPS_MAX)}
    full = PolicySet.from_dict({"groups": groups, "version": 1000})
    assert full.registered("g7", None) is full
    with pytest.raises(InvalidConfiguration, match="too many consumer groups") as caught:
        full.registered("more", None)
    assert str(GROUPS_MAX) in str(caught.value.limit)
    assert full.forgotten("g7").registered("more", None).version == 1002


def test_rules_of_groups_are_small_and_leave_room_for_the_policies() -> None:
    for nbytes in (RULE_BYTES_MAX, 200_000):
        rule = parse_rule({"header": "h", "equals": "x" * nbytes})
        with pytest.raises(InvalidConfiguration, match="rule of consumer group g is too large"):
            PolicySet().registered("g", rule)
    rule = parse_rule({"header": "h", "equals": "x" * (RULE_BYTES_MAX - 100)})
    found = PolicySet()
    for number in range(GROUPS_BYTES_MAX // RULE_BYTES_MAX):
        found = found.registered(f"g{number}", rule)
    with pytest.raises(InvalidConfiguration, match="too many consumer groups"):
        found.registered("another", rule)
    assert found.registered("g0", rule) is found
    assert "orders" in found.changed(read(TOML)).policies, "the other half is the policies'"


def test_too_large_for_an_entry() -> None:
    values = [str(n) * 40 for n in range(100)]
    branch = {"where": {"header": "h", "in": values}, "to": ["t"]}
    routes = {f"r{n}": [branch] for n in range(50)}
    wanted = PolicySet.from_dict({"routes": routes})
    with pytest.raises(InvalidConfiguration, match="too large") as caught:
        PolicySet().changed(wanted)
    assert caught.value.limit == f"{BYTES_MAX} bytes"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("levels = [", "is not TOML"),
        ("\0", "is not TOML"),
        ("a = " + "[" * 50_000, "is not TOML"),
        ("a = " + "{a=" * 50_000, "is not TOML"),
        ("levles = []", "no such setting"),
        ("version = 3", "no such setting"),
        ("levels = '5s'", "not a list of levels"),
        ("levels = ['5s', '5 seconds']", "not a time span"),
        ("levels = ['5s', '1s', '5s']", "twice"),
        ("levels = [5]", "a level that is no text"),
        ("policies = ['1s']", "policies is not a table"),
        ("policies.p = '1s'", "policy p: not a policy"),
        ("policies.p.levels = ['1s']\npolicies.p.jitter = nan", "no usable jitter"),
        ("policies.p.levels = ['1s']\npolicies.p.dead-letters = 5", "no usable dead-letters"),
        ("policies.'1s'.levels = ['1s']", "unusable name of a policy"),
        ("[[policies.p]]\nlevels = ['1s']", "not a policy"),
        ("routes = 5", "routes is not a table"),
        ("[routes.r]\nto = ['t']", "route r: not a list of branches"),
        ("[[routes.r]]\nto = ['t']\nwhere = \"header == 'x'\"", "rule: not a rule"),
        ("[[routes.r]]\nto = ['t']\nwhere = 2026-11-23", "rule: not a rule"),
        ("[[routes.'r r']]\nto = ['t']", "unusable name of a route"),
    ],
)
def test_what_a_file_may_not_say(text: str, match: str) -> None:
    with pytest.raises(InvalidConfiguration, match=match) as caught:
        read(text)
    assert caught.value.remedy
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        "policies",
        {"version": "3"},
        {"version": -1},
        {"version": True},
        {"version": 1.5},
        {"groups": []},
        {"groups": {"g": "x"}},
        {"groups": {"g": {"header": "h", "equals": "\udc80"}}},
        {"more": 1},
    ],
)
def test_what_no_node_stores(fields: Any) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        PolicySet.from_dict(fields)
    assert caught.value.remedy


KEYS = st.sampled_from(["version", "levels", "policies", "routes", "groups", "orders", "to"])
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(KEYS, part, max_size=4)),
)


@given(JSON)
def test_anything_is_policies_or_one_of_our_errors(fields: object) -> None:
    try:
        found = PolicySet.from_dict(fields)
    except SlotwheelError:
        return
    assert PolicySet.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("levels = ['5s', '11m']", "level 11m"),
        ("policies.p.levels = ['11m']", "policy p, level 11m"),
        ("policies.p.levels = ['9m']\npolicies.p.jitter = 0.2", "policy p, level 9m"),
    ],
)
def test_delays_that_no_message_can_have(text: str, name: str) -> None:
    horizon_ms = 10 * 60_000
    with pytest.raises(InvalidConfiguration, match=f"{name}: beyond the horizon") as caught:
        read(text).check_horizon(horizon_ms)
    assert caught.value.limit == "600000 ms"
    assert "--horizon" in caught.value.remedy
    read(text).check_horizon(2 * horizon_ms)


def test_levels_that_nobody_chose_may_be_beyond_it() -> None:
    read("policies.p.levels = ['1s']").check_horizon(1000)
