"""What does one message at a time cost: programs that wait for each message, one and many?

Each caller stores a message, waits for its id, and stores the next; many of them, each with a
connection of its own, in two processes. The raw limits are one write + fdatasync of a journal entry
of that size, and bare exchanges: as many connections to a server of the wire that answers each
record at once, without a wheel and without a disk.

Connections that say nothing are the other half: how much memory of the node do ``--idle`` take?

    python -m benchmarks.single [--clients 1,64] [--seconds 10] [--idle 5000]
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial

import numpy as np

from slotwheel.client.hello import OF_APPENDS
from slotwheel.wheel.protocol import AppendCommand
from slotwheel.wire.channel import Channel

from ._echo import echo
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory
from .servers.clients import Clients, Ran
from .servers.ours import At
from .servers.server import Sender

_ESTIMATE = (
    "write + fdatasync of 200 B takes 0.15 to 0.2 ms, waking the other process twice 0.05, the node"
    " 0.2 in caches that the sync has emptied, the client 0.05: 0.4 ms, 2,500 a second. With 64"
    " callers a sync serves all that wait, and the processor time of a message, 50 us of two cores,"
    " is the limit: 30,000 a second. A connection is a socket, a buffer and an object: 5 KB"
)
_ENTRY_BYTES = 200
"""One message of 100 B with its frame and header."""
_AHEAD_MS = 3_600_000


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--clients", default="1,64", help="how many at once, one figure each")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each figure")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--idle", type=int, default=5000, help="connections that say nothing")
    chosen = parser.parse_args(arguments)
    seconds = min(chosen.seconds, 2.0) if chosen.quick else chosen.seconds
    with data_directory(chosen.dir) as directory:
        report = Report("callers that wait", _ESTIMATE, directory)
        report.begin()
        warm_memory(1.0 if chosen.warm_gib is None else chosen.warm_gib)
        raw = raw_write_rate(directory, _ENTRY_BYTES, min(2.0, seconds)) / _ENTRY_BYTES
        report.figure("raw write + fdatasync, 1/s", raw, f"{raw:,.0f}")
        load = partial(_waits, value_bytes=chosen.value_bytes)
        with BenchNode(directory / "data") as node, echo() as bare_server:
            _tell_idle(report, node, chosen.idle)
            for count in (int(text) for text in chosen.clients.split(",")):
                clients = Clients(2, count // 2) if count % 2 == 0 else Clients(1, count)
                shortly = min(3.0, seconds)
                found = clients.run(bare_server, partial(load, seconds=shortly)).found
                bare = sum(map(len, found)) / shortly
                report.figure(f"bare exchanges, {count} connections, 1/s", bare, f"{bare:,.0f}")
                before_s = node.cpu_s
                ran = clients.run(At(node.address), partial(load, seconds=seconds))
                rate = _tell(report, f"{count} clients", ran, node.cpu_s - before_s, seconds)
                report.ratio(f"{count} clients to bare exchanges", rate, bare)
                if count == 1:
                    name = "one client to a bare exchange and a bare sync"
                    report.ratio(name, rate, 1 / (1 / raw + 1 / bare))
                else:
                    report.ratio(f"{count} clients to bare syncs one by one", rate, raw)
        report.end(chosen.json)
    return 0


def _waits(sender: Sender, _number: int, value_bytes: int, seconds: float) -> list[float]:
    """Seconds that each message took."""
    values, waits = [bytes(value_bytes)], []
    begun = time.perf_counter()
    end = begun + seconds
    while begun < end:
        sender.send(values, [time.time_ns() // 1_000_000 + _AHEAD_MS])
        now = time.perf_counter()
        waits.append(now - begun)
        begun = now
    return waits


def _tell(report: Report, who: str, ran: Ran[list[float]], node_s: float, seconds: float) -> float:
    waits = np.concatenate(ran.found)
    rate = len(waits) / seconds
    report.figure(f"messages/s, {who}", rate, f"{rate:,.0f}")
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(waits, share)) * 1000
        report.figure(f"receipt {name}, {who}, ms", value, f"{value:.2f}")
    for name, spent_s in (("node", node_s), ("client", ran.cpu_s)):
        each = spent_s / len(waits) * 1e6
        report.figure(f"us of the {name} a message, {who}", each, f"{each:.0f}")
    return rate


def _tell_idle(report: Report, node: BenchNode, count: int) -> None:
    """Each has said hello, so it may send at any time."""
    with contextlib.ExitStack() as opened:

        def connect(producer: int) -> None:
            hello = AppendCommand(producer, "all").encode()
            channel = Channel.open(node.address, hello, OF_APPENDS, 30.0)
            opened.callback(channel.close)

        connect(1)  # imports and tables of the first one
        before = node.rss
        for producer in range(2, count + 2):
            connect(producer)
        grown = (node.rss - before) / 1e6
    report.figure(f"{count:,} idle connections, MB", grown, f"{grown:.0f}")


if __name__ == "__main__":
    sys.exit(main())
