"""Runs every benchmark, several times, and writes down the medians.

    python -m benchmarks.suite [--quick] [--repeats 5] [--only single,burst] [--out benchmarks]

Writes ``results.json`` (each figure with its median, lowest and highest; what ``benchmarks.check``
compares) and ``RESULTS.md`` (the same as tables, with each command). A benchmark that fails is
named in both, with the last line that it said, and the others go on. Ctrl-C ends it after writing
down what there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from .harness import RATIO, machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "results.json"
PAGE = "RESULTS.md"
_LONGEST_S = 1_800


@dataclass(frozen=True)
class Run:
    """One benchmark with its options. ``repeats``: fewer than the rest, for what takes long."""

    name: str
    module: str
    options: tuple[str, ...] = ()
    repeats: int | None = None


SUITE = (
    Run("stages", "stages", repeats=3),
    Run("ingest", "ingest", ("--seconds", "60")),
    Run("ingest, batches of 10,000", "ingest", ("--rows", "10000", "--seconds", "20"), 3),
    Run("ingest, 1 KB", "ingest", ("--value-bytes", "1000", "--seconds", "15"), 3),
    Run("ingest, 10 KB", "ingest", ("--value-bytes", "10000", "--seconds", "15"), 3),
    Run("ingest, one client", "ingest", ("--clients", "1", "--seconds", "15"), 3),
    Run("ingest, four clients", "ingest", ("--clients", "4", "--seconds", "15"), 3),
    Run("single sends", "single"),
    Run("burst, embedded", "burst"),
    Run("burst, kafka-python", "burst", ("--sink", "kafka-python", "--messages", "200000"), 3),
    Run("burst, confluent", "burst", ("--sink", "confluent"), 3),
    Run("lateness at 10,000/s", "lateness", ("--rate", "10000", "--seconds", "20"), 3),
    Run("lateness at 50,000/s", "lateness", ("--rate", "50000", "--seconds", "20"), 3),
    Run("lateness at 100,000/s", "lateness", ("--rate", "100000", "--seconds", "20"), 3),
    Run("pending", "pending", ("--rows", "50000000"), 1),
    Run("catching up", "catchup", repeats=3),
    Run("cancelling", "cancel", repeats=3),
    Run("spill", "spill", repeats=1),
    Run("delay topic, kafka-python", "intake", ("--messages", "200000"), 3),
    Run("delay topic, confluent", "intake", ("--client", "confluent"), 3),
    Run("replication", "replication", repeats=3),
    Run("replay", "replay", ("--rows", "5000000"), 1),
    Run("delay queues side by side", "queues", repeats=1),
)


@dataclass
class Figure:
    """Of one benchmark: its runs' values, in the order of the runs."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass
class Result:
    command: str
    figures: dict[str, Figure] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, once: does it all run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", help="names or modules, with commas between")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    chosen = parser.parse_args(arguments)
    only = set((chosen.only or "").split(",")) - {""}
    suite = [run for run in SUITE if not only or only & {run.name, run.module}]
    if not suite:
        known = ", ".join(dict.fromkeys(run.module for run in SUITE))
        parser.error(f"--only {chosen.only}: no such benchmark; there are {known}")
    console = Console(stderr=True)
    results: dict[str, Result] = {}
    try:
        for number, run in enumerate(suite, 1):
            repeats = 1 if chosen.quick else min(chosen.repeats, run.repeats or chosen.repeats)
            console.print(f"[{number}/{len(suite)}] {run.name}, {repeats} times", highlight=False)
            results[run.name] = measure(run, repeats, quick=chosen.quick)
            if results[run.name].failure:
                console.print(f"    failed: {results[run.name].failure}", highlight=False)
    except KeyboardInterrupt:
        console.print("interrupted: writing down what there is")
    write(chosen.out, results, quick=chosen.quick)
    console.print(f"wrote {chosen.out / RESULTS} and {chosen.out / PAGE}", highlight=False)
    return 1 if any(result.failure for result in results.values()) else 0


def measure(run: Run, repeats: int, *, quick: bool) -> Result:
    options = [*run.options, *(["--quick"] if quick else [])]
    result = Result(" ".join(["python -m", f"benchmarks.{run.module}", *options]))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", f"benchmarks.{run.module}", "--json", str(out), *options]
        for _ in range(repeats):
            try:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    timeout=_LONGEST_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                result.failure = f"took longer than {_LONGEST_S} s"
                break
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
                result.failure = f"code {done.returncode}: {said[-1][:200]}"
                break
            _add(result, json.loads(out.read_text()))
    result.seconds = time.monotonic() - begun
    return result


def _add(result: Result, found: dict[str, Any]) -> None:
    result.machine = found.pop("machine")
    for name, value in found.items():
        if isinstance(value, int | float):
            result.figures.setdefault(name, Figure()).values.append(float(value))


def write(folder: Path, results: dict[str, Result], *, quick: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = {
        name: {
            "command": result.command,
            "failure": result.failure,
            "seconds": round(result.seconds, 1),
            "figures": {
                figure: {
                    "median": one.median,
                    "lowest": min(one.values),
                    "highest": max(one.values),
                    "runs": len(one.values),
                }
                for figure, one in result.figures.items()
            },
        }
        for name, result in results.items()
    }
    content = {"quick": quick, "machine": machine(folder), "results": plain}
    (folder / RESULTS).write_text(json.dumps(content, indent=1) + "\n")
    (folder / PAGE).write_text(page(results, machine(folder), quick=quick))


def page(results: dict[str, Result], on: dict[str, str], *, quick: bool) -> str:
    lines = ["# Results", ""]
    if quick:
        lines += ["**Of a quick run: small sizes, once each. These figures say little.**", ""]
    lines += [
        "Medians of several runs, with the lowest and the highest; written by `make bench`.",
        "",
        *(f"- {name}: {value}" for name, value in on.items()),
        "",
    ]
    for name, result in results.items():
        lines += [f"## {name[:1].upper()}{name[1:]}", "", f"`{result.command}`", ""]
        if result.failure:
            lines += [f"**Failed**: {result.failure}", ""]
        if result.figures:
            lines += ["| measure | median | lowest | highest | runs |", "| --- " * 5 + "|"]
            lines += [_row(figure, one) for figure, one in result.figures.items()]
            lines.append("")
    return "\n".join(lines)


def _row(name: str, figure: Figure) -> str:
    each = [figure.median, min(figure.values), max(figure.values)]
    texts = [_text(name, value) for value in each]
    return f"| {name} | {' | '.join(texts)} | {len(figure.values)} |"


def _text(name: str, value: float) -> str:
    if name.startswith(RATIO):
        return f"{value:.1%}" if value < 2 else f"{value:.1f} x"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


def median_of(content: dict[str, Any]) -> dict[tuple[str, str], float]:
    """The medians in a ``results.json``, by benchmark and figure."""
    return {
        (name, figure): float(one["median"])
        for name, result in content["results"].items()
        for figure, one in result["figures"].items()
    }


if __name__ == "__main__":
    sys.exit(main())
