"""Which messages are blamed for having had a name while another one had it: case by case, from the
rows of entries, without files and without Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slotwheel.reading.files import File
from slotwheel.replay.facts.chunks import IN_TIME_MS
from slotwheel.replay.facts.fact import Facts, Seen
from slotwheel.replay.facts.making import journal_facts, slot_facts
from slotwheel.replay.facts.named import named_facts
from slotwheel.replay.judging.context import Context, Options, PeerView
from slotwheel.replay.judging.judged import NAMED, Judged
from slotwheel.replay.judging.names import judge_names, named_rows
from slotwheel.replay.judging.ranges import judge_range
from slotwheel.wheel.mark import Mark, Marks
from slotwheel.wheel.names import NAME_HEADER
from support.factrows import TERMS, made_fact, rows

JOURNAL = File(0, "journal", "/a", "a", 0, peer=0)
SLOT = File(1, "slot", "/a", "b", 0, peer=0)
NOW, DUE = 2_000_000, 5_000_000
"""The mark is at ``NOW``; what is due at ``DUE`` is pending."""


def message(offset: int, name: str = "n", **fields: Any) -> dict[str, Any]:
    given = {"headers": [(NAME_HEADER, name.encode())], "due": DUE, "created": NOW - 100_000}
    return {"offset": offset, **given, **fields}


def cancel(offset: int, of: int, due: int = DUE) -> dict[str, Any]:
    return {"offset": offset, "cancels": of, "topic": "", "value": None, "due": due}


def entry(index: int, *some: dict[str, Any], clock_ms: int = 0) -> Facts:
    batch = rows(*some)
    made = journal_facts(JOURNAL, batch, index, 1).facts
    return np.concatenate([made, named_facts(JOURNAL, batch, index, clock_ms)])


def in_slot(*some: dict[str, Any]) -> Facts:
    batch = rows(*some)
    return np.concatenate([slot_facts(SLOT, batch).facts, named_facts(SLOT, batch)])


def context(**fields: Any) -> Context:
    marks = Marks(Mark(NOW, 0, 999))
    journal = np.array([[0], [1_000]])
    peer = PeerView("a", 0, marks, journal, np.zeros((2, 0), np.int64), 0)
    return replace(Context(TERMS, Options(), [peer], marks, NOW, {}), **fields)


def judged(*facts: Facts, **fields: Any) -> Judged:
    found, _ = judge_range(np.concatenate(facts), context(**fields))
    judge_names(found.named, context(**fields), found)
    return found


def blamed(found: Judged) -> list[tuple[str, int]]:
    return [(problem.kind, problem.offset) for problem in found.problems]


FIRST = entry(1, message(10))


def test_the_second_of_two_pending_ones_is_blamed_with_both_ids_and_the_entry() -> None:
    found = judged(FIRST, entry(7, message(20)))
    assert found.problem_counts == {"name twice": 1}
    (problem,) = found.problems
    assert (problem.id, problem.due_ms) == (TERMS.id_of(DUE, 20), DUE)
    assert TERMS.id_of(DUE, 10) in problem.text
    assert "by entry 7" in problem.text
    assert "no row cancels it" in problem.text


@pytest.mark.parametrize("other", [message(20, "m"), message(20, topic="bills")])
def test_another_name_and_another_topic_are_apart(other: dict[str, Any]) -> None:
    assert blamed(judged(FIRST, entry(2, other))) == []


def test_a_message_is_replaced_by_its_own_entry_and_not_by_a_later_one() -> None:
    assert blamed(judged(FIRST, entry(2, message(20), cancel(21, 10)))) == []
    found = judged(FIRST, entry(2, message(20)), entry(3, cancel(21, 10)))
    assert blamed(found) == [("name twice", 20)]
    assert "row 21 cancels it later" in found.problems[0].text


def test_a_message_is_kept_out_by_its_own_entry_and_not_by_a_later_one() -> None:
    assert blamed(judged(FIRST, entry(2, message(20), cancel(21, 20)))) == []
    assert blamed(judged(FIRST, entry(2, message(20)), entry(3, cancel(21, 20)))) == [
        ("name twice", 20)
    ]


def test_a_message_that_was_kept_out_hides_nobody() -> None:
    kept = entry(2, message(20), cancel(21, 20))
    assert blamed(judged(FIRST, kept, entry(3, message(30)))) == [("name twice", 30)]


def test_rows_of_a_batch_replace_each_other() -> None:
    batch = entry(2, message(20), message(21), message(22), *map(cancel, (23, 24), (20, 21)))
    assert blamed(judged(batch)) == []
    assert blamed(judged(entry(2, message(20), message(21)))) == [("name twice", 21)]


def test_a_name_is_free_after_a_cancel() -> None:
    assert blamed(judged(FIRST, entry(2, cancel(11, 10)), entry(3, message(20)))) == []


def delivered(offset: int, due: int) -> Facts:
    batch = rows(message(offset, due=due))
    digest = journal_facts(JOURNAL, batch, 1, 1).facts["digest"][0]
    fields = {"due": due, "created": NOW - 100_000, "at": due + 1, "digest": digest, "peer": 0}
    return made_fact(Seen.DELIVERED, offset, **fields)


@pytest.mark.parametrize(
    ("accepted_ms", "clock_ms", "wrong"),
    [
        pytest.param(NOW - 10, 0, False, id="it had left"),
        pytest.param(NOW - 50 - IN_TIME_MS, 0, False, id="clocks of masters differ"),
        pytest.param(NOW - 51 - IN_TIME_MS, 0, True, id="it had not"),
        pytest.param(NOW - 90_000, NOW - 40, False, id="the clock went back since"),
    ],
)
def test_a_message_that_left_before_frees_its_name(
    accepted_ms: int, clock_ms: int, wrong: bool
) -> None:
    due = NOW - 50
    second = entry(2, message(20, created=accepted_ms), clock_ms=clock_ms)
    found = judged(entry(1, message(10, due=due)), delivered(10, due), second)
    assert blamed(found) == ([("name twice", 20)] if wrong else [])


def test_an_overdue_message_that_is_held_still_has_its_name() -> None:
    marks = Marks(Mark(NOW - 1_000, 0, 999))
    late = entry(1, message(10, due=NOW - 500))
    after = entry(2, message(20, created=NOW))
    peer = replace(context().peers[0], marks=marks)
    assert blamed(judged(late, after, peers=[peer], marks=marks)) == [("name twice", 20)]


def test_an_undecided_message_is_held_against_nobody() -> None:
    peer = replace(
        context().peers[0], missing=np.array([[12], [19]]), journal=np.array([[0], [12]])
    )
    after = entry(2, message(20))
    assert blamed(judged(FIRST, after, peers=[peer])) == [("name twice", 20)]
    spilled = replace(peer, spilled=15, damaged=np.array([[DUE - 1], [DUE + 1]]))
    found = judged(entry(1, message(10)), after, peers=[spilled])
    assert found.counts["undecided"] == 1
    assert blamed(found) == []


def test_without_journals_every_cancel_counts() -> None:
    gone = {"unread": np.array([[0], [30]]), "complete_ms": 0}
    alone = replace(context().peers[0], journal=np.zeros((2, 0), np.int64))
    alone = replace(alone, spilled=30, proven=30)
    what = {"peers": [alone], **gone}
    both = in_slot(message(10), message(20))
    assert blamed(judged(both, **what)) == [("name twice", 20)]
    assert "by its entry" in judged(both, **what).problems[0].text
    assert blamed(judged(in_slot(message(10), message(20), cancel(25, 10)), **what)) == []
    assert blamed(judged(in_slot(message(10), message(20), cancel(25, 20)), **what)) == []


def test_messages_travel_by_the_shares_of_their_keys() -> None:
    many = [entry(number, message(number, f"n {number % 300}")) for number in range(600)]
    found, _ = judge_range(np.concatenate(many), context())
    batches = [*named_rows(found.named)]
    parts = [row for batch in batches for row in batch.to_pylist()]
    assert len({row["bucket_ms"] for row in parts}) == len(parts) > 100
    assert sum(row["count"] for row in parts) == len(found.named) == 600
    assert found.named.dtype == NAMED
    judge_names(found.named[::-1], context(), found)
    assert found.problem_counts == {"name twice": 300}
