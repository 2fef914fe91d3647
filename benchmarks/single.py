"""What does one message at a time cost: synchronous sends, one client and many?

Each client sends a message, waits for its receipt, and sends the next; many of them, each with a
connection of its own, and then as many callers that share one client a process. The raw limits are
one write + fdatasync of a journal entry of that size, and bare exchanges: as many connections to a
server of the wire that answers each batch at once, without a wheel and without a disk.

    python -m benchmarks.single [--clients 1,64] [--seconds 10]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
import time
from typing import Any

import numpy as np

from slotwheel.client import Client, Message

from ._echo import exchanges, shares
from ._load import TOPIC
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory

_ESTIMATE = (
    "write + fdatasync of 700 B takes 0.15 to 0.3 ms, waking the other process twice 0.1, checks,"
    " copy and journal in caches that the sync has emptied 0.3, the client 0.1: 0.7 ms, 1,400 a"
    " second; with 64 clients a sync serves all that wait, and the processor time of a message,"
    " 0.25 ms of two cores, is the limit: 8,000 a second"
)
_ENTRY_BYTES = 700
"""One message of 100 B with its frame, header and Arrow's metadata."""
_PROCESSES = 2


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--clients", default="1,64", help="how many at once, one figure each")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each figure")
    parser.add_argument("--value-bytes", type=int, default=100)
    chosen = parser.parse_args(arguments)
    seconds = min(chosen.seconds, 2.0) if chosen.quick else chosen.seconds
    with data_directory(chosen.dir) as directory:
        report = Report("single synchronous sends", _ESTIMATE, directory)
        report.begin()
        warm_memory(1.0 if chosen.warm_gib is None else chosen.warm_gib)
        raw = raw_write_rate(directory, _ENTRY_BYTES, min(2.0, seconds)) / _ENTRY_BYTES
        report.figure("raw write + fdatasync, 1/s", raw, f"{raw:,.0f}")
        with BenchNode(directory / "data") as node:
            for count in (int(text) for text in chosen.clients.split(",")):
                bare = exchanges(count, min(3.0, seconds), chosen.value_bytes)
                report.figure(f"bare exchanges, {count} connections, 1/s", bare, f"{bare:,.0f}")
                waits = _measure(node.address, count, seconds, chosen.value_bytes)
                rate = _tell(report, f"{count} clients", waits, seconds)
                report.ratio(f"{count} clients to bare exchanges", rate, bare)
                if count == 1:
                    alone = 1 / (1 / raw + 1 / bare)
                    name = "one client to a bare exchange and a bare sync"
                    report.ratio(name, rate, alone, ">= 60 %")
                    continue
                report.ratio(f"{count} clients to bare syncs one by one", rate, raw)
                waits = _measure(node.address, count, seconds, chosen.value_bytes, shared=True)
                who = f"{count} callers of {_PROCESSES} clients"
                rate = _tell(report, who, waits, seconds)
                report.ratio(f"{who} to bare syncs one by one", rate, raw)
        report.end(chosen.json)
    return 0


def _tell(report: Report, who: str, waits: Any, seconds: float) -> float:
    """The rate, after it and the waiting times (in seconds, shape (messages,)) were told."""
    rate = len(waits) / seconds
    report.figure(f"messages/s, {who}", rate, f"{rate:,.0f}")
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(waits, share)) * 1000
        report.figure(f"receipt {name}, {who}, ms", value, f"{value:.2f}")
    return rate


def _measure(
    address: str, count: int, seconds: float, value_bytes: int, *, shared: bool = False
) -> Any:
    """Seconds that each receipt took, of all clients together."""
    context = multiprocessing.get_context("spawn")
    split = shares(count, _PROCESSES)
    ready: Any = context.Barrier(len(split) + 1)
    results: Any = context.SimpleQueue()
    started = [
        context.Process(
            target=_clients,
            args=(address, share, seconds, value_bytes, ready, results),
            kwargs={"shared": shared},
        )
        for share in split
    ]
    for process in started:
        process.start()
    ready.wait(60)
    found = [results.get() for _ in started]
    for process in started:
        process.join(10)
    return np.concatenate(found)


def _clients(
    address: str,
    count: int,
    seconds: float,
    value_bytes: int,
    ready: Any,
    results: Any,
    *,
    shared: bool,
) -> None:
    waits: list[list[float]] = [[] for _ in range(count)]
    go = threading.Event()
    connected = threading.Barrier(count + 1)

    def one(client: Client, mine: list[float]) -> None:
        value = bytes(value_bytes)
        client.send(Message(TOPIC, value, delay=3_600)).result()
        connected.wait(60)
        go.wait()
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            client.send(Message(TOPIC, value, delay=3_600)).result()
            mine.append(time.perf_counter() - begun)

    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(Client(address)) for _ in range(1 if shared else count)]
        threads = [
            threading.Thread(target=one, args=(clients[number % len(clients)], mine))
            for number, mine in enumerate(waits)
        ]
        for thread in threads:
            thread.start()
        connected.wait(60)
        ready.wait(60)
        go.set()
        for thread in threads:
            thread.join()
    results.put(np.concatenate([np.array(mine) for mine in waits]))


if __name__ == "__main__":
    sys.exit(main())
