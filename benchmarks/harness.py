"""What every benchmark shares: the machine's header, the raw limit, the table, the JSON.

Rules
- An estimate on paper comes first, then the raw limit measured in the same run, then our figure.
- Figures of more than one run are a median with its spread.
- ``warm_memory`` first: a virtual machine gets its memory from its host page by page, at the first
  touch, which costs ten times what the kernel's own page fault does. Without it a benchmark
  measures how fast the host hands out memory.

Run by itself it prints the machine and what its disk can do.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import slotwheel

DURABILITY = "acks=all: fdatasync before every acknowledgement"
GIB = 1 << 30
RATIO = "ratio: "
"""Names of figures that are ratios begin so."""


def with_tests_support() -> None:
    """From now on ``support``, the tests' own helpers, can be imported: a broker, a browser."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


def machine(directory: Path) -> dict[str, str]:
    """What the figures were measured on."""
    best = Path("/")
    kind = "?"
    for part in psutil.disk_partitions(all=True):
        mount = Path(part.mountpoint)
        if directory.resolve().is_relative_to(mount) and len(mount.parts) >= len(best.parts):
            best, kind = mount, part.fstype
    memory = psutil.virtual_memory().total / GIB
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "kernel": platform.release(),
        "filesystem": f"{kind} on {best}",
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "slotwheel": getattr(slotwheel, "__version__", "?"),
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "durability": DURABILITY,
    }


def warm_memory(gib: float) -> None:
    """Touch so much memory, and give it back."""
    size = min(int(gib * GIB), int(psutil.virtual_memory().available * 0.8))
    if size < 1 << 20:
        return
    with mmap.mmap(-1, size) as memory:
        pages = np.frombuffer(memory, np.uint8)
        pages[::4096] = 1
        del pages


_RAW_BYTES_MAX = 16 << 30
"""Of the file that raw writes make: then it begins anew, so that a fast disk is not filled."""


def raw_write_rate(directory: Path, group_bytes: int, seconds: float) -> float:
    """Bytes a second of write + fdatasync in groups of so many bytes, one file that grows, nothing
    else: what was written before is on the disk."""
    return raw_write_rates(directory, group_bytes, seconds, 1)


def raw_write_rates(directory: Path, group_bytes: int, seconds: float, writers: int) -> float:
    """The same for each of so many writers at once, on the same disk."""
    data = np.random.default_rng(0).bytes(group_bytes)
    os.sync()
    with ThreadPoolExecutor(writers) as threads:
        paths = [directory / f"raw-{number}" for number in range(writers)]
        return statistics.mean(threads.map(lambda path: _write(path, data, seconds), paths))


def _write(path: Path, data: bytes, seconds: float) -> float:
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        written, position, start = 0, 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            if position + len(data) > _RAW_BYTES_MAX:
                os.ftruncate(handle, 0)
                position = 0
            count = os.pwrite(handle, data, position)
            os.fdatasync(handle)
            written, position = written + count, position + count
        return written / (time.perf_counter() - start)
    finally:
        os.close(handle)
        path.unlink()


@dataclass
class Report:
    """Collects figures, prints them as a table, and writes them as JSON on request."""

    name: str
    estimate: str
    directory: Path
    rows: list[dict[str, str]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> None:
        print(f"# {self.name}")
        self.figures["machine"] = machine(self.directory)
        for name, value in self.figures["machine"].items():
            print(f"{name:>11}: {value}")
        print(f"\nEstimate on paper: {self.estimate}\n", flush=True)

    def figure(self, name: str, value: float, text: str, goal: str = "") -> None:
        """One line: ``value`` for the JSON, ``text`` for people. ``goal``: of what
        ``benchmarks.goals`` does not judge."""
        self.figures[name] = value
        self.rows.append({"measure": name, "value": text, "goal": goal})

    def ratio(self, name: str, ours: float, other: float, goal: str = "") -> None:
        """How many times ``other`` we are, both measured in this run. Ratios alone are compared
        from run to run (``benchmarks.check``): another machine changes the rest."""
        value = ours / other if other else 0.0
        text = f"{value:.1%}" if value < 2 else f"{value:.1f} x"
        self.figure(f"{RATIO}{name}", value, text, goal)

    def end(self, json_path: Path | None) -> None:
        print_table(self.rows)
        if json_path is not None:
            json_path.write_text(json.dumps(self.figures, indent=2) + "\n")


def print_table(rows: Sequence[dict[str, str]]) -> None:
    if not rows:
        return
    columns = list(rows[0])
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in columns]
    for cells in ([*columns], ["-" * width for width in widths], *(list(r.values()) for r in rows)):
        line = " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"| {line} |")
    print(flush=True)


def median_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and (highest - lowest) / median."""
    middle = statistics.median(values)
    return middle, (max(values) - min(values)) / middle if middle else 0.0


def options(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, under 30 seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the data goes [a new one]")
    parser.add_argument(
        "--warm-gib", type=float, default=None, help="memory to touch first [what is needed]"
    )
    return parser


def chosen_parts(parser: argparse.ArgumentParser, only: str, parts: Iterable[str]) -> list[str]:
    """Those of a benchmark's ``parts`` that ``--only`` names, with commas between them. Ends the
    process where it names another one."""
    known, wanted = [*parts], only.split(",")
    unknown = set(wanted) - set(known)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return [part for part in known if part in wanted]


def measure_parts(
    report: Report,
    measures: Mapping[str, Callable[[Report, Path, Any], None]],
    parts: Sequence[str],
    warm_gib: float,
    chosen: Any,
) -> None:
    """Measure some parts of a benchmark, each in a directory of its own."""
    report.begin()
    warm_memory(warm_gib if chosen.warm_gib is None else chosen.warm_gib)
    try:
        for part in parts:
            (report.directory / part).mkdir()
            measures[part](report, report.directory / part, chosen)
    finally:  # a long run that is ended has what it measured
        report.end(chosen.json)


@contextmanager
def data_directory(chosen: Path | None) -> Iterator[Path]:
    """A new directory for the data, removed at the end."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="slotwheel-bench-", dir=chosen))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    with data_directory(None) as directory:
        report = Report("the machine", "none; these are the raw limits", directory)
        report.begin()
        for kib in (16, 150, 750, 1500, 8192):
            rate = raw_write_rate(directory, kib * 1024, 1.0)
            report.figure(f"write + fdatasync, {kib} KiB", rate, f"{rate / 1e6:.0f} MB/s")
        report.end(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
