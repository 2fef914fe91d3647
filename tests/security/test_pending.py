"""Quotas of what is pending: what was offered counts at once, each row once, and not for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.security.pending import (
    NO_LIMITS,
    OFFER_S,
    RETRY_AFTER_MS,
    PendingLedger,
    PendingLimit,
    Prefixes,
)
from slotwheel.wheel.errors import OverQuota

LIMITS = {"orders-*": PendingLimit(rows=1000), "bulk": PendingLimit(rows=50, nbytes=900)}


class Seconds:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def ledger(clock: Seconds) -> PendingLedger:
    ledger = PendingLedger(clock)
    ledger.change(("bulk", "orders-*"))
    return ledger


def test_a_batch_beyond_the_quota_is_refused_whole_and_says_all(ledger: PendingLedger) -> None:
    ledger.counted(ledger.patterns, [(0, 0), (900, 9_000)], 900)
    ledger.offer("token:a", LIMITS, {"orders-eu": (60, 600)})
    with pytest.raises(OverQuota) as refused:
        ledger.offer("token:a", LIMITS, {"bulk": (1, 1), "orders-us": (60, 600)})
    text = str(refused.value)
    for part in ("token:a", "pending rows", "'orders-*'", "960 pending, and 60", "1000 rows"):
        assert part in text
    assert "Nothing of it was stored" in text or "Nothing was stored" in text
    assert refused.value.retry_after_ms == RETRY_AFTER_MS
    assert ledger.pending() == {"bulk": (0, 0), "orders-*": (960, 9_600)}
    ledger.offer("token:a", LIMITS, {"orders-us": (40, 400)})
    with pytest.raises(OverQuota, match=r"pending bytes for 'bulk'.*limit 900 bytes"):
        ledger.offer("token:a", LIMITS, {"bulk": (1, 901)})


def test_a_batch_that_can_never_pass_says_so(ledger: PendingLedger) -> None:
    with pytest.raises(OverQuota, match="Send fewer at a time"):
        ledger.offer("token:a", LIMITS, {"orders-eu": (1001, 0)})


def test_rows_of_callers_without_a_limit_count_for_the_others(ledger: PendingLedger) -> None:
    ledger.offer("token:b", NO_LIMITS, {"orders-eu": (5_000, 0)})
    with pytest.raises(OverQuota, match="5000 pending"):
        ledger.offer("token:a", LIMITS, {"orders-eu": (1, 0)})


def test_a_row_counts_once_whichever_comes_first(ledger: PendingLedger) -> None:
    early, late = (ledger.offer("t", LIMITS, {"orders-eu": (10, 1)}) for _ in range(2))
    early.settle(10)
    assert ledger.pending()["orders-*"] == (20, 2)
    ledger.counted(ledger.patterns, [(0, 0), (20, 2)], 20)  # it has both
    assert ledger.pending()["orders-*"] == (30, 3)  # the second is not settled yet
    late.settle(20)
    assert ledger.pending()["orders-*"] == (20, 2)
    refused = ledger.offer("t", LIMITS, {"orders-eu": (10, 1)})
    refused.settle(-1)
    refused.settle(-1)
    assert ledger.pending()["orders-*"] == (20, 2)


def test_what_nobody_settles_is_forgotten(ledger: PendingLedger, clock: Seconds) -> None:
    ledger.offer("t", LIMITS, {"bulk": (10, 1)})
    ledger.counted(ledger.patterns, [(0, 0), (0, 0)], 5)
    assert ledger.pending()["bulk"] == (10, 1)
    clock.now_s += OFFER_S
    ledger.counted(ledger.patterns, [(0, 0), (0, 0)], 6)
    assert ledger.pending()["bulk"] == (0, 0)


def test_other_prefixes_keep_the_counts_of_those_that_stay(ledger: PendingLedger) -> None:
    ledger.counted(ledger.patterns, [(7, 70), (3, 30)], 10)
    old = ledger.offer("t", LIMITS, {"bulk": (1, 1)})
    ledger.change(("audit", "bulk"))
    assert ledger.pending() == {"audit": (0, 0), "bulk": (7, 70)}
    ledger.counted(("bulk", "orders-*"), [(9, 9), (9, 9)], 20)  # of a count that began before
    old.settle(11)
    assert ledger.pending() == {"audit": (0, 0), "bulk": (7, 70)}


def test_a_star_alone_means_no_topic_of_slotwheel_or_kafka() -> None:
    prefixes = Prefixes(["*", "slotwheel-dead*", "orders"])
    assert prefixes.of("orders") == (0, 2)
    assert prefixes.of("orders-eu") == (0,)
    assert prefixes.of("slotwheel-dead-letters") == (1,)
    assert prefixes.of("__consumer_offsets") == prefixes.of("") == ()


@given(
    st.lists(
        st.tuples(st.sampled_from(["offer", "settle", "refuse", "count"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_in_any_order_it_has_what_is_stored_and_what_is_on_its_way(
    steps: list[tuple[str, int]],
) -> None:
    ledger = PendingLedger(lambda: 0.0)
    ledger.change(("t",))
    stored, waiting, end = 0, [], 0
    for step, number in steps:
        if step == "offer":
            waiting.append((ledger.offer("t", NO_LIMITS, {"t": (number, number)}), number))
        elif step == "count":
            ledger.counted(ledger.patterns, [(stored, stored)], end)
        elif waiting:
            offer, rows = waiting.pop(number % len(waiting))
            if step == "settle":
                end += rows + 1  # a cancel row beside them
                stored += rows
            offer.settle(end if step == "settle" else -1)
    rest = sum(rows for _, rows in waiting)
    assert ledger.pending()["t"] == (stored + rest, stored + rest)
