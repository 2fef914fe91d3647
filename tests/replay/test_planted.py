"""Each planted fault is found by the whole proof, named by message or by file, and nothing else is
blamed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from slotwheel.replay.reading.layout import find
from slotwheel.replay.report.verdict import CLASSES, Outcome, Verdict
from slotwheel.wheel.mark import Mark
from slotwheel.wheel.state import LmdbState
from support import replayrun
from support.replayrun import FAULTS, LATER_MS, NOW_MS, cut, first, flip

WHOLE = {
    "accepted": 5995,
    "delivered": 3588,
    "pending": 2397,
    "cancelled": 5,
    "dead": 5,
    "lost": 0,
    "undecided": 0,
}


def proof_of(spark: Any, directories: list[str], **options: Any) -> Verdict:
    verdict = prove(spark, find(directories), Options(**options))
    assert sum(verdict.counts[name] for name in CLASSES) == verdict.counts["accepted"]
    assert not verdict.truncated
    return verdict


def test_the_run_without_a_fault_is_proven(spark: Any, tmp_path: Path) -> None:
    verdict = proof_of(spark, replayrun.made().write(tmp_path), exactly_once=True, late_ms=3)
    assert verdict.proven
    assert verdict.reasons == []
    assert verdict.counts == WHOLE
    assert verdict.problems == []
    assert [(pair.equal, pair.different) for pair in verdict.agreement] == [(6000, 0)] * 3
    whole = verdict.lateness[0]
    assert (whole.count, whole.p50, whole.p999, whole.max) == (3588, 3, 3, 3)
    assert {one.kind: one.rows for one in verdict.inputs}["topic"] == 3593
    times = [one for one in verdict.lateness if one.bucket_ms >= 0]
    assert sum(one.count for one in times) == 3588
    assert all(one.bucket_ms % verdict.interval_ms == 0 for one in times)


def test_a_standby_that_died_earlier(spark: Any, tmp_path: Path) -> None:
    """Its newest mark is another one of the same epoch, and its journal ends before the others'."""
    run = replayrun.made()
    dead = run.peers[2]
    dead.entries = dead.entries[:-2]
    dead.marks = replace(dead.marks, main=Mark(NOW_MS - 50_000, 0, run.spilled - 1))
    for second in [one for one in dead.archived if one * 1000 >= NOW_MS - 50_000]:
        dead.live[second] = dead.archived.pop(second)
    assert min(dead.live) * 1000 < NOW_MS
    verdict = proof_of(spark, run.write(tmp_path))
    assert verdict.proven, verdict.reasons
    assert verdict.counts == WHOLE


KINDS = {
    "remove_delivered": "lost",
    "repeat_delivered": "repeated",
    "deliver_early": "early",
    "deliver_late": "late",
    "move_row": "misplaced",
    "miss_row": "missing row",
    "add_row": "extra row",
    "deliver_cancelled": "cancelled but delivered",
    "deliver_dead": "dead and delivered",
    "accept_twice": "offset twice",
}
ONLY_IF_ASKED: dict[str, dict[str, Any]] = {
    "repeat_delivered": {"exactly_once": True},
    "deliver_late": {"late_ms": 999},
}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_of_meaning(spark: Any, tmp_path: Path, name: str) -> None:
    run = replayrun.made()
    offset = FAULTS[name](run)
    options = ONLY_IF_ASKED.get(name, {})
    verdict = proof_of(spark, run.write(tmp_path), **options)
    assert not verdict.proven
    assert verdict.reasons == [f"{KINDS[name]}: 1"]
    (problem,) = verdict.problems
    assert (problem.kind, problem.id) == (KINDS[name], run.id_of(offset))
    if name == "move_row":
        assert problem.file == f"two/slots/{int(run.due[offset]) // 1000 + 1}.arrows"
    assert verdict.counts["lost"] == (name == "remove_delivered")


@pytest.mark.parametrize("name", sorted(ONLY_IF_ASKED))
def test_it_fails_the_proof_only_if_asked(spark: Any, tmp_path: Path, name: str) -> None:
    run = replayrun.made()
    FAULTS[name](run)
    verdict = proof_of(spark, run.write(tmp_path))
    assert verdict.proven
    assert verdict.counts.get("repeated", 0) == len(verdict.problems)
    assert verdict.lateness[0].max == (1_000 if name == "deliver_late" else 3)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def flip_at(position: int) -> Callable[[Path], None]:
    return lambda path: flip(path, position)


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        pytest.param("two/slots/*", flip_middle, id="slot flipped"),
        pytest.param("two/slots/*", cut, id="slot cut"),
        pytest.param("two/slots/*", Path.unlink, id="slot gone"),
        pytest.param("two/archive/*/slots/*", flip_middle, id="archived slot flipped"),
        pytest.param("two/archive/*/journal/*", flip_middle, id="payload flipped"),
        pytest.param("two/archive/*/journal/*", flip_at(20), id="segment header"),
        pytest.param("two/archive/*/journal/*", flip_at(66), id="frame"),
        pytest.param("two/archive/*/journal/*", flip_at(100), id="entry header"),
        pytest.param("two/archive/*/journal/*", cut, id="journal cut"),
        pytest.param("one/topics/orders/*.arrows", flip_middle, id="topic flipped"),
    ],
)
def test_damage(spark: Any, tmp_path: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    directories = replayrun.made().write(tmp_path)
    path = first(tmp_path, pattern)
    damage(path)
    verdict = proof_of(spark, directories)
    assert not verdict.proven
    (problem,) = verdict.problems
    assert problem.file == str(path.relative_to(tmp_path))
    assert verdict.reasons == [f"{problem.kind}: 1"]
    assert verdict.counts["lost"] == 0
    assert (verdict.counts["undecided"] > 0) == ("topics" in pattern)


def test_a_damaged_record_of_the_state(spark: Any, tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    state = LmdbState(tmp_path / "two")
    with state._env.begin(write=True) as transaction:
        record = transaction.get(b"checkpoint", db=state._meta)
        assert record is not None
        transaction.put(b"checkpoint", record[:-1] + b"\xff", db=state._meta)
    state.close()
    verdict = proof_of(spark, directories)
    (problem,) = verdict.problems
    assert (problem.kind, problem.file) == ("damaged", "two/state")
    assert "b'checkpoint' with its own checksum" in problem.text
    assert verdict.counts == WHOLE


def test_a_state_store_that_is_gone(spark: Any, tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    shutil.rmtree(tmp_path / "two/state")
    verdict = proof_of(spark, directories)
    (problem,) = verdict.problems
    assert (problem.kind, problem.file) == ("missing", "two/state")
    assert verdict.counts == WHOLE


def test_a_row_that_is_taken_out_of_an_entry(spark: Any, tmp_path: Path) -> None:
    """Every checksum is right, and what stands before and behind it arrived. A receipt may promise
    it, and it may have arrived all the same."""
    run = replayrun.made()
    at = next(n for n in range(9, 60) if run.due[run.peers[0].entries[n][-1]] < NOW_MS)
    for peer in run.peers:
        peer.entries[at] = peer.entries[at][:-1]
    directories = run.write(tmp_path)
    verdict = proof_of(spark, directories)
    offset = (at + 1) * replayrun.ENTRY - 1
    assert verdict.reasons == ["gap: 3"]
    assert {one.file.split("/")[0] for one in verdict.problems} == set(replayrun.PEERS)
    for problem in verdict.problems:
        assert "/journal/" in problem.file
        assert f"expected offset {offset}, where " in problem.text
        assert problem.text.endswith(f" ends, found {offset + 1}")


def test_a_kept_segment_that_is_missing(spark: Any, tmp_path: Path) -> None:
    """Where another peer has it nothing is open. Where nobody has, it may have been deleted by
    right: it is told how much was not judged."""
    directories = replayrun.made().write(tmp_path)
    path = first(tmp_path, "one/archive/*/journal/*")
    path.unlink()
    assert proof_of(spark, directories).proven
    for other in tmp_path.glob(f"*/archive/*/journal/{path.name}"):
        other.unlink()
    verdict = proof_of(spark, directories)
    assert (verdict.outcome, verdict.problems) == (Outcome.IN_PART, [])
    (point,) = verdict.open_points
    assert point.subject == "900 messages or cancels of offsets 900 to 1,799"
    assert verdict.counts["accepted"] == WHOLE["accepted"] - 899
    assert "--retain" in point.remedy
    assert verdict.counts["unaccounted"] > 0


def test_a_record_from_behind_the_end_of_the_log(spark: Any, tmp_path: Path) -> None:
    run = replayrun.made()
    offset = run.rows.num_rows - 1
    for peer in run.peers:
        peer.entries[-1] = peer.entries[-1][:-1]
    run.peers[1].delivered.append((offset, LATER_MS + 60_000))
    directories = run.write(tmp_path)
    layout = replace(find(directories), made_ms=LATER_MS + 120_000)
    verdict = prove(spark, layout, Options())
    assert verdict.problem_counts == {"unknown": 1}
    assert verdict.problems[0].id == run.id_of(offset)
    assert f"behind {offset}, where the last journal ends" in verdict.problems[0].text


def test_an_empty_directory(spark: Any, tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    (tmp_path / "four").mkdir()
    verdict = proof_of(spark, [*directories, str(tmp_path / "four")])
    assert verdict.reasons == ["empty: 1"]
    assert verdict.problems[0].file == "four"
    assert verdict.counts == WHOLE


def test_nothing_is_no_proof(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "new" / "journal").mkdir(parents=True)
    verdict = proof_of(spark, [str(tmp_path / "new")])
    assert not verdict.proven
    assert verdict.reasons == ["nothing to prove: no accepted message was found"]


@pytest.mark.parametrize("removed", [True, False], ids=["delivered removed", "topics whole"])
def test_marks_that_claim_everything_hide_nothing(
    spark: Any, tmp_path: Path, removed: bool
) -> None:
    """The marks of all peers, in journals and checkpoints, say that every row there is has left:
    then those that did not arrive are lost, whatever lies in slot files."""
    run = replayrun.made()
    gone = replayrun.remove_delivered(run) if removed else None
    replayrun.claim_everything(run)
    verdict = prove(spark, find(run.write(tmp_path)), Options(problems_max=3_000))
    assert not verdict.proven
    pending = WHOLE["pending"]
    assert verdict.problem_counts == {"lost": pending + removed}
    assert not verdict.truncated
    assert len(verdict.problems) == pending + removed
    if gone is not None:
        assert run.id_of(gone) in {problem.id for problem in verdict.problems}
        assert verdict.counts["delivered"] == WHOLE["delivered"] - 1
        assert verdict.counts["lost"] == pending + 1
