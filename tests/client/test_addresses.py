"""Which address comes next: hints first, then in turn, each once a round."""

from __future__ import annotations

import pytest

from slotwheel.client.addresses import DOUBT_S, HINTS_MAX, Addresses, split
from slotwheel.wheel.errors import (
    NodeUnreachable,
    NotMaster,
    Overloaded,
    SlotwheelError,
    Unauthenticated,
    UnsupportedVersion,
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def standby(master: str = "") -> NotMaster:
    return NotMaster(master=master)


AWAY = NodeUnreachable("connection refused")
UNKNOWN = Unauthenticated()
OLD = UnsupportedVersion("version 9")


def visited(addresses: Addresses, error: SlotwheelError, count: int) -> list[str]:
    """The addresses tried when each gives the same error; ``|`` for a pause."""
    seen = []
    for _ in range(count):
        seen.append(addresses.current)
        if not addresses.failed(addresses.current, error):
            seen.append("|")
    return seen


def test_lists_are_split_and_each_address_counts_once() -> None:
    assert split("a:1") == ("a:1",)
    assert split(" a:1, b:2,,a:1 ") == ("a:1", "b:2")
    assert split(["a:1,b:2", "c:3", "[::1]:4"]) == ("a:1", "b:2", "c:3", "[::1]:4")
    assert split("") == ("",)


def test_in_turn_with_a_pause_after_each_round() -> None:
    addresses = Addresses("a,b,c", Clock())
    assert visited(addresses, standby(), 7) == ["a", "b", "c", "|", "a", "b", "c", "|", "a"]
    assert visited(Addresses("a", Clock()), standby(), 2) == ["a", "|", "a", "|"]


def test_a_hint_comes_first_and_may_be_a_new_address() -> None:
    addresses = Addresses("a,b,c", Clock())
    assert addresses.failed("a", standby("c"))
    assert addresses.current == "c"
    assert addresses.failed("c", standby("x"))
    assert addresses.current == "x"
    assert addresses.failed("x", AWAY)
    assert addresses.current == "b"
    assert not addresses.failed("b", standby("x"))  # nobody is at x, whatever b says
    assert addresses.current != "x"


def test_one_address_with_a_hint_comes_back_to_its_own() -> None:
    addresses = Addresses("a", Clock())
    assert addresses.failed("a", standby("m"))
    addresses.served()
    assert addresses.failed("m", AWAY)
    assert addresses.current == "a"


def test_peers_that_point_at_each_other_are_asked_once_a_round() -> None:
    addresses = Addresses("a,b", Clock())
    pauses = 0
    for _ in range(100):
        other = "b" if addresses.current == "a" else "a"
        pauses += not addresses.failed(addresses.current, standby(other))
    assert pauses == 50


def test_hints_without_end_end() -> None:
    addresses = Addresses("a", Clock())
    at_once = 0
    while addresses.failed(addresses.current, standby(f"x{at_once}")):
        at_once += 1
    assert at_once <= HINTS_MAX + 1


def test_the_next_round_begins_at_the_last_hint() -> None:
    """A peer that was just elected does not serve yet; the others name it already."""
    addresses = Addresses("a,b,c", Clock())
    assert addresses.failed("a", standby("b"))
    assert addresses.failed("b", standby("b"))
    assert not addresses.failed("c", standby("b"))
    assert addresses.current == "b"


def test_who_does_not_answer_is_left_out_for_a_while() -> None:
    clock = Clock()
    addresses = Addresses("a,b,c", clock)
    assert addresses.failed("a", AWAY)
    assert visited(addresses, standby("a"), 4) == ["b", "c", "|", "b", "c", "|"]
    clock.now_s += DOUBT_S + 0.1
    assert "a" in visited(addresses, standby("a"), 2)


def test_a_broken_connection_alone_is_no_reason_for_doubt() -> None:
    addresses = Addresses("a,b", Clock())
    assert addresses.failed("a", AWAY, doubt=False)
    assert not addresses.failed("b", standby("a"))
    assert addresses.current == "a"


def test_when_nobody_answers_all_are_tried_nevertheless() -> None:
    addresses = Addresses("a,b,c", Clock())
    seen = visited(addresses, AWAY, 12)
    assert {"a", "b", "c"} <= set(seen)
    assert seen.count("|") >= 4


def test_what_will_not_change_is_hopeless_when_all_say_it() -> None:
    addresses = Addresses("a,b", Clock())
    wrong = UnsupportedVersion("version 9")
    assert addresses.failed("a", wrong)
    seen = [addresses.hopeless]
    assert not addresses.failed("b", wrong)
    seen.append(addresses.hopeless)
    addresses.failed("a", AWAY)
    seen.append(addresses.hopeless)
    assert seen == [False, True, False]


@pytest.mark.parametrize(
    ("said", "is_the_last", "answer"),
    [
        ((UNKNOWN, UNKNOWN, UNKNOWN), True, Unauthenticated),
        ((UNKNOWN, AWAY, AWAY), True, Unauthenticated),  # they have the same security file
        ((AWAY, UNKNOWN, AWAY), True, Unauthenticated),
        ((OLD, UNKNOWN, AWAY), True, Unauthenticated),
        ((OLD, OLD, OLD), True, UnsupportedVersion),
        ((OLD, OLD, AWAY), False, NodeUnreachable),  # each has a version of its own
        ((UNKNOWN, UNKNOWN, standby()), False, NodeUnreachable),  # which knows who called
        ((UNKNOWN, Overloaded("full"), AWAY), False, NodeUnreachable),
        ((AWAY, AWAY, AWAY), False, NodeUnreachable),
    ],
)
def test_a_round_in_which_nobody_knows_the_caller_is_the_last(
    said: tuple[SlotwheelError, ...], is_the_last: bool, answer: type[SlotwheelError]
) -> None:
    addresses = Addresses("a:1,b:2,c:3", Clock())
    for address, error in zip(addresses.given, said, strict=True):
        assert not addresses.hopeless
        assert addresses.current == address
        addresses.failed(address, error)
    assert addresses.hopeless == is_the_last
    explained = addresses.explain(said[-1])
    assert type(explained) is answer
    assert all(f"{address}: " in str(explained) for address in addresses.given)
    addresses.served()
    assert not addresses.hopeless


def test_what_was_said_before_this_round_is_not_the_end() -> None:
    """The caller is known again, at all of them, and the first one dies just then."""
    addresses = Addresses("a,b", Clock())
    seen = []
    for address, error in zip("abab", (UNKNOWN, UNKNOWN, AWAY, standby()), strict=True):
        addresses.failed(address, error)
        seen.append(addresses.hopeless)
    assert seen == [False, True, False, False]


def test_the_error_names_each_address_and_what_it_said() -> None:
    addresses = Addresses("a:1,b:2,c:3", Clock())
    addresses.failed("a:1", AWAY)
    addresses.failed("b:2", standby("c:3"))
    addresses.failed("c:3", standby())
    error = addresses.explain(AWAY)
    assert isinstance(error, NodeUnreachable)
    for part in ("a:1: connection refused", "b:2: a standby, the master is c:3", "c:3: a standby"):
        assert part in str(error)
    alone = Addresses("a:1", Clock())
    alone.failed("a:1", AWAY)
    assert alone.explain(AWAY) is AWAY


def test_an_error_from_an_address_that_was_left_already_changes_nothing() -> None:
    addresses = Addresses("a,b,c", Clock())
    assert addresses.failed("a", AWAY)
    assert addresses.failed("a", AWAY)
    assert addresses.current == "b"
