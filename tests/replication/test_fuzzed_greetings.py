"""Greetings that were changed on their way: read or refused by name, and never more than that."""

from __future__ import annotations

import random

import pytest

from slotwheel.replication.transport.handshake import LANES, Greeting, check_proof
from slotwheel.wheel.errors import SlotwheelError

_PIECES = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\x00", b"\xff", b"null", b"true", b"-1"),
    *(
        b"1e999",
        b"NaN",
        b"9" * 400,
        b"[" * 2_000,
        b"\xed\xa0\x80",
        b'"\\ud800"',
        b'"c"',
        b"SWPEER1",
    ),
)


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_greeting_is_read_or_refused_and_proves_no_other_peer(count: int) -> None:
    chance = random.Random(count)
    peers = {name: f"127.0.0.1:{port}" for port, name in enumerate("abc", 7201)}
    read = proven = 0
    for _ in range(count):
        lane = chance.choice(LANES)
        said = Greeting("default", "b", "a", "i", bytes(16), peers, promise_ms=800, lane=lane)
        body = bytearray(said.encode())
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(body))
            match chance.randrange(4):
                case 0:
                    body[at] ^= 1 << chance.randrange(8)
                case 1:
                    body[at : at + chance.randint(0, 4)] = chance.choice(_PIECES)
                case 2:
                    body[at:at] = chance.randbytes(chance.randint(1, 8))
                case _:
                    del body[at : at + chance.choice((1, 2, 5, len(body)))]
                    body += b" "
        try:
            theirs = Greeting.decode(bytes(body))
            read += 1
            check_proof(theirs, ["b"])
            proven += 1
            assert theirs.node_id == "b"
        except SlotwheelError:
            pass
    assert 0 < proven < read < count / 2
