"""What stays known of buckets that differed when they are forgotten."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from slotwheel.account.vocabulary import AuditVerdict, Boundary, Tier
from slotwheel.audit.comparing import Comparison
from slotwheel.audit.differing import (
    BOUNDARIES_MAX,
    Differing,
    differing_of,
    differing_text,
    join_differing,
)
from slotwheel.audit.ledger import AuditLedger
from slotwheel.wheel.mark import Marks
from support.auditing import ALL_MARK, LIMITS

_HOUR_MS = 3_600_000


def _see(found: AuditLedger, tier: Tier, due_ms: int, count: int) -> None:
    due, offset = np.full(count, due_ms, np.int64), np.arange(count)
    topic = pa.array(["orders"] * count, pa.utf8())
    found.see(tier, topic, due, offset, due_ms, None, offset)


def test_what_was_lost_stays_known_when_its_bucket_is_forgotten() -> None:
    found = AuditLedger("default", LIMITS, 0, ahead_ms=1_000)
    for due_ms, lost in ((5_000, 2), (9_000, 1), (_HOUR_MS + 7_000, 4)):
        _see(found, Tier.ACCEPTED, due_ms, 10)
        _see(found, Tier.DELIVERED, due_ms, 10 - lost)
    found.pass_marks(Marks(main=ALL_MARK), 0)
    place = "orders", Boundary.WHEEL_TOPIC, ""
    for now_ms, kept, since_all in (
        (20_000, 2, Differing(*place, 5_000, 9_000, 2, lost=3)),
        (_HOUR_MS + 6_500, 1, Differing(*place, 5_000, 9_000, 2, lost=3)),
        (_HOUR_MS + 20_000, 1, Differing(*place, 5_000, _HOUR_MS + 7_000, 3, lost=7)),
        (2 * _HOUR_MS + 20_000, 0, Differing(*place, 5_000, _HOUR_MS + 7_000, 3, lost=7)),
    ):
        assert len(found.report(now_ms)) == kept
        assert found.differing == [since_all]
    assert found.closed == {AuditVerdict.LOST: 3}


def test_a_fault_that_turns_out_to_be_none_is_not_remembered() -> None:
    found = AuditLedger("default", LIMITS, 0, ahead_ms=1_000)
    _see(found, Tier.ACCEPTED, 5_000, 1)
    found.pass_marks(Marks(main=ALL_MARK), 0)
    found.report(9_000)
    assert [one.lost for one in found.differing] == [1]
    _see(found, Tier.DELIVERED, 5_000, 1)
    found.report(20_000)
    found.report(2 * _HOUR_MS)
    assert found.differing == []
    assert found.closed == {AuditVerdict.EQUAL: 1}


def test_every_comparison_of_a_bucket_that_is_closed_is_counted() -> None:
    found = AuditLedger("default", LIMITS, 0, ahead_ms=1_000)
    _see(found, Tier.ACCEPTED, 5_000, 1)
    found.report(2 * _HOUR_MS)
    assert found.closed == {AuditVerdict.OPEN: 1}


def test_so_many_boundaries_are_kept_and_the_first_ones() -> None:
    def one(number: int, bucket_ms: int) -> Comparison:
        about = f"t{number}", bucket_ms, Boundary.CLIENT_WHEEL, ""
        return Comparison(*about, AuditVerdict.REPEATED, 2)

    first = differing_of(one(number, 1_000) for number in range(BOUNDARIES_MAX))
    again = join_differing(first, differing_of([one(0, 9_000), one(BOUNDARIES_MAX, 9_000)]))
    assert len(again) == BOUNDARIES_MAX
    assert again[0].joined(again[0]).repeated == 8
    assert differing_text(again[0]) == (
        "4 repeated client to wheel, topic t0: 2 buckets differ,"
        " due from 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:09.000Z"
    )
