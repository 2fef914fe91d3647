"""Runs every benchmark, several times, and writes down the medians.

    python -m benchmarks.suite [--quick] [--repeats N | --goal-repeats N] [--only single,burst]
                               [--merge] [--out benchmarks]
    python -m benchmarks.suite --only callers --repeats 5 --merge
    python -m benchmarks.suite --page [--out benchmarks]

Writes ``results.json`` after each benchmark (each figure with its median, lowest and highest; what
``benchmarks.check`` compares), and at the end ``RESULTS.md`` and its plots, made of that file; and
prints the goals of what it ran. Tables of the documents are made of that file, too
(``benchmarks.documents``), unless ``--out`` names another place.

Rules
- A benchmark that fails is named with the last line that it said, and the others go on.
- One that hangs is ended with all that it started, and loses only itself.
- Ctrl-C ends the suite; what was measured by then is in the files.
- ``--merge`` keeps what ``results.json`` says of the benchmarks that do not run now; without it
  the file holds this run alone.
- What is run, how often, and how long it takes stands in ``benchmarks.runs``; some of it runs only
  when ``--only`` names it. ``--repeats`` runs each so often; ``--goal-repeats`` only those that
  have a goal, and at least so often. With 5 it takes two and a half hours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from rich.console import Console

from . import documents, page
from .goals import GOALS
from .results import RESULTS, Figure, Result, load, save
from .runs import ON_REQUEST, SUITE, Run

ROOT = Path(__file__).resolve().parents[1]
_HERE = Path(__file__).resolve().parent
_INTERRUPTED = "interrupted"
ONLY_HELP = "modules or groups with commas between, or a name; may be given again"
_ENDING_S = 10.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, once: does it all run")
    parser.add_argument("--repeats", type=int, help="of each; else as in benchmarks.runs")
    parser.add_argument("--goal-repeats", type=int, help="at least, of each that has a goal")
    parser.add_argument("--only", action="append", help=ONLY_HELP)
    parser.add_argument("--merge", action="store_true", help="keep the others' figures")
    parser.add_argument("--page", action="store_true", help="run nothing, make the page anew")
    parser.add_argument("--out", type=Path, default=_HERE)
    chosen = parser.parse_args(arguments)
    for option, value in (("--repeats", chosen.repeats), ("--goal-repeats", chosen.goal_repeats)):
        if value is not None and value < 1:
            parser.error(f"{option} {value}: at least 1")
    if chosen.repeats is not None and chosen.goal_repeats is not None:
        parser.error("--repeats and --goal-repeats: only one of them")
    console = Console(stderr=True, highlight=False)
    results: dict[str, Result] = {}
    if chosen.page or chosen.merge:
        try:
            results = load(chosen.out / RESULTS)
        except FileNotFoundError:
            if chosen.page:
                parser.error(f"{chosen.out / RESULTS}: no such file; a run of the suite writes it")
        except ValueError as error:
            parser.error(str(error))
    code = 0
    if not chosen.page:
        try:
            suite = select(chosen.only)
        except ValueError as error:
            parser.error(f"--only {error}")

        def keep(name: str, result: Result) -> None:
            nonlocal results, code
            code = 1 if result.failure else code
            results = merged(results, {name: result})
            save(chosen.out, results)

        if chosen.repeats is not None:
            suite = [replace(run, repeats=chosen.repeats) for run in suite]
        if chosen.goal_repeats is not None:
            suite = [_at_least(run, chosen.goal_repeats) for run in suite]
        if not go(suite, keep, console, quick=chosen.quick):
            code = 130
        ran = {run.name for run in suite}
        if goals := [goal for goal in GOALS if goal.run in ran]:
            print("\n".join(page.goals_of(results, goals)))
    if results:
        page.write(chosen.out, results)
        if chosen.out.resolve() == _HERE:
            documents.write(results)
        console.print(f"wrote {chosen.out / RESULTS} and {chosen.out / page.PAGE}")
    return code


def select(only: Sequence[str] | None) -> list[Run]:
    """The suite, or what ``only`` names: runs, or modules and groups with commas between. Errors:
    ``ValueError``."""
    if not only:
        return list(SUITE)
    every = (*SUITE, *ON_REQUEST)
    names = {run.name for run in every}
    wanted: set[str] = set()
    for word in only:
        wanted |= {word} if word in names else {part.strip() for part in word.split(",")}
    found = [run for run in every if wanted & run.names]
    unknown = wanted - {name for run in found for name in run.names}
    if unknown:
        known = ", ".join(dict.fromkeys(run.module for run in every))
        raise ValueError(f"{', '.join(sorted(unknown))}: no such benchmark; there are {known}")
    return found


def _at_least(run: Run, repeats: int) -> Run:
    with_goal = any(goal.run == run.name for goal in GOALS)
    return replace(run, repeats=max(run.repeats, repeats)) if with_goal else run


def merged(before: dict[str, Result], after: dict[str, Result]) -> dict[str, Result]:
    """``after`` in place of what was there of the same name, in the suite's order."""
    both = {**before, **after}
    order = [run.name for run in (*SUITE, *ON_REQUEST) if run.name in both]
    return {name: both[name] for name in dict.fromkeys([*order, *both])}


def go(
    suite: Sequence[Run],
    keep: Callable[[str, Result], None],
    console: Console,
    *,
    quick: bool,
) -> bool:
    """Run them in turn and hand each result to ``keep``; false if a Ctrl-C ended it early."""
    if quick:
        suite = [replace(run, repeats=1) for run in suite]
    left_s = sum(run.about_s * run.repeats for run in suite)
    for number, run in enumerate(suite, 1):
        left = "" if quick else f"; about {left_s / 60:.0f} min to go"
        console.print(f"[{number}/{len(suite)}] {run.name}, {run.repeats} x{left}", markup=False)
        result = Result(run.command(quick=quick))
        try:
            measure(run, run.repeats, result, quick=quick)
        except KeyboardInterrupt:
            result.failure = _INTERRUPTED
        # An interruption replaces figures only by figures.
        if result.figures or result.failure != _INTERRUPTED:
            keep(run.name, result)
        if result.failure:
            console.print(f"    failed: {result.failure}", markup=False)
        if result.failure == _INTERRUPTED:
            return False
        left_s -= run.about_s * run.repeats
    return True


def command_of(run: Run) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{run.module}"]


def measure(run: Run, repeats: int, result: Result, *, quick: bool) -> None:
    """Fills ``result``, which holds something after each run."""
    begun = time.monotonic()
    result.at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    result.revision = _revision()
    values: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        # What was ended by force has not removed its data. One of the servers is another user.
        Path(folder).chmod(0o755)
        out = Path(folder) / "figures.json"
        command = [*command_of(run), "--json", str(out), "--dir", folder]
        command += run.arguments(quick=quick)
        try:
            for _ in range(repeats):
                result.failure = _fails(command, run.most_s)
                if result.failure:
                    break
                found = json.loads(out.read_text())
                result.machine = found.pop("machine")
                for name, value in found.items():
                    if isinstance(value, int | float):
                        values.setdefault(name, []).append(float(value))
        finally:
            result.figures = {name: Figure.of(each) for name, each in values.items()}
            result.seconds = round(time.monotonic() - begun, 1)


def _fails(command: list[str], most_s: float) -> str:
    """Run it; why it failed, or nothing. It has a process group of its own, so that what it
    started ends with it."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        return f"took longer than {most_s:.0f} s"
    finally:
        _end(process)
    if process.returncode == 0:
        return ""
    said = (err or out).strip().splitlines() or ["nothing"]
    return f"code {process.returncode}: {said[-1][:200]}"


def _end(process: subprocess.Popen[str]) -> None:
    """Asks first, so that servers are stopped and data removed; then ends what is left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@cache
def _revision() -> str:
    """Of this tree, before results are written to it; nothing where there is no repository."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
