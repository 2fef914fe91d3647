"""This process's TCP connections to a peer, found from outside of Flight and shut.

Flight offers no way to end a write that TCP has taken half of: a cancelled call still waits until
the rest is taken, which a machine without power never does. Linux tells which sockets there are.
Of those that lead to a peer, the ones nobody had before belong to whoever has just connected.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Set
from pathlib import Path

from ..wheel.protocol import split_address

Remote = frozenset[tuple[str, int]]
"""(host, port) as the kernel tells it."""

_connecting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_known: defaultdict[str, set[int]] = defaultdict(set)
"""The sockets that led to an address when the last one connected to it."""


@contextlib.contextmanager
def connecting(address: str) -> Iterator[set[int]]:
    """Whoever connects to ``address`` does it in here, one at a time. What is given is filled at
    the end: with the sockets that lead there and are nobody else's, for ``shut``."""
    mine: set[int] = set()
    with _connecting[address]:
        yield mine
        there = _leading_to(_resolved(address))
        mine |= there - _known[address]
        _known[address] = there


def shut(numbers: Set[int]) -> None:
    """Shut these sockets, as far as they are still open."""
    for one in _sockets():
        if _number(one) in numbers:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _leading_to(remote: Remote) -> set[int]:
    found = set()
    for one in _sockets():
        with contextlib.suppress(OSError):  # it is not connected
            if one.family in {socket.AF_INET, socket.AF_INET6}:
                host, port = one.getpeername()[:2]
                if (_plain(host), port) in remote:
                    found.add(_number(one))
    return found


def _sockets() -> Iterator[socket.socket]:
    """All of this process, each as a copy that is closed when the next one is asked for."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(path.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as copy:
                    yield copy


def _number(one: socket.socket) -> int:
    """What the kernel calls it, under every handle; no later socket has the same."""
    return os.fstat(one.fileno()).st_ino


def _resolved(address: str) -> Remote:
    """All that ``host:port`` stands for; nothing when its name is not known now."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset((_plain(str(one[4][0])), port) for one in found)


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
