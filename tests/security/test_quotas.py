"""Quotas: the mean keeps to the rate, a large batch passes, and connections share what there is."""

from __future__ import annotations

import pytest

from slotwheel.security.quotas import NO_QUOTA, CountedConnection, Meter, Quota
from slotwheel.wheel.errors import OverQuota, from_wire


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("batch", [1, 10, 1000, 5000])
@pytest.mark.parametrize("unit", ["rows", "bytes"])
def test_the_mean_keeps_to_the_rate(clock: ManualClock, batch: int, unit: str) -> None:
    quota = Quota(rows_per_second=1000) if unit == "rows" else Quota(bytes_per_second=1000)
    meter = Meter("token:a", quota, clock)
    end_s, sent, waits = clock.now_s + 60, 0, list[int]()
    while clock.now_s < end_s:
        try:
            meter.charge(batch, batch)
            sent += batch
        except OverQuota as error:
            waits.append(error.retry_after_ms)
            clock.now_s += error.retry_after_ms / 1000
    assert 0 < min(waits) <= max(waits) <= batch + 2
    assert 60_000 * 0.9 <= sent <= 61_000 + batch
    assert meter.rows == meter.nbytes == sent


def test_a_refused_batch_costs_nothing_of_the_other_rate(clock: ManualClock) -> None:
    meter = Meter("token:a", Quota(rows_per_second=10, bytes_per_second=1000), clock)
    meter.charge(1, 5000)
    with pytest.raises(OverQuota, match="over its quota of bytes per second"):
        meter.charge(1, 1)
    clock.now_s += 4.1
    for _ in range(3):
        meter.charge(1, 10)
    assert meter.rows == 4


def test_an_error_says_when_over_the_wire(clock: ManualClock) -> None:
    meter = Meter("token:a", Quota(rows_per_second=10), clock)
    meter.charge(20, 1)
    with pytest.raises(OverQuota) as refused:
        meter.charge(1, 1)
    error = from_wire(refused.value.to_wire())
    assert isinstance(error, OverQuota)
    assert error.retry_after_ms == refused.value.retry_after_ms > 900
    assert error.retryable


def test_a_node_does_not_let_a_client_wait_for_hours() -> None:
    error = from_wire({"code": "over-quota", "message": "x", "retry_after_ms": 10**9})
    assert isinstance(error, OverQuota)
    assert error.retry_after_ms == 60_000


def test_connections_and_questions_are_counted(clock: ManualClock) -> None:
    meter = Meter("token:a", Quota(connections=2, questions=1), clock)
    meter.connect()
    meter.connect()
    with pytest.raises(OverQuota, match="connections; limit 2"):
        meter.connect()
    meter.disconnect()
    meter.connect()
    meter.ask()
    with pytest.raises(OverQuota, match="questions"):
        meter.ask()
    meter.answered()
    meter.ask()


def test_a_new_file_does_not_give_a_new_second(clock: ManualClock) -> None:
    quota = Quota(rows_per_second=10)
    meter = Meter("token:a", quota, clock)
    meter.charge(100, 1)
    meter.change(Quota(rows_per_second=10))
    with pytest.raises(OverQuota):
        meter.charge(1, 1)
    meter.change(NO_QUOTA)
    meter.charge(1, 1)


def test_a_connection_counts_for_whoever_calls_by_it(clock: ManualClock) -> None:
    first, second = (Meter(f"token:{name}", Quota(connections=1), clock) for name in "ab")
    shared, other, third = (CountedConnection() for _ in range(3))
    for meter in (first, first, second):
        shared.count_for(meter)
    other.count_for(first)  # the shared one does not count for it any more
    with pytest.raises(OverQuota):
        other.count_for(second)
    assert other.meter is first
    with pytest.raises(OverQuota):
        third.count_for(first)
    other.end()
    third.count_for(first)
    shared.end()
    shared.count_for(second)  # who calls was found out after it had ended
    assert second.idle
    assert not first.idle
