"""What does one message at a time cost: synchronous sends, one client and many?

Each client sends a message, waits for its receipt, and sends the next; many of them, each with a
connection of its own, and then as many callers that share one client a process. The raw limits are
one write + fdatasync of a journal entry of that size, and the transport alone: as many streams to a
Flight server that answers each batch at once, without a wheel and without a disk.

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
    "an exchange takes 0.2 ms of two processes, write + fdatasync of 700 B 0.2 to 0.3 ms, and the"
    " threads of client and node that hand it on 0.3 ms: 0.8 ms, 1,200 a second; with 64 clients a"
    " sync serves all that wait, and the processor time of the threads that wake for each message,"
    " 0.3 ms of two cores, is the limit: 6,000 a second"
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
            calls = _bare_calls(node.address, min(2.0, seconds))
            report.figure("bare calls of one client, 1/s", calls, f"{calls:,.0f}")
            alone = 1 / (1 / raw + 1 / calls)
            for count in (int(text) for text in chosen.clients.split(",")):
                bare = exchanges(count, min(3.0, seconds), chosen.value_bytes)
                report.figure(f"bare exchanges, {count} streams, 1/s", bare, f"{bare:,.0f}")
                waits = _measure(node.address, count, seconds, chosen.value_bytes)
                goal = {1: ">= 1,800", 64: ">= 15,000"}.get(count, "")
                rate = _tell(report, f"{count} clients", waits, seconds, goal)
                report.ratio(f"{count} clients to bare exchanges", rate, bare)
                if count == 1:
                    report.ratio("one client to a bare call and a bare sync", rate, alone)
                    continue
                report.ratio(f"{count} clients to bare syncs one by one", rate, raw)
                waits = _measure(node.address, count, seconds, chosen.value_bytes, shared=True)
                who = f"{count} callers of {_PROCESSES} clients"
                rate = _tell(report, who, waits, seconds)
                report.ratio(f"{who} to bare syncs one by one", rate, raw)
        report.end(chosen.json)
    return 0


def _tell(report: Report, who: str, waits: Any, seconds: float, goal: str = "") -> float:
    """The rate, after it and the waiting times (in seconds, shape (messages,)) were told."""
    rate = len(waits) / seconds
    report.figure(f"messages/s, {who}", rate, f"{rate:,.0f}", goal)
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(waits, share)) * 1000
        goal = "<= 1.5" if (who, name) == ("1 clients", "p99") else ""
        report.figure(f"receipt {name}, {who}, ms", value, f"{value:.2f}", goal)
    return rate


def _bare_calls(address: str, seconds: float) -> float:
    with Client(address) as client:
        client.status()
        calls, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            client.status()
            calls += 1
    return calls / elapsed


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
