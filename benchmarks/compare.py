"""Is all of it as fast, and as punctual, as at another revision? Ratios, and their spread.

Both trees run their own benchmark in turn (new old, old new, ...), so that a machine that changes
its speed meanwhile changes both. The older tree is unpacked into a temporary folder; the working
tree is taken as it is.

    python -m benchmarks.compare REVISION [--only ingest,burst,replay] [--runs 3] [--seconds 10]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import data_directory, median_spread, options, print_table, warm_memory

ROOT = Path(__file__).resolve().parents[1]
_FIGURES = {
    "ingest": ("messages/s", "node CPU, us/message", "client CPU, us/message", "peak resident, MB"),
    "burst": ("delivered/s", "node CPU, us/message (in and out)"),
    "lateness": ("lateness p50, ms", "lateness p99, ms", "node CPU, us/message"),
    "single": ("messages/s, 1 clients", "messages/s, 64 clients", "receipt p99, 1 clients, ms"),
    "replication": (
        "three peers, messages/s",
        "three peers, receipt alone, ms, p50",
        "three peers, CPU of nodes, us/message",
    ),
    "replay": ("all validators at 1 M, rows/s", "scan at 1 M, rows/s"),
}
"""What is compared, by benchmark."""
_SIZES = {"burst": (), "replay": ("--rows", "1000000")}
"""How much these do; the others run for as long as they are told."""
_RUN_MAX_S = 300.0


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument(
        "revision", nargs="?", help="a commit, tag or branch [the newest tag, if there is one]"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each, after one to warm up")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", default="ingest", help=", ".join(_FIGURES))
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.only.split(",")) - _FIGURES.keys()
    if unknown:
        parser.error(f"--only {', '.join(unknown)}: there are {', '.join(_FIGURES)}")
    if chosen.quick:
        chosen.runs, chosen.seconds = min(chosen.runs, 1), min(chosen.seconds, 4.0)
    revision = chosen.revision or _newest_tag()
    if not revision:
        print("There is no tag to compare with; name a revision.")
        return 0
    warm_memory(8.0 if chosen.warm_gib is None else chosen.warm_gib)
    with tempfile.TemporaryDirectory(prefix="slotwheel-compare-") as temporary:
        trees = {"old": Path(temporary) / "old", "new": Path(temporary) / "new"}
        unpack(revision, trees["old"])
        trees["new"].mkdir()
        (trees["new"] / "slotwheel").symlink_to(ROOT)
        every = {}
        for benchmark in chosen.only.split(","):
            print(f"\n# {benchmark}")
            found: dict[str, list[Mapping[str, Any]]] = {"old": [], "new": []}
            for number in range(chosen.runs):
                for name in ("new", "old") if number % 2 == 0 else ("old", "new"):
                    found[name].append(measure(benchmark, trees[name], chosen))
                    main_one = _FIGURES[benchmark][0]
                    value = float(found[name][-1][main_one])
                    print(f"{name:>4}: {value:>12,.1f} {main_one}", flush=True)
            every[benchmark] = {"ratio": tell(benchmark, revision, found), **found}
    if chosen.json is not None:
        text = json.dumps({"revision": revision, **every}, indent=2)
        chosen.json.write_text(text + "\n")
    return 0


def unpack(revision: str, where: Path) -> None:
    """The tree of a revision as the package ``slotwheel`` below ``where``."""
    source = where / "source"
    source.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", revision],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(source, filter="data")
    (where / "slotwheel").symlink_to(source)


def measure(benchmark: str, tree: Path, chosen: argparse.Namespace) -> Mapping[str, Any]:
    """One run of that tree's own benchmark; its figures."""
    # Before the installed package: the path comes first, for the node and clients it starts, too.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with data_directory(chosen.dir) as directory:
        figures = directory / "figures.json"
        command = [sys.executable, "-m", f"slotwheel.benchmarks.{benchmark}", "--warm-gib", "0"]
        command += _SIZES.get(benchmark, ("--seconds", str(chosen.seconds)))
        command += ["--json", str(figures), "--dir", str(directory)]
        done = subprocess.run(
            command,
            check=False,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_RUN_MAX_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{tree.name}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        loaded: Mapping[str, Any] = json.loads(figures.read_text())
        return loaded


def tell(benchmark: str, revision: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Print the medians with their spread; the ratio of the first figure, new to old."""
    rows = []
    for name in _FIGURES[benchmark]:
        row = {"measure": name}
        medians = {}
        for tree, label in (("new", "now"), ("old", revision)):
            values = [float(one[name]) for one in found[tree] if name in one]
            medians[tree], spread = median_spread(values)
            row[label] = f"{medians[tree]:,.2f} (spread {spread:.0%})"
        ratio = medians["new"] / medians["old"] if medians["old"] else float("nan")
        row["now / then"] = f"{ratio:.2f}"
        rows.append(row)
        if name == _FIGURES[benchmark][0]:
            main_ratio = ratio
    print_table(rows)
    return main_ratio


def _newest_tag() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
