"""RESULTS.md and its plots: goals reached, not reached, not measured; always the same bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slotwheel.benchmarks import documents, page
from slotwheel.benchmarks.goals import AT_LEAST, AT_MOST, Goal
from slotwheel.benchmarks.plots import (
    APART,
    BY_BYTES,
    BY_CLIENTS,
    BY_RATE,
    BY_ROWS,
    PENDING,
    PLOTS,
    QUEUES,
    STAGES,
    draw,
)
from slotwheel.benchmarks.results import RESULTS, Figure, Result, load
from slotwheel.benchmarks.stages import STAGES as STEPS

RATE = Goal(
    "intake: messages/s", "durable ingest", "messages/s", AT_LEAST, 1_000, why="The disk is slow."
)
RATIO = Goal("beside raw", "durable ingest", "ratio: to the raw limit", AT_LEAST, 0.5)
LATE = Goal("lateness p99, ms", "lateness", "p99", AT_MOST, 20)
EARLY = Goal("early", "lateness", "early", AT_MOST, 0)


def one(**figures: list[float]) -> Result:
    named = {name: Figure.of(values) for name, values in figures.items()}
    return Result("python -m benchmarks.one", named, at="today", seconds=90.0)


def measured() -> dict[str, Result]:
    """Every benchmark that a plot is made of."""
    found = {}
    for at, name in (*BY_ROWS, *BY_BYTES, *BY_CLIENTS, (1_000, APART)):
        found[name] = one(
            **{"messages/s": [90.0 * at, 100.0 * at], "ratio: to the raw limit": [0.5]}
        )
    for at, name in BY_RATE:
        found[name] = one(**{"lateness p50, ms": [1.0], "lateness p99, ms": [at / 1e4, at / 5e3]})
    shares = (("resident", "MB"), ("restart", "s"), ("status", "ms"))
    pending = {f"{what} at {m} M, {unit}": [2.0 * m] for what, unit in shares for m in (1, 10, 50)}
    queues = {
        f"{name}, durable messages/s in batches of {rows}": [float(rows)]
        for name in ("slotwheel", "Redis")
        for rows in (1, 1000)
    }
    stages = {f"{name}, batches of 10, us": [1.0] for name in ("intake", "spill", "all")}
    return {**found, PENDING: one(**pending), QUEUES: one(**queues), STAGES: one(**stages)}


def test_each_benchmark_says_when_it_was_measured_and_of_what() -> None:
    result = one(a=[1.0])
    result.revision = "1c33d11"
    text = page.page({"one": result}, None, [])
    assert "`python -m benchmarks.one` (today, 1c33d11, 90 s)\n" in text


def test_a_goal_that_is_reached() -> None:
    text = page.page(
        {"durable ingest": one(**{"messages/s": [900.0, 1200.0, 1500.0]})}, None, [RATE]
    )
    row = "| >= 1,000 | 1,200 (900 to 1,500) | 3 | yes | `python -m benchmarks.one` |"
    assert row in text
    assert "Not reached" not in text
    assert text.index("## Goals") < text.index("## Plots") < text.index("## Every benchmark")


def test_a_goal_that_is_not_reached_says_by_how_much_and_why() -> None:
    ingest = one(**{"messages/s": [520.0], "ratio: to the raw limit": [0.4]})
    late = one(p99=[30.0], early=[3.0])
    goals = [RATE, RATIO, LATE, EARLY]
    text = page.page({"durable ingest": ingest, "lateness": late}, None, goals)
    assert text.count("**no**") == 4
    assert "- **intake: messages/s**: 520 of 1,000, 52% of it. The disk is slow." in text
    assert "- **beside raw**: 40.0% of 50.0%, 80% of it. Where the time goes: docs/" in text
    assert "- **lateness p99, ms**: 30 instead of 20, 50% more." in text
    assert "- **early**: 3 instead of 0." in text


def test_a_goal_missed_by_a_hair_is_not_called_the_whole() -> None:
    text = page.page({"durable ingest": one(**{"messages/s": [999.4]})}, None, [RATE])
    assert "99.94% of it" in text


def test_a_goal_without_a_figure_is_not_measured() -> None:
    text = page.page({"lateness": one(p99=[1.0])}, None, [RATE, LATE])
    command = "`python -m benchmarks.ingest --seconds 60`"
    assert f"| >= 1,000 | not measured | 0 | ? | {command} |" in text
    assert "Not reached" not in text


def test_what_differs_between_the_machines_is_all_told() -> None:
    first, second = one(a=[1.0]), one(a=[1.0])
    first.machine = {"kernel": "6.1", "python": "3.11", "load": "0.1"}
    second.machine = {"kernel": "6.2", "python": "3.11", "load": "0.2"}
    lines = page.page({"first": first, "second": second}, None, []).splitlines()
    assert "- kernel: 6.1; 6.2" in lines
    assert "- python: 3.11" in lines
    assert "`python -m benchmarks.one` (today, 90 s, load 0.2)" in lines


def test_every_plot_is_drawn_and_embedded_and_always_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    page.write(first, measured(), [])
    draw(second, measured())
    text = (first / "RESULTS.md").read_text()
    for plot in PLOTS:
        assert f"![{plot.title}]({plot.path})" in text
        drawn = (first / plot.path).read_bytes()
        assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
        assert drawn == (second / plot.path).read_bytes()
        assert b"<dc:date>" not in drawn
    assert "Not drawn" not in text


def test_what_was_not_run_is_not_drawn_and_an_old_plot_of_it_goes(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for plot in PLOTS:
        (tmp_path / plot.path).touch()
    page.write(tmp_path, {STAGES: measured()[STAGES]}, [])
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["stages.svg"]
    text = (tmp_path / "RESULTS.md").read_text()
    assert "Not drawn, because their benchmarks were not run: ingest by batch size;" in text


def test_without_matplotlib_the_page_says_how_to_get_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page.write(tmp_path, measured(), [RATE])
    text = (tmp_path / "RESULTS.md").read_text()
    assert "**Plots are missing**" in text
    assert "pip install -e '.[bench]'" in text
    assert ".svg" not in text


@pytest.mark.parametrize("path", documents.DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_of_documents_are_those_of_the_results(path: Path) -> None:
    results = load(Path(page.__file__).with_name(RESULTS))
    text = path.read_text()
    assert text.count("<!-- benchmarks: end -->") >= 1
    assert documents.filled(text, results) == text, "python -m benchmarks.suite --page"
    # So it is made of them, and not kept.
    assert documents.filled(text, {}) != text


def test_the_stages_of_the_budget_are_the_whole() -> None:
    figures = load(Path(page.__file__).with_name(RESULTS))[STAGES].figures
    loads = [name.removeprefix("all, ") for name in figures if name.startswith("all, ")]
    assert len(loads) == 7
    for load_ in loads:
        # Of several runs, the median of the sums is not the sum of the medians.
        parts = [figures[f"{stage}, {load_}"] for stage in STEPS]
        low, high = sum(one.lowest for one in parts), sum(one.highest for one in parts)
        whole = figures[f"all, {load_}"]
        assert low * (1 - 1e-9) <= whole.lowest <= whole.highest <= high * (1 + 1e-9), load_
        assert sum(one.median for one in parts) == pytest.approx(whole.median, rel=0.1), load_


def test_a_row_that_was_not_measured_is_left_out() -> None:
    place = "before\n<!-- benchmarks: stages -->\nold\n<!-- benchmarks: end -->\nbehind"
    step = one(**{"intake, batches of 10, us": [2.5]})
    text = documents.filled(place, {STAGES: step})
    assert text.startswith(
        "before\n<!-- benchmarks: stages -->\n\n| us a message | batches of 10 |"
    )
    assert text.endswith("| intake | 2.5 | - | - | - | - | - |\n\n<!-- benchmarks: end -->\nbehind")
    with pytest.raises(KeyError, match="nothing"):
        documents.filled(place.replace("stages", "nothing"), {})
