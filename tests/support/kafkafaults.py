"""A proxy in front of a broker that plays the accidents a transaction has to survive: an answer is
lost, or late, or a request reaches the broker twice.

    def test_this(own_broker, faults):
        faults.set([Api.END_TXN], Rates(close=0.1, repeat=0.1))
        with faults.happening():
            ...  # clients of faults.address are under test, those of own_broker.bootstrap are not

Theory: Kafka's frames are a length of four bytes, then, in a request, the key of its kind, a
version, and a number that its answer begins with. So the proxy knows of each answer what it is the
answer to. It reads whole frames, and understands nothing else of them. A broker answers the
requests of a connection in their order; no answer is let through behind one that was swallowed, or
a client would see what no network can do.

Rules
- A lost answer ends its connection: it is closed after a moment, or silent until the client gives
  up. The broker has done what was asked.
- A repeated request is the same bytes on the same connection; its second answer is swallowed. A
  repeated ``INIT_PRODUCER_ID`` fences the producer that gets the first answer.
- What happens is drawn from a seed; which request it happens to depends on the order of threads.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import NamedTuple

from .proxy import Proxy

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")  # key, version, number
_NUMBER = struct.Struct(">i")
_FRAME_MAX = 100 << 20


class Api(IntEnum):
    """Kinds of requests that accidents may happen to, by Kafka's own keys."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of the requests that something happens to, 0 to 1. ``close``, ``silence``: their
    answer is lost, in one of two ways; ``delay``: it comes ``delay_ms`` later; ``repeat``: the
    broker gets them twice. One request has at most one of the first three."""

    close: float = 0.0
    silence: float = 0.0
    delay: float = 0.0
    repeat: float = 0.0
    close_ms: int = 20
    delay_ms: int = 100
    most: int = 1_000_000
    """How often each may happen to one kind of request, counted from the start of the proxy."""


class _Asked(NamedTuple):
    """A request that the broker has not answered."""

    number: int
    what: str
    """What happens to its answer: a field of ``Rates``, "swallow", or nothing."""
    rates: Rates


class KafkaFaults(Proxy):
    """Forwards ``at`` to ``port`` of this machine. Accidents happen between ``on`` and ``off``."""

    def __init__(self, port: int, at: tuple[str, int], seed: int) -> None:
        self._random = Random(seed)
        self._turn = threading.Lock()
        self._rates: dict[int, Rates] = {}
        self._happening = False
        self.counts: Counter[tuple[str, Api]] = Counter()
        """How often something was done: by a field of ``Rates``, and the kind of request."""
        super().__init__(port, at=at)

    def set(self, apis: Iterable[Api], rates: Rates) -> None:
        """What happens to these from now on; all others stay as they are."""
        with self._turn:
            self._rates.update(dict.fromkeys(apis, rates))

    def on(self) -> None:
        self._happening = True

    def off(self) -> None:
        """Requests that are under way may still have accidents; connections that are silent stay so
        until their clients close them, or ``cut`` does."""
        self._happening = False

    @contextmanager
    def happening(self) -> Iterator[None]:
        self.on()
        try:
            yield
        finally:
            self.off()

    def draw(self, key: int, number: int) -> list[_Asked]:
        """What happens to a request: one entry for each time the broker is to get it."""
        with self._turn:
            rates = self._rates.get(key)
            if rates is None or not self._happening:
                return [_Asked(number, "", Rates())]
            lot, what = self._random.random(), ""
            for name in ("close", "silence", "delay"):
                share = getattr(rates, name)
                if 0 <= lot < share:
                    what = name
                lot -= share
            again = self._random.random() < rates.repeat
            if self.counts[what, Api(key)] >= rates.most:
                what = ""
            again &= self.counts["repeat", Api(key)] < rates.most
            done = [name for name in (what, "repeat" if again else "") if name]
            self.counts.update((name, Api(key)) for name in done)
            first = _Asked(number, what, rates)
            return [first, _Asked(number, "swallow", rates)] if again else [first]

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        open_: deque[_Asked] = deque()
        answers = threading.Thread(target=self._answers, args=(far, near, open_), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            for frame in _frames(near):
                key, _, number = _REQUEST.unpack_from(frame, _LENGTH.size)
                for one in self.draw(key, number):
                    open_.append(one)
                    self._hold(("", ""), len(frame))
                    far.sendall(frame)
        _end(near, far)
        answers.join()

    def _answers(self, far: socket.socket, near: socket.socket, open_: deque[_Asked]) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(far):
                (number,) = _NUMBER.unpack_from(frame, _LENGTH.size)
                asked = open_.popleft()
                while asked.number != number:  # a record that asked for no answer
                    asked = open_.popleft()
                if asked.what == "close":
                    time.sleep(asked.rates.close_ms / 1000)
                    break
                if asked.what == "silence":
                    for _ in _frames(far):
                        pass
                    break
                if asked.what == "delay":
                    time.sleep(asked.rates.delay_ms / 1000)
                if asked.what != "swallow":
                    self._hold(("", ""), len(frame))
                    near.sendall(frame)
        _end(near, far)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Whole frames, each with its length in front, until the connection ends."""
    with source.makefile("rb") as stream:
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            assert 0 < length <= _FRAME_MAX, f"{length} is no length of a frame of Kafka's"
            body = stream.read(length)
            if len(body) < length:
                return
            yield head + body


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
