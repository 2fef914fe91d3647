"""A server of the wire that answers each frame at once, and clients that wait for each answer: what
the transport alone allows, without a wheel, without a disk."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

from slotwheel.wire.channel import Channel
from slotwheel.wire.frames import Frame, FrameLimits, Kind, encode_frame
from slotwheel.wire.server import Connection, Server

_ANSWER = bytes(36)
"""As long as a receipt of one message."""
_ENVELOPE_BYTES = 600
"""Of a batch of one row, besides its value."""


class _Echo:
    """A session."""

    welcome = b""
    reads = True
    quiet_s = -1.0

    def __init__(self, connection: Connection, _hello: Frame) -> None:
        self.limits: FrameLimits = {Kind.BATCH: (24, 1 << 20)}
        self._connection = connection
        self._taken = 0

    @property
    def idle(self) -> bool:
        return not self._taken

    def take(self, _frame: Frame) -> None:
        self._taken += 1
        self._connection.resolved()

    def answers(self) -> list[bytes]:
        taken, self._taken = self._taken, 0
        return [encode_frame(Kind.ANSWER, b"", len(_ANSWER)) + _ANSWER] * taken

    def gone(self) -> None: ...


class _NoWork:
    wait_s = 0.25

    def work(self) -> None: ...


def _serve(port: Any, over: Any) -> None:
    server = Server(
        "127.0.0.1",
        0,
        _Echo,
        _NoWork(),
        lambda *_: None,
        lambda error: print(repr(error)),
        connections_max=10_000,
        quiet_s=60.0,
    )
    port.put(server.port)
    while not over.is_set():
        server.turn()


def _clients(
    port: int, streams: int, seconds: float, value_bytes: int, ready: Any, found: Any
) -> None:
    body = bytes(_ENVELOPE_BYTES + value_bytes)
    counts = [-1] * streams  # until it went well

    def one(number: int) -> None:
        channel = Channel.open(f"127.0.0.1:{port}", b"", {Kind.ANSWER: (0, 100)}, 60.0)
        ready.wait(60)
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            channel.send(Kind.BATCH, bytes(8), body)
            channel.receive()
            count += 1
        channel.close()
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
    """Batches of one row sent and answered a second, one at a time on each of ``streams``
    connections.

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
