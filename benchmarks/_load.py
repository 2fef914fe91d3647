"""Client processes: they send Arrow batches through the public client and say how it went."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from slotwheel.client import Client, Receipts

TOPIC = "orders"
VALUE_BYTES = 100
_BUFFER_BYTES = 8 << 20
_SLACK_MS = 10_000
"""Due times begin so much later than now, so that a slow run does not deliver what it sends."""


@dataclass(frozen=True)
class Load:
    """``rows``: messages in a batch; ``span_ms``: due times are uniform over so much; a client
    stops after ``seconds`` or ``total`` messages, whatever comes first."""

    address: str
    rows: int = 1000
    value_bytes: int = VALUE_BYTES
    span_ms: int = 7_180_000
    seconds: float = 1e9
    total: int = 1 << 62


@dataclass(frozen=True)
class Sent:
    messages: int
    refused: int
    started: float
    """Wall clock, seconds."""
    ended: float
    cpu_s: float


class Clients:
    """``count`` client processes, ready and waiting until ``go``."""

    def __init__(self, load: Load, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._results: Any = context.Queue()
        self._ready: Any = context.Barrier(count + 1)
        self._processes = [
            context.Process(
                target=_send, args=(load, seed, self._ready, self._results), daemon=True
            )
            for seed in range(count)
        ]
        for process in self._processes:
            process.start()

    def go(self, timeout_s: float = 60.0) -> None:
        self._ready.wait(timeout_s)

    def results(self, timeout_s: float) -> list[Sent]:
        deadline = time.monotonic() + timeout_s
        found: list[Sent] = []
        while len(found) < len(self._processes):
            try:
                found.append(self._results.get(timeout=1.0))
            except queue.Empty:
                dead = [p for p in self._processes if p.exitcode not in (None, 0)]
                if dead or time.monotonic() > deadline:
                    raise RuntimeError("a client process failed; see its traceback") from None
        for process in self._processes:
            process.join(10)
        return found


def _send(load: Load, seed: int, ready: Any, results: Any) -> None:
    generator = np.random.default_rng(seed)
    values = pa.array([generator.bytes(load.value_bytes) for _ in range(load.rows)], pa.binary())
    topics = pa.array([TOPIC] * load.rows, pa.utf8())
    handed: deque[Receipts] = deque()
    refused = 0
    with Client(load.address, batch_rows=load.rows, buffer_bytes=_BUFFER_BYTES) as client:
        client.status()
        ready.wait(60)
        started, cpu = time.time(), time.process_time()
        sent = 0
        while sent < load.total and time.time() - started < load.seconds:
            rows = min(load.rows, load.total - sent)
            now_ms = time.time_ns() // 1_000_000
            due = generator.integers(0, load.span_ms, rows) + (now_ms + _SLACK_MS)
            columns = [pa.array(due), topics.slice(0, rows), values.slice(0, rows)]
            batch = pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])
            handed.append(client.send_table(batch))
            sent += rows
            while handed and handed[0].done():
                refused += len(handed.popleft().errors())
        client.flush()
        ended = time.time()
        refused += sum(len(receipts.errors()) for receipts in handed)
        results.put(Sent(sent, refused, started, ended, time.process_time() - cpu))
