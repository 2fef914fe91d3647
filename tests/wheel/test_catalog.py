"""The catalog: what there is at one instant, in order, and changed beside the lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.wheel.config import TICK_MS
from slotwheel.wheel.slots.catalog import Catalog
from slotwheel.wheel.slots.slot import (
    DAY_S,
    HOUR_S,
    ends_ms,
    first_second,
    seconds_of,
    slot_with,
    width_s,
)
from slotwheel.wheel.state import SlotInfo
from support.wheels import NOW, Node, many

wide = [slot_with(n * HOUR_S, HOUR_S) for n in range(3)] + [slot_with(0, DAY_S)]
slots = st.integers(-3, 12) | st.sampled_from(wide)
infos = st.builds(
    SlotInfo,
    st.integers(1, 999),
    st.integers(1, 99),
    st.integers(0, 9),
    st.integers(0, 99),
    st.integers(0, 9),
)
changes = st.lists(
    st.tuples(st.just("with"), st.dictionaries(slots, infos))
    | st.tuples(st.just("without"), st.dictionaries(slots, infos)),
    max_size=8,
)


def assert_is(catalog: Catalog, known: Mapping[int, SlotInfo]) -> None:
    """All that a catalog answers is what a sorted dictionary would."""
    assert dict(catalog) == known
    assert list(catalog) == sorted(known)
    assert len(catalog) == len(known)
    assert catalog.rows == sum(info.rows for info in known.values())
    assert catalog.nbytes == sum(info.length for info in known.values())
    in_time = sorted(known, key=lambda slot: (first_second(slot), width_s(slot)))
    assert [catalog.following(slot) for slot in (None, *in_time)] == [*in_time, None]
    for second in (*range(-5, 15), HOUR_S - 1, HOUR_S, 5 * HOUR_S):
        assert catalog.get(second) == known.get(second)
        of_second = {slot: info for slot, info in known.items() if second in seconds_of(slot)}
        assert catalog.with_rows_of(second) == of_second
        assert catalog.upto(second) == sorted(s for s in known if first_second(s) <= second)
        assert catalog.behind(second) == min((s for s in known if s > second), default=None)
        overlap = [s for s in sorted(known) if first_second(s) <= second + 4]
        overlap = [s for s in overlap if seconds_of(s)[-1] >= second]
        assert list(catalog.within(second, second + 4)) == overlap
        ahead = [s for s in sorted(known) if ends_ms(s) > second * TICK_MS]
        assert catalog.next_slots(second) == [
            next(slots) for _, slots in groupby(ahead, key=width_s)
        ]


@given(st.dictionaries(slots, infos), changes)
def test_a_catalog_is_a_sorted_dictionary_whose_past_stays(
    first: dict[int, SlotInfo], steps: list[tuple[str, dict[int, SlotInfo]]]
) -> None:
    taken = [(Catalog(first), dict(first))]
    for step, changed in steps:
        catalog, known = taken[-1]
        if step == "with":
            taken.append((catalog.with_files(changed), known | changed))
        else:
            gone = changed.keys() & known.keys()
            taken.append((catalog.without(gone), {s: known[s] for s in known if s not in gone}))
    for catalog, known in taken:
        assert_is(catalog, known)


def test_the_catalog_changes_beside_the_lock(usual: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer the more slots there are keeps no append waiting."""
    wheel = usual.wheel
    lock: Any = wheel._lock
    made: set[str] = set()

    def beside(name: str) -> Callable[..., object]:
        real = getattr(Catalog, name)

        def checked(*arguments: object) -> object:
            assert not lock._is_owned()
            made.add(name)
            result: object = real(*arguments)
            return result

        return checked

    linear = ("__init__", "__iter__", "with_files", "without", "upto")
    for name in linear:
        monkeypatch.setattr(Catalog, name, beside(name))
    usual.send([*many(0, 9, NOW + 500), *many(9, 9, NOW + 90_000)], NOW)
    wheel.spill(NOW, everything=True)
    usual.send([(NOW + 800, "t", b"late")], NOW)
    wheel.spill(NOW, everything=True)
    assert len(usual.delivered(NOW + 5_000)) == 10
    usual.mark(NOW + 5_000)
    assert wheel.clean(NOW + 5_000) == 1
    assert [*wheel.stock_point().catalog] == [(NOW + 90_000) // 1000]
    assert made == {*linear}
