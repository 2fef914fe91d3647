"""Verdicts against a plain model that knows every id, with faults planted at each boundary."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slotwheel.account.vocabulary import AuditVerdict, Boundary, Tier
from slotwheel.audit.sums import IdSum
from slotwheel.wheel.mark import Mark, Marks
from support.auditing import ALL_MARK, batch_of, id_sum, ledger, see, verdicts

_OFFSETS = st.sets(st.integers(0, 30))
_THREE = st.lists(_OFFSETS, min_size=3, max_size=3)


@given(_OFFSETS, _OFFSETS, _THREE, _THREE)
def test_each_boundary_has_the_verdict_of_a_model_that_knows_every_id(
    sent: set[int], cancelled: set[int], lost: list[set[int]], repeated: list[set[int]]
) -> None:
    tiers = [sorted(sent)]
    for at in range(3):
        before = tiers[-1]
        cancels = cancelled if at == 1 else set()
        passed = [one for one in before if one not in lost[at] and one not in cancels]
        tiers.append(passed + [one for one in passed if one in repeated[at]])
    produced, accepted, delivered, consumed = tiers
    found = ledger()
    found.add_batch(batch_of("client", 0, Tier.PRODUCED, id_sum(produced)), 0)
    see(found, Tier.ACCEPTED, accepted)
    gone = [one for one in accepted if one in cancelled]
    see(found, Tier.CANCELLED, gone)
    see(found, Tier.DELIVERED, delivered)
    end = len(delivered)
    found.add_batch(batch_of("consumer", 0, Tier.CONSUMED, id_sum(consumed), end), 0)
    pairs = [
        (produced, accepted),
        ([one for one in accepted if one not in cancelled], delivered),
        (delivered, consumed),
    ]
    for (before, after), (boundary, verdict) in zip(pairs, verdicts(found).items(), strict=True):
        more = len(after) - len(before)
        if more:
            kind = AuditVerdict.REPEATED if more > 0 else AuditVerdict.LOST
            assert verdict == (kind, abs(more)), boundary
        elif sorted(before) == sorted(after):
            assert verdict == (AuditVerdict.EQUAL, 0), boundary
        else:
            assert verdict == (AuditVerdict.DIFFERS, 0), boundary


def test_dead_and_expired_ones_are_no_loss() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [1, 2, 3])
    see(found, Tier.DEAD, [1])
    see(found, Tier.EXPIRED, [2])
    see(found, Tier.DELIVERED, [3])
    assert verdicts(found) == {Boundary.WHEEL_TOPIC: (AuditVerdict.EQUAL, 0)}


def test_what_a_client_gave_up_may_be_stored_all_the_same_or_hide_a_loss() -> None:
    found = ledger()
    given_up = IdSum(*(id_sum([1]).count, id_sum([1]).hash), unsure=1)
    found.add_batch(batch_of("client", 0, Tier.PRODUCED, given_up), 0)
    see(found, Tier.ACCEPTED, [1, 2])
    see(found, Tier.DELIVERED, [1, 2])
    assert verdicts(found)[Boundary.CLIENT_WHEEL] == (AuditVerdict.UNKNOWN, 1)
    (cell,) = found.report(100_000)
    assert "may hide a loss" in cell.comparisons[0].why


def test_it_is_open_until_the_grace_is_over_and_again_when_sums_come_late() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [1])
    found.pass_marks(Marks(main=ALL_MARK), 0)

    def now(at_ms: int) -> AuditVerdict:
        return found.report(at_ms)[0].verdict

    assert now(1_499) is AuditVerdict.OPEN
    assert now(1_500) is AuditVerdict.LOST
    due = np.array([100], np.int64)
    found.see(Tier.DELIVERED, pa.array(["orders"]), due, due, 5_000, None, due)
    assert now(5_400) is AuditVerdict.OPEN
    assert now(5_500) is AuditVerdict.DIFFERS


def test_what_the_mark_has_not_passed_waits_in_the_wheel() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [1, 7])
    for mark in (Mark(99, 9, 9), Mark(100, 6, 9), Mark(200, 0, 6)):
        found.pass_marks(Marks(main=mark), 0)
        (cell,) = found.report(100_000)
        assert cell.verdict is AuditVerdict.OPEN
        assert cell.comparisons[0].why == "waits in the wheel"
    found.pass_marks(Marks(main=Mark(100, 7, 7)), 0)
    assert found.report(100_000)[0].verdict is AuditVerdict.LOST


def test_late_is_what_took_longer_than_the_limit_at_its_boundary() -> None:
    found = ledger()
    one, topic = np.array([100], np.int64), pa.array(["orders"])
    found.see(Tier.ACCEPTED, topic, one, one, 0)
    found.see(Tier.DELIVERED, topic, one, one, 0, np.array([2_001]), one)
    found.pass_marks(Marks(main=ALL_MARK), 0)
    (cell,) = found.report(100_000)
    (late,) = cell.comparisons
    assert (late.verdict, late.late_ms) == (AuditVerdict.LATE, 2_001)
    assert not late.fault
