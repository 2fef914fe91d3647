"""Do memory, descriptors and restart stay the same, however much is pending?

Sends up to ``--rows`` messages, due uniformly over all 7200 slots, and stops at 1, 5 and 20 million
(a share of ``--rows`` each): waits ``--rest`` seconds after the last message, looks at resident
memory, open descriptors and the status call, and then kills the node with SIGKILL and starts it
again. Restart is from the start of the process until it listens; importing the libraries is shown
apart, because it is the same for an empty directory.

    python -m benchmarks.pending --rows 20000000 [--rest 15]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slotwheel.client import Client

from ._load import Clients, Load
from ._node import BenchNode
from .harness import Report, data_directory, median_spread, options, warm_memory

_ESTIMATE = (
    "at rest the node holds the interpreter and its libraries (150 MB), the catalog of 7200 slot"
    " files (3 MB), up to three open slots (20 M / 7200 = 2800 rows, 0.5 MB each) and a tail"
    " of the last seconds, nothing that grows with what is pending. While messages come in: a tail"
    " of up to 256 MiB, and a fraction of it for a spill. A restart reads 7200 catalog rows, looks"
    " at as many file sizes (30 us each) and scans the journal behind the checkpoint (256 MiB at"
    " most, 1 GB/s): 0.5 s, and 0.6 s for the libraries."
)
_STEPS = (0.05, 0.25, 1.0)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rest", type=float, default=15.0, help="seconds after the last message")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.rows = min(chosen.rows, 500_000)
        chosen.rest = min(chosen.rest, 3.0)
    warm_gib = chosen.warm_gib
    if warm_gib is None:
        warm_gib = min(16.0, 1 + chosen.rows * 400 / 1e9)
    with data_directory(chosen.dir) as directory:
        report = Report("what is pending", _ESTIMATE, directory)
        report.begin()
        warm_memory(warm_gib)
        run(report, directory, chosen.rows, chosen.rest)
        report.end(chosen.json)
    return 0


def run(report: Report, directory: Path, rows: int, rest: float) -> None:
    with BenchNode(directory / "empty") as empty:
        imports_s = empty.ready_s
    report.figure("start with nothing pending, s", imports_s, f"{imports_s:.2f}")
    data, pending = directory / "data", 0
    rss_peak = 0
    node = BenchNode(data).__enter__()
    try:
        for step in _STEPS:
            total = int(rows * step)
            clients = Clients(Load(node.address, total=(total - pending + 1) // 2), 2)
            clients.go()
            sent = clients.results(3600)
            pending += sum(one.messages - one.refused for one in sent)
            time.sleep(rest)
            rss_peak = max(rss_peak, node.rss_max)
            look(report, node, pending)
            node.kill()
            node = BenchNode(data).__enter__()
            name = f"restart at {pending / 1e6:g} M, s"
            report.figure(name, node.ready_s, f"{node.ready_s:.2f}", "<= 2")
            with Client(node.address) as client:
                found = client.status()
            # Some have become due meanwhile, and left.
            if found["accepted"] != pending or found["pending"] + found["delivered"] != pending:
                raise RuntimeError(f"{pending} messages were stored, but: {found}")
    finally:
        node.__exit__(None, None, None)
    report.figure("peak resident, MB", rss_peak / 1e6, f"{rss_peak / 1e6:.0f}", "<= 1000")


def look(report: Report, node: BenchNode, pending: int) -> None:
    times = []
    with Client(node.address) as client:
        client.status()
        for _ in range(50):
            started = time.perf_counter()
            client.status()
            times.append(time.perf_counter() - started)
    at = f"at {pending / 1e6:g} M"
    report.figure(f"resident {at}, MB", node.rss / 1e6, f"{node.rss / 1e6:.0f}", "<= 600, flat")
    report.figure(f"descriptors {at}", node.fds, f"{node.fds}", "<= 200")
    middle, _ = median_spread(times)
    report.figure(f"status {at}, ms", middle * 1e3, f"{middle * 1e3:.2f}", "<= 10")


if __name__ == "__main__":
    sys.exit(main())
