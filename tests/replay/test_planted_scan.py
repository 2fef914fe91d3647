"""Each planted fault, as the scan sees it: damage and misplaced rows are problems that name the
file or the row, and nothing else is blamed; a fault of meaning changes the facts of one message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from slotwheel.replay.facts.fact import Seen
from slotwheel.replay.problems import Problem
from slotwheel.replay.reading import layout
from slotwheel.wheel.mark import Marks
from support import replayrun
from support.replayrun import FAULTS, TERMS, Run, cut, first, flip
from support.told import Told, scan

Sighting = tuple[str, int, int, int, int]


def told_of(directories: list[str]) -> tuple[Told, list[Problem]]:
    found = layout.find(directories)
    told = scan(found.files, TERMS)
    return told, [*map(Problem.from_json, found.problems), *told.problems]


def sightings(told: Told) -> Counter[Sighting]:
    """How often each (seen, peer, offset, due, moment of delivery) was seen."""
    rows = told.facts[["seen", "peer", "offset", "due", "at"]].tolist()
    arrivals = (Seen.DELIVERED, Seen.DEAD)
    return Counter(
        (Seen(seen).name, peer, offset, due, at if seen in arrivals else 0)
        for seen, peer, offset, due, at in rows
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Counter[Sighting]:
    told, problems = told_of(replayrun.made().write(tmp_path_factory.mktemp("whole")))
    assert problems == []
    return sightings(told)


def test_the_run_without_a_fault(whole: Counter[Sighting]) -> None:
    run = replayrun.made()
    seen: Counter[str] = Counter()
    for sighting, count in whole.items():
        seen[sighting[0]] += count
    assert set(whole.values()) == {1}
    cancels = len(run.cancelled)
    assert seen["ACCEPTED"] == 3 * (6_000 - cancels)
    assert seen["CANCEL"] == seen["CANCELLED"] == 3 * cancels
    assert seen["SLOT"] + seen["ARCHIVED"] == 3 * run.spilled
    assert seen["DEAD"] == len(run.buried) > 1
    assert seen["DELIVERED"] == sum(len(peer.delivered) for peer in run.peers) > 3_000


def change(run: Run, name: str, offset: int) -> tuple[set[Sighting], set[Sighting]]:
    """What a fault adds to the sightings, and what it takes from them."""
    due = int(run.due[offset])
    delivered = ("DELIVERED", 0, offset, due)
    last = run.peers[1].delivered[-1][1]
    match name:
        case "remove_delivered":
            return set(), {(*delivered, due + 3)}
        case "repeat_delivered":
            return {(*delivered, run.peers[0].delivered[-1][1])}, set()
        case "deliver_early":
            return {(*delivered, due - 1)}, {(*delivered, due + 3)}
        case "deliver_late":
            return {(*delivered, due + 1_000)}, {(*delivered, due + 3)}
        case "move_row":  # where it lies is the validator of placement's
            return set(), set()
        case "miss_row":
            return set(), {("SLOT", 2, offset, due, 0)}
        case "add_row":
            gone = {("ACCEPTED", peer, offset, due, 0) for peer in range(3)}
            return {("SLOT", 2, offset, due, 0)}, gone
        case "deliver_cancelled" | "deliver_dead":
            return {("DELIVERED", 1, offset, due, last)}, set()
        case _:
            assert name == "accept_twice"
            return {("ACCEPTED", 0, offset, due, 0)}, set()


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_of_meaning_changes_one_message(
    tmp_path: Path, whole: Counter[Sighting], name: str
) -> None:
    run = replayrun.made()
    offset = FAULTS[name](run)
    told, problems = told_of(run.write(tmp_path))
    if name == "move_row":
        (problem,) = problems
        assert (problem.validator, problem.kind) == ("placement", "misplaced")
        assert problem.id == run.id_of(offset)
        assert problem.file == f"two/slots/{int(run.due[offset]) // 1000 + 1}.arrows"
    else:
        assert problems == []
    found = sightings(told)
    assert (set(found - whole), set(whole - found)) == change(run, name, offset)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def flip_at(position: int) -> Callable[[Path], None]:
    return lambda path: flip(path, position)


@pytest.mark.parametrize(
    ("pattern", "damage", "kinds"),
    [
        pytest.param("two/slots/*", flip_middle, {"damaged"}, id="slot flipped"),
        pytest.param("two/slots/*", cut, {"truncated"}, id="slot cut"),
        pytest.param("two/archive/*/slots/*", flip_middle, {"damaged"}, id="archived slot flipped"),
        pytest.param("two/archive/*/slots/*", cut, {"truncated"}, id="archived slot cut"),
        pytest.param("two/archive/*/journal/*", flip_middle, {"damaged"}, id="payload flipped"),
        pytest.param("two/archive/*/journal/*", flip_at(20), {"damaged"}, id="segment header"),
        pytest.param("two/archive/*/journal/*", flip_at(66), {"damaged"}, id="frame"),
        pytest.param("two/archive/*/journal/*", flip_at(100), {"damaged"}, id="entry header"),
        pytest.param("two/archive/*/journal/*", cut, {"damaged", "truncated"}, id="journal cut"),
        pytest.param("one/topics/orders/*.arrows", flip_middle, {"damaged"}, id="topic flipped"),
        pytest.param("one/topics/orders/*.arrows", cut, {"damaged", "truncated"}, id="topic cut"),
    ],
)
def test_damage_names_its_file_and_no_other(
    tmp_path: Path, pattern: str, damage: Callable[[Path], None], kinds: set[str]
) -> None:
    directories = replayrun.made().write(tmp_path)
    path = first(tmp_path, pattern)
    damage(path)
    _, problems = told_of(directories)
    assert {one.file for one in problems} == {str(path.relative_to(tmp_path))}
    assert {one.validator for one in problems} == {"integrity"}
    assert {one.kind for one in problems} <= kinds, problems
    assert len(problems) == 1, problems


def test_an_empty_directory(tmp_path: Path) -> None:
    directories = replayrun.made().write(tmp_path)
    (tmp_path / "four").mkdir()
    _, (problem,) = told_of([*directories, str(tmp_path / "four")])
    assert (problem.kind, problem.file) == ("empty", "four")


def test_rewritten_marks_change_no_fact(tmp_path: Path, whole: Counter[Sighting]) -> None:
    """They are told of in summaries alone, with every checksum right."""
    run = replayrun.made()
    replayrun.claim_everything(run)
    told, problems = told_of(run.write(tmp_path))
    assert problems == []
    assert sightings(told) == whole
    newest = max((one for one in told.files if one.marks), key=lambda one: one.marks_index)
    marks = Marks.decode(bytes.fromhex(newest.marks))
    assert marks.all_covered(run.due, run.rows.column("offset").to_numpy()).all()
