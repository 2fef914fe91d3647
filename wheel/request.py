"""A request: a batch that whoever sends it may send again, at any time and from anywhere.

Theory: an ordinary producer is one process, which numbers its batches. A request has a key instead,
made up by a caller that repeats it until there is an answer: through another gateway, to another
master, minutes later. So its batch is the only one of a producer of its own, whose id follows from
the key, and is found by that id alone.

Its sequence says which request the key stands for, in 63 bits:

    +-----------------------------------------------+---------------------+
    | base: ms since the epoch, 42 bits; 0: none    | digest: 21 bits     |
    +-----------------------------------------------+---------------------+

The digest is of the request as it was received, and of what the levels and routes in it stood for:
under one key there is one request. Its delays begin when its entry was created, also those of a
repeat (``delay.py``). The *base* is of senders that count delays by their own clock: it is that
clock. A repeat counts them from a later one; the difference of the bases takes its due times back
to those of the first time, and so its ids. *Example.* A delay of 5000 ms is due at 6000 by base
1000; a repeat with base 4000 says 9000, and 1000 - 4000 takes it back to 6000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self

from .errors import InvalidMessage

REQUEST_PRODUCER = 3 << 62
"""The upper two bits of a request's producer id: clients have the first clear, sources the
second."""
BASE_LIMIT_MS = 1 << 42
_DIGEST_BITS = 21
_ID_MASK = (1 << 62) - 1
_DIGEST_MASK = (1 << _DIGEST_BITS) - 1


def is_request(producer: int) -> bool:
    """True if a producer id is that of a request."""
    return producer >= REQUEST_PRODUCER


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A request's identity. ``producer``: follows from the key. ``base_ms``: the clock by which the
    sender counted delays, ms since the epoch; 0: none. ``digest``: of the content, 21 bits."""

    producer: int
    base_ms: int
    digest: int

    @classmethod
    def of(cls, key: str, content: bytes, base_ms: int = 0) -> Self:
        """The request of a key's text and a content, which a repeat has byte by byte: its due times
        less ``base_ms`` and how many rows it has must follow from it."""
        producer = REQUEST_PRODUCER | (_number_of(key.encode()) & _ID_MASK)
        return cls(producer, base_ms, _number_of(content) & _DIGEST_MASK)

    def within(self, scope: bytes) -> Self:
        """The request for which the same key stands within a scope; an empty one changes nothing.
        Without scopes a caller who guesses the keys of another one, such as the numbers of its
        orders, could use them up, and the other's messages would be refused."""
        if not scope:
            return self
        number = _number_of(self.producer.to_bytes(8) + scope)
        return replace(self, producer=REQUEST_PRODUCER | (number & _ID_MASK))

    @classmethod
    def from_sequence(cls, producer: int, sequence: int) -> Self:
        return cls(producer, sequence >> _DIGEST_BITS, sequence & _DIGEST_MASK)

    @property
    def sequence(self) -> int:
        return self.base_ms << _DIGEST_BITS | self.digest

    def shift_ms(self, first: int) -> int:
        """The ms to add to the due times of this repeat, to make them those of the first time,
        whose sequence is ``first``. Errors: ``InvalidMessage`` when that was another request."""
        known = RequestKey.from_sequence(self.producer, first)
        if known.digest != self.digest or (self.base_ms and not known.base_ms):
            raise key_was_used()
        return known.base_ms - self.base_ms if self.base_ms else 0


def key_was_used() -> InvalidMessage:
    """The error for a request whose key stands for another one."""
    return InvalidMessage(
        "the Idempotency-Key was used for another request",
        got="another content",
        limit="the content of the first time, byte by byte, with its levels and routes as then",
        remedy="That one is stored. Give every request a key of its own; only a repeat has the key"
        " of its first time",
    )


def _number_of(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest())
