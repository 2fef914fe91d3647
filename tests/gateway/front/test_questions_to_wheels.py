"""A wheel is asked exactly what the fleet's gateway was asked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slotwheel.gateway.endpoint import QueryDecoder
from slotwheel.gateway.v1.cancellations import CancellationBody, Where
from slotwheel.policy.parameters import query_of
from slotwheel.reading.search.query import CountQuery, PageKey, PageQuery, Query
from slotwheel.wheel.errors import InvalidConfiguration

FIRST_MS, END_MS = 946_684_800_000, 253_402_300_800_000
"""The times that may be asked for: the years 2000 to 9999."""
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def conditions(contents: st.SearchStrategy[bytes], header_names: st.SearchStrategy[str]) -> Any:
    """The fields of a ``Query``; ``contents``: of keys and headers."""
    return st.fixed_dictionaries(
        {
            "topics": st.lists(texts, max_size=3).map(tuple),
            "keys": st.lists(contents, max_size=3).map(tuple),
            "names": st.lists(texts, max_size=2).map(tuple),
            "headers": st.lists(st.tuples(header_names, contents), max_size=2).map(tuple),
            "from_ms": st.none() | st.integers(FIRST_MS, FIRST_MS + 10**12),
            "to_ms": st.none() | st.integers(END_MS - 10**12, END_MS - 1),
        }
    )


in_urls = conditions(texts.map(str.encode), texts.filter(lambda text: ":" not in text))
in_bodies = conditions(st.binary(max_size=6), texts)
numbers = st.integers(-1, (1 << 63) - 1)
pages = st.builds(PageKey, numbers, numbers, st.sampled_from(["", "north-1", "B_2"]))


@given(in_urls, st.sampled_from([None, "slot", "topic"]))
def test_a_count_is_read_as_it_was_asked(fields: dict[str, Any], by: Any) -> None:
    question = CountQuery(**fields, by=by)
    assert QueryDecoder(CountQuery).decode(query_of(question).encode()) == question


@given(in_urls, st.integers(1, 10_000), st.none() | pages)
def test_a_page_is_read_as_it_was_asked(
    fields: dict[str, Any], limit: int, page: PageKey | None
) -> None:
    question = PageQuery(**fields, limit=limit, page=page)
    assert QueryDecoder(PageQuery).decode(query_of(question).encode()) == question


@given(in_bodies)
def test_the_condition_of_a_cancel_is_read_as_it_was_given(fields: dict[str, Any]) -> None:
    query = Query(**fields)
    assume(not query.is_empty)
    body = msgspec.json.encode(msgspec.to_builtins(CancellationBody(Where.of(query))))
    assert msgspec.json.decode(body, type=CancellationBody).where.query() == query


def test_a_header_that_would_be_read_as_another_one_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be asked for in a URL"):
        query_of(CountQuery(headers=(("a:b", b"c"),)))
