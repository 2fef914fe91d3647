"""The names of an HTTP server that a request may have in its header ``Host``.

Theory: for a page whose own name is made to resolve to a server's address (DNS rebinding), that
server is the page's own site to the browser, which then sends neither ``Origin`` nor
``Sec-Fetch-Site``: the server cannot tell its requests from a program's. But ``Host`` is the page's
name. So every request must name a host that nobody outside can make resolve anywhere: an address, a
name of this network, or one that the server was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253}?)\.?(?::[0-9]{0,5})?", re.I | re.A)
_LOOPBACK = ("localhost", "*.localhost", "127.0.0.0/8", "[::1]")
_LOCAL = ("*.local", "*.internal", "*.svc")
"""Names that exist within a network only."""
_KNOWN_MAX = 1_000
"""The most values of ``Host`` that are remembered as good."""


class HostNames:
    """The names of a server that listens on ``host``, on a machine named ``machine``. ``names``:
    further ones; ``*.example.com``: all below that one. ``limit``: all names as text, for an error.
    """

    def __init__(self, host: str, machine: str, names: Iterable[str] = ()) -> None:
        host = host.lower().rstrip(".")
        self._private = _is_loopback(host)
        listening = () if self._private or _is_address(host) else (host,)
        local = () if self._private else (*_LOCAL, machine.lower())
        further = [*listening, *local, *(name.lower() for name in names)]
        self._names = frozenset(further)
        self._endings = tuple(name[1:] for name in further if name.startswith("*."))
        shown = [*_LOOPBACK] if self._private else ["any IP address", "any name without a dot"]
        self.limit = ", ".join(dict.fromkeys([*shown, *further]))
        self._known: set[str | None] = {None}

    def allow(self, header: str | None) -> bool:
        """Returns True when a request with that ``Host`` may be answered. One without it (HTTP/1.0)
        comes from no browser."""
        if header in self._known:
            return True
        match = _HOST.fullmatch(header or "")
        if match is None or not self._is_own(match[1].lower()):
            return False
        if len(self._known) < _KNOWN_MAX:
            self._known.add(header)
        return True

    def _is_own(self, name: str) -> bool:
        if _is_loopback(name) or name in self._names or name.endswith(self._endings):
            return True
        return not self._private and (_is_address(name) or "." not in name)


def is_loopback_host(header: str) -> bool:
    """Returns True when a header ``Host`` names this machine itself, to whoever sent it."""
    match = _HOST.fullmatch(header)
    return match is not None and _is_loopback(match[1].lower())


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
