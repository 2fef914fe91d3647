"""This process's TCP connections to a peer, found from outside of Flight and shut.

Flight offers no way to end a write that TCP has taken half of: a cancelled call still waits until
the rest is taken, which a machine without power never does. Linux tells which sockets there are.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Set
from pathlib import Path

from .group import split_address

Remote = frozenset[tuple[str, int]]
"""(host, port) as the kernel tells it."""


def resolved(address: str) -> Remote:
    """All that ``host:port`` stands for; nothing when its name is not known now."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return frozenset()
    return frozenset((_plain(str(one[4][0])), port) for one in found)


def shut_connections(remote: Set[tuple[str, int]]) -> int:
    """Shut the connections that lead there. Returns how many."""
    count = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as found:
                if found.family not in {socket.AF_INET, socket.AF_INET6}:
                    continue
                host, port = found.getpeername()[:2]
                if (_plain(host), port) in remote:
                    found.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _plain(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
