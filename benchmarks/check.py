"""Has something become slower? Ratios of a new run beside those that are committed.

    python -m benchmarks.check [--repeats 3] [--only single,burst] [--tolerance 0.2]

Compares ratios, each measured within one run beside its raw limit or another queue: absolute
figures change with the machine. So only the benchmarks that have some are run. Names each ratio
that fell by more than the tolerance, and those that are there no more; exit code 1 if there are
any, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from . import suite
from .harness import RATIO, print_table
from .results import RESULTS, Result, load, medians


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, default=Path(__file__).parent / RESULTS)
    parser.add_argument("--repeats", type=int, default=3, help="at most, of each")
    parser.add_argument("--only", action="append", help=suite.ONLY_HELP)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--found", type=Path, help="a results.json instead of a new run")
    chosen = parser.parse_args(arguments)
    try:
        before = load(chosen.against)
        after = {} if chosen.found is None else load(chosen.found)
        runs = [run for run in suite.select(chosen.only) if _has_ratios(before.get(run.name))]
    except FileNotFoundError as error:
        print(f"error: {error.filename}: no such file; `make bench` writes it", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if chosen.found is None:
        console = Console(stderr=True, highlight=False)
        # Those that an interruption left out would look as if they had fallen.
        some = [replace(run, repeats=min(chosen.repeats, run.repeats)) for run in runs]
        if not suite.go(some, after.__setitem__, console, quick=False):
            print("interrupted: nothing was compared", file=sys.stderr)
            return 130
        before = {run.name: before[run.name] for run in runs}
    elif chosen.only is not None:
        before = {run.name: before[run.name] for run in runs}
    rows, fell = compare(medians(before), medians(after), chosen.tolerance)
    print_table(rows)
    print(f"{len(fell)} of {len(rows)} ratios fell by more than {chosen.tolerance:.0%}")
    for name in fell:
        print(f"fell: {name}")
    for name, result in after.items():
        if result.failure:
            print(f"failed: {name}: {result.failure}")
    return 1 if fell else 0


def _has_ratios(result: Result | None) -> bool:
    return result is not None and any(name.startswith(RATIO) for name in result.figures)


def compare(
    before: dict[tuple[str, str], float], after: dict[tuple[str, str], float], tolerance: float
) -> tuple[list[dict[str, str]], list[str]]:
    """A row for each ratio that was there before, and the names of those that fell."""
    rows, fell = [], []
    for (benchmark, figure), old in before.items():
        if not figure.startswith(RATIO):
            continue
        new = after.get((benchmark, figure))
        change = None if new is None or not old else new / old - 1
        rows.append(
            {
                "benchmark": benchmark,
                "ratio": figure.removeprefix(RATIO),
                "before": f"{old:.3g}",
                "now": "missing" if new is None else f"{new:.3g}",
                "change": "" if change is None else f"{change:+.0%}",
            }
        )
        if change is None or change < -tolerance:
            fell.append(f"{benchmark}: {figure.removeprefix(RATIO)}")
    return rows, fell


if __name__ == "__main__":
    sys.exit(main())
