"""Each benchmark runs with the smallest sizes and prints its figures. No figure is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


SHARE = [
    ("ingest", ["--seconds", "1"], ["messages/s", "ratio: to the raw limit"]),
    ("lateness", ["--seconds", "1", "--rate", "2000"], ["lateness p99, ms", "early"]),
    (
        "burst",
        ["--messages", "3000", "--ahead", "8"],
        ["last one after the second began, ms", "ratio: to the raw limit"],
    ),
    (
        "tracestore",
        ["--events", "300000"],
        [
            "events stored/s",
            "by id, ms",
            "ratio: first page by topic and hour, to a plain scan",
        ],
    ),
    ("spill", ["--messages", "20000", "--slots", "50", "--repeats", "1"], ["into 50 slots, s"]),
    ("intake", ["--messages", "2000"], ["ratio: to the bare consumer"]),
    (
        "stages",
        ["--rows", "100", "--messages", "2000"],
        [
            "all, batches of 100, us",
            "spill, batches of 1000 over two hours, us",
            "records for Kafka besides, 100,000 a second, us",
        ],
    ),
    ("catchup", ["--messages", "20000"], ["delivered/s", "ratio: to the raw limit"]),
    (
        "queues",
        [
            *("--rows", "50", "--seconds", "0.5", "--clients", "2", "--under-way", "2"),
            *("--measure", "intake", "--only", "slotwheel"),
        ],
        ["slotwheel, durable messages/s in batches of 50"],
    ),
]
OTHERS = [
    ("highest", ["--quick"], ["ratio: highest steady rate, to the bare producer"]),
    (
        "pending",
        ["--rows", "20000", "--rest", "0.2"],
        ["resident at 0.02 M, MB", "resident, spread, %", "status at 0.02 M, ms"],
    ),
    ("single", ["--seconds", "0.5", "--clients", "1,3"], ["messages/s, 3 clients"]),
    (
        "exactlyonce",
        ["--only", "burst", "--quick"],
        ["ratio: burst, to at-least-once"],
    ),
    ("consumer", ["--quick"], ["ratio: in batches, to the bare client"]),
    (
        "trace",
        ["--quick"],
        ["ratio: sender, tables, traced", "ratio: consumer, in batches, audited"],
    ),
    ("cancel", ["--messages", "300", "--ids", "50"], ["cancelled/s, 50 a call"]),
    (
        "queues",
        [
            *("--rows", "50", "--seconds", "0.5", "--messages", "500"),
            *("--only", "slotwheel", "--only", "beanstalkd"),
        ],
        [
            "slotwheel, durable messages/s in batches of 50",
            "slotwheel, lateness p99, ms",
            "slotwheel, processor time, us/message",
            "slotwheel, burst of 500, last one after the second began, ms",
            "ratio: write + fdatasync of batches of 50",
        ],
    ),
    (
        "replay",
        ["--rows", "10000"],
        ["bare Arrow read at 0.01 M, rows/s", "scan at 0.01 M, rows/s"],
    ),
    (
        "console",
        ["--rows", "5000", "--times", "1"],
        ["overview: first paint, ms", "pending by key: first paint, ms"],
    ),
    (
        "search",
        [
            *("--rows", "5000", "--rate", "500", "--turn", "0.5", "--turns", "1"),
            *("--cancel", "200"),
        ],
        ["by id, ms", "lateness p99 moves by, ms", "untrue answers"],
    ),
]
"""A process, a broker, a browser or Spark of its own for each: they are a part of the soak. What
they import and call is checked with the types."""


@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [*SHARE, *(pytest.param(*other, marks=pytest.mark.soak) for other in OTHERS)],
)
def test_it_runs_and_tells_its_figures(
    tmp_path: Path, name: str, options: list[str], figures: list[str]
) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(out), "--dir"]
    command += [str(tmp_path / "data"), "--warm-gib", "0", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    for figure in figures:
        assert figure in found
        assert f"| {figure} " in done.stdout
    assert "Estimate on paper" in done.stdout
    assert found["machine"]["durability"] in done.stdout
    if name in ("lateness", "burst"):
        assert found["early"] == 0
    if "beanstalkd" in options:
        assert "\nbeanstalkd" in done.stdout, "measured, or named as missing"
    assert list((tmp_path / "data").iterdir()) == [], "it cleans up behind itself"


def test_each_batch_can_be_kept_apart_and_be_due_soon(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.ingest", "--json", str(out), "--dir"]
    command += [str(tmp_path), "--warm-gib", "0", "--seconds", "0.5"]
    command += ["--apart", "--rows", "10", "--span-s", "5"]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=True)
    found = json.loads(out.read_text())
    # A mark or two may be among the entries.
    assert 9 <= found["rows in a journal entry"] <= 10
    assert found["delivered meanwhile"] == 0
