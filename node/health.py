"""Metrics and health over HTTP: ``/metrics``, ``/healthz``, ``/readyz``.

``/healthz`` fails when the process should be restarted: a thread has ended, or does not turn.
``/readyz`` fails, too, when the node does not do its whole job now: it has not recovered, its sink
cannot be reached, its clock is behind, or a duty fails again and again. ``Node.unready`` puts the
reasons together.
Both answer 200 or 503 with a JSON object that gives the reasons. The server has no authentication
and listens on loopback by default. A request for a host name that is not the node's gets 421:
otherwise a web page, whose name was made to resolve to the node, could read the metrics. A
connection beyond the limit takes the place of one that is open for longer than a request may take,
or of one of the address that has most of them (``policy/places.py``), or is closed at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from ..policy.hostnames import HostNames
from ..policy.places import who_leaves
from ..wheel.errors import AddressInUse
from .config import check_address
from .descriptors import METRICS_MAX
from .intake.ports import Page

log = logging.getLogger("slotwheel.node")

REQUEST_S = 5.0
"""A request has so long, s, to arrive; an older connection gives its place to a new one."""
_JSON = "application/json"
Reasons = Callable[[], list[str]]


def pages_of(render: Callable[[], bytes], unhealthy: Reasons, unready: Reasons) -> dict[str, Page]:
    """The pages by path. ``render`` returns the metrics' text; ``unhealthy`` and ``unready`` return
    reasons, none if all is well."""
    return {
        "/metrics": lambda: (200, CONTENT_TYPE_LATEST, render()),
        "/healthz": lambda: _verdict(unhealthy()),
        "/readyz": lambda: _verdict(unhealthy() + unready()),
    }


class HealthServer:
    """Serves ``pages`` from construction on. ``names``: as of ``HostNames``. Errors:
    ``AddressInUse``, ``OSError``."""

    def __init__(self, address: str, pages: Mapping[str, Page], names: Iterable[str] = ()) -> None:
        host, port = check_address(address, "--metrics")
        kind = _Server6 if ":" in host else _Server
        try:
            known = HostNames(host, socket.gethostname(), names)
            self._server = kind((host, port), _handler(pages, known))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(
                    error.errno, f"cannot serve metrics on {address}: {error.strerror}"
                ) from None
            raise AddressInUse(
                "the address for metrics is taken",
                got=address,
                remedy="Choose another with --metrics HOST:PORT, or --metrics off",
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    """A TCP server, not an ``HTTPServer``, which asks a name server for the name of its own
    address: a node would not start before that answers."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lock = threading.Lock()
        self._open: dict[Any, tuple[str, float]] = {}  # socket to host, and since when

    def verify_request(self, request: Any, client_address: Any) -> bool:
        host, now = client_address[0], time.monotonic()
        with self._lock:
            if len(self._open) >= METRICS_MAX:
                places = [
                    (connection, address, now - since)
                    for connection, (address, since) in self._open.items()
                ]
                leaving = who_leaves(host, places, REQUEST_S)
                if leaving is None:
                    return False
                del self._open[leaving]
                with contextlib.suppress(OSError):  # it has ended by itself
                    leaving.shutdown(socket.SHUT_RDWR)
            self._open[request] = host, now
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request for metrics failed", exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _verdict(reasons: list[str]) -> tuple[int, str, bytes]:
    body = {"ok": not reasons, "reasons": reasons}
    return (503 if reasons else 200), _JSON, json.dumps(body).encode() + b"\n"


def _handler(pages: Mapping[str, Page], known: HostNames) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_S
        server_version = "slotwheel"
        sys_version = ""

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            hosts: list[str | None] = [*self.headers.get_all("Host", [None])]
            try:
                if len(hosts) > 1 or not known.allow(hosts[0]):
                    code, kind, body = _unknown_host(known.limit)
                else:
                    code, kind, body = page() if page else _no_such_page(list(pages))
            except Exception as error:
                log.exception("a page of metrics or health failed")
                code, kind, body = _verdict([f"{type(error).__name__}: {error}"])
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            log.debug("metrics: " + format, *args)

    return Handler


def _no_such_page(pages: list[str]) -> tuple[int, str, bytes]:
    return 404, _JSON, json.dumps({"ok": False, "pages": pages}).encode() + b"\n"


def _unknown_host(limit: str) -> tuple[int, str, bytes]:
    reason = f"the node is not known by this name, but by {limit}, and those of --http-name"
    return 421, _JSON, json.dumps({"ok": False, "reasons": [reason]}).encode() + b"\n"
