"""Is one node as fast as at another revision? The ratio of messages a second, and its spread.

Both trees run their own ``benchmarks.ingest`` in turn (new old, old new, ...), so that a machine
that changes its speed meanwhile changes both. The older tree is unpacked into a temporary folder;
the working tree is taken as it is.

    python -m benchmarks.compare REVISION [--runs 3] [--seconds 10]
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
_RATE = "messages/s"
_FIGURES = (_RATE, "node CPU, us/message", "client CPU, us/message", "peak resident, MB")
_RUN_MAX_S = 300.0


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument(
        "revision", nargs="?", help="a commit, tag or branch [the newest tag, if there is one]"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each, after one to warm up")
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args(arguments)
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
        found: dict[str, list[Mapping[str, Any]]] = {"old": [], "new": []}
        for number in range(chosen.runs):
            for name in ("new", "old") if number % 2 == 0 else ("old", "new"):
                found[name].append(measure(trees[name], chosen))
                rate = found[name][-1][_RATE]
                print(f"{name:>4}: {rate:>10,.0f} messages/s", flush=True)
    ratio = tell(revision, found)
    if chosen.json is not None:
        text = json.dumps({"revision": revision, "ratio": ratio, **found}, indent=2)
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


def measure(tree: Path, chosen: argparse.Namespace) -> Mapping[str, Any]:
    """One run of that tree's own benchmark; its figures."""
    # Before the installed package: the path comes first, for the node and clients it starts, too.
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with data_directory(chosen.dir) as directory:
        figures = directory / "figures.json"
        command = [sys.executable, "-m", "slotwheel.benchmarks.ingest"]
        command += ["--seconds", str(chosen.seconds), "--warm-gib", "0"]
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


def tell(revision: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Print the medians with their spread; the ratio of the rates, new to old."""
    rows = []
    for name in _FIGURES:
        row = {"measure": name}
        medians = {}
        for tree, label in (("new", "now"), ("old", revision)):
            values = [float(one[name]) for one in found[tree] if name in one]
            medians[tree], spread = median_spread(values)
            row[label] = f"{medians[tree]:,.2f} (spread {spread:.0%})"
        row["now / then"] = f"{medians['new'] / medians['old']:.2f}"
        rows.append(row)
        if name == _RATE:
            ratio = medians["new"] / medians["old"]
    print_table(rows)
    return ratio


def _newest_tag() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
