"""Callers that wait for each message: by ``store``, by ``send(…).id``, by ``AsyncClient``, and over
HTTP.

Each value is sent once, and its id kept when there is one. A caller that gets an error which may
mean *stored* keeps the value as open: it may be there once, or not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from slotwheel import AsyncClient, Client, SlotwheelError

WAYS = ("store", "send", "async")
TOPIC = "t"


class Waiters:
    """Callers of each way, until ``stop``. ``due``: gives the due time of a message, ms.
    ``gateway``: the URL of one, for some more that send over HTTP."""

    def __init__(
        self,
        address: str | Sequence[str],
        due: Callable[[], int],
        *,
        gateway: str = "",
        each: int = 8,
        ways: Sequence[str] = WAYS,
        timeout_s: float = 60.0,
    ) -> None:
        self.ids: dict[int, str] = {}
        """Of each value that was answered."""
        self.open: dict[int, SlotwheelError] = {}
        self.refused: dict[int, SlotwheelError] = {}
        self._address, self._due, self._each = address, due, each
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._next = 0
        self._stop = threading.Event()
        run = {"store": self._store, "send": self._send, "async": self._async}
        self._threads = [threading.Thread(target=run[way]) for way in ways]
        if gateway:
            self._threads.append(threading.Thread(target=self._send, args=[gateway]))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Each caller gets its last answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _new(self) -> int:
        with self._lock:
            self._next += 1
            return self._next

    def _note(self, value: int, outcome: str | SlotwheelError) -> None:
        with self._lock:
            if isinstance(outcome, str):
                self.ids[value] = outcome
            elif outcome.uncertain:
                self.open[value] = outcome
            else:
                self.refused[value] = outcome

    def _in_threads(
        self, address: str | Sequence[str], make: Callable[[Client], Callable[[int], str]]
    ) -> None:
        with closing(Client(address, timeout_s=self._timeout_s)) as client:
            call = make(client)

            def one() -> None:
                while not self._stop.is_set():
                    value = self._new()
                    try:
                        self._note(value, call(value))
                    except SlotwheelError as error:
                        self._note(value, error)

            threads = [threading.Thread(target=one) for _ in range(self._each)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _store(self) -> None:
        self._in_threads(
            self._address,
            lambda client: lambda value: client.store(TOPIC, b"%d" % value, due=self._due()),
        )

    def _send(self, gateway: str = "") -> None:
        self._in_threads(
            gateway or self._address,
            lambda client: lambda value: client.send(TOPIC, b"%d" % value, due=self._due()).id,
        )

    def _async(self) -> None:
        async def main() -> None:
            async with AsyncClient(self._address, timeout_s=self._timeout_s) as client:

                async def one() -> None:
                    while not self._stop.is_set():
                        value = self._new()
                        try:
                            self._note(
                                value, await client.send(TOPIC, b"%d" % value, due=self._due())
                            )
                        except SlotwheelError as error:
                            self._note(value, error)

                await asyncio.gather(*[one() for _ in range(self._each)])

        asyncio.run(main())
