"""Which wheel a key goes to: alike in every program, in equal shares, and few keys move."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.fleet.routing import BUCKETS, Routing, bucket_of

NAMES = st.lists(
    st.text("abcxyz019_-", min_size=1, max_size=8), min_size=1, max_size=12, unique=True
)


@pytest.mark.parametrize(
    ("place", "wheel"),
    [
        (b"order-17", "south"),
        (b"order-18", "north"),
        (b"", "west"),
        (b"n", "north"),
    ],
)
def test_every_version_sends_a_key_to_the_same_wheel(place: bytes, wheel: str) -> None:
    assert Routing(["north", "south", "west"]).wheel_of(place) == wheel


@given(NAMES, st.randoms())
def test_the_order_of_the_file_decides_nothing(names: list[str], random: object) -> None:
    mixed = sorted(names)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = Routing(names), Routing(mixed)
    for bucket in range(0, BUCKETS, 997):
        assert one.wheels[one.owner[bucket]] == other.wheels[other.owner[bucket]]


@given(NAMES.filter(lambda names: len(names) > 1), st.data())
def test_without_a_wheel_only_its_own_keys_move_and_to_the_next_of_the_rank(
    names: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(names))
    whole, rest = Routing(names), Routing([name for name in names if name != gone])
    for number in range(200):
        place = f"key {number}".encode()
        ranked = whole.ranked(place)
        assert ranked[0] == whole.wheel_of(place)
        assert sorted(ranked) == sorted(names)
        expected = ranked[1] if ranked[0] == gone else ranked[0]
        assert rest.wheel_of(place) == expected


@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_wheels_get_equal_shares_of_the_keys(count: int) -> None:
    names = [f"wheel-{number}" for number in range(count)]
    routing = Routing(names)
    shares = Counter(routing.wheel_of(f"order-{number}".encode()) for number in range(40_000))
    for name in names:
        assert abs(shares[name] * count / 40_000 - 1) < 0.15


def test_a_bucket_is_a_number_of_the_table() -> None:
    assert {bucket_of(str(number).encode()) >= 0 for number in range(1000)} == {True}
    assert max(bucket_of(str(number).encode()) for number in range(100_000)) < BUCKETS
