"""A gateway of a wheel that answers as a test says, and one that never answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Answering: TypeAlias = Callable[[str, str, dict[str, str]], tuple[int, Any]]
"""Gets a request's method, path and headers, by names in small letters, and returns the status of
the answer and its body."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextlib.contextmanager
def stub_gateway(answering: Answering) -> Iterator[str]:
    """The address of a gateway that answers by ``answering``, which several threads call."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = answering(self.command, self.path, headers)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = answer  # noqa: N815  # the library's names
        do_POST = answer  # noqa: N815
        do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """A test's output has no lines of requests."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def silent_gateway() -> Iterator[str]:
    """The address of one that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
