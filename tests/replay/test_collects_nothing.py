"""However much is wrong, what comes to the driver is small: sums, one value a file, and problems up
to a limit, which says that it was cut."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.classic.dataframe import DataFrame

import slotwheel.replay
from slotwheel.reading.layout import find
from slotwheel.replay.judging.context import Options
from slotwheel.replay.proof import prove
from support import replayrun

BRING = ("collect", "toPandas", "toArrow", "toLocalIterator", "head", "first", "tail", "foreach")
"""What brings rows of a DataFrame to the driver."""
MAY = {
    ("scan.py", "summaries"): "one value a file, and one a file and partition",
    ("proof.py", "run"): "sums: classes, kinds of problems, pairs of peers",
    ("proof.py", "_lateness"): "percentiles: at most 2,000 time buckets and 200 topics",
    ("proof.py", "_counts"): "sums: at most 2,000 time buckets and 200 topics",
    ("proof.py", "_listed"): "problems, up to the limit",
    ("sparkaccount.py", "account"): "one value a part of the events; sums: boundaries and groups",
    ("contents.py", "name_fields"): "digests of the fields of at most 100 messages, by sighting",
    ("follow.py", "_append"): "what one micro-batch found, up to its limits",
}
"""Where in replay/ that happens, and what of."""
LIMIT = 500


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows came to the driver, call by call."""
    counts: list[int] = []

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: DataFrame, *arguments: Any, **named: Any) -> Any:
            found = method(self, *arguments, **named)
            if method.__name__ == "toLocalIterator":
                found = list(found)
            counts.append(len(found) if hasattr(found, "__len__") else 1)
            return iter(found) if method.__name__ == "toLocalIterator" else found

        return call

    for name in (*BRING, "take"):
        monkeypatch.setattr(DataFrame, name, counting(getattr(DataFrame, name)))
    return counts


@pytest.fixture
def lossy(tmp_path: Path) -> tuple[list[str], int, str]:
    """A run of whose topics only the begin is there, and with a row in another second's slot file.
    Directories, how many messages are lost, and the id of that row."""
    run = replayrun.made(12_000)
    moved = replayrun.move_row(run)
    lost = sum(len(peer.delivered) + len(peer.dead) for peer in run.peers)
    for peer in run.peers:
        del peer.delivered[1:]
        peer.dead.clear()
    lost -= sum(len(peer.delivered) for peer in run.peers)
    return run.write(tmp_path / "lossy"), lost, run.id_of(moved)


def test_many_problems(
    spark: Any, tmp_path: Path, lossy: tuple[list[str], int, str], collected: list[int]
) -> None:
    directories, lost, moved = lossy
    assert lost > 10 * LIMIT
    layout = find(directories)
    verdict = prove(spark, layout, Options(problems_max=LIMIT))
    assert not verdict.proven
    assert verdict.problem_counts == {"lost": lost, "misplaced": 1}
    assert verdict.counts["lost"] == lost
    assert sorted(verdict.reasons) == [f"lost: {lost:,}", "misplaced: 1"]
    assert len(verdict.problems) == LIMIT
    assert verdict.truncated
    # The one that is alone of its kind is not crowded out.
    assert [one.id for one in verdict.problems if one.kind == "misplaced"] == [moved]
    offsets = [one.offset for one in verdict.problems if one.kind == "lost"]
    assert offsets == sorted(set(offsets))
    assert offsets[0] < 200

    files = len(layout.files)
    assert files + LIMIT <= sum(collected) <= files + LIMIT + 100
    assert max(collected) <= max(files, LIMIT) + 100

    # Of a quarter of the rows it is as much.
    brought = sum(collected) - files
    run = replayrun.made(3_000)
    for peer in run.peers:
        del peer.delivered[1:]
    layout = find(run.write(tmp_path / "less"))
    collected.clear()
    prove(spark, layout, Options(problems_max=LIMIT))
    assert brought <= sum(collected) - len(layout.files) + 10


def test_nothing_else_in_replay_brings_rows_to_the_driver() -> None:
    found = set()
    for path in sorted(Path(slotwheel.replay.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr in BRING:
                    found.add((path.name, function.name))
    assert found <= set(MAY), "what is brought to the driver here, and how much can it be?"
    assert {name for name, _ in found} >= {"scan.py", "proof.py"}
