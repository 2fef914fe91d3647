"""How do other delay queues compare: durable intake, and lateness at a steady rate?

Each runs alone, on loopback, on the same disk, with the settings that its users need when no
message may be lost; the settings are printed. One client process sends batches and waits until each
is durable before the next; then, on an empty server, one sends a paced load, each message due two
seconds later, while another takes what is due. Ours is used by its public client, in the same way.
With ``--clients 2`` two such processes send at once, and with ``--under-way 5`` each of them on
five connections, so that five of its batches are under way while it makes the next; to each queue
alike. A server that is not installed is named as missing (``benchmarks/others/install.sh`` installs
them from Debian).

    python -m benchmarks.queues [--rows 1,100,1000] [--clients 1] [--under-way 1] [--seconds 5]
                                [--rate 2000] [--only Redis] [--intake-only]

Source: each server's manual on durability.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.client import Client
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.files import OsFiles

from ._load import TOPIC
from ._node import BenchNode
from .harness import Report, data_directory, options, raw_write_rate, warm_memory
from .others.all import ALL
from .others.server import Missing, Other, Receiver, Sender

_ESTIMATE = (
    "whoever syncs each batch of 1 makes at most 1 / (0.3 ms sync + a round trip) = 2,000 a second;"
    " a batch of 1000 (100 KB) is one sync and its processor time, in us a message: Redis 10,"
    " PostgreSQL 10 with its index, RabbitMQ 30, ours 2.5; beanstalkd syncs each job"
)
OURS = "slotwheel"
_SPAN_MS = 7_000_000
_DUE_MS = 2_000
"""beanstalkd counts whole seconds; a due time at the full second would favour nobody."""
_REST_S = 10.0
Load = Callable[[Sender, int], float]
"""With its connection, and a number of its own."""


class _Ours:
    """A node with embedded topics, as one of them."""

    name = OURS
    durability = "acks=all: fdatasync before every acknowledgement"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._node = BenchNode(directory / "data")
        self.data = directory / "data"
        self.address = ""

    def __getstate__(self) -> dict[str, object]:
        return {"address": self.address}

    def version(self) -> str:
        return "this one"

    def __enter__(self) -> _Ours:
        self.address = self._node.__enter__().address
        return self

    def __exit__(self, *error: Any) -> None:
        self._node.__exit__(None, None, None)

    def sender(self) -> Sender:
        return _OurSender(self.address)

    def receiver(self) -> Receiver:
        return _OurReceiver(self.data)


class _OurSender:
    def __init__(self, address: str) -> None:
        self._client = Client(address)

    def send(self, values: Sequence[bytes], due_ms: Sequence[int]) -> None:
        columns = [pa.array(due_ms, pa.int64()), pa.array([TOPIC] * len(values)), pa.array(values)]
        batch = pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])
        self._client.send_table(batch).wait()

    def close(self) -> None:
        self._client.close()


class _OurReceiver:
    """Reads the topic's files, as any consumer of embedded topics."""

    def __init__(self, data: Path) -> None:
        self._reader = TopicReader(OsFiles(data), TOPIC)

    def receive(self) -> list[bytes]:
        found = [v for b in self._reader.batches() for v in b.column("value").to_pylist()]
        if not found:
            time.sleep(0.001)
        return found

    def close(self) -> None:
        self._reader.close()


Queue = Other | _Ours


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="1,100,1000", help="messages in a batch")
    parser.add_argument("--clients", type=int, default=1, help="that send at once")
    parser.add_argument("--under-way", type=int, default=1, help="batches of each client")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second for lateness")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--only", action="append", help="these alone, by name")
    parser.add_argument("--intake-only", action="store_true", help="no lateness")
    chosen = parser.parse_args(arguments)
    sizes = [int(text) for text in chosen.rows.split(",")]
    if chosen.quick:
        sizes, chosen.seconds = sizes[-1:], min(chosen.seconds, 1.0)
    with data_directory(chosen.dir) as directory:
        directory.chmod(0o755)  # one of them runs as another user
        report = Report("delay queues side by side", _ESTIMATE, directory)
        report.begin()
        warm_memory(2.0 if chosen.warm_gib is None else chosen.warm_gib)
        rates: dict[tuple[str, int], float] = {}
        kinds: tuple[type[Other] | type[_Ours], ...] = (_Ours, *ALL)
        for kind in kinds:
            if chosen.only and kind.name not in chosen.only:
                continue
            place = directory / kind.name.lower()
            try:
                with kind(place / "intake") as server:
                    print(f"{server.name} {server.version()}: {server.durability}", flush=True)
                    for rows in sizes:
                        call = partial(_intake, rows=rows, seconds=chosen.seconds)
                        call = partial(call, value_bytes=chosen.value_bytes)
                        rate = _in_processes(server, call, chosen.clients, chosen.under_way)
                        rates[server.name, rows] = rate
                        name = f"{server.name}, durable messages/s in batches of {rows}"
                        report.figure(name, rate, f"{rate:,.0f}")
                if chosen.intake_only:
                    continue
                with kind(place / "lateness") as server:
                    _lateness(report, server, chosen.rate, chosen.seconds)
            except Missing as missing:
                print(f"{kind.name}: missing: {missing}", flush=True)
                report.figure(f"{kind.name}, missing", 0, str(missing))
        _ratios(report, rates, sizes, chosen.value_bytes, chosen.seconds)
        report.end(chosen.json)
    return 0


def _ratios(
    report: Report,
    rates: dict[tuple[str, int], float],
    sizes: Sequence[int],
    value_bytes: int,
    seconds: float,
) -> None:
    for rows in sizes:
        ours = rates.get((OURS, rows))
        if ours is None:
            continue
        raw = raw_write_rate(report.directory, rows * (value_bytes + 50), min(2.0, seconds))
        text = f"write + fdatasync of batches of {rows}"
        report.ratio(text, ours, raw / (value_bytes + 50))
        for (name, size), rate in rates.items():
            if size == rows and name != OURS:
                report.ratio(f"{name}, batches of {rows}", ours, rate)


def _intake(sender: Sender, number: int, rows: int, value_bytes: int, seconds: float) -> float:
    """Messages a second, each batch durable before the next is sent."""
    generator = np.random.default_rng(number)
    values = [generator.bytes(value_bytes) for _ in range(rows)]
    sent, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        now_ms = time.time_ns() // 1_000_000
        due = np.sort(generator.integers(60_000, _SPAN_MS, rows)) + now_ms
        sender.send(values, due.tolist())
        sent += rows
    return sent / elapsed


def _pace(sender: Sender, _number: int, rate: int, seconds: float) -> float:
    """Send at that rate, each message due ``_DUE_MS`` later; how many were sent."""
    sent, start = 0, time.monotonic()
    while (elapsed := time.monotonic() - start) < seconds:
        rows = int(elapsed * rate) - sent
        if rows:
            due = time.time_ns() // 1_000_000 + _DUE_MS
            sender.send([b"%d" % due] * rows, [due] * rows)
            sent += rows
        time.sleep(0.01)
    return sent


def _lateness(report: Report, server: Queue, rate: int, seconds: float) -> None:
    """A steady rate in and out; lateness is that of the moment a receiver has the message."""
    if isinstance(server, _Ours):
        _first_record(server)
    receiver = server.receiver()
    late: list[int] = []
    wanted: list[int] = []

    def take() -> None:
        end = time.monotonic() + seconds + _DUE_MS / 1000 + _REST_S
        while time.monotonic() < end and not (wanted and len(late) >= wanted[0]):
            found = receiver.receive()
            now_ms = time.time_ns() // 1_000_000
            late.extend(now_ms - int(value) for value in found if value.isdigit())

    taking = threading.Thread(target=take)
    taking.start()

    wanted.append(int(_in_processes(server, partial(_pace, rate=rate, seconds=seconds))))
    taking.join()
    receiver.close()
    if not late:
        report.figure(f"{server.name}, delivered", 0, "nothing in time")
        return
    name = f"{server.name}, lateness"
    for percent, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(late, share))
        report.figure(f"{name} {percent}, ms", value, f"{value:.0f}")
    asked = seconds * rate
    reached = f"{len(late):,} of {wanted[0]:,}; {wanted[0] / asked:.0%} of the rate"
    report.figure(f"{server.name}, taken", len(late), reached)
    early = sum(1 for one in late if one < 0)
    report.figure(f"{server.name}, early", early, f"{early}")


def _first_record(server: _Ours) -> None:
    """The topic is there once something was delivered to it."""
    sender = server.sender()
    sender.send([b"first"], [0])
    sender.close()
    files = OsFiles(server.data)
    while not files.list(f"topics/{TOPIC}"):
        time.sleep(0.01)
    files.close()


def _in_processes(server: Queue, call: Load, count: int = 1, threads: int = 1) -> float:
    """The sum of what ``call`` returns in so many processes at once, as clients would run, and in
    so many threads of each."""
    context = multiprocessing.get_context("spawn")
    result: Any = context.SimpleQueue()
    ready: Any = context.Barrier(count)
    processes = [
        context.Process(
            target=_run, args=(server, call, number * threads, threads, ready, result), daemon=True
        )
        for number in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    codes = [process.exitcode for process in processes]
    if codes != [0] * count:
        for process in processes:
            process.kill()
        raise RuntimeError(f"a client of {server.name} failed: codes {codes}")
    return sum(float(result.get()) for _ in processes)


def _run(server: Queue, call: Load, first: int, threads: int, ready: Any, result: Any) -> None:
    senders = [server.sender() for _ in range(threads)]
    ready.wait(60)
    with ThreadPoolExecutor(threads) as pool:
        result.put(sum(pool.map(call, senders, range(first, first + threads))))
    for sender in senders:
        sender.close()


if __name__ == "__main__":
    sys.exit(main())
