"""Client processes: they send Arrow batches through the public client and say how it went. And
topics full of records, for what reads them."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotwheel.client import Client, Receipts
from slotwheel.reading.topicreader import TopicReader
from slotwheel.wheel.errors import NodeUnreachable
from slotwheel.wheel.files import OsFiles
from slotwheel.wheel.names import NAME_HEADER
from slotwheel.wheel.schema import HEADER, HEADERS, Int64s, times

TOPIC = "orders"
VALUE_BYTES = 100
_KEYS = 1_000
_JOINED_ROWS = 5_000
"""What a client joins of what waits, unless it is told otherwise: its default."""
_SLACK_MS = 10_000
"""Due times begin so much later than now, so that a slow run does not deliver what it sends."""

Headers = list[tuple[str, str | bytes | None]]
"""Of one record, as confluent's producer has them."""


@dataclass(frozen=True)
class Load:
    """``rows``: messages in a batch; ``span_ms``: due times are uniform over so much; a client
    stops after ``seconds`` or ``total`` messages, whatever comes first. ``timed``: measure how long
    each batch's receipt takes; ``in_turn``: wait for it before the next batch is sent;
    ``buffer_bytes``: how much may wait in a client, and so how long the last one waits."""

    address: str
    rows: int = 1000
    value_bytes: int = VALUE_BYTES
    span_ms: int = 7_180_000
    seconds: float = 1e9
    total: int = 1 << 62
    timed: bool = False
    in_turn: bool = False
    buffer_bytes: int = 8 << 20
    apart: bool = False
    """Each batch travels by itself; else those that wait may leave together."""
    named: bool = False
    """Each message has a name, which no other one has."""


@dataclass(frozen=True)
class Sent:
    messages: int
    refused: int
    started: float
    """Wall clock, seconds."""
    ended: float
    cpu_s: float
    receipts_ms: tuple[float, ...] = ()
    """From handing over a batch to its receipt."""


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


def _reach(client: Client) -> None:
    """Connect, however long the node takes to start beside this."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client.status()
            return
        except NodeUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _send(load: Load, seed: int, ready: Any, results: Any) -> None:
    generator = np.random.default_rng(seed)
    values = pa.array([generator.bytes(load.value_bytes) for _ in range(load.rows)], pa.binary())
    topics = pa.array([TOPIC] * load.rows, pa.utf8())
    handed: deque[Receipts] = deque()
    times = _Times() if load.timed else None
    refused = 0
    most = load.rows if load.apart else max(load.rows, _JOINED_ROWS)
    with Client(load.address, batch_rows=most, buffer_bytes=load.buffer_bytes) as client:
        _reach(client)
        ready.wait(60)
        started, cpu = time.time(), time.process_time()
        sent = 0
        while sent < load.total and time.time() - started < load.seconds:
            rows = min(load.rows, load.total - sent)
            now_ms = time.time_ns() // 1_000_000
            due = generator.integers(0, load.span_ms, rows) + (now_ms + _SLACK_MS)
            columns = [pa.array(due), topics.slice(0, rows), values.slice(0, rows)]
            batch = pa.RecordBatch.from_arrays(columns, names=["due", "topic", "value"])
            if load.named:
                headers = named_headers(f"{seed}-{started}", sent, rows)
                batch = batch.append_column("headers", headers)
            begun = time.perf_counter()
            handed.append(client.send_table(batch))
            if times is not None:
                times.watch(begun, handed[-1])
            if load.in_turn:
                handed[-1].wait()
            sent += rows
            while handed and handed[0].done():
                refused += len(handed.popleft().errors())
        client.flush()
        ended = time.time()
        refused += sum(len(receipts.errors()) for receipts in handed)
        cpu_s = time.process_time() - cpu
        measured = () if times is None else times.all()
        results.put(Sent(sent, refused, started, ended, cpu_s, measured))


def named_headers(prefix: str, first: int, rows: int) -> pa.Array:
    """A headers column in which each row has a name of its own, by its number from ``first`` on."""
    numbers = pa.array(np.arange(first, first + rows)).cast(pa.utf8())
    names = pc.binary_join_element_wise(f"{prefix}-", numbers, "").cast(pa.binary())
    keys = pa.repeat(pa.scalar(NAME_HEADER), rows)
    pairs = pa.StructArray.from_arrays([keys, names], fields=list(HEADER))
    places = pa.array(np.arange(rows + 1), pa.int32())
    return pa.ListArray.from_arrays(places, pairs, type=HEADERS)


class _Times:
    """A thread that waits for each batch's receipt in turn, and notes when it came."""

    def __init__(self) -> None:
        self._handed: queue.SimpleQueue[tuple[float, Receipts] | None] = queue.SimpleQueue()
        self._found: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, begun: float, receipts: Receipts) -> None:
        self._handed.put((begun, receipts))

    def all(self) -> tuple[float, ...]:
        """In ms, once all have come."""
        self._handed.put(None)
        self._thread.join()
        return tuple(self._found)

    def _run(self) -> None:
        while (one := self._handed.get()) is not None:
            begun, receipts = one
            receipts.wait()
            self._found.append((time.perf_counter() - begun) * 1000)


def delivered_times(data: Path, topic: str) -> tuple[Int64s, Int64s, Int64s]:
    """Of each message of an embedded topic when it was due, created and delivered, ms since the
    epoch; shape (messages,) each."""
    with closing(OsFiles(data)) as files, closing(TopicReader(files, topic)) as reader:
        batches = list(reader.batches())
    due, created, delivered = (
        np.concatenate([times(batch, name) for batch in batches] or [np.zeros(0, np.int64)])
        for name in ("due", "created", "delivered")
    )
    return due, created, delivered


def fill_topic(bootstrap: str, topic: str, count: int, headers: Callable[[int], Headers]) -> None:
    """Write ``count`` records; ``headers``: those of a record, by its number from 0."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1 << 18,
            "queue.buffering.max.messages": 200_000,
        }
    )
    value = bytes(VALUE_BYTES)
    for number in range(count):
        key, own = b"k%d" % (number % _KEYS), headers(number)
        while True:
            try:
                producer.produce(topic, value, key, headers=own)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
