"""The names that an HTTP server may be called by, in the header ``Host`` of a request.

Theory: a page whose own name is made to resolve to a server's address (DNS rebinding) is no other
site to its browser, which then sends neither ``Origin`` nor ``Sec-Fetch-Site`` with what it reads:
nothing tells it from a program. But ``Host`` is the page's name. So every request must name a host
that nobody outside can make resolve anywhere: an address, a name of this network, or one that the
server was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253}?)\.?(?::[0-9]{0,5})?", re.I | re.A)
_LOOPBACK = ("localhost", "*.localhost", "127.0.0.0/8", "[::1]")
_LOCAL = ("*.local", "*.internal", "*.svc")
"""Names that exist within a network alone."""
_KNOWN_MAX = 1_000
"""Values of ``Host`` that are remembered as good."""


class HostNames:
    """``host``: where the server listens. ``machine``: the name of its machine. ``names``: further
    names that it may be called by; ``*.example.com``: all below that one.

    ``limit``: all of them, for an error.
    """

    def __init__(self, host: str, machine: str, names: Iterable[str] = ()) -> None:
        host = host.lower().rstrip(".")
        self._private = _is_loopback(host)
        own = () if self._private or _is_address(host) else (host,)
        local = () if self._private else (*_LOCAL, machine.lower())
        further = [*own, *local, *(one.lower() for one in names)]
        self._names = frozenset(further)
        self._endings = tuple(one[1:] for one in further if one.startswith("*."))
        shown = [*_LOOPBACK] if self._private else ["any IP address", "any name without a dot"]
        self.limit = ", ".join(dict.fromkeys([*shown, *further]))
        self._known: set[str | None] = {None}

    def allow(self, header: str | None) -> bool:
        """Whether a request with that ``Host`` may be answered. One without it (HTTP/1.0) is from
        no browser."""
        if header in self._known:
            return True
        found = _HOST.fullmatch(header or "")
        if found is None or not self._is_own(found[1].lower()):
            return False
        if len(self._known) < _KNOWN_MAX:
            self._known.add(header)
        return True

    def _is_own(self, name: str) -> bool:
        if _is_loopback(name) or name in self._names or name.endswith(self._endings):
            return True
        return not self._private and (_is_address(name) or "." not in name)


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ip_address(name.strip("[]")).is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
