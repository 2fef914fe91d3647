"""Honest callers beside an attack: how long each of them waits, and what became of its messages.

Four at once: one that waits for each message, one that sends batches, one that waits for each
message over HTTP, all of which are connected before it begins, and one that connects anew for each
message. They make a few hundred requests a second, far below what a node can do, so what makes them
wait is what others do. Each message is due a moment after it was sent, so that the sink
is at work, too, while the attack goes on.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from slotwheel import Client, Message, SlotwheelError

Call = Callable[[int], Sequence[bytes]]
"""Sends what has this number; returns the values that are stored."""
BATCH = 50
_DELAY_S = 0.3
_WAITING_EVERY_S = 0.004
_BATCH_EVERY_S = 0.1
_HTTP_EVERY_S = 0.02
_NEWCOMER_EVERY_S = 0.2
NEWCOMER = "newcomer"


class Honest:
    """Callers of ``topic`` while the ``with`` block runs. ``client``: makes a client of the wire;
    ``http``: makes one of the gateway, or None. ``waits_s``: by caller, seconds for each message.
    ``sent``: values of messages with a receipt; ``errors``: what callers got instead of one."""

    def __init__(
        self,
        topic: str,
        client: Callable[[], Client],
        http: Callable[[], httpx.Client] | None = None,
    ) -> None:
        self.topic = topic
        self.waits_s: dict[str, list[float]] = {}
        self.sent: list[bytes] = []
        self.errors: list[str] = []
        self._client = client
        self._ended = threading.Event()
        self._closing = contextlib.ExitStack()
        self._waiting = self._closing.enter_context(client())
        self._batches = self._closing.enter_context(client())
        calls: list[tuple[str, float, Call]] = [
            ("waiting", _WAITING_EVERY_S, self._store),
            ("batches", _BATCH_EVERY_S, self._send_batch),
            (NEWCOMER, _NEWCOMER_EVERY_S, self._connect_and_store),
        ]
        if http is not None:
            self._http = self._closing.enter_context(http())
            calls.append(("HTTP", _HTTP_EVERY_S, self._post))
        for _, _, call in calls:
            self.sent += call(0)
        self._threads = [threading.Thread(target=self._run, args=call) for call in calls]

    def _run(self, who: str, every_s: float, call: Call) -> None:
        waits_s = self.waits_s.setdefault(who, [])
        number = 1
        while not self._ended.wait(every_s):
            begun = time.perf_counter()
            try:
                self.sent += call(number)
            except (SlotwheelError, httpx.HTTPError, AssertionError) as error:
                self.errors.append(f"{who}: {type(error).__name__}: {str(error)[:300]}")
            waits_s.append(time.perf_counter() - begun)
            number += 1

    def _store(self, number: int) -> Sequence[bytes]:
        value = b"w%d" % number
        self._waiting.store(self.topic, value, delay=_DELAY_S)
        return [value]

    def _connect_and_store(self, number: int) -> Sequence[bytes]:
        value = b"n%d" % number
        with self._client() as client:
            client.store(self.topic, value, delay=_DELAY_S)
        return [value]

    def _send_batch(self, number: int) -> Sequence[bytes]:
        values = [b"b%d-%d" % (number, row) for row in range(BATCH)]
        rows = [Message(self.topic, value, delay=_DELAY_S) for value in values]
        self._batches.send_many(rows).result(60)
        return values

    def _post(self, number: int) -> Sequence[bytes]:
        value = f"h{number}"
        message: dict[str, Any] = {"topic": self.topic, "value": value, "delay_ms": 300}
        answer = self._http.post("/v1/messages", json=message)
        assert answer.status_code == 201, answer.text
        return [value.encode()]

    @staticmethod
    def p99_of(waits_s: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """By caller, the time in ms that one message in a hundred exceeds."""
        return {
            who: float(np.percentile(waits, 99)) * 1000 for who, waits in waits_s.items() if waits
        }

    def __enter__(self) -> Honest:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)
        self._closing.close()


def http_client(url: str, ca: Path, headers: dict[str, str]) -> httpx.Client:
    verify = ssl.create_default_context(cafile=ca)
    return httpx.Client(base_url=url, verify=verify, headers=headers, timeout=60)
