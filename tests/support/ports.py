"""Ports of this machine for servers of tests, also for servers that end and come back.

Rules
- They lie below the range that outgoing connections take theirs from. A client that keeps dialling
  a dead port inside that range can be given the very same port for its own end, connects to itself,
  and the restarted server finds its port taken.
- No port is given twice, because a server that is down holds nothing: tests that run beside each
  other in several processes share the range out.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket

_FIRST, _ALONE, _END = 12_000, 26_000, 32_000
"""``_ALONE``: first one of the process that runs all tests, or hands them out."""
_given: set[int] = set()


def free_port(ip: str = "127.0.0.1") -> int:
    """A port that nothing listens on."""
    first, width = _ALONE, _END - _ALONE
    # pytest-xdist's: gw0, gw1, … of so many processes.
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        width = (_ALONE - _FIRST) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = _FIRST + int(worker[2:]) * width
    while True:
        port = first + random.randrange(width)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((ip, port))
            if port not in _given:
                _given.add(port)
                return port


def free_address() -> str:
    """``host:port`` of this machine that nothing listens on."""
    return f"127.0.0.1:{free_port()}"
