"""Which due times can be proven when old segments are gone, and what slot files alone decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwheel.reading.files import JOURNAL, File, Layout, PeerFiles
from slotwheel.reading.layout import find
from slotwheel.replay.facts.summary import FileSummary
from slotwheel.replay.judging.complete import CLOCKS_DIFFER_MS, complete_from
from slotwheel.replay.judging.context import Options
from slotwheel.replay.report.verdict import Outcome, Verdict
from slotwheel.wheel.mark import Mark, Marks
from support import replayrun
from support.plainproof import prove_here
from support.replayrun import NOW_MS, START_MS, Run

MADE_MS = 1_000_000
CREATED_MS = 500
MARKS = Marks(Mark(900, 0, 0, former=(Mark(950, 0, 0),)))
KEPT = File(0, JOURNAL, "", "", 0, 0, archived=True, kept_ms=700)
LIVE = File(1, JOURNAL, "", "", 0, 0)
OLDER = File(2, JOURNAL, "", "", 0, 0, archived=True, kept_ms=300)
BY_HORIZON = CREATED_MS + 7_200_000 + CLOCKS_DIFFER_MS


@pytest.mark.parametrize(
    ("floor_ms", "horizon_ms", "files", "expected"),
    [
        (None, 0, [KEPT], None),
        (None, 7_200_000, [KEPT], BY_HORIZON),
        (-1, 7_200_000, [KEPT], 701),
        (-1, 0, [OLDER, KEPT], 701),
        (800, 7_200_000, [KEPT, LIVE], 801),
        (-1, 7_200_000, [LIVE], 951),
        (BY_HORIZON, 7_200_000, [KEPT], BY_HORIZON),
        (-1, 0, [OLDER], 951),
    ],
    ids=[
        "nothing is known",
        "a program without a floor",
        "all that was deleted is archived",
        "a segment before the gap says nothing",
        "some was deleted before there was an archive",
        "of a live segment only the newest mark is known, also a former one",
        "the earlier of both",
        "no segment behind the gap",
    ],
)
def test_complete_from(
    floor_ms: int | None, horizon_ms: int, files: list[File], expected: int | None
) -> None:
    peer = PeerFiles("one", "", deleted_floor_ms=floor_ms)
    layout = Layout(peers=[peer], files=files, made_ms=MADE_MS, horizon_ms=horizon_ms)
    summaries = [
        FileSummary(0, first_offset=40, first_created_ms=CREATED_MS),
        FileSummary(1, first_offset=60, first_created_ms=CREATED_MS + 5),
        FileSummary(2, first_offset=0),
    ]
    assert complete_from(layout, summaries, [[0, 10], [20, 40]], [MARKS]) == expected


def test_the_best_of_all_peers_counts() -> None:
    peers = [PeerFiles("one", "", deleted_floor_ms=at) for at in (800, None, -1)]
    files = [replace(KEPT, number=n, peer=n, kept_ms=700 - n) for n in range(3)]
    summaries = [FileSummary(n, first_offset=40) for n in range(3)]
    layout = Layout(peers=peers, files=files, made_ms=MADE_MS)
    assert complete_from(layout, summaries, [[0, 40]], [MARKS] * 3) == 699


COMPLETE_MS = START_MS + 64_000
"""The oldest segments were deleted, and the next one was archived at this mark."""


def proof_of(
    root: Path, plant: Callable[[Run], Any] = lambda _: None, **options: Any
) -> tuple[Any, Verdict]:
    """A node whose first segments are gone; half of its messages were far ahead."""
    run = replayrun.made(2_300, 8, ("one",), far=True)
    run.segment_bytes, run.deleted_floor, run.kept_ms = 40 << 10, -1, COMPLETE_MS - 1
    planted = plant(run)
    directories = run.write(root)
    for path in sorted(root.glob("one/archive/*/journal/*"))[:2]:
        path.unlink()
    return planted, prove_here(find(directories), Options(**options))


def an_old(run: Run, due_from_ms: int, due_to_ms: int) -> int:
    """A delivered message of a day's file, of the first segments, due in that time."""
    return next(
        offset
        for offset, _ in run.peers[0].delivered
        if offset < 300 and offset % 4 == 0 and due_from_ms <= run.due[offset] < due_to_ms
    )


def lose(due_from_ms: int, due_to_ms: int) -> Callable[[Run], int]:
    def plant(run: Run) -> int:
        offset = an_old(run, due_from_ms, due_to_ms)
        peer = run.peers[0]
        peer.delivered = [one for one in peer.delivered if one[0] != offset]
        return offset

    return plant


def test_messages_whose_segments_are_gone_are_judged_by_their_slot_files(tmp_path: Path) -> None:
    _, verdict = proof_of(tmp_path, exactly_once=True, late_ms=3)
    assert verdict.outcome == Outcome.PROVEN, (verdict.reasons, verdict.open_points)
    assert verdict.counts["accepted"] == 2_300 - 2
    assert verdict.counts["cancelled"] == 2, "by cancels that no journal has any more"


def test_one_that_did_not_arrive_is_lost_from_when_on_the_files_are_complete(
    tmp_path: Path,
) -> None:
    offset, verdict = proof_of(tmp_path, lose(COMPLETE_MS, NOW_MS))
    assert [(one.kind, one.offset) for one in verdict.problems] == [("lost", offset)]
    assert (verdict.counts["lost"], verdict.counts["undecided"]) == (1, 0)


def test_before_that_its_cancel_may_be_gone(tmp_path: Path) -> None:
    """The cancel was in the file of its second, which was deleted; that of the day is there."""
    _, verdict = proof_of(tmp_path, lose(START_MS, COMPLETE_MS))
    assert verdict.outcome == Outcome.IN_PART
    assert (verdict.problems, verdict.counts["undecided"]) == ([], 1)


def test_what_arrived_is_compared_with_the_slot_file(tmp_path: Path) -> None:
    def plant(run: Run) -> int:
        offset = an_old(run, START_MS, NOW_MS)
        run.peers[0].altered["topic", offset] = {"value": b"x"}
        return offset

    offset, verdict = proof_of(tmp_path, plant)
    assert [(one.kind, one.offset) for one in verdict.problems] == [("altered", offset)]


@pytest.mark.parametrize("start_ms", [None, COMPLETE_MS - 1, COMPLETE_MS])
def test_the_rest_is_open_before_that_time_and_named_with_it(
    tmp_path: Path, start_ms: int | None
) -> None:
    """A slot file of before that time is gone, too, so some offsets are nowhere."""

    def plant(run: Run) -> None:
        second = min(run.peers[0].archived)
        assert second * 1_000 < COMPLETE_MS - 1_000
        del run.peers[0].archived[second]

    _, verdict = proof_of(tmp_path, plant, start_ms=start_ms)
    if start_ms == COMPLETE_MS:
        assert verdict.outcome == Outcome.PROVEN
        return
    (point,) = verdict.open_points
    assert "messages or cancels of offsets" in point.subject
    assert "judge with --from 2026-09-21T14:59:44+00:00" in point.remedy
