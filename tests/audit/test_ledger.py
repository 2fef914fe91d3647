"""Batches that come twice, late, or not at all; consumers that are behind, or were killed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from slotwheel.account.limits import AccountLimits
from slotwheel.account.vocabulary import AuditVerdict, Boundary, Tier
from slotwheel.audit.ledger import AuditLedger
from slotwheel.audit.ranges import covered_of, merge_range
from slotwheel.audit.sums import IdSum, SumBatch, SumKey, SummedRange
from slotwheel.trace.events import EventSender
from slotwheel.wheel.mark import Marks
from support.auditing import ALL_MARK, LIMITS, batch_of, id_sum, ledger, see, verdicts

_EQUAL, _LOST = (AuditVerdict.EQUAL, 0), AuditVerdict.LOST


def test_a_batch_that_comes_twice_counts_once_and_out_of_order_does_not_matter() -> None:
    found = ledger()
    batches = [batch_of("c", number, Tier.PRODUCED, id_sum([number])) for number in range(6)]
    for number in (3, 1, 2, 2, 0, 5, 4, 3, 5):
        found.add_batch(batches[number], 0)
    see(found, Tier.ACCEPTED, list(range(6)))
    see(found, Tier.DELIVERED, list(range(6)))
    assert verdicts(found)[Boundary.CLIENT_WHEEL] == _EQUAL
    assert found.refused["repeated batch"] == 3


def test_a_batch_that_is_missing_makes_its_buckets_unknown_and_no_others() -> None:
    found = ledger()
    for number in (0, 2):
        found.add_batch(batch_of("c", number, Tier.PRODUCED, id_sum([number])), 0)
    see(found, Tier.ACCEPTED, [0, 1, 2])
    see(found, Tier.DELIVERED, [0, 1])
    said = verdicts(found)
    assert said[Boundary.CLIENT_WHEEL] == (AuditVerdict.UNKNOWN, 1)
    assert said[Boundary.WHEEL_TOPIC] == (_LOST, 1)
    (cell,) = found.report(100_000)
    assert cell.comparisons[0].why == "1 batches of c did not arrive"


def test_messages_without_a_sum_are_named() -> None:
    found = ledger()
    found.add_batch(batch_of("c", 0, Tier.PRODUCED, id_sum([0]), missing=2), 0)
    see(found, Tier.ACCEPTED, [0, 1, 2])
    see(found, Tier.DELIVERED, [0, 1, 2])
    assert verdicts(found)[Boundary.CLIENT_WHEEL] == (AuditVerdict.UNKNOWN, 2)


def test_a_group_that_is_behind_has_lost_nothing_and_one_that_has_passed_has() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [0, 1, 2])
    see(found, Tier.DELIVERED, [0, 1, 2])
    found.add_batch(batch_of("c", 0, Tier.CONSUMED, id_sum([0]), 2), 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == (AuditVerdict.OPEN, 0)
    found.add_batch(batch_of("c", 1, Tier.CONSUMED, id_sum([2]), 3), 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == (_LOST, 1)


def test_what_a_killed_consumer_did_last_is_unknown_and_not_lost() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [0, 1, 2, 3])
    see(found, Tier.DELIVERED, [0, 1, 2, 3])
    found.add_batch(batch_of("killed", 0, Tier.CONSUMED, id_sum([0]), 1), 0)
    rest = replace(
        batch_of("next", 0, Tier.CONSUMED, id_sum([3])),
        ranges=[SummedRange("billing", "orders", 0, 3, 4)],
    )
    found.add_batch(rest, 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == (AuditVerdict.UNKNOWN, 2)
    filled = replace(rest, number=1, sums={}, ranges=[SummedRange("billing", "orders", 0, 1, 3)])
    found.add_batch(filled, 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == (_LOST, 2)


def test_a_client_that_is_silent_is_waited_for_and_then_taken_for_killed() -> None:
    found = ledger()
    batch = replace(batch_of("c", 0, Tier.PRODUCED, id_sum([0])), last=False)
    found.add_batch(batch, 900)
    for tier in (Tier.ACCEPTED, Tier.DELIVERED):
        see(found, tier, [0, 1])
    assert verdicts(found, 30_899)[Boundary.CLIENT_WHEEL] == (AuditVerdict.OPEN, 0)
    assert verdicts(found, 30_900)[Boundary.CLIENT_WHEEL] == (AuditVerdict.UNKNOWN, 1)
    found.add_batch(replace(batch, number=1, sums={}), 31_000)
    assert verdicts(found, 31_001)[Boundary.CLIENT_WHEEL] == (AuditVerdict.REPEATED, 1)


def test_what_a_rule_leaves_out_is_no_loss_and_once_it_is_read_again_nobody_knows() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [0, 1])
    see(found, Tier.DELIVERED, [0, 1])
    found.add_batch(batch_of("c", 0, Tier.CONSUMED, id_sum([0]), 2), 0)
    found.add_batch(batch_of("c", 1, Tier.LEFT_OUT, id_sum([1]), 2), 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == _EQUAL
    found.add_batch(batch_of("c", 2, Tier.LEFT_OUT, id_sum([1]), 2), 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == (AuditVerdict.UNKNOWN, 1)


@pytest.mark.parametrize(
    ("produced", "near", "far", "verdict", "count", "why"),
    [
        ([0, 1], [0, 1], [2], _EQUAL[0], 0, "without 1 that were sent long before"),
        ([0, 1, 2], [0, 1], [2], _EQUAL[0], 0, "1 were sent long before"),
        ([], [], [2, 3], _EQUAL[0], 0, "without 2"),
        ([0, 1], [0], [2], AuditVerdict.DIFFERS, 0, "1 were sent long before"),
        ([0, 1], [0], [2, 3], AuditVerdict.UNKNOWN, 1, "2 were sent long before"),
        ([0], [0, 1], [2], AuditVerdict.REPEATED, 1, "1 were sent long before"),
        ([0, 1, 3], [0], [2], _LOST, 1, "1 were sent long before"),
    ],
)
def test_what_was_sent_long_before_it_is_due_is_left_out_or_makes_a_surplus_unknown(
    produced: list[int],
    near: list[int],
    far: list[int],
    verdict: AuditVerdict,
    count: int,
    why: str,
) -> None:
    """The audit topic is read for ``ahead_ms``: of what was sent before that no sum may be there.
    Behind the wheel such messages are judged as all others."""
    found = ledger()
    found.add_batch(batch_of("c", 0, Tier.PRODUCED, id_sum(produced)), 0)
    for offsets, ahead_ms in ((near, found.ahead_ms), (far, found.ahead_ms + 1)):
        see(found, Tier.ACCEPTED, offsets, created_ms=100 - ahead_ms)
    see(found, Tier.DELIVERED, [*near, *far])
    said = verdicts(found)
    assert said[Boundary.CLIENT_WHEEL] == (verdict, count)
    assert said[Boundary.WHEEL_TOPIC] == _EQUAL
    (cell,) = found.report(100_000)
    assert why in cell.comparisons[0].why


def test_what_leaves_long_behind_its_time_is_seen() -> None:
    """Kafka may be away for longer than a bucket without a fault is kept."""
    found = AuditLedger("default", LIMITS, 0, ahead_ms=10_000, keep_ms=5_000, hold_ms=90_000)
    see(found, Tier.ACCEPTED, [0, 1])
    for now_ms in (20_000, 40_000):
        (cell,) = found.report(now_ms)
        assert cell.verdict is AuditVerdict.OPEN
    see(found, Tier.DELIVERED, [0, 1])
    found.pass_marks(Marks(main=ALL_MARK), 0)
    assert found.report(40_000) == []
    assert found.closed == {AuditVerdict.EQUAL: 1}


def test_nothing_is_judged_before_topics_are_read_to_their_end() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [0, 1])
    found.pass_marks(Marks(main=ALL_MARK), 0)
    see(found, Tier.DELIVERED, [0])
    assert [one.verdict for one in found.report(50_000, whole_ms=1_000)] == [AuditVerdict.OPEN]
    assert [one.verdict for one in found.report(50_000, whole_ms=50_000)] == [_LOST]


def test_a_topic_that_could_not_be_read_makes_its_consumers_unknown() -> None:
    found = ledger()
    see(found, Tier.ACCEPTED, [0, 1])
    see(found, Tier.DELIVERED, [0])
    found.add_batch(batch_of("c", 0, Tier.CONSUMED, id_sum([0, 1]), 2), 0)
    assert verdicts(found)[Boundary.TOPIC_CONSUMER] == (AuditVerdict.REPEATED, 1)
    boundaries = [Boundary.WHEEL_TOPIC, Boundary.TOPIC_CONSUMER]
    found.hints.add("records are gone", boundaries, 0, 200_000, topics=["orders"])
    said = verdicts(found)
    assert said[Boundary.TOPIC_CONSUMER] == said[Boundary.WHEEL_TOPIC] == (AuditVerdict.UNKNOWN, 1)


def test_numbers_that_go_back_take_no_memory_without_end() -> None:
    found = ledger()
    for number in range(60):
        found.add_batch(batch_of("c", 1_000_000 - 900 * number, Tier.PRODUCED, id_sum([number])), 0)
    (sender,) = found._senders.values()
    assert len(sender.ahead) <= 2_000


def test_cells_are_bounded_dropped_when_they_are_over_and_refused_behind_that() -> None:
    found = AuditLedger(
        "default", LIMITS, 0, ahead_ms=10_000, keep_ms=5_000, hold_ms=20_000, cells_max=2
    )

    def produced(number: int, bucket: int) -> None:
        key = SumKey(Tier.PRODUCED, "default", "orders", "", bucket)
        batch = SumBatch(EventSender("c"), number, 1_000, {key: IdSum(1)}, last=True)
        found.add_batch(batch, 0)

    for number, bucket in enumerate((0, 1_000, 2_000, 50_000)):
        produced(number, bucket)
    assert (found.refused["too many buckets"], found.refused["too far ahead"]) == (1, 1)
    see(found, Tier.ACCEPTED, [])
    assert [one.verdict for one in found.report(15_000)] == [_LOST, _LOST]
    assert found.report(30_000) == []
    assert found.closed == {_LOST: 2, AuditVerdict.OPEN: 2}
    produced(4, 3_000)
    assert (found.refused["too late"], found.cells) == (1, {})


def test_another_interval_and_another_wheel_are_left_out() -> None:
    found = ledger()
    key = SumKey(Tier.PRODUCED, "elsewhere", "orders", "", 0)
    found.add_batch(SumBatch(EventSender("c"), 0, 1_000, {key: IdSum(1)}), 0)
    assert not found.add_batch(SumBatch(EventSender("d"), 0, 3_000), 0)
    assert (found.cells, found.refused) == ({}, {"another interval": 1})


def test_finer_buckets_of_a_sender_are_joined() -> None:
    found = AuditLedger("default", AccountLimits(4_000, 1, 1), 0, ahead_ms=1 << 40)
    for number in range(4):
        key = SumKey(Tier.PRODUCED, "default", "orders", "", number * 1_000)
        found.add_batch(SumBatch(EventSender("c"), number, 1_000, {key: IdSum(1)}), 0)
    assert found.cells["orders", 0].produced.count == 4


def test_ranges_are_joined_as_a_set_of_positions() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        covered: list[tuple[int, int]] = []
        model: set[int] = set()
        for _ in range(8):
            start = int(random.integers(0, 30))
            end = start + int(random.integers(0, 8))
            merge_range(covered, start, end)
            model |= set(range(start, end))
            assert covered_of(covered, 0, 50) == len(model)
            assert covered_of(covered, 5, 20) == len(model & set(range(5, 20)))


def test_rows_before_the_first_bucket_are_not_audited() -> None:
    found = AuditLedger("default", LIMITS, 1_500, ahead_ms=1 << 40)
    assert found.from_ms == 2_000
    see(found, Tier.ACCEPTED, [1], at_ms=1_999)
    topic, due = pa.array(["orders"]), np.array([2_000], np.int64)
    found.see(Tier.ACCEPTED, topic, due, due, 0)
    assert list(found.cells) == [("orders", 2_000)]
