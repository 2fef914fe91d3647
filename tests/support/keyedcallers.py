"""Callers over HTTP that repeat each request, under its key, until they have an answer.

Theory: a caller knows nothing but its answers. So these go through any of some gateways, which may
be killed at any time, and take what they are told literally: 2xx is stored, once, under these ids;
4xx (but for 408 and 429) is not stored; everything else is no answer, and the request is sent
again. Some requests are bad, some are repeated after their answer, and some keys are used again for
another request. The values tell in the end what was stored.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any

TOPIC = "orders"
_DELAY_MS = 3_600_000
_BEYOND_MS = 1_000_000_000
_TIMEOUT_S = 40.0
_PAUSE_S = 0.03
_AGAIN = (408, 429)


@dataclass
class Told:
    """What the callers were told. ``problems``: answers that contradict each other."""

    stored: dict[str, str] = field(default_factory=dict)
    """The id of each value that is stored."""
    refused: set[str] = field(default_factory=set)
    """Values that are not stored."""
    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class KeyedCallers:
    """``gateways``: host and port of each. They run until ``stop``."""

    def __init__(self, gateways: Sequence[tuple[str, int]], callers: int, seed: int) -> None:
        self._gateways = gateways
        self._seed = seed
        self._told = Told()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[n]) for n in range(callers)]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """Values that are known to be stored."""
        return len(self._told.stored)

    def stop(self) -> Told:
        """End when each request has its answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self._told

    def _run(self, caller: int) -> None:
        rng = Random(f"{self._seed} {caller}")
        number = 0
        while not self._stop.is_set():
            name = f"{caller}-{number}"
            number += 1
            count = rng.choice([0, 0, 0, 3])
            bad = rng.random() < 0.05
            values = [f"{name}.{row}" for row in range(count or 1)]
            body = _body(values, bool(count), _BEYOND_MS if bad else _DELAY_MS)
            status, ids = self._until_answered(rng, name, body)
            self._note(values, status, ids, 422 if bad else 200 + (not count))
            if bad:
                continue
            if rng.random() < 0.1:
                self._expect_the_same(rng, name, body, ids)
            if rng.random() < 0.1:
                other = [f"{value}-other" for value in values]
                found = self._until_answered(rng, name, _body(other, bool(count), _DELAY_MS))
                self._note(other, *found, 422)

    def _expect_the_same(self, rng: Random, key: str, body: bytes, ids: list[str]) -> None:
        status, again = self._until_answered(rng, key, body)
        if again != ids:
            with self._lock:
                self._told.problems.append(f"{key}: {ids}, repeated {status} {again}")

    def _note(self, values: list[str], status: int, ids: list[str], expected: int) -> None:
        with self._lock:
            if status != expected:
                self._told.problems.append(f"{values}: {status} and not {expected}")
            if ids:
                self._told.stored |= zip(values, ids, strict=True)
            else:
                self._told.refused.update(values)

    def _until_answered(self, rng: Random, key: str, body: bytes) -> tuple[int, list[str]]:
        """The status, and the ids if it is stored."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        while True:
            host, port = rng.choice(self._gateways)
            connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
            try:
                connection.request("POST", "/v1/messages", body, headers)
                reply = connection.getresponse()
                content = reply.read()
                status, what = reply.status, str(reply.status)
            except (OSError, HTTPException) as error:
                status, what = 0, type(error).__name__
            finally:
                connection.close()
            with self._lock:
                self._told.answers[what] += 1
            if 200 <= status < 300:
                found: dict[str, Any] = json.loads(content)
                return status, found.get("ids") or [found["id"]]
            if 400 <= status < 500 and status not in _AGAIN:
                return status, []
            if status >= 500 and status != 503:
                with self._lock:
                    self._told.problems.append(f"{key}: {status} {content!r}")
            threading.Event().wait(_PAUSE_S * rng.random())


def _body(values: list[str], many: bool, delay_ms: int) -> bytes:
    messages = [{"topic": TOPIC, "value": value, "delay_ms": delay_ms} for value in values]
    return json.dumps(messages if many else messages[0]).encode()
