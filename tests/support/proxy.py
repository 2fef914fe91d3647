"""A TCP proxy that can cut, stall and refuse connections, to play a bad network."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

Link = tuple[str, str]
"""A direction: from whom, to whom."""


class Proxy:
    """Forwards ``address``, which is ``at`` that host and port, to ``port`` of ``host``. ``cut()``
    breaks every open connection."""

    def __init__(
        self, port: int, host: str = "127.0.0.1", at: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(at)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self.refusing = False
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Keep connections open, but forward nothing more."""
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                near.close()
                continue
            self.connections += 1
            with self._lock:
                self._open.add(near)
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        ends = [near]
        with contextlib.suppress(OSError):
            ends.append(far := socket.create_connection(self._target, 5))
            far.settimeout(None)
            with self._lock:
                self._open.add(far)
            self._carry(near, far)
        with self._lock:
            self._open.difference_update(ends)
        for end in ends:
            end.close()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Forward both ways of a connection until it ends."""
        there, back = self._links(near)
        answers = threading.Thread(target=self._pump, args=(far, near, back), daemon=True)
        answers.start()
        self._pump(near, far, there)
        answers.join()

    def _pump(self, source: socket.socket, sink: socket.socket, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(32 << 10):
                self._hold(link, len(data))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _links(self, near: socket.socket) -> tuple[Link, Link]:
        """The way there and the way back of a connection."""
        return ("", ""), ("", "")

    def _hold(self, link: Link, nbytes: int) -> None:
        """Called before so many bytes go on by that way."""
        self._flowing.wait()
