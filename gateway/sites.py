"""Which requests are answered at all: by the name that they were sent to, and the page that sent
them.

Theory: without a security file every browser that can reach the gateway may act, for whatever page
it has open, and with one a browser may that has a certificate or a session. Two checks keep pages
of other sites out.

- A page whose own name was made to resolve to the gateway's address (DNS rebinding) sends that name
  as the host, which is refused (`policy/hostnames.py`).
- What a browser sends for a page of another site says so: in ``Sec-Fetch-Site``, where the
  gateway's address is loopback or has TLS before it, and in ``Origin``, for everything but plain
  reading. No script can write these two. A link in such a page may be followed, and nothing else.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from ..policy.hostnames import HostNames
from ..wheel.protocol import split_address
from .errors import HttpError
from .requests import header_of

_OF_BROWSERS = (b"origin", b"sec-fetch-site")
_MOVED_BY_READING = "/consumers/"


class SiteGuard:
    """``listen``: where the gateway listens, ``host:port``. ``names``: further names that it may be
    called by; ``*.example.com``: all below that one."""

    def __init__(self, listen: str, names: Iterable[str] = ()) -> None:
        host = split_address(listen, to_listen=True)[0]
        self._names = HostNames(host, socket.gethostname(), names)

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
        if not self._names.allow(None if host is None else host.decode("latin-1")):
            raise HttpError(
                421,
                "the gateway is not known by this name",
                place="header Host",
                got=(host or b"").decode("latin-1"),
                limit=self._names.limit,
                remedy="Use one of those, or start the gateway with --http-name and this name",
            )
        if from_browser:
            _check_site(scope, host or b"")


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
