"""Do memory, descriptors, lateness and restart stay the same, however much is pending?

Sends up to ``--rows`` messages, due uniformly over all 7200 slots, and stops at 1, 10 and 100
million (a share of ``--rows`` each): waits ``--rest`` seconds after the last message, looks at
resident memory, open descriptors and the status call, and then kills the node with SIGKILL and
starts it again. Restart is from the start of the process until it listens; importing the libraries
is shown apart, because it is the same for an empty directory. Lateness is that of what became due
during the rest, judged by the topic. Each time the node's counts have to be those of the clients.

With ``--rows 0``: an empty node alone.

    python -m benchmarks.pending --rows 100000000 [--rest 15]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from slotwheel.client import Client
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.schema import times

from ._load import TOPIC, Clients, Load
from ._node import BenchNode
from .harness import Report, data_directory, median_spread, options, warm_memory

_ESTIMATE = (
    "at rest the node holds the interpreter and its libraries (80 MB), the catalog of 7200 slot"
    " files (3 MB), up to three open slots (100 M / 7200 = 14,000 rows, 2.3 MB each) and a tail"
    " of the last seconds, nothing that grows with what is pending. While messages come in: a tail"
    " of up to 256 MiB, and as much again while it is spilled. A restart reads 7200 catalog rows,"
    " looks at as many file sizes (30 us each) and scans the journal behind the checkpoint (256 MiB"
    " at most, 1 GB/s): 0.5 s, and 0.35 s for the libraries."
)
_STEPS = (0.01, 0.1, 1.0)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=100_000_000)
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
    for _ in range(2):  # the second start finds the byte code that the first one made
        with BenchNode(directory / "empty") as empty:
            imports_s, rss = empty.ready_s, empty.rss
    report.figure("start with nothing pending, s", imports_s, f"{imports_s:.2f}")
    report.figure("resident with nothing pending, MB", rss / 1e6, f"{rss / 1e6:.0f}")
    if not rows:
        return
    data, pending = directory / "data", 0
    rss_peak, resident = 0, []
    node = BenchNode(data).__enter__()
    try:
        for step in _STEPS:
            total = int(rows * step)
            clients = Clients(Load(node.address, total=(total - pending + 1) // 2), 2)
            clients.go()
            sent = clients.results(3600)
            pending += sum(one.messages - one.refused for one in sent)
            rested_ms = time.time_ns() // 1_000_000
            time.sleep(rest)
            rss_peak = max(rss_peak, node.rss_max)
            resident.append(look(report, node, pending))
            node.kill()
            tell_lateness(report, data, pending, rested_ms)
            node = BenchNode(data).__enter__()
            name = f"restart at {pending / 1e6:g} M, s"
            report.figure(name, node.ready_s, f"{node.ready_s:.2f}")
            with Client(node.address) as client:
                found = client.status()
            # Some have become due meanwhile, and left.
            if found["accepted"] != pending or found["pending"] + found["delivered"] != pending:
                raise RuntimeError(f"{pending} messages were stored, but: {found}")
    finally:
        node.__exit__(None, None, None)
    spread = 100 * (max(resident) / min(resident) - 1)
    report.figure("resident, spread, %", spread, f"{spread:.0f}", "<= 10")
    report.figure("peak resident, MB", rss_peak / 1e6, f"{rss_peak / 1e6:.0f}", "<= 1000")


def look(report: Report, node: BenchNode, pending: int) -> int:
    """Resident bytes."""
    waits = []
    with Client(node.address) as client:
        client.status()
        for _ in range(50):
            started = time.perf_counter()
            client.status()
            waits.append(time.perf_counter() - started)
    at = f"at {pending / 1e6:g} M"
    rss = node.rss
    report.figure(f"resident {at}, MB", rss / 1e6, f"{rss / 1e6:.0f}")
    report.figure(f"descriptors {at}", node.fds, f"{node.fds}", "<= 200")
    middle, _ = median_spread(waits)
    report.figure(f"status {at}, ms", middle * 1e3, f"{middle * 1e3:.2f}")
    return rss


def tell_lateness(report: Report, data: Path, pending: int, since_ms: int) -> None:
    """Of what was delivered since then; nothing is told if nothing was due."""
    files = OsFiles(data)
    if not files.list(f"topics/{TOPIC}"):
        files.close()
        return
    reader = TopicReader(files, TOPIC)
    late = [np.zeros(0, np.int64)]
    for batch in reader.batches():
        at = times(batch, "delivered")
        late.append((at - times(batch, "due"))[at >= since_ms])
    reader.close()
    found = np.concatenate(late)
    if len(found):
        value = float(np.percentile(found, 99))
        text = f"{value:.0f} (of {len(found):,})"
        report.figure(f"lateness p99 at {pending / 1e6:g} M, ms", value, text)


if __name__ == "__main__":
    sys.exit(main())
