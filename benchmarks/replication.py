"""How many durable messages a second does a group of three peers take, beside one node alone?

The same two clients send batches of 1000 messages of 100 B under acks=all, first to one node, then
to three peers; all of them on this machine and its one disk. The raw limit is measured in the same
run: three writers at once, write + fdatasync of groups as large as the master's, nothing else.
Receipts are timed under that load, where ten batches of each client wait for each other, and alone:
one client with one batch at a time.

    python -m benchmarks.replication [--quick] [--seconds 30] [--clients 2] [--rows 1000]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ._load import Clients, Load, Sent
from ._node import BenchNode
from ._peers import BenchPeers
from .harness import Report, data_directory, options, raw_write_rates, warm_memory
from .ingest import journal_bytes_a_message

_ESTIMATE = (
    "one node costs 2.4 us of processor a message, the clients among it. A standby receives the"
    " entry (one copy), checks its CRC, writes and syncs it and spills it: 1.3 us without client,"
    " checks and receipts; the master sends it twice: 0.3 us. So 2.4 + 2 * 1.3 + 0.3 = 5.3 us:"
    " 380 k messages/s on two cores that do it all, and three times the bytes on one disk. A"
    " receipt takes one exchange with a peer and its sync more, 1 to 2 ms."
)
_ALONE_S = 3.0
_BATCHES = 10
"""What a client may have handed over without a receipt: five under way, five behind them."""


@dataclass(frozen=True)
class Run:
    """One load on one target."""

    rate: float
    messages: int
    refused: int
    receipts_ms: tuple[float, float]
    """p50 and p99."""
    alone_ms: tuple[float, float]
    node_us: float
    """Processor time of all nodes together, a message."""
    master_us: float
    client_us: float
    groups: float
    wall_s: float
    rss_max: int


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--rows", type=int, default=1000, help="messages in a batch")
    parser.add_argument("--value-bytes", type=int, default=100)
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.seconds = min(chosen.seconds, 5.0)
    warm_gib = chosen.warm_gib
    if warm_gib is None:
        warm_gib = min(16.0, 3 + 0.6 * chosen.seconds)
    load = Load("", chosen.rows, chosen.value_bytes, seconds=chosen.seconds, timed=True)
    load = replace(load, buffer_bytes=int(_BATCHES * chosen.rows * journal_bytes_a_message(load)))
    with data_directory(chosen.dir) as directory:
        report = Report("three peers", _ESTIMATE, directory)
        report.begin()
        warm_memory(warm_gib)
        with BenchNode(directory / "alone") as node:
            alone = measure(node, load, chosen.clients)
        tell(report, "one node", alone)
        with BenchPeers(directory) as peers:
            three = measure(peers, load, chosen.clients)
            lag = max(one.get("lag_entries", 0) for one in peers.view().get("peers", [{}]))
        tell(report, "three peers", three)
        report.figure("three peers, lag at the end, entries", lag, f"{lag}")
        report.ratio("three peers to one node", three.rate, alone.rate)
        compare_with_disk(report, load, three)
        report.end(chosen.json)
    return 0


def measure(target: BenchNode | BenchPeers, load: Load, count: int) -> Run:
    here = replace(load, address=target.address)
    turns = replace(here, seconds=min(_ALONE_S, load.seconds), in_turn=True)
    one = Clients(turns, 1)
    one.go()
    alone = one.results(turns.seconds + 60)
    clients = Clients(here, count)
    before = target.metrics()
    # Started processes wait for each other, so this is the nodes' time alone.
    clients.go()
    node_cpu, master_cpu, started = target.cpu_s, target.master_cpu_s, time.perf_counter()
    sent = clients.results(load.seconds + 60)
    node_cpu, master_cpu = target.cpu_s - node_cpu, target.master_cpu_s - master_cpu
    wall_s = time.perf_counter() - started
    groups = "slotwheel_group_commits_total"
    seconds = max(one.ended for one in sent) - min(one.started for one in sent)
    messages = sum(one.messages - one.refused for one in sent)
    return Run(
        rate=messages / seconds,
        messages=messages,
        refused=sum(one.refused for one in sent),
        receipts_ms=percentiles(sent),
        alone_ms=percentiles(alone),
        node_us=node_cpu / messages * 1e6,
        master_us=master_cpu / messages * 1e6,
        client_us=sum(one.cpu_s for one in sent) / messages * 1e6,
        groups=target.metrics().get(groups, 0.0) - before.get(groups, 0.0),
        wall_s=wall_s,
        rss_max=target.rss_max,
    )


def percentiles(sent: Sequence[Sent]) -> tuple[float, float]:
    times = np.concatenate([one.receipts_ms for one in sent])
    p50, p99 = np.percentile(times, [50, 99])
    return float(p50), float(p99)


def tell(report: Report, name: str, run: Run) -> None:
    report.figure(f"{name}, messages/s", run.rate, f"{run.rate:,.0f}")
    report.figure(f"{name}, refused", run.refused, f"{run.refused} of {run.messages:,}")
    for what, (p50, p99) in (("under load", run.receipts_ms), ("alone", run.alone_ms)):
        text = f"p50 {p50:.1f}, p99 {p99:.1f}"
        report.figure(f"{name}, receipt {what}, ms, p50", p50, text)
        report.figures[f"{name}, receipt {what}, ms, p99"] = p99
    report.figure(f"{name}, CPU of nodes, us/message", run.node_us, f"{run.node_us:.2f}")
    if run.master_us < run.node_us:
        report.figure(f"{name}, the master's, us/message", run.master_us, f"{run.master_us:.2f}")
    report.figure(f"{name}, CPU of clients, us/message", run.client_us, f"{run.client_us:.2f}")
    resident = run.rss_max / 1e6
    report.figure(f"{name}, peak resident, MB", resident, f"{resident:.0f}", "<= 1000")


def compare_with_disk(report: Report, load: Load, three: Run) -> None:
    """What each of three writers can do at once, against what each peer's journal took."""
    if not three.groups:
        return
    journal_bytes = three.messages * journal_bytes_a_message(load)
    group = int(journal_bytes / three.groups)
    raw = raw_write_rates(report.directory, group, min(3.0, load.seconds), 3)
    ours = journal_bytes / three.wall_s
    text = f"{group / 1024:.0f} KiB, {three.groups / three.wall_s:.0f}/s"
    report.figure("group commit of the master", group, text)
    report.figure("raw write + fdatasync, MB/s, each of 3", raw / 1e6, f"{raw / 1e6:.0f}")
    report.figure("journal, MB/s, each of 3", ours / 1e6, f"{ours / 1e6:.0f}")
    report.ratio("to the raw limit of three writers", ours, raw)


if __name__ == "__main__":
    sys.exit(main())
