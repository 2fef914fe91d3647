"""Who the peers are: lists that are taken, and lists that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from slotwheel.replication.rules.group import PEERS_MAX, Group
from slotwheel.wheel.errors import InvalidConfiguration
from slotwheel.wheel.protocol import split_address

THREE = {"a": "10.0.0.1:7200", "b": "10.0.0.2:7200", "c": "10.0.0.3:7200"}


def test_a_group_knows_itself_the_others_and_its_majority() -> None:
    group = Group("b", THREE)
    assert group.others == ("a", "c")
    assert group.address == "10.0.0.2:7200"
    assert (group.majority, group.warnings) == (2, ())


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majorities(count: int, majority: int) -> None:
    group = Group("n0", {f"n{n}": f"host{n}:1" for n in range(count)})
    assert group.majority == majority
    assert bool(group.warnings) == (count % 2 == 0)


def test_the_list_that_was_handed_in_can_change_no_group() -> None:
    peers = dict(THREE)
    group = Group("a", peers)
    peers["d"] = "10.0.0.4:7200"
    assert dict(group.peers) == THREE
    with pytest.raises(TypeError):
        group.peers["d"] = "10.0.0.4:7200"  # type: ignore[index]


def test_texts_of_the_command_line() -> None:
    group = Group.parse("a", ["c=10.0.0.3:7200", "a=10.0.0.1:7200", " b = 10.0.0.2:7200 "])
    assert dict(group.peers) == THREE
    assert list(group.peers) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["a=h1:1", "b=h2:1", "a=h3:1"], "named twice"),
        (["a=h1:1", "a=h1:1"], "named twice"),
        (["a"], "ID=HOST:PORT"),
        (["b=h1:1"], "not among its peers"),
        ([], "not among its peers"),
        (["a=h1:1", "b=h1:1"], "same address"),
        (["a=h1:1", "b=H1:1"], "same address"),
        (["a=h1"], "not usable"),
        (["a=h1:0"], "not usable"),
        (["a=h1:65536"], "not usable"),
        (["a=h1:²"], "not usable"),
        (["a=:1"], "not usable"),
        (["a=::1:1"], "not usable"),
        (["a=grpc://h1:1"], "not usable"),
        (["a=h1 :1"], "not usable"),
        (["a=0.0.0.0:1"], "names no machine"),
        (["a=[::]:1"], "names no machine"),
        (["=h1:1"], "node id"),
        (["a b=h1:1"], "node id"),
        (["ä=h1:1"], "node id"),
        (["a" * 65 + "=h1:1"], "node id"),
        ([f"{n}=h{n}:1" for n in "abcdefgh"], f"limit {PEERS_MAX}"),
    ],
)
def test_what_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says.replace(".", r"\.")):
        Group.parse("a", texts)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("h:1", ("h", 1)), ("[::1]:7200", ("::1", 7200)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_addresses(address: str, expected: Any) -> None:
    assert split_address(address) == expected
