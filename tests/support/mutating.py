"""What a stranger may send: good bytes that were changed, and bytes of no form at all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

AMOUNTS = [2_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
"""How many of them a test sends: few in each run, and many in a soak."""
JSON_WORDS = (
    *(b"{", b"}", b"[" * 900, b'"', b",", b":", b"null", b"true", b"1e999", b"NaN", b"-1"),
    *(b"9" * 5_000, b"\\ud800", b"\\u0000", b"\x00", b"\xff", b'""', b"[]", b"{}"),
)
_FORMLESS = 0.1


def mutated(good: bytes, rng: Random, words: Sequence[bytes] = JSON_WORDS) -> bytes:
    """``good`` with one to four changes: bits, cuts, pieces twice or elsewhere, some of ``words``.
    One in ten is random bytes of up to twice its length."""
    if rng.random() < _FORMLESS:
        return rng.randbytes(rng.randrange(2 * len(good)))
    made = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        behind = min(len(made), at + rng.randrange(1, 20))
        match rng.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:]
            case 2:
                del made[at:behind]
            case 3:
                made[at:at] = made[at:behind]
            case 4:
                made[at:behind] = rng.choice(words)
            case _:
                made[at:at] = rng.randbytes(rng.randrange(1, 4))
    return bytes(made)
