"""Greetings and tokens that were changed on their way: each is refused by name, and nobody gets
in under a name that is not his."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from slotwheel.gateway.authentication import RequestAuthenticator
from slotwheel.gateway.errors import HttpError
from slotwheel.replication.transport.handshake import LANES, Greeting, PeerInstances
from slotwheel.replication.transport.incoming import Incoming
from slotwheel.security.oidc import RefusedToken
from slotwheel.security.principals import Authenticator, IdentityProof
from slotwheel.wheel.errors import SlotwheelError, Unauthenticated
from support.mutating import AMOUNTS, mutated
from support.securing import EXAMPLE, parsed, write_private

PEERS = {name: f"{name}.example:7201" for name in "abc"}
TOKEN = b"swt_billing"


class QuietEvents:
    def refused(self, node_id: str, error: SlotwheelError) -> None: ...
    def greeted(self, theirs: Greeting) -> None: ...
    def broken(self, node_id: str, error: SlotwheelError) -> None: ...


def greeting(to: str, lane: str, node_id: str = "a") -> Greeting:
    store = node_id.encode() * 16
    return Greeting("g", node_id, to, "1" * 16, store, PEERS, lane=lane, promise_ms=800)


def never(*_: Any) -> Any:
    raise AssertionError("nothing is passed on before a greeting is answered")


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_changed_greeting_lets_nobody_in_under_another_name(amount: int) -> None:
    rng = Random(amount)
    goods = [greeting("a", lane, "b").encode() for lane in LANES]
    let_in = 0
    for _ in range(amount):
        body = mutated(rng.choice(goods), rng)
        names: Sequence[str] = rng.choice([("b",), ("c",), ("b.example", "B"), ()])
        incoming = Incoming(
            greeting, PeerInstances(), never, lambda: True, never, never, QuietEvents()
        )
        with suppress(SlotwheelError):
            incoming.admit(body, names)
            theirs = Greeting.decode(body)
            assert theirs.node_id in names
            assert (theirs.to, theirs.group, theirs.peers.keys()) == ("a", "g", PEERS.keys())
            let_in += 1
    assert 0 < let_in < amount / 4


@pytest.mark.parametrize("amount", AMOUNTS)
def test_a_changed_token_proves_nothing_on_the_wire_or_over_http(
    amount: int, tmp_path: Path
) -> None:
    """Nobody is let in but by the token itself, and never by the certificate beside a bad one."""
    rng = Random(amount)
    authenticator = Authenticator(parsed(EXAMPLE))
    over_http = RequestAuthenticator(write_private(tmp_path / "security.toml", EXAMPLE))
    names = ("gateway.example",)
    let_in = 0
    for _ in range(amount):
        token = mutated(TOKEN, rng, (TOKEN, TOKEN.upper(), b".", b" ", b"\t", b"\x00", b"Bearer "))
        text = token.decode(rng.choice(["latin-1", "utf-8"]), "surrogateescape")
        if token:
            with suppress(Unauthenticated):
                identity = authenticator.authenticate(IdentityProof.of(names, text))
                assert (token, identity.principal) == (TOKEN, "token:billing")
                let_in += 1
        header = rng.choice([b"Bearer ", b"bearer ", b"Bearer\xa0", b"Basic ", b""]) + token
        with suppress(Unauthenticated, RefusedToken, HttpError):
            identity = over_http.recall([(b"authorization", header)], names)
            assert header.lower().startswith(b"bearer ")
            assert header[7:].strip(b" ") == TOKEN
            assert identity.principal == "token:billing"
            let_in += 1
    assert 0 < let_in < amount / 4
    over_http.close()


def test_a_greeting_that_was_not_changed_is_let_in() -> None:
    """Or the test above would show nothing."""
    incoming = Incoming(greeting, PeerInstances(), never, lambda: True, never, never, QuietEvents())
    good = greeting("a", LANES[0], "b")
    assert callable(incoming.admit(good.encode(), ("b",)))
    for changed in (replace(good, node_id="c"), replace(good, to="b"), replace(good, group="h")):
        with pytest.raises(SlotwheelError):
            incoming.admit(changed.encode(), ("b",))
