"""A Flight server that answers each batch at once, and clients that wait for each answer: what the
transport alone allows, without a wheel, without a disk."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import pyarrow as pa
from pyarrow import flight

_ANSWER = bytes(36)
"""As long as a receipt of one message."""


class _Echo(flight.FlightServerBase):  # type: ignore[misc]
    def do_exchange(self, _context: Any, _descriptor: Any, reader: Any, writer: Any) -> None:
        for _ in reader:
            writer.write_metadata(pa.py_buffer(_ANSWER))


def _serve(port: Any, over: Any) -> None:
    server = _Echo("grpc://127.0.0.1:0")
    port.put(server.port)
    threading.Thread(target=server.serve, daemon=True).start()
    over.wait()


def _clients(
    port: int, streams: int, seconds: float, value_bytes: int, ready: Any, found: Any
) -> None:
    row = pa.record_batch([pa.array([bytes(value_bytes)])], names=["value"])
    counts = [-1] * streams  # until it went well

    def one(number: int) -> None:
        client = flight.FlightClient(f"grpc://127.0.0.1:{port}")
        descriptor = flight.FlightDescriptor.for_command(b"")
        writer, reader = client.do_exchange(descriptor)
        writer.begin(row.schema)
        writer.write_batch(row)
        reader.read_chunk()
        ready.wait(60)
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            writer.write_batch(row)
            reader.read_chunk()
            count += 1
        writer.close()
        client.close()
        counts[number] = count

    threads = [threading.Thread(target=one, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put(counts)


def shares(count: int, processes: int) -> list[int]:
    """How many of ``count`` each of at most ``processes`` takes, none of them none."""
    processes = min(count, processes)
    return [count // processes + (number < count % processes) for number in range(processes)]


def exchanges(streams: int, seconds: float, value_bytes: int, processes: int = 2) -> float:
    """Batches of one row sent and answered a second, one at a time on each of ``streams``.

    Errors: ``RuntimeError`` when a stream failed, ``queue.Empty`` when a process did.
    """
    context = multiprocessing.get_context("spawn")
    port: Any = context.Queue()
    found: Any = context.Queue()
    over = context.Event()
    ready: Any = context.Barrier(streams)
    server = context.Process(target=_serve, args=(port, over))
    started: list[Any] = [server]
    server.start()
    try:
        at = port.get(timeout=60)
        for share in shares(streams, processes):
            client = context.Process(
                target=_clients, args=(at, share, seconds, value_bytes, ready, found)
            )
            client.start()
            started.append(client)
        counts = [count for _ in started[1:] for count in found.get(timeout=60 + seconds)]
        if min(counts) < 0:
            raise RuntimeError(f"{counts.count(-1)} of {streams} bare streams failed")
        return float(sum(counts) / seconds)
    finally:
        over.set()
        for process in started:
            process.join(10)
            if process.is_alive():
                process.kill()
