"""What is made of facts, case by case: no files, no Spark."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from slotwheel.reading.files import NO_PEER
from slotwheel.replay.facts.fact import ELSEWHERE, FORGED, NO_DIGEST, Facts, Seen
from slotwheel.replay.facts.making import GroupTerms
from slotwheel.replay.judging.context import Context, Options, PeerView
from slotwheel.replay.judging.judged import Judged
from slotwheel.replay.judging.ranges import Results, judge_range
from slotwheel.replay.judging.sums import KEYS, lateness, rounded, total
from slotwheel.replay.proof import BUCKETS_MAX, _interval
from slotwheel.wheel.mark import Mark, Marks, TopicMark
from slotwheel.wheel.schema import Int64s
from support.factrows import made_fact

DUE = 1_000_000
TOPIC = crc32c(b"orders")


def fact(seen: Seen, offset: int, **fields: Any) -> Facts:
    times = {"due": DUE + offset, "created": DUE - 60_000}
    return made_fact(seen, offset, **(times | fields))


def arrived(offset: int, late_ms: int = 3, **fields: Any) -> Facts:
    return fact(Seen.DELIVERED, offset, **({"at": DUE + offset + late_ms} | fields))


def facts(*made: Facts) -> Facts:
    return np.concatenate(made)


def ranges(*pairs: tuple[int, int]) -> Int64s:
    return np.array(pairs, np.int64).reshape(-1, 2).T.copy()


def peer(name: str = "a", **fields: Any) -> PeerView:
    marks = fields.pop("marks", Marks(Mark(DUE + 1_000, 0, 999)))
    view = PeerView(name, 0, marks, ranges((0, 1_000)), ranges(), 0)
    return replace(view, **fields)


def context(*peers: PeerView, **fields: Any) -> Context:
    peers = peers or (peer(),)
    made = Context(GroupTerms("lab"), Options(), peers, peers[0].marks, DUE, {TOPIC: "orders"})
    return replace(made, **fields)


def judged(what: Context, *made: Facts) -> tuple[Judged, pa.Table]:
    return judge_range(facts(*made), what)


def bars(sums: pa.Table, group: str = "") -> list[tuple[int | None, int, int, int]]:
    """Group, lateness, count and maximum of each bar: of all messages, or by a column."""
    late = [row for row in sums.to_pylist() if row["what"] == "late"]
    groups = [{name for name in ("topic", "bucket_ms") if row[name] is not None} for row in late]
    return sorted(
        (row.get(group), row["late_ms"], row["count"], row["max_ms"])
        for row, named in zip(late, groups, strict=True)
        if named == {group} - {""}
    )


def kinds(found: Judged) -> dict[str, int]:
    return found.problem_counts


def test_delivered_once() -> None:
    found, sums = judged(context(), fact(Seen.ACCEPTED, 5), arrived(5))
    assert found.counts == {"accepted": 1, "delivered": 1}
    assert found.problems == []
    assert bars(sums) == [(None, 3, 1, 3)]


def test_a_mark_is_no_delivery() -> None:
    found, _ = judged(context(), fact(Seen.ACCEPTED, 5), fact(Seen.SLOT, 5))
    assert found.counts == {"accepted": 1, "lost": 1}
    assert found.problems[0].id == f"lab.{DUE + 5}.5"


def test_held_and_not_covered_is_pending() -> None:
    behind = context(peer(marks=Marks(Mark(DUE - 1, 0, 999))))
    found, _ = judged(behind, fact(Seen.ACCEPTED, 5))
    assert found.counts == {"accepted": 1, "pending": 1}


def test_not_covered_and_nowhere_is_lost() -> None:
    behind = context(peer(marks=Marks(Mark(DUE - 1, 0, 999)), spilled=10))
    found, _ = judged(behind, fact(Seen.ACCEPTED, 5))
    assert found.counts == {"accepted": 1, "lost": 1}
    assert "not held any more" in found.problems[0].text


def test_a_topic_that_is_held_back_has_a_mark_of_its_own() -> None:
    copies = {"orders": TopicMark(Mark(DUE + 5, 5, 999))}
    held = context(peer(marks=Marks(Mark(DUE + 900, 0, 999), copies=copies)))
    other = crc32c(b"other")
    found, _ = judged(
        held,
        fact(Seen.ACCEPTED, 5),
        fact(Seen.ACCEPTED, 6),
        fact(Seen.ACCEPTED, 7, topic=other),
    )
    assert found.counts == {"accepted": 3, "pending": 1, "lost": 2}


def test_cancelled() -> None:
    taken_back = fact(Seen.CANCELLED, 5, where=9, flags=NO_DIGEST, created=-1)
    row = fact(Seen.CANCEL, 9, due=DUE + 5, digest=5, topic=0)
    found, _ = judged(context(), fact(Seen.ACCEPTED, 5), taken_back, row)
    assert found.counts == {"accepted": 1, "cancelled": 1}
    found, _ = judged(context(), fact(Seen.ACCEPTED, 5), taken_back, row, arrived(5))
    assert kinds(found) == {"cancelled but delivered": 1}


def test_what_arrives_is_what_was_accepted() -> None:
    changes: list[tuple[dict[str, int], str]] = [
        ({"digest": 1}, "key, value or headers"),
        ({"due": DUE}, "due"),
        ({"created": -1}, "created"),
        ({"topic": 1, "digest": 1}, "topic"),
        ({"due": DUE, "created": 1, "digest": 1}, "due, key, value or headers, created"),
    ]
    for change, named in changes:
        found, _ = judged(context(), fact(Seen.ACCEPTED, 5), arrived(5, **change))
        (problem,) = found.problems
        expected = f"what arrived differs from what was accepted in {named}"
        assert (problem.kind, problem.text) == ("altered", expected)
    two, _ = judged(
        context(),
        *(fact(Seen.ACCEPTED, at) for at in (5, 6)),
        *(arrived(at, **change) for at, change in ((5, {"due": DUE}), (6, {"topic": 1}))),
    )
    assert [one.text.rpartition(" ")[2] for one in two.problems] == ["due", "topic"]
    asked = fact(Seen.ACCEPTED, 5, partition=3)
    (other,) = judged(context(), asked, arrived(5, partition=2))[0].problems
    assert other.text.endswith("differs from what was accepted in partition")
    assert kinds(judged(context(), asked, arrived(5, partition=3))[0]) == {}
    anywhere = fact(Seen.ACCEPTED, 5)
    assert kinds(judged(context(), anywhere, arrived(5, partition=2))[0]) == {}


def test_what_is_not_judged_is_counted() -> None:
    """A message that was accepted shortly before it was due may stand behind later ones by right;
    and one that asked for no partition, in any."""
    shortly = {"created": DUE + 6 - 4_999}
    asked = {"partition": 2}
    found, _ = judged(
        context(),
        *(fact(Seen.ACCEPTED, at, **more) for at, more in ((5, {}), (6, shortly), (7, asked))),
        *(
            arrived(at, peer=NO_PEER, **({"partition": 2} | more))
            for at, more in ((5, {}), (6, shortly), (7, asked))
        ),
    )
    assert kinds(found) == {}
    assert found.counts["unjudged:order"] == 1
    assert found.counts["unjudged:partition"] == 2
    embedded, _ = judged(context(), fact(Seen.ACCEPTED, 5), arrived(5))
    assert embedded.counts == {"accepted": 1, "delivered": 1}


def test_a_message_in_another_partition_than_its_keys() -> None:
    """Nobody is blamed: the topic may have had fewer when it was sent. One that asked for a
    partition is where it asked to be."""
    knows = context(terms=GroupTerms("lab", partitions={"orders": 3}))
    elsewhere = {"peer": NO_PEER, "partition": 2, "flags": ELSEWHERE}
    found, _ = judged(
        knows,
        fact(Seen.ACCEPTED, 5),
        arrived(5, **elsewhere),
        fact(Seen.ACCEPTED, 6, partition=2),
        arrived(6, **elsewhere),
    )
    assert kinds(found) == {"other partition": 1}
    assert found.problems[0].offset == 5
    assert "unjudged:partition" not in found.counts


def test_what_nobody_accepted() -> None:
    known = fact(Seen.ACCEPTED, 4)
    found, _ = judged(context(), known, arrived(4), arrived(5))
    assert kinds(found) == {"unknown": 1}
    found, _ = judged(context(), known, arrived(4), arrived(5, flags=FORGED))
    assert kinds(found) == {"forged": 1}
    found, _ = judged(context(), known, arrived(4), arrived(5_000))
    assert kinds(found) == {}
    assert found.counts["unaccounted"] == 1
    damaged = context(peer(journal=ranges((0, 5), (6, 9)), missing=ranges((5, 6))))
    found, _ = judged(damaged, known, arrived(4), arrived(5))
    assert found.counts["unaccounted"] == 1
    assert kinds(found) == {}


def test_what_arrives_from_behind_the_end_of_the_log() -> None:
    """Whoever has the group's key can make such an id, or the newest part of the journal is gone;
    unless a node that runs accepted it meanwhile."""
    known = fact(Seen.ACCEPTED, 4)
    behind = arrived(1_000, created=DUE - 60_000)
    found, _ = judged(context(made_ms=DUE + 2_000), known, arrived(4), behind)
    assert found.counts["unaccounted"] == 1
    whole = context(log_end=1_000, made_ms=DUE + 2_000)
    found, _ = judged(whole, known, arrived(4), behind)
    assert kinds(found) == {"unknown": 1}
    assert "behind 1000, where the last journal ends" in found.problems[0].text
    for now in (DUE + 1_000, DUE - 60_000):
        running = context(log_end=1_000, made_ms=now)
        found, _ = judged(running, known, arrived(4), behind)
        assert (kinds(found), found.counts["newer"]) == ({}, 1)
    promise = fact(Seen.RECEIPT, 1_000, created=-1, at=DUE + 1_500)
    found, _ = judged(whole, known, arrived(4), promise)
    assert kinds(found) == {"lost": 1}
    found, _ = judged(replace(whole, made_ms=DUE + 1_500), known, arrived(4), promise)
    assert (kinds(found), found.counts["newer"]) == ({}, 1)
    found, _ = judged(whole, known, arrived(4), fact(Seen.SLOT, 1_000))
    assert kinds(found) == {"extra row": 1}


def test_what_receipts_tell_of_offsets_that_no_journal_holds() -> None:
    view = peer(journal=ranges((10, 1_000)))
    known = [fact(Seen.RECEIPT, 3, created=-1), fact(Seen.RECEIPT, 12, created=-1)]
    made = context(view, unread=ranges((0, 10)))
    found, _ = judged(made, *known, arrived(3), fact(Seen.ACCEPTED, 12), arrived(12), arrived(5))
    assert found.counts["unread:known"] == 1
    assert (found.counts["unaccounted"], found.counts["delivered"]) == (1, 2)


def test_the_same_record_in_two_dumps_came_once() -> None:
    dumped = [arrived(5, peer=NO_PEER, file=file, where=70) for file in (3, 4)]
    found, _ = judged(context(), fact(Seen.ACCEPTED, 5), *dumped)
    assert kinds(found) == {}
    again = arrived(5, peer=NO_PEER, file=4, where=71)
    found, _ = judged(context(), fact(Seen.ACCEPTED, 5), *dumped, again)
    assert kinds(found) == {"repeated": 1}
    assert found.counts["repeated"] == 1


def test_what_comes_twice_is_repeated_though_no_journal_shows_it() -> None:
    """Of offset 3 the segment is gone, of 8 one journal of three is not enough, and 2,000 is behind
    all ends: the first two are repeats, the third is unknown already."""
    gone = three(unread=ranges((0, 5)), log_end=1_000)
    gone = replace(
        gone,
        peers=[replace(one, journal=ranges((5, 1_000))) for one in gone.peers],
        made_ms=DUE + 9_000,
    )
    seen = [fact(Seen.ACCEPTED, 8), *(arrived(at, where=n) for at in (3, 8, 2_000) for n in (1, 2))]
    for asked in (False, True):
        options = Options(exactly_once=asked)
        found, _ = judged(replace(gone, options=options), *seen, arrived(4, flags=FORGED))
        told = {one.offset: one.text for one in found.problems if one.kind == "repeated"}
        assert sorted(told) == ([3, 8] if asked else [])
        assert found.counts.get("repeated", 0) == len(told)
        assert found.problem_counts["unknown"] == 1
    assert told[3] == "arrived 2 times; no journal shows its acceptance"
    dead = fact(Seen.DEAD, 3, at=DUE + 9)
    late = replace(gone, options=Options(exactly_once=True, start_ms=DUE + 4))
    found, _ = judged(replace(gone, options=options), arrived(3), dead)
    assert kinds(found) == {"repeated": 1}
    assert kinds(judged(late, arrived(3), dead)[0]) == {}, "it is not asked about"


def test_a_receipt_counts_as_accepted() -> None:
    receipt = fact(Seen.RECEIPT, 5, created=-1)
    assert judged(context(), receipt)[0].counts == {"accepted": 1, "lost": 1}
    assert judged(context(), receipt, arrived(5))[0].counts["delivered"] == 1
    other = fact(Seen.ACCEPTED, 5, digest=1)
    found, _ = judged(context(), receipt, other, arrived(5, digest=1))
    (problem,) = found.problems
    assert problem.kind == "altered"
    assert problem.text.endswith("was accepted in digest of key, value and headers")


def three(**fields: Any) -> Context:
    return context(peer("a"), peer("b"), peer("c"), is_group=True, **fields)


def on(number: int, offset: int, **fields: Any) -> Facts:
    return fact(Seen.ACCEPTED, offset, peer=number, **fields)


def test_what_one_peer_of_three_has_is_in_doubt() -> None:
    found, _ = judged(three(), on(0, 5))
    assert found.counts == {"in doubt": 1}
    assert kinds(found) == {}
    found, _ = judged(three(), on(0, 5), on(1, 5), arrived(5))
    assert found.counts["accepted"] == 1
    # The third one's journal goes on behind it.
    assert kinds(found) == {"missing row": 1}


def test_an_end_that_one_peer_will_cut_is_no_fault() -> None:
    """Another row of another epoch, on a peer that does not know its own to be committed."""
    stale = on(0, 5, digest=1, at=1, where=20)
    found, _ = judged(three(), stale, *(on(n, 5, at=2, where=21) for n in (1, 2)), arrived(5))
    assert kinds(found) == {}
    assert found.counts["delivered"] == 1
    same_entry = on(0, 5, digest=1, at=2, where=21)
    found, _ = judged(three(), same_entry, *(on(n, 5, at=2, where=21) for n in (1, 2)), arrived(5))
    assert kinds(found) == {"differs": 1}


def test_early_and_how_late() -> None:
    found, _ = judged(context(), fact(Seen.ACCEPTED, 5), arrived(5, late_ms=-1))
    assert kinds(found) == {"early": 1}
    # What came in after its due time is late from then on.
    late = fact(Seen.ACCEPTED, 6, created=DUE + 106)
    found, sums = judged(context(), late, arrived(6, late_ms=150, created=DUE + 106))
    assert bars(sums) == [(None, 50, 1, 50)]
    strict = context(options=Options(late_ms=49))
    found, _ = judged(strict, late, arrived(6, late_ms=150, created=DUE + 106))
    assert kinds(found) == {"late": 1}


def test_only_what_is_due_in_the_time_asked_for() -> None:
    part = context(options=Options(start_ms=DUE + 6, end_ms=DUE + 7))
    made = [fact(Seen.ACCEPTED, at) for at in (5, 6, 7)]
    found, sums = judged(part, *made, *(arrived(at) for at in (5, 6, 7)))
    assert found.counts == {"accepted": 1, "delivered": 1}
    assert [count for _, _, count, _ in bars(sums)] == [1]


def test_a_bucket_has_its_begin_and_not_its_end() -> None:
    made = [fact(Seen.ACCEPTED, at, due=due) for at, due in ((1, 19_999), (2, 20_000))]
    came = [arrived(at, due=due, at=due) for at, due in ((1, 19_999), (2, 20_000))]
    _, sums = judged(context(), *made, *came)
    assert [bucket for bucket, *_ in bars(sums, "bucket_ms")] == [10_000, 20_000]


def test_lateness_keeps_three_digits() -> None:
    values = np.array([0, 1, 4096, 4097, 123_456], np.int64)
    assert rounded(values).tolist() == [0, 1, 4096, 4090, 123_000]


def test_histograms_add_up() -> None:
    random = np.random.default_rng(4)
    topic, bucket, late_ms = (random.integers(0, high, 5_000) for high in (3, 7, 6_000))
    crc = topic.astype(np.uint32)
    whole = total(lateness(crc, bucket, late_ms))
    parts = [lateness(crc[a::3], bucket[a::3], late_ms[a::3]) for a in range(3)]
    again = total(total(part) for part in parts)
    for name, groups in (("", topic * 0), ("topic", topic), ("bucket_ms", bucket)):
        found = bars(whole, name)
        assert found == bars(again, name)
        for group in set(groups.tolist()):
            mine = [bar[1:] for bar in found if bar[0] in (group, None)]
            assert sum(count for _, count, _ in mine) == (groups == group).sum()
            assert max(highest for *_, highest in mine) == late_ms[groups == group].max()
            assert {late for late, *_ in mine} == set(rounded(late_ms[groups == group]))
    none = np.zeros(0, np.int64)
    assert len(total(lateness(none.astype(np.uint32), none, none))) == 0


def test_what_is_held_is_bounded_and_the_total_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotwheel.replay.judging.ranges._HELD_ROWS_MAX", 1)
    three = [judged(context(), fact(Seen.ACCEPTED, at), arrived(at)) for at in (5, 6, 7)]
    results = Results(Options())
    emitted = [list(results.add(*one)) for one in three]
    assert all(emitted), "nothing is held beyond the limit"
    assert list(results.drain()) == []
    left = total([pa.Table.from_batches([batch for some in emitted for batch in some])])
    assert in_order(left) == in_order(total([sums for _, sums in three]))


def test_a_little_is_held_until_the_end() -> None:
    three = [judged(context(), fact(Seen.ACCEPTED, at), arrived(at)) for at in (5, 6, 7)]
    results = Results(Options())
    assert [batch for one in three for batch in results.add(*one)] == []
    left = pa.Table.from_batches(results.drain())
    assert in_order(left) == in_order(total([sums for _, sums in three]))


def in_order(sums: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sums.sort_by([(name, "ascending") for name in KEYS]).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("buckets", "last_ms", "width_ms"),
    [
        (BUCKETS_MAX, 10 * (BUCKETS_MAX - 1), 10),
        (BUCKETS_MAX, 10 * (2 * BUCKETS_MAX), 10),
        (BUCKETS_MAX + 1, 10 * BUCKETS_MAX, 20),
        (BUCKETS_MAX + 1, 10 * (2 * BUCKETS_MAX - 1), 20),
        (BUCKETS_MAX + 1, 10 * (2 * BUCKETS_MAX), 30),
    ],
)
def test_buckets_are_wider_only_where_there_are_too_many(
    buckets: int, last_ms: int, width_ms: int
) -> None:
    tallied = SimpleNamespace(buckets=buckets, first=0, last=last_ms)
    assert _interval([tallied], 10) == width_ms
    assert _interval([], 10) == 10
