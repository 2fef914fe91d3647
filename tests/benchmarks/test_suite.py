"""The suite and its guard: what they write, and what they say when something fell or failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )


def results(**ratios: float) -> dict[str, Any]:
    figures = {f"ratio: {name}": {"median": value} for name, value in ratios.items()}
    return {"results": {"one": {"figures": {**figures, "messages/s": {"median": 5.0}}}}}


def check(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> tuple[int, str]:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(before))
    new.write_text(json.dumps(after))
    done = run("check", "--against", old, "--found", new)
    return done.returncode, done.stdout


def test_the_suite_writes_what_it_measured(tmp_path: Path) -> None:
    done = run("suite", "--quick", "--only", "stages", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["quick"] is True
    figures = found["results"]["stages"]["figures"]
    assert figures["spill, batches of 1000, us"]["runs"] == 1
    page = (tmp_path / "RESULTS.md").read_text()
    assert "`python -m benchmarks.stages --quick`" in page
    assert "| spill, batches of 1000, us |" in page
    assert "These figures say little" in page


def test_an_unknown_name_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = run("suite", "--only", "nothing", "--out", tmp_path)
    assert done.returncode == 2
    assert "there are stages, ingest" in done.stderr


def test_the_guard_names_what_fell(tmp_path: Path) -> None:
    before = results(same=1.0, better=1.0, worse=1.0, gone=1.0)
    code, text = check(tmp_path, before, results(same=0.85, better=2.0, worse=0.79))
    assert code == 1
    assert "2 of 4 ratios fell" in text
    assert "fell: one: worse" in text
    assert "fell: one: gone" in text


def test_the_guard_is_content_with_what_is_as_fast(tmp_path: Path) -> None:
    code, text = check(tmp_path, results(same=1.0), results(same=0.81, new=0.1))
    assert (code, "0 of 1 ratios fell" in text) == (0, True)


def test_the_guard_wants_something_to_compare_with(tmp_path: Path) -> None:
    done = run("check", "--against", tmp_path / "nothing.json")
    assert done.returncode == 2
    assert "make bench" in done.stderr
