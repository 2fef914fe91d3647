"""Which requests are answered at all: by the name that they were sent to, and the page that sent
them.

Theory: the gateway has no login, so every browser that can reach it may act, for whatever page it
has open. Two checks keep pages of other sites out.

- A page whose own name is made to resolve to the gateway's address (DNS rebinding) is no other
  site to its browser, which then sends neither ``Origin`` nor ``Sec-Fetch-Site`` with what it
  reads: nothing tells it from a program. But ``Host`` is the page's name. So every request must
  name a host that nobody outside can make resolve anywhere: an address, a name of this network, or
  one that the gateway was given.
- What a browser sends for a page of another site says so: in ``Sec-Fetch-Site``, where the
  gateway's address is loopback or has TLS before it, and in ``Origin``, for everything but plain
  reading. No script can write these two. A link in such a page may be followed, and nothing else.

A request without ``Host`` (HTTP/1.0) is from no browser.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from ..wheel.protocol import split_address
from .errors import HttpError
from .requests import header_of

_HOST = re.compile(rb"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253}?)\.?(?::[0-9]{0,5})?", re.I)
_OF_BROWSERS = (b"origin", b"sec-fetch-site")
_LOOPBACK = ("localhost", "*.localhost", "127.0.0.0/8", "[::1]")
_LOCAL = ("*.local", "*.internal", "*.svc")
"""Names that exist within a network alone."""
_MOVED_BY_READING = "/consumers/"
_KNOWN_MAX = 1_000
"""Values of ``Host`` that are remembered as good."""


class SiteGuard:
    """``listen``: where the gateway listens, ``host:port``. ``names``: further names that it may be
    called by; ``*.example.com``: all below that one."""

    def __init__(self, listen: str, names: Iterable[str] = ()) -> None:
        host = split_address(listen, to_listen=True)[0].lower().rstrip(".")
        self._private = _is_loopback(host)
        own = () if self._private or _is_address(host) else (host,)
        local = () if self._private else (*_LOCAL, socket.gethostname().lower())
        further = [*own, *local, *(one.lower() for one in names)]
        self._names = frozenset(further)
        self._endings = tuple(one[1:] for one in further if one.startswith("*."))
        shown = [*_LOOPBACK] if self._private else ["any IP address", "any name without a dot"]
        self._limit = ", ".join(dict.fromkeys([*shown, *further]))
        self._known: set[bytes | None] = {None}

    def check(self, scope: Any) -> None:
        """Errors: ``HttpError`` 400: two hosts; 421: another host; 403: a page of another site."""
        host: bytes | None = None
        from_browser = False
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    raise HttpError(400, "header host occurs twice")
                host = value
            elif name in _OF_BROWSERS:
                from_browser = True
        if host not in self._known:
            self._check_host(host or b"")
        if from_browser:
            _check_site(scope, host or b"")

    def _check_host(self, host: bytes) -> None:
        found = _HOST.fullmatch(host)
        if found is None or not self._is_own(found[1].decode("ascii").lower()):
            raise HttpError(
                421,
                "the gateway is not known by this name",
                place="header Host",
                got=host.decode("latin-1"),
                limit=self._limit,
                remedy="Use one of those, or start the gateway with --http-name and this name",
            )
        if len(self._known) < _KNOWN_MAX:
            self._known.add(host)

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


def _check_site(scope: Any, host: bytes) -> None:
    """Errors: ``HttpError`` 403."""
    headers = scope["headers"]
    site = header_of(headers, b"sec-fetch-site")
    if site == "same-origin":  # the browser knows, also where a proxy gives another ``Host``
        return
    origin = header_of(headers, b"origin")
    # "null" is what a browser says for a page that belongs to no site.
    if origin is not None and origin.partition("://")[2].lower() != host.decode("latin-1").lower():
        raise _foreign("header Origin", origin)
    if site is None or (site == "none" and _reads(scope)):
        return
    followed = header_of(headers, b"sec-fetch-mode") == "navigate"
    followed &= header_of(headers, b"sec-fetch-dest") == "document"
    # What is fetched ahead may be of a link that nobody follows.
    followed &= header_of(headers, b"sec-purpose") is None
    if not (followed and _reads(scope)) or scope["path"].startswith(_MOVED_BY_READING):
        raise _foreign("header Sec-Fetch-Site", str(site))


def _reads(scope: Any) -> bool:
    return scope["method"] in ("GET", "HEAD")


def _foreign(place: str, got: str) -> HttpError:
    return HttpError(
        403,
        "the request was sent from another site",
        place=place,
        got=got,
        limit="a page of this gateway, a link that is followed, or a program",
        remedy="Open the gateway's own page; a program sends no such header",
    )
