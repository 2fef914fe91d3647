"""What a store of events does not show is missing, foreign or undecided, and blamed on nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.report.verdict import Outcome, Verdict
from support import replayrun
from support.damage import flip
from support.factrows import MINT
from support.plainproof import prove_here
from support.replayrun import GROUP, NOW_MS, START_MS, TOPIC
from support.tracestore import event, table_of, write_segment

RUN = replayrun.made(1_200, 3, ("one",))
CONSUMERS = "billing"
LOST = f"lost, topic to consumer, {CONSUMERS}"
Rows = list[dict[str, Any]]


def events(group: str = GROUP) -> Rows:
    """All that was delivered was answered for, in the order of its arrival, and committed."""
    found: Rows = []
    for at, (offset, at_ms) in enumerate(RUN.peers[0].delivered):
        one = MINT.one(int(RUN.due[offset]), offset)
        parts = {"group": group, "due": one.due, "offset": offset, "check": one.check}
        about = {"id": parts, "topic": TOPIC, "group": CONSUMERS, "partition": 0, "offset": at}
        found.append(event(len(found), "processed", at_ms + 5, **about))
    end = {"group": CONSUMERS, "topic": TOPIC, "partition": 0, "offset": len(found)}
    return [*found, event(len(found), "committed", NOW_MS, **end)]


WHOLE = events()


def proof(root: Path, rows: Rows, harm: Callable[[Path], object] = lambda _: None) -> Verdict:
    """With a store of three segments."""
    (directory,) = RUN.write(root / "data")
    store = root / "traces"
    third = len(rows) // 3 + 1
    for number in range(3 if rows else 0):
        part = table_of(rows[number * third : (number + 1) * third])
        write_segment(store, number + 1, number + 1, part)
    store.mkdir(exist_ok=True)
    harm(store)
    layout = dataclasses.replace(find([directory]), made_ms=NOW_MS + 60_000)
    return prove_here(layout, Options(), str(store))


def second(suffix: str, harm: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda store: harm(store / f"{2:012d}-{2:012d}.{suffix}")


def both(store: Path) -> None:
    for suffix in ("arrow", "index"):
        second(suffix, Path.unlink)(store)


def kinds(verdict: Verdict) -> dict[str, int]:
    return dict(verdict.problem_counts)


def test_a_whole_store_is_proven(tmp_path: Path) -> None:
    assert proof(tmp_path, WHOLE).proven


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        ("missing", both),
        ("missing", second("index", Path.unlink)),
        ("damaged", second("arrow", flip)),
        ("damaged", second("index", flip)),
        ("damaged", second("arrow", lambda path: path.write_bytes(b""))),
    ],
)
def test_a_segment_that_cannot_be_read_is_the_problem(
    tmp_path: Path, kind: str, harm: Callable[[Path], object]
) -> None:
    verdict = proof(tmp_path, WHOLE, harm)
    assert kinds(verdict) == {kind: 1}
    (problem,) = verdict.problems
    assert problem.file == "traces/000000000002-000000000002.arrow"
    assert any("events" in one.reason for one in verdict.open_points)


@pytest.mark.parametrize("gone", [range(100, 140), range(40)])
def test_numbers_that_are_missing_are_undecided(tmp_path: Path, gone: Sequence[int]) -> None:
    verdict = proof(tmp_path, [row for row in WHOLE if row["number"] not in gone])
    assert kinds(verdict) == {}
    assert verdict.outcome == Outcome.IN_PART


def test_what_was_lost_behind_the_last_gap_is_lost_and_named(tmp_path: Path) -> None:
    rows = [row for row in WHOLE if row["number"] not in range(20)]
    at = len(rows) - 10
    offset = rows[at]["id"]["offset"]
    rows[at] = rows[at - 1] | {"number": rows[at]["number"]}
    verdict = proof(tmp_path, rows)
    assert kinds(verdict) == {LOST: 1}
    (problem,) = verdict.problems
    assert problem.id == RUN.id_of(offset)


def test_a_store_without_events_is_not_proven(tmp_path: Path) -> None:
    verdict = proof(tmp_path, [])
    assert verdict.outcome == Outcome.IN_PART
    assert [one.subject for one in verdict.open_points] == ["the trace store traces"]


def test_another_wheels_store_is_foreign(tmp_path: Path) -> None:
    verdict = proof(tmp_path, events("another"))
    assert kinds(verdict) == {"foreign": 1}
    assert [one.file for one in verdict.problems] == ["traces"]


def test_a_letter_that_a_consumer_buries_is_no_repeat(tmp_path: Path) -> None:
    letters = [row | {"kind": "dead", "error": "poison"} for row in WHOLE[:20]]
    rows = [*WHOLE, *(row | {"number": len(WHOLE) + at} for at, row in enumerate(letters))]
    verdict = proof(tmp_path, rows)
    assert verdict.proven
    (line,) = [note for note in verdict.notes if note.startswith("topic to consumer")]
    assert "repeated" not in line


def test_a_client_that_is_not_known_to_have_sent_is_no_repeat(tmp_path: Path) -> None:
    """Of two messages with one content the event of one is missing."""
    rows: Rows = []
    for offset in (0, 1):
        one = MINT.one(int(RUN.due[offset]), offset)
        parts = {"group": GROUP, "due": one.due, "offset": offset, "check": one.check}
        rows.append(event(len(rows), "produced", START_MS, id=parts, topic=TOPIC))
    assert proof(tmp_path, rows).proven
