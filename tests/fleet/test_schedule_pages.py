"""Pages of schedules of several wheels: each schedule once, in order, however the wheels cut."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slotwheel.fleet.fleet import merged_page

NAMES = st.lists(st.text("abü", max_size=3), unique=True, max_size=12).map(sorted)


def page_of(names: list[str], after: str | None, cut: int, limit: int) -> dict[str, Any]:
    """What a wheel answers: it may end before ``limit``, even without a schedule."""
    rest = names if after is None else [name for name in names if name > after]
    shown = rest[: min(cut, limit)]
    looked = rest[: max(1, min(cut, limit))]
    further = looked[-1] if len(looked) < len(rest) else None
    return {"schedules": [{"schedule": {"name": name}} for name in shown], "after": further}


@given(st.lists(NAMES, min_size=1, max_size=4), st.integers(1, 5), st.randoms())
def test_each_schedule_is_on_one_page(wheels: list[list[str]], limit: int, random: Any) -> None:
    for names in wheels:  # a name at two wheels would be two schedules
        names[:] = [f"{name}{id(names)}" for name in names]
        names.sort()
    listed: list[str] = []
    after: str | None = None
    while True:
        pages = [page_of(names, after, random.randint(1, 4), limit) for names in wheels]
        page = merged_page(pages, limit)
        assert len(page["schedules"]) <= limit
        listed += [row["schedule"]["name"] for row in page["schedules"]]
        if page["after"] is None:
            break
        assert after is None or page["after"] > after
        after = page["after"]
    assert listed == sorted(name for names in wheels for name in names)
