"""Has something become slower? Ratios of a new run beside those that are committed.

    python -m benchmarks.check [--repeats 3] [--only single,burst] [--tolerance 0.2]

Compares ratios, each measured within one run beside its raw limit or another queue: absolute
figures change with the machine. Names each that fell by more than the tolerance, and those that are
there no more; exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from . import suite
from .harness import RATIO, print_table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, default=Path(__file__).parent / suite.RESULTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="names or modules, with commas between")
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--found", type=Path, help="a results.json instead of a new run")
    chosen = parser.parse_args(arguments)
    if not chosen.against.is_file():
        print(f"error: {chosen.against}: no such file; `make bench` writes it", file=sys.stderr)
        return 2
    before = json.loads(chosen.against.read_text())
    if chosen.found is not None:
        after = json.loads(chosen.found.read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            only = [] if chosen.only is None else ["--only", chosen.only]
            suite.main(["--repeats", str(chosen.repeats), "--out", folder, *only])
            after = json.loads((Path(folder) / suite.RESULTS).read_text())
    names = set(after["results"]) if chosen.only or chosen.found else set(before["results"])
    rows, fell = compare(
        {key: value for key, value in suite.median_of(before).items() if key[0] in names},
        suite.median_of(after),
        chosen.tolerance,
    )
    print_table(rows)
    print(f"{len(fell)} of {len(rows)} ratios fell by more than {chosen.tolerance:.0%}")
    for name in fell:
        print(f"fell: {name}")
    return 1 if fell else 0


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
