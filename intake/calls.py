"""The open calls of clients: streams of batches, and actions that are not answered yet.

Streams are bounded in number. A stream beyond the limit ends the connection whose calls have stored
nothing for longest, or one of the address that has most of them (``policy/places.py``). Otherwise
clients that keep a stream open for days, or whose machine died, would keep everybody out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from ..policy.places import who_leaves
from ..wheel.errors import NotMaster, NotRunning, Overloaded
from .append_stream import AppendStream
from .connections import Address, address_of


class OpenCalls:
    """The open calls. ``quiet_s``: a client that was quiet for so long may be cut to make room.
    ``closing``: nothing more is admitted. ``cut``: ends a client's connections. Thread-safe."""

    def __init__(
        self,
        streams_max: int,
        quiet_s: float,
        closing: threading.Event,
        cut: Callable[[Address], int],
    ) -> None:
        self._streams_max = streams_max
        self._quiet_s = quiet_s
        self._closing = closing
        self._cut = cut
        self._lock = threading.Lock()
        self.streams: set[AppendStream] = set()
        self._asking: list[Address] = []  # clients whose actions are not answered yet
        self._leaving: set[AppendStream] = set()  # they were cut, and will end soon

    @contextlib.contextmanager
    def admitted(self, stream: AppendStream) -> Iterator[None]:
        """Admit a stream while it runs. Errors: ``NotRunning``; ``Overloaded``: no room."""
        self._admit(stream)
        try:
            yield
        finally:
            with self._lock:
                self.streams.discard(stream)
                self._leaving.discard(stream)

    def _admit(self, stream: AppendStream) -> None:
        with self._lock:
            if self._closing.is_set():
                raise NotRunning("the node is shutting down", remedy="Try again in a moment")
            if len(self.streams) >= self._streams_max:
                self._make_room(address_of(stream.peer)[0])
            if len(self.streams) >= self._streams_max:
                raise Overloaded(
                    "too many open streams",
                    got=len(self.streams),
                    limit=self._streams_max,
                    remedy="Share one client between threads, or close some; one that stores"
                    f" nothing for {self._quiet_s:g} s leaves its place to another",
                )
            self.streams.add(stream)

    def _make_room(self, host: str) -> None:
        """Under the lock: cut the connection that has to leave for one from ``host``."""
        quiet_s = self._quiet_of_calls()
        having = [address_of(stream.peer) for stream in self.streams]
        places = [(address, address[0], quiet_s[address]) for address in having]
        address = who_leaves(host, places, self._quiet_s)
        if address is not None and self._cut(address):
            cut = {stream for stream in self.streams if address_of(stream.peer) == address}
            self.streams -= cut
            self._leaving |= cut

    def quiet_s(self) -> dict[Address, float]:
        """Seconds for which each client's calls have been quiet; -1 while one is not answered."""
        with self._lock:
            return self._quiet_of_calls()

    def _quiet_of_calls(self) -> dict[Address, float]:
        """As ``quiet_s``, under the lock."""
        quiet_s = dict.fromkeys(self._asking, -1.0)
        for stream in self.streams:
            address = address_of(stream.peer)
            quiet_s[address] = min(stream.quiet_s, quiet_s.get(address, stream.quiet_s))
        return quiet_s

    @contextlib.contextmanager
    def waits_for_answer(self, address: Address) -> Iterator[None]:
        with self._lock:
            self._asking.append(address)
        try:
            yield
        finally:
            with self._lock:
                self._asking.remove(address)

    def depose(self, error: NotMaster) -> None:
        """Answer on every open stream that this is not the master any more."""
        with self._lock:
            for stream in self.streams:
                stream.depose(error)

    def wake(self) -> None:
        """Wake every stream, to check whether it must end."""
        with self._lock:
            for stream in self.streams | self._leaving:
                stream.wake()

    @property
    def idle(self) -> bool:
        with self._lock:
            return all(stream.idle for stream in self.streams)
