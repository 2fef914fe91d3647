"""This process's TCP connections to a peer, found from outside of Flight, to shut them and to
measure their progress.

Flight cannot end a write of which TCP has accepted a part: a cancelled call still waits for the
rest, which a machine without power never acknowledges. Nor does it report whether a large write
moves. Linux can do both. Of the sockets that lead to a peer, the new ones belong to the caller that
has just connected.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...wheel.protocol import split_address

Remote = frozenset[tuple[str, int]]
"""(host, port) pairs as the kernel reports them."""

# Part of Linux' struct tcp_info, include/uapi/linux/tcp.h.
_INFO = struct.Struct(
    "="
    "24xI"  # tcpi_unacked: packets sent and not acknowledged
    "28xI"  # tcpi_last_ack_recv: when something was last acknowledged, ms ago
    "60xQ"  # tcpi_bytes_acked
    "16xI"  # tcpi_notsent_bytes
)
assert _INFO.size == 148

_connecting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_known: defaultdict[str, set[int]] = defaultdict(set)
"""The sockets that led to an address when the last caller connected to it, by inode number."""


@dataclass(frozen=True, slots=True)
class TcpProgress:
    """TCP's progress with what was written. ``acknowledged``: bytes that the other machine has.
    ``queued``: whether more bytes wait than can be in flight. ``unacknowledged_s``: for how long
    the other machine has not answered, if something is in flight."""

    acknowledged: int = 0
    queued: bool = False
    unacknowledged_s: float = 0.0


class Connection:
    """The sockets under one Flight client: usually one. Thread-safe; close it."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def own(self, one: socket.socket) -> None:
        self._sockets.append(one)

    def shut(self) -> None:
        """End the sockets at once; threads that read or write there get an error."""
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def sending(self) -> TcpProgress:
        for one in list(self._sockets):
            with contextlib.suppress(OSError, struct.error):  # closed, or an older kernel
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
                unacked, ack_ms_ago, acknowledged, unsent = _INFO.unpack(info)
                waits = unacked or unsent
                return TcpProgress(acknowledged, unsent > 0, ack_ms_ago / 1000 if waits else 0.0)
        return TcpProgress()

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


@contextlib.contextmanager
def connecting(address: str) -> Iterator[Connection]:
    """Connect to ``address`` inside this context, one thread at a time. The ``Connection`` it gives
    owns, at its end, the new sockets that lead there."""
    mine = Connection()
    with _connecting[address]:
        yield mine
        there = set()
        for one in _leading_to(_resolved(address)):
            number = os.fstat(one.fileno()).st_ino  # the kernel's, under every handle
            there.add(number)
            if number not in _known[address]:
                # ``socket.dup`` would make it blocking, under Flight.
                mine.own(socket.socket(fileno=os.dup(one.fileno())))
        _known[address] = there


def _leading_to(remote: Remote) -> Iterator[socket.socket]:
    """This process's sockets to ``remote``, each a copy that is valid for one iteration."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed, or not connected
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as copy:
                if copy.family in {socket.AF_INET, socket.AF_INET6}:
                    host, port = copy.getpeername()[:2]
                    if (_plain(host), port) in remote:
                        yield copy


def _resolved(address: str) -> Remote:
    """All addresses of ``host:port``; empty when the name cannot be resolved now."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset((_plain(str(one[4][0])), port) for one in found)


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
