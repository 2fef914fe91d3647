"""Who holds a place and does nothing with it, or has most of them, leaves one to others."""

from __future__ import annotations

import pytest

from slotwheel.policy.places import who_leaves

ONE, TWO = "10.0.0.1", "10.0.0.2"
HELD = [("a", ONE, -1.0), ("b", ONE, 3.0), ("c", ONE, 1.0), ("d", TWO, 0.5)]


@pytest.mark.parametrize(
    ("host", "places", "leaves"),
    [
        (ONE, [], None),
        (ONE, [*HELD, ("e", TWO, 5.0), ("f", ONE, 9.0)], "f"),
        (ONE, [*HELD, ("e", TWO, 5.0)], "e"),
        (ONE, HELD, None),
        (TWO, HELD, "b"),
        ("10.0.0.3", HELD, "b"),
        ("10.0.0.3", [("a", ONE, -1.0), ("b", ONE, -1.0)], "a"),
        ("10.0.0.3", [("a", ONE, 4.0), ("d", TWO, 4.0)], None),
        (TWO, [("a", ONE, 4.0), ("b", ONE, 4.0), ("d", TWO, 0.0)], None),
    ],
)
def test_who_leaves(host: str, places: list[tuple[str, str, float]], leaves: str | None) -> None:
    assert who_leaves(host, places, 5.0) == leaves
