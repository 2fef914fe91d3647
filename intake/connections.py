"""The TCP connections that a Flight server has accepted, within a limit.

Theory: Flight accepts every connection and lists none of them. But they are descriptors of this
process, as slot files are, so the kernel lists them, has the time for which each has been quiet,
and can shut one. A connection beyond the limit replaces the one that has been quiet longest, if
that is ``quiet_s`` or more, or one of the address that has most of them (``policy/places.py``); if
there is none, it is *refused*: its calls are answered with an error for a moment, then it is shut.

    new --room, or a quiet one is shut-----> inside --quiet, and another is new------> shut
      |                                        ^
      +----------no room----------> refused ---+--after ``REFUSE_S``-----------------> shut

Peers are not counted, never refused and never shut here: a node without peers is of no use to its
clients. A connection is a peer's once its greeting was accepted.

Rules: nothing here needs a descriptor of its own when there are none left. Connections are listed
and judged under the lock, so that none is judged by a list that is older than its ``admit``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from urllib.parse import unquote

from ..policy.places import who_leaves
from ..wheel.errors import Overloaded

CONNECTIONS_MAX = 1024
"""A node with a low limit of open files accepts fewer (``node/descriptors.py``)."""
REFUSE_S = 1.0
"""How long, s, a refused connection stays open, so that its client gets the reason."""
REFUSED_MAX = 64
"""With more refused connections than this, the first ones are shut at once."""
_LOOK_S = 0.25
_PAUSE_S = 0.01
_NUMBERS_MAX = 1 << 16
"""Highest descriptor to look at: a limit of open files may be a billion, but the kernel gives out
the lowest numbers first."""
_TCP_INFO = struct.Struct("52xI")  # tcpi_last_data_recv of linux/tcp.h, in ms

Address = tuple[str, int]
"""Host and port of the other side of a connection."""


class Connections:
    """Limits the connections to a local port, from ``start`` to ``close``. Thread-safe.

    ``quiet_s``: a connection that has sent nothing for so long may be replaced. ``calls_quiet_s``:
    seconds for which the calls of each connection have been quiet; below 0 while one waits for its
    answer, for then it is not the client that is quiet.
    """

    def __init__(
        self,
        limit: int,
        quiet_s: float,
        calls_quiet_s: Callable[[], Mapping[Address, float]] = dict,
    ) -> None:
        self._port = 0
        self._limit = limit
        self._quiet_s = quiet_s
        self._calls_quiet_s = calls_quiet_s
        self._over = False  # whether there may be more connections than the limit
        self._inside: set[Address] = set()
        self._peers: set[Address] = set()
        self._refused: dict[Address, float] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def start(self, port: int) -> None:
        self._port = port
        threading.Thread(target=self._watch, name="flight-connections", daemon=True).start()

    def check(self, peer: str) -> None:
        """Errors: ``Overloaded`` when ``peer``, as in a call's context, is beyond the limit."""
        if not self._over:
            return
        address = address_of(peer)
        with self._lock:
            if address not in self._inside | self._peers | self._refused.keys():
                self._look()  # it connected just now
            refused = address in self._refused
        if refused:
            raise Overloaded(
                "too many connections",
                got=f"more than {self._limit} that are in use",
                limit=self._limit,
                remedy="Try again in some seconds. Share one client between threads, close those"
                " that are not used, or raise the node's limit of open files",
            )

    def admit(self, peer: str) -> None:
        """Admit ``peer``, whatever the limit: its greeting was accepted."""
        with self._lock:
            self._peers.add(address_of(peer))
            self._refused.pop(address_of(peer), None)

    def close(self) -> None:
        self._closing.set()

    def _watch(self) -> None:
        with select.epoll() as doors:
            for number, _ in _sockets(self._port, listening=True):
                doors.register(number, select.EPOLLIN | select.EPOLLET)
            while not self._closing.wait(_PAUSE_S):
                doors.poll(_LOOK_S)
                with self._lock:
                    self._look()

    def _look(self) -> None:
        numbers = _numbers()
        # ``_peers`` may still name some that have gone; they are removed below.
        self._over = max(len(numbers), len(self._peers)) > self._limit
        if not self._over:
            self._refused.clear()
            return
        quiet_s = {}
        for _, found in _sockets(self._port, numbers):
            with contextlib.suppress(OSError):
                quiet_s[_remote(found)] = _quiet_s(found)
        for one, seconds in self._calls_quiet_s().items():
            if one in quiet_s:
                quiet_s[one] = seconds  # who sends what nobody stores is quiet
        if cut := self._judge(quiet_s, time.monotonic()):
            cut_connections(self._port, cut)

    def _judge(self, quiet_s: dict[Address, float], now_s: float) -> set[Address]:
        """Decide which connections are inside and which are refused. Returns those to be shut."""
        self._peers &= quiet_s.keys()
        quiet_s = {one: seconds for one, seconds in quiet_s.items() if one not in self._peers}
        self._inside &= quiet_s.keys()
        since = {one: at for one, at in self._refused.items() if one in quiet_s}
        since |= {one: now_s for one in quiet_s if one not in self._inside and one not in since}
        could_leave = [(one, one[0], quiet_s[one]) for one in self._inside]
        kept_out: set[str] = set()  # hosts for which nobody leaves
        cut = set()
        for one in list(since):
            if len(self._inside) >= self._limit:
                if one[0] in kept_out:
                    continue
                leaving = who_leaves(one[0], could_leave, self._quiet_s)
                if leaving is None:
                    kept_out.add(one[0])
                    continue
                could_leave = [place for place in could_leave if place[0] != leaving]
                cut.add(leaving)
                self._inside -= cut
            self._inside.add(one)
            del since[one]
        overdue = [one for one, at in since.items() if now_s - at >= REFUSE_S]
        overdue += list(since)[: max(0, len(since) - REFUSED_MAX)]
        self._refused = {one: at for one, at in since.items() if one not in overdue}
        return cut.union(overdue)


def cut_connections(port: int, addresses: Set[Address] | None = None) -> int:
    """Shut accepted TCP connections of this process on its local ``port``: all of them, or those
    from ``addresses``. Returns how many.

    Flight cannot end a call that waits for its client; a socket that is shut does.
    """
    count = 0
    for _, found in _sockets(port):
        with contextlib.suppress(OSError):
            if addresses is None or _remote(found) in addresses:
                found.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def address_of(peer: str) -> Address:
    """Host and port of ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdigit() else -1


def _sockets(
    port: int, numbers: Sequence[int] | None = None, *, listening: bool = False
) -> Iterator[tuple[int, socket.socket]]:
    """This process's TCP sockets on a local port, each with its number: those that were accepted,
    or those that listen. They are Flight's, and valid until the next one is yielded."""
    for number in _numbers() if numbers is None else numbers:
        try:
            # Not a duplicate, as there may be no free descriptor.
            found = socket.socket(fileno=number)
        except OSError:  # not a socket
            continue
        try:
            internet = found.family in (socket.AF_INET, socket.AF_INET6)
            if not internet or found.type != socket.SOCK_STREAM or found.getsockname()[1] != port:
                continue
            if bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) is listening:
                yield number, found
        except OSError:  # closed meanwhile
            continue
        finally:
            found.detach()


def _numbers() -> Sequence[int]:
    """All descriptors of this process; if none is free to list them, all possible ones."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    except OSError:
        return range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _NUMBERS_MAX))


def _remote(found: socket.socket) -> Address:
    host, port = found.getpeername()[:2]
    return _plain(host), port


def _quiet_s(found: socket.socket) -> float:
    info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    return float(_TCP_INFO.unpack(info)[0]) / 1000


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
