"""What is known to be missing stays known, however much of it there is."""

from __future__ import annotations

from dataclasses import replace

from slotwheel.account.vocabulary import AuditVerdict, Boundary, Tier
from slotwheel.audit.hints import HINTS_MAX, AuditHints
from slotwheel.audit.sums import SumBatch, SummedRange
from slotwheel.trace.events import EventSender
from support.auditing import batch_of, id_sum, ledger, see, verdicts

_WHEEL = [Boundary.WHEEL_TOPIC]


def _find(hints: AuditHints, begin_ms: int, topic: str = "orders") -> set[str]:
    read, sent = hints.find(Boundary.WHEEL_TOPIC, topic, "", begin_ms, begin_ms + 10)
    assert not sent
    return set(read)


def test_hints_that_find_no_room_make_what_they_were_about_unknown() -> None:
    hints = AuditHints()
    for number in range(HINTS_MAX + 50):
        hints.add(f"text {number}", _WHEEL, number * 100, number * 100 + 10, topics=["orders"])
    assert all(_find(hints, number * 100) for number in range(HINTS_MAX + 50))
    assert not _find(hints, (HINTS_MAX + 50) * 100)
    assert not _find(hints, (HINTS_MAX + 49) * 100, "bills")
    hints.forget(1_000)
    assert _find(hints, 0)
    hints.forget((HINTS_MAX + 50) * 100)
    assert not any(_find(hints, number * 100) for number in range(HINTS_MAX + 50))


def test_the_same_again_takes_no_room() -> None:
    hints = AuditHints()
    for until_ms in range(2 * HINTS_MAX):
        hints.add("the journal", _WHEEL, 0, until_ms)
    hints.add("a slot", _WHEEL, 5_000, 6_000)
    assert _find(hints, 1_000) == {"the journal"}
    assert _find(hints, 5_000) == {"a slot"}


def test_a_killed_client_s_last_messages_are_unknown_also_of_a_topic_that_it_never_named() -> None:
    """It has told that it is there, and was killed before it told of its messages."""
    found = ledger()
    found.add_batch(batch_of("c", 0, Tier.PRODUCED, id_sum([0])), 0)
    found.add_batch(SumBatch(EventSender("k", "killed"), 0, 1_000), 900)
    for tier in (Tier.ACCEPTED, Tier.DELIVERED):
        see(found, tier, [0, 1])
    assert verdicts(found, 30_899)[Boundary.CLIENT_WHEEL] == (AuditVerdict.OPEN, 0)
    assert verdicts(found, 30_900)[Boundary.CLIENT_WHEEL] == (AuditVerdict.UNKNOWN, 1)
    (cell,) = found.report(100_000)
    assert cell.comparisons[0].why == "ended without the last sums being sent: killed"
    found.add_batch(SumBatch(EventSender("l", "other"), 0, 1_000), 900)
    (cell,) = found.report(100_000)
    assert cell.comparisons[0].why.endswith("sent: other and 1 more")


def test_what_is_lost_is_lost_whoever_was_killed() -> None:
    found = ledger()
    found.add_batch(batch_of("c", 0, Tier.PRODUCED, id_sum([0, 1])), 0)
    found.add_batch(SumBatch(EventSender("k", "killed"), 0, 1_000), 900)
    for tier in (Tier.ACCEPTED, Tier.DELIVERED):
        see(found, tier, [0])
    assert verdicts(found)[Boundary.CLIENT_WHEEL] == (AuditVerdict.LOST, 1)


def test_messages_in_no_sum_are_missing_from_all_that_comes_behind_the_part_that_says_so() -> None:
    """A batch in two parts: the first one says what is missing, the second one names the group."""
    found = ledger()
    see(found, Tier.ACCEPTED, [0, 1])
    see(found, Tier.DELIVERED, [0, 1])
    found.add_batch(SumBatch(EventSender("c", "c"), 0, 1_000, missing=1), 99_000)
    found.add_batch(
        replace(
            batch_of("c", 1, Tier.CONSUMED, id_sum([0])),
            ranges=[SummedRange("billing", "orders", 0, 0, 2)],
        ),
        99_000,
    )
    assert verdicts(found, 110_000)[Boundary.TOPIC_CONSUMER] == (AuditVerdict.UNKNOWN, 1)


def test_a_sender_that_is_forgotten_makes_what_it_may_have_sent_unknown() -> None:
    found = ledger()
    found.add_batch(SumBatch(EventSender("first", "first"), 0, 1_000), 0)
    for number in range(10_000):
        found.add_batch(SumBatch(EventSender(f"s{number}"), 0, 1_000, last=True), 0)
    found.add_batch(batch_of("c", 0, Tier.PRODUCED, id_sum([0])), 0)
    for tier in (Tier.ACCEPTED, Tier.DELIVERED):
        see(found, tier, [0, 1])
    assert verdicts(found)[Boundary.CLIENT_WHEEL] == (AuditVerdict.UNKNOWN, 1)
