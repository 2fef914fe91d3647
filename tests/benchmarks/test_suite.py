"""The suite and its guard: what they write, and what they say when something fell or failed."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from slotwheel.benchmarks import check as guard
from slotwheel.benchmarks import suite
from slotwheel.benchmarks.goals import GOALS
from slotwheel.benchmarks.plots import (
    APART,
    BY_BYTES,
    BY_CLIENTS,
    BY_RATE,
    BY_ROWS,
    PENDING,
    QUEUES,
    STAGES,
)
from slotwheel.benchmarks.results import Figure, Result, load, save
from slotwheel.benchmarks.runs import CALLERS, ON_REQUEST, SUITE, SUITE_S, Run
from support.waiting import eventually

EMPTY = "empty node"


def result(**ratios: float) -> Result:
    figures = {f"ratio: {name}": Figure.of([value]) for name, value in ratios.items()}
    return Result("python -m benchmarks.one", {**figures, "messages/s": Figure.of([5.0])})


def check(tmp_path: Path, before: dict[str, Result], after: dict[str, Result]) -> int:
    save(tmp_path / "old", before)
    save(tmp_path / "new", after)
    files = [str(tmp_path / name / "results.json") for name in ("old", "new")]
    return guard.main(["--against", files[0], "--found", files[1]])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the suite says of options that it does not take."""
    with pytest.raises(SystemExit) as ended:
        suite.main([*map(str, arguments)])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_suite_writes_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a real benchmark: an empty node."""
    assert suite.main(["--quick", "--only", EMPTY, "--out", str(tmp_path)]) == 0
    found = load(tmp_path / "results.json")[EMPTY]
    assert found.failure == ""
    assert found.figures["resident with nothing pending, MB"].runs == 1
    assert found.machine["python"]
    assert found.at
    page = (tmp_path / "RESULTS.md").read_text()
    assert "`python -m benchmarks.pending --rows 0 --warm-gib 0 --quick`" in page
    assert "| resident with nothing pending, MB |" in page
    assert "These figures say little" in page
    said = capsys.readouterr()
    assert f"] {EMPTY}, 1 x" in said.err
    # The goals of what ran, and of nothing else.
    assert [line.split(" | ")[0] for line in said.out.splitlines() if "| <= " in line] == [
        "| empty node: memory, MB",
        "| empty node: listens after, s",
    ]


def test_an_unknown_name_is_refused_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--only", "nothing", "--out", tmp_path)
    assert "there are stages, ingest" in said


def test_a_name_with_a_comma_is_one_name() -> None:
    assert [one.name for one in suite.select(["ingest, 1 KB"])] == ["ingest, 1 KB"]
    assert {one.module for one in suite.select(["single,burst", "spill"])} == {
        "single",
        "burst",
        "spill",
    }
    # A group: what stands beside other delay queues, and what goes with it.
    assert {one.name for one in suite.select([CALLERS])} == {
        one.name for one in SUITE if one.module in {"single", "gateway", "queues"}
    } | {EMPTY}
    words = "queues,strangers,bigsecond,secured,far,named,schedules"
    asked = {one.name for one in suite.select([words])}
    assert asked >= {one.name for one in ON_REQUEST}
    assert asked - {one.name for one in suite.select(None)} == {one.name for one in ON_REQUEST}
    with pytest.raises(ValueError, match="brust: no such"):
        suite.select(["single,brust"])


def test_the_page_is_made_anew_from_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no such file" in refused(capsys, "--page", "--out", tmp_path)
    save(tmp_path, {"one": result(speed=0.7)})
    assert suite.main(["--page", "--out", str(tmp_path)]) == 0
    assert "| ratio: speed | 70.0% |" in (tmp_path / "RESULTS.md").read_text()


def go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: dict[str, str], *options: str
) -> int:
    """The suite with these programs in place of its benchmarks; each is handed the JSON's path."""
    runs = tuple(Run(name, name, 0, repeats=3) for name in programs)
    monkeypatch.setattr(suite, "SUITE", runs)
    monkeypatch.setattr(
        suite, "command_of", lambda one: [sys.executable, "-c", programs[one.module]]
    )
    return suite.main(["--repeats", "2", "--out", str(tmp_path), *options])


WRITES = """
import json, sys
path = sys.argv[sys.argv.index("--json") + 1]
open(path, "w").write(json.dumps({"machine": {"python": "3"}, "messages/s": %s, "text": "no"}))
"""


def test_one_that_fails_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fails = "import sys; sys.exit('the disk is full')"
    assert go(monkeypatch, tmp_path, {"bad": fails, "good": WRITES % 7}) == 1
    found = load(tmp_path / "results.json")
    assert found["bad"].failure == "code 1: the disk is full"
    assert found["good"].figures == {"messages/s": Figure(7, 7, 7, 2)}
    assert "**Failed**: code 1: the disk is full" in (tmp_path / "RESULTS.md").read_text()


def test_one_that_hangs_is_ended_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = tmp_path / "child"
    # The name is there as a whole or not at all.
    hangs = f"""
import os, time
child = os.fork()
if child:
    open({str(name)!r} + ".new", "w").write(str(child))
    os.rename({str(name)!r} + ".new", {str(name)!r})
time.sleep(60)
"""
    monkeypatch.setattr(Run, "most_s", 3.0)
    assert go(monkeypatch, tmp_path, {"hangs": hangs, "good": WRITES % 7}) == 1
    found = load(tmp_path / "results.json")
    assert found["hangs"].failure == "took longer than 3 s"
    assert found["good"].figures
    child = int(name.read_text())
    eventually(lambda: has_ended(child), otherwise=lambda: "its child went on")


def has_ended(pid: int) -> bool:
    try:
        # Whoever adopted it may not have looked yet.
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_results_are_there_after_each_benchmark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []
    monkeypatch.setattr(suite, "save", lambda folder, found: seen.append(list(found)))
    go(monkeypatch, tmp_path, {"first": WRITES % 1, "second": WRITES % 2})
    assert seen == [["first"], ["first", "second"]]


def test_an_interruption_keeps_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure = suite.measure

    def interrupted(one: Run, *arguments: object, **options: object) -> None:
        if one.name == "second":
            raise KeyboardInterrupt
        measure(one, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(suite, "measure", interrupted)
    programs = {"first": WRITES % 1, "second": WRITES % 2, "third": WRITES % 3}
    assert go(monkeypatch, tmp_path, programs) == 130
    assert list(load(tmp_path / "results.json")) == ["first"]
    assert "### First" in (tmp_path / "RESULTS.md").read_text()


def test_merging_replaces_only_what_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs = {"first": WRITES % 1, "second": WRITES % 2}
    go(monkeypatch, tmp_path, programs)
    programs["first"] = WRITES % 10
    assert go(monkeypatch, tmp_path, programs, "--only", "first", "--merge") == 0
    found = load(tmp_path / "results.json")
    assert [(name, one.figures["messages/s"].median) for name, one in found.items()] == [
        ("first", 10),
        ("second", 2),
    ]
    page = (tmp_path / "RESULTS.md").read_text()
    assert page.index("### First") < page.index("### Second")
    # And without it the file is of this run alone.
    go(monkeypatch, tmp_path, programs, "--only", "second")
    assert list(load(tmp_path / "results.json")) == ["second"]


def test_a_file_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text('{"results": {"one": {"figures": {"a": 1}}}}')
    said = refused(capsys, "--only", "stages", "--merge", "--out", tmp_path)
    assert "not written by this suite" in said


def test_the_suite_fits_into_an_hour_and_knows_what_is_shown() -> None:
    assert SUITE_S <= 3_600
    names = [one.name for one in SUITE]
    every = [*names, *(one.name for one in ON_REQUEST)]
    assert len(set(every)) == len(every)
    axes = [run for axis in (BY_ROWS, BY_BYTES, BY_CLIENTS, BY_RATE) for _, run in axis]
    shown = {APART, PENDING, QUEUES, STAGES, *axes, *(goal.run for goal in GOALS)}
    assert shown <= set(names)


def test_the_guard_names_what_fell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"one": result(same=1.0, better=1.0, worse=1.0, gone=1.0)}
    assert check(tmp_path, before, {"one": result(same=0.85, better=2.0, worse=0.79)}) == 1
    text = capsys.readouterr().out
    assert "2 of 4 ratios fell" in text
    assert "fell: one: worse" in text
    assert "fell: one: gone" in text


def test_the_guard_is_content_with_what_is_as_fast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, {"one": result(same=1.0)}, {"one": result(same=0.81, new=0.1)}) == 0
    assert "0 of 1 ratios fell" in capsys.readouterr().out


def test_the_guard_wants_something_to_compare_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard.main(["--against", str(tmp_path / "nothing.json")]) == 2
    assert "make bench" in capsys.readouterr().err


def test_the_guard_runs_what_has_ratios_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []
    without = Result("x", {"messages/s": Figure.of([1.0])})
    before = {
        "stages": without,
        "durable ingest": result(speed=1.0),
        "gone from the suite": result(a=1.0),
    }
    save(tmp_path, before)
    monkeypatch.setattr(
        suite, "measure", lambda one, _repeats, into, *, quick: ran.append((one.name, quick, into))
    )
    assert guard.main(["--against", str(tmp_path / "results.json")]) == 1
    assert [(name, quick) for name, quick, _ in ran] == [("durable ingest", False)]


def test_repeats_are_those_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: dict[str, int] = {}
    monkeypatch.setattr(
        suite, "measure", lambda one, repeats, *_, **__: ran.__setitem__(one.name, repeats)
    )
    only = ["--only", "catchup", "--only", "stages", "--out", str(tmp_path)]
    assert suite.main(only) == 0
    assert ran == {"stages": 1, "catching up": 2}
    assert suite.main([*only, "--repeats", "5"]) == 0
    assert ran == {"stages": 5, "catching up": 5}
    # A page of medians of five wants them of what has a goal, not of all.
    assert suite.main([*only, "--goal-repeats", "4"]) == 0
    assert ran == {"stages": 1, "catching up": 4}
    assert suite.main(["--only", "single sends", "--goal-repeats", "1", *only[-2:]]) == 0
    assert ran["single sends"] == 3
    for wrong in (["--repeats", "0"], ["--goal-repeats", "0"], ["--repeats=2", "--goal-repeats=2"]):
        with pytest.raises(SystemExit) as refused:
            suite.main([*only, *wrong])
        assert refused.value.code == 2


def test_progress_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "measure", lambda *_, **__: None)
    said = io.StringIO()
    runs = [Run("first", "first", 120, repeats=3), Run("second", "second", 60, repeats=1)]
    suite.go(runs, lambda *_: None, Console(file=said), quick=False)
    assert "[1/2] first, 3 x; about 7 min to go" in said.getvalue()
    assert "[2/2] second, 1 x; about 1 min to go" in said.getvalue()
