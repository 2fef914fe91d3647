"""Callers that wait for each message: by ``store``, by ``send(…).id``, by ``AsyncClient``, over
HTTP by the client, and over HTTP by hand, under a key.

Each number is sent once, and its id kept when there is one. A caller that gets an error which may
mean *stored* keeps the number as open: it may be there once, or not.

The callers under a key know nothing but their answers. They go through any of some gateways, which
may be killed at any time, and take what they are told literally: 2xx is stored, once, under these
ids; 4xx (but for 408 and 429) is not stored; everything else is no answer, and the request is sent
again under its key. Some requests are bad, some are repeated after their answer, many are repeated
at the end, and some keys are used again for another request.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from random import Random
from urllib.parse import urlsplit

import numpy as np

from slotwheel import AsyncClient, Client, SlotwheelError
from slotwheel.wheel.ids import MessageId
from support.promises import Fate, Meddled, Promised

WAYS = ("store", "send", "async")
TOPIC = "t"
_BEYOND_MS = 1_000_000_000
_TIMEOUT_S = 40.0
_PAUSE_S = 0.03
_AGAIN = (408, 429)
_REPEATED = 100
"""Requests that each caller repeats at the end, at most."""


class Callers:
    """``each`` callers of each way, until ``stop``. ``due``: gives the due time of a message, ms.
    ``gateways``: URLs; callers by the client take the first, those under a key (the way "keyed")
    take any. ``problems``: answers that contradict each other."""

    def __init__(
        self,
        address: str | Sequence[str],
        due: Callable[[], int],
        *,
        gateways: Sequence[str] = (),
        each: int = 8,
        ways: Sequence[str] = WAYS,
        timeout_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        self.ids: dict[int, str] = {}
        """The id of each number that was answered."""
        self.open: dict[int, SlotwheelError] = {}
        self.refused: dict[int, SlotwheelError | str] = {}
        self.answers: Counter[str] = Counter()
        """How often each answer to a request under a key was given."""
        self.problems: list[str] = []
        self._address, self._due, self._each = address, due, each
        self._gateways, self._seed, self._timeout_s = gateways, seed, timeout_s
        self._lock = threading.Lock()
        self._sent: list[int] = []
        """The due time of each number."""
        self._stop = threading.Event()
        run = {
            "store": lambda: self._in_threads(self._address, self._store),
            "send": lambda: self._in_threads(self._address, self._send),
            "http": lambda: self._in_threads(self._gateways[0], self._send),
            "async": self._async,
            "keyed": self._keyed,
        }
        self._threads = [threading.Thread(target=run[way]) for way in ways]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Promised:
        """Each caller gets its last answer. What was promised."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        offset = np.full(len(self._sent), -1, np.int64)
        for number, id_ in self.ids.items():
            offset[number] = MessageId.parse(id_).offset
        refused = {number: Meddled(Fate.REFUSED) for number in self.refused}
        return Promised(np.array(self._sent, np.int64), offset, refused, (TOPIC,))

    def _new(self) -> tuple[int, int]:
        """A number, and when it is due."""
        due = self._due()
        with self._lock:
            self._sent.append(due)
            return len(self._sent) - 1, due

    def _note(self, number: int, outcome: str | SlotwheelError) -> None:
        with self._lock:
            if isinstance(outcome, str):
                self.ids[number] = outcome
            elif outcome.uncertain:
                self.open[number] = outcome
            else:
                self.refused[number] = outcome

    def _side_by_side(self, run: Callable[[int], None]) -> None:
        threads = [threading.Thread(target=run, args=[number]) for number in range(self._each)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _in_threads(
        self, address: str | Sequence[str], call: Callable[[Client, bytes, int], str]
    ) -> None:
        with closing(Client(address, timeout_s=self._timeout_s)) as client:

            def caller(_: int) -> None:
                while not self._stop.is_set():
                    number, due = self._new()
                    try:
                        self._note(number, call(client, b"%d" % number, due))
                    except SlotwheelError as error:
                        self._note(number, error)

            self._side_by_side(caller)

    @staticmethod
    def _store(client: Client, value: bytes, due: int) -> str:
        return client.store(TOPIC, value, due=due)

    @staticmethod
    def _send(client: Client, value: bytes, due: int) -> str:
        return client.send(TOPIC, value, due=due).id

    def _async(self) -> None:
        async def main() -> None:
            async with AsyncClient(self._address, timeout_s=self._timeout_s) as client:

                async def caller() -> None:
                    while not self._stop.is_set():
                        number, due = self._new()
                        try:
                            self._note(number, await client.send(TOPIC, b"%d" % number, due=due))
                        except SlotwheelError as error:
                            self._note(number, error)

                await asyncio.gather(*[caller() for _ in range(self._each)])

        asyncio.run(main())

    # Under a key

    def _keyed(self) -> None:
        self._side_by_side(self._keyed_caller)

    def _keyed_caller(self, caller: int) -> None:
        rng = Random(f"{self._seed} {caller}")
        stored: list[tuple[str, bytes, list[str]]] = []
        while not self._stop.is_set():
            count = rng.choice([0, 0, 0, 3])
            bad = rng.random() < 0.05
            numbers, body = self._body(count, beyond=bad)
            key = f"key-{numbers[0]}"
            ids = self._answer(rng, key, numbers, body, 422 if bad else 200 + (not count))
            if bad:
                continue
            stored.append((key, body, ids))
            if rng.random() < 0.1:
                self._expect_the_same(rng, *stored[-1])
            if rng.random() < 0.1:
                others, other = self._body(count)
                self._answer(rng, key, others, other, 422)
        for request in rng.sample(stored, min(len(stored), _REPEATED)):
            self._expect_the_same(rng, *request)

    def _body(self, count: int, *, beyond: bool = False) -> tuple[list[int], bytes]:
        """Numbers, and a request of a list of so many messages; 0: of one that is in no list."""
        new = [self._new() for _ in range(count or 1)]
        messages = [
            {"topic": TOPIC, "value": str(number), "due_ms": due + beyond * _BEYOND_MS}
            for number, due in new
        ]
        body = json.dumps(messages if count else messages[0]).encode()
        return [number for number, _ in new], body

    def _answer(
        self, rng: Random, key: str, numbers: list[int], body: bytes, expected: int
    ) -> list[str]:
        status, ids = self._until_answered(rng, key, body)
        with self._lock:
            if status != expected:
                self.problems.append(f"{key}: {status} and not {expected}")
            if ids:
                self.ids |= zip(numbers, ids, strict=True)
            else:
                self.refused |= dict.fromkeys(numbers, str(status))
        return ids

    def _expect_the_same(self, rng: Random, key: str, body: bytes, ids: list[str]) -> None:
        status, again = self._until_answered(rng, key, body)
        if again != ids:
            with self._lock:
                self.problems.append(f"{key}: {ids}, repeated {status} {again}")

    def _until_answered(self, rng: Random, key: str, body: bytes) -> tuple[int, list[str]]:
        """The status, and the ids if it is stored."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        while True:
            gateway = urlsplit(rng.choice(self._gateways)).netloc
            connection = HTTPConnection(gateway, timeout=_TIMEOUT_S)
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
                self.answers[what] += 1
            if 200 <= status < 300:
                answer = json.loads(content)
                return status, answer.get("ids") or [answer["id"]]
            if 400 <= status < 500 and status not in _AGAIN:
                return status, []
            if status >= 500 and status != 503:
                with self._lock:
                    self.problems.append(f"{key}: {status} {content!r}")
            threading.Event().wait(_PAUSE_S * rng.random())
