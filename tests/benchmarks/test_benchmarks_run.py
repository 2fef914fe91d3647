"""Each benchmark runs with the smallest sizes and prints its figures. No figure is judged here.

``stages``: test_suite.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


SHARE = [
    (
        "ingest",
        ["--seconds", "0.3", "--apart", "--rows", "10", "--span-s", "5"],
        ["messages/s", "ratio: to the raw limit"],
    ),
    # As a stranger uses it: by the public client in processes of their own, one message at a time.
    (
        "queues",
        [
            *("--measure", "lateness", "--rate", "100", "--seconds", "0.5"),
            *("--clients", "2", "--only", "slotwheel"),
        ],
        ["slotwheel, lateness p99, ms", "slotwheel, early", "slotwheel, taken"],
    ),
]
OTHERS = [
    (
        "stages",
        ["--rows", "100", "--rates", "100000", "--messages", "2000"],
        [
            "all, batches of 100, us",
            "spill, batches of 1000 over two hours, us",
            "records for Kafka besides, 100,000 a second, us",
        ],
    ),
    (
        "tracestore",
        ["--events", "100000"],
        [
            "events stored/s",
            "by id, ms",
            "ratio: first page by topic and hour, to a plain scan",
        ],
    ),
    ("spill", ["--messages", "20000", "--slots", "50", "--repeats", "1"], ["into 50 slots, s"]),
    (
        "burst",
        ["--messages", "3000", "--ahead", "12"],
        ["last one after the second began, ms", "ratio: to the raw limit"],
    ),
    ("intake", ["--messages", "2000"], ["ratio: to the bare consumer"]),
    ("catchup", ["--messages", "20000"], ["delivered/s", "ratio: to the raw limit"]),
    (
        "bigsecond",
        ["--quick", "--mib", "40", "--ahead", "10"],
        ["another topic beside a large second: p99, ms", "early"],
    ),
    ("highest", ["--quick"], ["ratio: highest steady rate, to the bare producer"]),
    (
        "pending",
        ["--rows", "20000", "--rest", "0.2"],
        ["resident at 0.02 M, MB", "resident, spread, %", "status at 0.02 M, ms"],
    ),
    ("strangers", ["--quick"], ["lateness p99 alone, ms", "lateness p99 beside, ms"]),
    ("lateness", ["--seconds", "1", "--rate", "2000"], ["lateness p99, ms", "early"]),
    (
        "single",
        ["--quick"],
        ["5,000 idle connections, MB", "us of the node a message, 1 clients"],
    ),
    (
        "secured",
        ["--quick"],
        [
            "TLS both ways and rights, us more of one caller",
            "ratio: TLS, processor time of a batch of 1,000, to plain",
            "check of one plain row, us",
        ],
    ),
    ("gateway", ["--quick", "--connections", "64"], ["ratio: 64 connections to Redis"]),
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
        "far",
        ["--quick"],
        [
            *("far: bytes a row", "far: slot files", "far: found although cancelled"),
            *("ratio: a send's p99, far to near", "far, steady: early"),
            "50/s over 60 days, spilled by default: bytes a row",
            "failover takes longer by, s",
        ],
    ),
    (
        "named",
        ["--quick", "--rows", "20000", "--delay", "2"],
        [
            *("ratio: 1 callers, named to unnamed", "batches of 1,000, named: messages/s"),
            *("names: more anonymous, MiB", "cancel by name, ms, p99"),
            *("debounce: arrived", "debounce: lateness, ms, p99"),
        ],
    ),
    (
        "schedules",
        ["--quick"],
        [
            *("put by 16 callers, 1/s", "start, s", "last row committed ahead, s", "missed"),
            *("a send, firing: p99, ms", "lateness, last, ms", "3,000: list of all, s"),
        ],
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


def run(name: str, *options: str | Path) -> str:
    """The benchmark's standard output. It ends with the nodes that it has started."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{name}", *map(str, options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return said


@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [*SHARE, *(pytest.param(*other, marks=pytest.mark.soak) for other in OTHERS)],
)
def test_it_runs_and_tells_its_figures(
    tmp_path: Path, name: str, options: list[str], figures: list[str]
) -> None:
    out, data = tmp_path / "figures.json", tmp_path / "data"
    said = run(name, "--json", out, "--dir", data, "--warm-gib", "0", *options)
    found = json.loads(out.read_text())
    for figure in figures:
        assert figure in found
        assert f"| {figure} " in said
    assert "Estimate on paper" in said
    assert found["machine"]["durability"] in said
    assert found.get("early", found.get("slotwheel, early", 0)) == 0
    if "--apart" in options:
        # Each batch is kept by itself, and may be due soon. A mark or two may be among the entries.
        assert 9 <= found["rows in a journal entry"] <= 10
        assert found["delivered meanwhile"] == 0
    if "beanstalkd" in options:
        assert "\nbeanstalkd" in said, "measured, or named as missing"
    assert list(data.iterdir()) == [], "it cleans up behind itself"
