"""How do other delay queues compare: durable intake, a steady rate in and out, a burst?

Each runs alone, on loopback, on the same disk, with the settings that its users need when no
message may be lost; the settings are printed. Ours is used by its public client, in the same way.
A server that is not installed is named as missing (``make queues`` installs them).

- ``intake``: clients send batches and wait until each is durable before the next; a batch of 1 is a
  program that waits for each message. With ``--clients 2 --under-way 5`` these are two processes of
  five connections each; with ``--clients 2 --under-way 32 --rows 1``, 64 callers that wait.
- ``lateness``: on an empty server the same clients send ``--rate`` messages a second, each due two
  seconds later, while a receiver takes what is due. The processor time is the server's; the
  receivers, which ask Redis and PostgreSQL again and again for what is due, are not in it.
- ``burst``: ``--messages`` are due within one second; when has the last one left?

NATS and RocketMQ are made for groups of servers that sync later and lean on each other; alone, and
synced, they do without what makes them fast. docs/choosing.md says more.

    python -m benchmarks.queues [--measure intake] [--only Redis] [--rows 1,100,1000] [--clients 1]
                                [--under-way 1] [--seconds 5] [--rate 2000] [--messages 100000]

Source: each server's manual on durability.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from .harness import Report, data_directory, options, raw_write_rate, warm_memory
from .servers.all import ALL, OURS
from .servers.clients import Clients
from .servers.leaving import burst, steady
from .servers.server import Missing, Sender, Server

INTAKE, LATENESS, BURST = MEASURES = ("intake", "lateness", "burst")
_ESTIMATE = (
    "whoever syncs each batch of 1 makes at most 1 / (0.3 ms sync + a round trip) = 2,000 a second;"
    " a batch of 1000 (100 KB) is one sync and its processor time, in us a message: Redis 10,"
    " PostgreSQL 10 with its index, RabbitMQ 30, ours 2.5; beanstalkd and NATS sync each message,"
    " RocketMQ all that wait, at 100 us a request. NATS stores what leaves anew and syncs it: a"
    " burst of 100,000 takes it 30 s; RocketMQ stores it anew with a sync for each of its three"
    " threads"
)
_SPAN_MS = 7_000_000
_DELAYS = 256
"""Batches until due times come again, as long from then as the first time."""
Rates = dict[tuple[str, str], float]
"""Of each server by name, and what the rate is of: higher is better."""


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--measure", action="append", choices=MEASURES, help="this alone [all]")
    parser.add_argument("--rows", default="1,100,1000", help="messages in a batch")
    parser.add_argument("--clients", type=int, default=1, help="that send at once")
    parser.add_argument("--under-way", type=int, default=1, help="batches of each client")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second for lateness")
    parser.add_argument("--messages", type=int, default=100_000, help="of the burst")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--only", action="append", help="these alone, by name")
    chosen = parser.parse_args(arguments)
    sizes = [int(text) for text in chosen.rows.split(",")]
    seconds, count = chosen.seconds, chosen.messages
    if chosen.quick:
        sizes, seconds, count = sizes[:1], min(seconds, 1.0), min(count, 2_000)
    clients, size = Clients(chosen.clients, chosen.under_way), chosen.value_bytes

    def intake(report: Report, server: Server) -> Rates:
        found = {}
        for rows in sizes:
            load = partial(_intake, rows=rows, seconds=seconds, value_bytes=size)
            rate = sum(clients.run(server, load).found)
            found[server.name, f"batches of {rows}"] = rate
            name = f"{server.name}, durable messages/s in batches of {rows}"
            report.figure(name, rate, f"{rate:,.0f}")
        return found

    calls: dict[str, Callable[[Report, Server], Rates]] = {
        INTAKE: intake,
        LATENESS: partial(_lateness, clients, chosen.rate, seconds, size),
        BURST: partial(_burst, clients, count, size),
    }
    with data_directory(chosen.dir) as directory:
        directory.chmod(0o755)  # one of them runs as another user
        report = Report("delay queues side by side", _ESTIMATE, directory)
        report.begin()
        warm_memory(2.0 if chosen.warm_gib is None else chosen.warm_gib)
        rates: Rates = {}
        for kind in ALL:
            if not chosen.only or kind.name in chosen.only:
                measures = chosen.measure or MEASURES
                rates |= _measure(report, kind, {name: calls[name] for name in measures})
        if not chosen.measure or INTAKE in chosen.measure:
            _to_raw(report, rates, sizes, size, min(2.0, seconds))
        for (name, what), rate in rates.items():
            if name != OURS and (OURS, what) in rates:
                report.ratio(f"{name}, {what}", rates[OURS, what], rate)
        report.end(chosen.json)
    return 0


def _measure(
    report: Report, kind: type[Server], calls: dict[str, Callable[[Report, Server], Rates]]
) -> Rates:
    """Each on an empty server."""
    rates: Rates = {}
    try:
        for name, call in calls.items():
            with kind(report.directory / kind.name.lower() / name) as server:
                print(f"{server.name} {server.version()}, {name}: {server.durability}", flush=True)
                rates |= call(report, server)
    except Missing as missing:
        print(f"{kind.name}: missing: {missing}", flush=True)
        report.figure(f"{kind.name}, missing", 0, str(missing))
    return rates


def _to_raw(
    report: Report, rates: Rates, sizes: Sequence[int], value_bytes: int, seconds: float
) -> None:
    for rows in sizes:
        if (ours := rates.get((OURS, f"batches of {rows}"))) is not None:
            raw = raw_write_rate(report.directory, rows * (value_bytes + 50), seconds)
            name = f"write + fdatasync of batches of {rows}"
            report.ratio(name, ours, raw / (value_bytes + 50))


def _intake(sender: Sender, number: int, rows: int, value_bytes: int, seconds: float) -> float:
    """Messages a second, each batch durable before the next is sent."""
    generator = np.random.default_rng(number)
    values = [generator.bytes(value_bytes) for _ in range(rows)]
    # Made before the time runs: a single message would cost more here than with some senders.
    delays = itertools.cycle(
        np.sort(generator.integers(60_000, _SPAN_MS, (_DELAYS, rows))).tolist()
    )
    sent, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        now_ms = time.time_ns() // 1_000_000
        sender.send(values, [now_ms + delay for delay in next(delays)])
        sent += rows
    return sent / elapsed


def _lateness(
    clients: Clients, rate: int, seconds: float, value_bytes: int, report: Report, server: Server
) -> Rates:
    found = steady(server, clients, rate, seconds, value_bytes)
    late = found.late_ms
    if not late:
        report.figure(f"{server.name}, delivered", 0, "nothing in time")
        return {}
    for percent, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(late, share))
        report.figure(f"{server.name}, lateness {percent}, ms", value, f"{value:.0f}")
    reached = f"{len(late):,} of {found.sent:,}; {found.sent / (seconds * rate):.0%} of the rate"
    report.figure(f"{server.name}, taken", len(late), reached)
    early = sum(1 for one in late if one < 0)
    report.figure(f"{server.name}, early", early, f"{early}")
    micros = found.cpu_s / len(late) * 1e6
    report.figure(f"{server.name}, processor time, us/message", micros, f"{micros:.1f}")
    return {(server.name, "messages a second of processor time"): len(late) / found.cpu_s}


def _burst(clients: Clients, count: int, value_bytes: int, report: Report, server: Server) -> Rates:
    last_ms = burst(server, clients, count, value_bytes)
    name = f"{server.name}, burst of {count:,}, last one after the second began, ms"
    if last_ms is None:
        report.figure(f"{server.name}, burst of {count:,}, delivered", 0, "not in time")
        return {}
    report.figure(name, last_ms, f"{last_ms:,}")
    return {(server.name, f"burst of {count:,}"): count / last_ms * 1000}


if __name__ == "__main__":
    sys.exit(main())
