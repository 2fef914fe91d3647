"""Pages over several wheels are those of one wheel with all messages, however they are split."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.front.asking import problem_of
from slotwheel.gateway.v1.found import FoundMessage
from slotwheel.gateway.v1.joining import joined_counts
from slotwheel.gateway.v1.pending import FoundMessages, PendingCounts, SlotCount
from slotwheel.gateway.v1.searching import found_page
from slotwheel.reading.search.query import PageKey, Query
from slotwheel.wheel.errors import NodeUnreachable

WHEELS = ("B", "a", "a-b", "ab")
"""Names of which some begin others, in the order of pages."""
Place = tuple[int, str, int]
"""Of a message in pages: its due time, its wheel, its offset."""


class WheelsInMemory:
    """Stands for the gateways of wheels. ``dues``: of each wheel's messages, by their offsets;
    ``page_max``: a wheel ends its pages there, as it does where messages are large; ``away``: who
    does not answer."""

    def __init__(
        self, dues: Mapping[str, Sequence[int]], page_max: Mapping[str, int], away: Sequence[str]
    ) -> None:
        self._places = {
            name: sorted((due, offset) for offset, due in enumerate(each))
            for name, each in dues.items()
        }
        self._page_max = page_max
        self._away = away
        self.rows_asked = 0

    async def ask_each(
        self, questions: Mapping[str, str], _: object, *, topics: object
    ) -> tuple[dict[str, FoundMessages], list[str]]:
        del topics
        answers = {
            name: self._page(name, path)
            for name, path in questions.items()
            if name not in self._away
        }
        return answers, [
            problem_of(name, NodeUnreachable("it is away"))
            for name in questions
            if name in self._away
        ]

    def _page(self, wheel: str, path: str) -> FoundMessages:
        asked = parse_qs(urlsplit(path).query)
        limit = int(asked.get("limit", ["100"])[0])
        self.rows_asked += limit
        after = PageKey.parse(asked["page"][0]).row if "page" in asked else None
        behind = [place for place in self._places[wheel] if after is None or place > after]
        shown = behind[: min(limit, self._page_max[wheel])]
        following = str(PageKey(*shown[-1])) if len(shown) < len(behind) else None
        messages = [FoundMessage(message_id(wheel, *place), place[0], 0, "t") for place in shown]
        return FoundMessages(following, True, len(shown), None, [], False, messages=messages)


def message_id(wheel: str, due: int, offset: int) -> str:
    return f"{wheel}.{due}.{offset}.1f3a9c07d2b86e45"


def services_over(wheels: WheelsInMemory, names: Sequence[str]) -> Any:
    """What a request for a page uses of the gateway's services."""
    return SimpleNamespace(
        front=SimpleNamespace(names=tuple(names), ask_each=wheels.ask_each),
        patterns_for=lambda _: None,
        run=asyncio.to_thread,
    )


def all_pages(services: Any, limit: int) -> list[FoundMessages]:
    async def pages() -> list[FoundMessages]:
        found: list[FoundMessages] = []
        after = None
        while True:
            found.append(await found_page(services, Query(), after, limit))
            assert len(found) < 60, "pages that go round"
            if (following := found[-1].next) is None:
                return found
            after = PageKey.parse(following)

    return asyncio.run(pages())


few = st.lists(st.integers(-3, 3), max_size=8)


@given(
    dues=st.fixed_dictionaries(dict.fromkeys(WHEELS, few)),
    page_max=st.fixed_dictionaries(dict.fromkeys(WHEELS, st.integers(1, 9))),
    limit=st.integers(1, 12),
    away=st.sets(st.sampled_from(WHEELS), max_size=2),
)
def test_each_message_is_on_one_page_and_in_its_place(
    dues: dict[str, list[int]], page_max: dict[str, int], limit: int, away: set[str]
) -> None:
    pages = all_pages(services_over(WheelsInMemory(dues, page_max, sorted(away)), WHEELS), limit)
    expected: list[Place] = sorted(
        (due, name, offset)
        for name in WHEELS
        if name not in away
        for offset, due in enumerate(dues[name])
    )
    found = list(itertools.chain.from_iterable(page.messages for page in pages))
    assert [each.id for each in found] == [message_id(name, due, n) for due, name, n in expected]
    for page in pages:
        assert len(page.messages) <= limit
        assert page.complete == (not away)
        assert all(any(name in text for text in page.problems) for name in away)
    if not away and min(page_max.values()) >= limit:
        assert all(len(page.messages) == limit for page in pages[:-1])


def test_a_page_of_one_wheel_is_not_gone_on_with_over_all() -> None:
    """Otherwise messages that are due together with its last one would come twice."""
    services = services_over(WheelsInMemory({"a": [5, 5]}, {"a": 9}, ()), ("a",))
    with pytest.raises(HttpError) as error:
        asyncio.run(found_page(services, Query(), PageKey(5, 0), 10))
    assert (error.value.status, error.value.place, error.value.got) == (422, "query page", "5,0")


def test_what_many_wheels_are_asked_for_at_a_time_is_bounded() -> None:
    names = [f"w{number:03}" for number in range(100)]
    wheels = WheelsInMemory({name: [1] * 9 for name in names}, dict.fromkeys(names, 10_000), ())
    pages = all_pages(services_over(wheels, names), 10_000)
    assert sum(len(page.messages) for page in pages) == 900
    assert wheels.rows_asked <= 30_000 * len(pages)


def test_counts_are_sums() -> None:
    def counted(total: int, slots: list[SlotCount], topics: dict[str, int]) -> PendingCounts:
        return PendingCounts(total, True, total, None, [], slots=slots, topics=topics)

    both = {
        "a": counted(3, [SlotCount(0, 1, 1), SlotCount(0, 2, 3600)], {"t": 3}),
        "b": counted(4, [SlotCount(0, 4, 1)], {"t": 1, "u": 3}),
    }
    total = joined_counts(both, "slot", [])
    assert (total.messages, total.looked_through, total.complete) == (7, 7, True)
    assert total.slots == [SlotCount(0, 5, 1), SlotCount(0, 2, 3600)]
    assert joined_counts(both, "topic", []).topics == {"t": 4, "u": 3}
    assert not joined_counts(both, None, ["the wheel c is missing: …"]).complete
