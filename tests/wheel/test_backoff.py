"""Waiting times between tries."""

from __future__ import annotations

from slotwheel.wheel.backoff import Backoff


def test_waiting_times_double_up_to_a_limit_and_start_over_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.failed() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    backoff.worked()
    assert backoff.failed() == 0.1
