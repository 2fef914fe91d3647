"""When does a server hand over what is due: at a steady rate, and when much is due at once?

Judged by the moment a receiver, in this process, has the message, whose value names its due time:
nothing depends on what a server says of itself.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from .clients import Clients
from .server import Sender, Server

_AHEAD_MS = 2_000
_REST_S = 10.0
"""How long is waited for what is late, at a steady rate."""
_WARM_S = 5.0
"""A server's first seconds are not its usual ones: Java compiles what it runs."""
_BURST_REST_S = 180.0
_BATCH_MAX = 1_000
_PROBE = 2_000
_FAR_MS = 3_600_000
_DIGITS = 13
_NOT_MEASURED = b"-"


@dataclass(frozen=True)
class Steady:
    """How many were sent, how late those were that came in time, and what it cost the server."""

    sent: int
    late_ms: list[int]
    cpu_s: float


def steady(server: Server, clients: Clients, rate: int, seconds: float, value_bytes: int) -> Steady:
    """In and out at ``rate`` messages a second; each is due ``_AHEAD_MS`` after it is sent."""
    share = rate / clients.connections
    load = partial(_pace, rate=share, value_bytes=value_bytes)
    with _Taking(server) as taking:
        clients.run(server, partial(load, seconds=min(_WARM_S, seconds), measured=False))
        time.sleep(_AHEAD_MS / 1000)
        before_s = server.cpu_s()
        sent = int(sum(clients.run(server, partial(load, seconds=seconds, measured=True)).found))
        taking.wait(sent, _AHEAD_MS / 1000 + _REST_S)
        return Steady(sent, taking.late_ms, server.cpu_s() - before_s)


def burst(server: Server, clients: Clients, count: int, value_bytes: int) -> int | None:
    """``count`` messages are due within one second: how many ms after it began has the last one
    left? None if not all have after ``_BURST_REST_S``, or some were not stored before. They are
    sent in the order of their due times, which is RabbitMQ's best case."""
    load = partial(_send_all, of=clients.connections, value_bytes=value_bytes)
    with _Taking(server) as taking:
        begun_s = time.time()
        far_ms = int(begun_s * 1000) + _FAR_MS
        rate = sum(clients.run(server, partial(load, count=_PROBE, second_ms=far_ms)).found)
        probe_s = time.time() - begun_s  # starting the clients is most of it
        second_s = int(time.time() + 2 * (probe_s + count / rate)) + 2
        clients.run(server, partial(load, count=count, second_ms=second_s * 1000))
        if time.time() > second_s:
            return None
        taking.wait(count, second_s - time.time() + _BURST_REST_S)
        came = len(taking.late_ms)
        return taking.last_ms - second_s * 1000 if came >= count else None


class _Taking:
    """A thread that receives. ``late_ms``: of each message that is measured; ``last_ms``: when the
    last of these came."""

    def __init__(self, server: Server) -> None:
        self._receiver = server.receiver()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self.late_ms: list[int] = []
        self.last_ms = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._receiver.close()

    def wait(self, count: int, most_s: float) -> None:
        end = time.monotonic() + most_s
        while len(self.late_ms) < count and time.monotonic() < end and self._thread.is_alive():
            time.sleep(0.05)

    def _take(self) -> None:
        while not self._stop.is_set():
            found = self._receiver.receive()
            now_ms = time.time_ns() // 1_000_000
            due = [int(value[:_DIGITS]) for value in found if value[:1].isdigit()]
            if due:
                self.last_ms = now_ms
                self.late_ms += [now_ms - one for one in due]


def _value(due_ms: int, value_bytes: int, *, measured: bool = True) -> bytes:
    return (b"%0*d" % (_DIGITS, due_ms) if measured else _NOT_MEASURED).ljust(value_bytes, b".")


def _pace(
    sender: Sender, _number: int, rate: float, seconds: float, value_bytes: int, *, measured: bool
) -> float:
    """Send at that rate; how many were sent."""
    sent, start = 0, time.monotonic()
    while (elapsed := time.monotonic() - start) < seconds:
        rows = min(_BATCH_MAX, int(elapsed * rate) - sent)
        if rows:
            due = time.time_ns() // 1_000_000 + _AHEAD_MS
            sender.send([_value(due, value_bytes, measured=measured)] * rows, [due] * rows)
            sent += rows
        time.sleep(0.01)
    return sent


def _send_all(
    sender: Sender, number: int, of: int, count: int, second_ms: int, value_bytes: int
) -> float:
    """A connection's share of what is due in that second; messages a second."""
    start = time.monotonic()
    due = [second_ms + one * 1000 // count for one in range(number, count, of)]
    for first in range(0, len(due), _BATCH_MAX):
        batch = due[first : first + _BATCH_MAX]
        sender.send([_value(one, value_bytes) for one in batch], batch)
    return len(due) / (time.monotonic() - start)
