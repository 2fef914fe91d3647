"""Which wheel of a fleet a message goes to.

Theory: equal keys have to go to one wheel, or their order would be lost. So a key is hashed to one
of ``BUCKETS`` buckets, and each bucket belongs to the wheel with the highest score for it
(*rendezvous hashing*). When a wheel is added, it takes its share from all others, and no other
bucket moves; when one is left out, only its own buckets move.

    key "order-17" -> crc32 -> bucket 40,961 -> highest score: north

A message with a name goes by its name, and not by its key: a name stands for at most one pending
message of its topic, and only one wheel can watch over that. The topic does not count, as a message
with a route has one name for several.

Every client has to choose alike, whatever its version: a change of the hash or of the scores would
send the keys of one program to another wheel than those of the next. ``tests/fleet`` has their
values.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from zlib import crc32

import numpy as np

from ..wheel.schema import Int64s, UInt64s

BUCKETS = 1 << 16
"""With 1,000 wheels each has about 65 buckets, and four of five wheels have 55 to 76 of them."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Routing:
    """The buckets of ``wheels``. ``owner``: the position in ``wheels`` of each bucket's wheel,
    shape (``BUCKETS``,)."""

    def __init__(self, wheels: Sequence[str]) -> None:
        self.wheels = tuple(wheels)
        buckets = np.arange(BUCKETS, dtype=np.uint64)
        best = np.zeros(BUCKETS, np.uint64)
        owner = np.zeros(BUCKETS, np.int64)
        for number, wheel in enumerate(self.wheels):
            scores = _scores(wheel, buckets)
            better = scores > best
            best[better] = scores[better]
            owner[better] = number
        self.owner: Int64s = owner

    def wheel_of(self, place: bytes) -> str:
        """The wheel of a key or a name."""
        return self.at(bucket_of(place))

    def at(self, bucket: int) -> str:
        """The wheel of a bucket."""
        return self.wheels[self.owner.item(bucket)]

    def ranked(self, place: bytes) -> list[str]:
        """All wheels, that of ``place`` first, then the one that would follow it, and so on."""
        bucket = np.array([bucket_of(place)], np.uint64)
        return sorted(self.wheels, key=lambda wheel: int(_scores(wheel, bucket)[0]), reverse=True)


def bucket_of(place: bytes) -> int:
    return crc32(place) & (BUCKETS - 1)


def _scores(wheel: str, buckets: UInt64s) -> UInt64s:
    """The score of a wheel for each bucket, shape (len(buckets),): splitmix64 of both."""
    seed = int.from_bytes(blake2b(wheel.encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        mixed = (buckets + np.uint64(1)) * _GOLDEN + np.uint64(seed)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
        mixed ^= mixed >> np.uint64(31)
    return mixed
