"""Tokens of OpenID Connect: the good ones name a user, and no other gets through."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from slotwheel.security.oidc import (
    ASK_EVERY_S,
    KEYS_FRESH_S,
    LEEWAY_S,
    KeyWanted,
    OidcIdentity,
    OidcVerifier,
    RefusedToken,
)
from slotwheel.wheel.errors import InvalidConfiguration
from support.issuer import AUDIENCE, Issuer, unsigned
from support.mutating import AMOUNTS, mutated


class Clocks:
    """The wall clock and the monotonic one, s."""

    def __init__(self) -> None:
        self.wall_s = time.time()
        self.monotonic_s = 1000.0

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(rsa="RS256", curve="ES256", edwards="EdDSA") as started:
        yield started


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def verifier(issuer: Issuer, clocks: Clocks) -> OidcVerifier:
    """With the issuer's keys."""
    made = OidcVerifier(
        [issuer.table()], clock=lambda: clocks.wall_s, monotonic=lambda: clocks.monotonic_s
    )
    made.refresh(issuer.url)
    return made


def refused(verifier: OidcVerifier, token: str) -> str:
    """The reason for our log."""
    with pytest.raises(RefusedToken) as caught:
        verifier.verify(token)
    assert not isinstance(caught.value, KeyWanted)
    return str(caught.value)


@pytest.mark.parametrize("kid", ["rsa", "curve", "edwards"])
def test_a_good_token_names_its_user_and_groups(
    issuer: Issuer, verifier: OidcVerifier, kid: str
) -> None:
    identity = verifier.verify(issuer.token(kid, groups=["ops", "dev"], aud=["x", AUDIENCE]))
    assert identity.principals == ("oidc:corp:ann", "oidc:corp:group:ops", "oidc:corp:group:dev")
    assert verifier.verify(issuer.token(kid, groups="ops")).groups == ("ops",)
    assert verifier.verify(issuer.token(kid)).groups == ()


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "no-exp": {"exp": None},
    "no-iss": {"iss": None},
    "no-aud": {"aud": None},
    "no-sub": {"sub": None},
    "expired": {"exp": 1_000_000_000},
    "not yet": {"nbf": 32_000_000_000},
    "endless": {"exp": float("inf")},
    "exp text": {"exp": "tomorrow"},
    "exp list": {"exp": [1]},
    "aud": {"aud": "other"},
    "aud list": {"aud": ["other", "slotwheel2"]},
    "aud number": {"aud": 7},
    "iss": {"iss": "https://elsewhere.example"},
    "iss list": {"iss": ["https://elsewhere.example"]},
    "sub of a group": {"sub": "group:ops"},
    "sub empty": {"sub": ""},
    "sub number": {"sub": 7},
    "groups": {"groups": {"ops": True}},
    "groups of numbers": {"groups": [1]},
    "many groups": {"groups": [str(n) for n in range(1000)]},
}


@pytest.mark.parametrize("claims", BAD_CLAIMS.values(), ids=BAD_CLAIMS)
@pytest.mark.parametrize("kid", ["rsa", "curve", "edwards"])
def test_a_token_with_a_bad_claim_is_refused(
    issuer: Issuer, verifier: OidcVerifier, kid: str, claims: dict[str, Any]
) -> None:
    assert refused(verifier, issuer.token(kid, **claims))


def test_signatures_that_anybody_could_make_are_refused(
    issuer: Issuer, verifier: OidcVerifier
) -> None:
    claims = issuer.claims()
    for kid in issuer.published:
        for algorithm in ("none", "None", "NONE", "", "HS256", "RS256", "ES256", "EdDSA", 7, None):
            header = {"alg": algorithm, "kid": kid, "typ": "JWT"}
            for signature in (b"", b"x" * 64, b"x" * 256):
                assert refused(verifier, unsigned(header, claims, signature))
        # HS256 with the public key as the secret, in the form in which everybody can have it.
        text = unsigned({"alg": "HS256", "kid": kid}, claims).removesuffix(".")
        made = hmac.digest(issuer.public_pem(kid), text.encode(), hashlib.sha256)
        assert refused(verifier, unsigned({"alg": "HS256", "kid": kid}, claims, made))


def test_a_key_verifies_only_its_own_algorithm(issuer: Issuer, verifier: OidcVerifier) -> None:
    """PyJWT raises a plain TypeError for a signature of another kind of key."""
    for kid in ("rsa", "curve", "edwards"):
        for algorithm in ("RS256", "RS512", "PS256", "ES256", "ES384", "EdDSA"):
            if algorithm != issuer.published[kid]["alg"]:
                header = {"alg": algorithm, "kid": kid}
                assert refused(verifier, unsigned(header, issuer.claims(), b"x" * 64))
    # A signature of one of the issuer's keys does not count for another one.
    head, claims, _ = issuer.token("rsa").split(".")
    _, _, signature = issuer.token("rsa", sub="eve").split(".")
    assert refused(verifier, f"{head}.{claims}.{signature}")


def test_extensions_and_addresses_of_keys_in_a_token_are_not_followed(
    issuer: Issuer, verifier: OidcVerifier
) -> None:
    asked = issuer.asked
    for more in ({"crit": ["x"], "x": 1}, {"jku": issuer.url}, {"x5u": issuer.url}, {"kid": None}):
        header = {"alg": "RS256", "kid": "rsa", **more}
        assert refused(verifier, unsigned(header, issuer.claims(), b"x" * 256))
    assert issuer.asked == asked


def test_a_token_holds_until_its_end_and_the_leeway(
    issuer: Issuer, verifier: OidcVerifier, clocks: Clocks
) -> None:
    token = issuer.token("rsa", exp=int(clocks.wall_s) + 60)
    verifier.verify(token)
    clocks.wall_s += 60 + LEEWAY_S - 2
    verifier.verify(token)
    clocks.wall_s += 3
    assert "expired" in refused(verifier, token)


def test_keys_are_rotated(issuer: Issuer, verifier: OidcVerifier, clocks: Clocks) -> None:
    old = issuer.token("rsa")
    verifier.verify(old)
    issuer.add_key("new", "ES256")
    del issuer.published["rsa"]
    clocks.pass_s(ASK_EVERY_S)
    with pytest.raises(KeyWanted) as wanted:
        verifier.verify(issuer.token("new"))
    verifier.verify(old)  # nobody knows yet that its key is gone
    verifier.refresh(wanted.value.issuer)
    verifier.verify(issuer.token("new"))
    assert "no key 'rsa'" in refused(verifier, old)


def test_a_key_that_is_taken_away_is_gone_without_another_unknown_one(
    issuer: Issuer, verifier: OidcVerifier, clocks: Clocks
) -> None:
    token = issuer.token("rsa")
    verifier.verify(token)
    del issuer.published["rsa"]
    clocks.pass_s(KEYS_FRESH_S - 1)
    verifier.refresh_stale()
    verifier.verify(token)
    clocks.pass_s(1)
    verifier.refresh_stale()
    assert refused(verifier, token)


def test_another_key_under_the_same_id_voids_tokens_of_the_old_one(
    issuer: Issuer, verifier: OidcVerifier, clocks: Clocks
) -> None:
    token = issuer.token("rsa")
    verifier.verify(token)
    issuer.add_key("rsa", "RS256")
    clocks.pass_s(KEYS_FRESH_S)
    verifier.refresh_stale()
    assert "Signature verification failed" in refused(verifier, token)


def test_unknown_keys_make_one_request_in_thirty_seconds(
    issuer: Issuer, verifier: OidcVerifier, clocks: Clocks
) -> None:
    def guess() -> None:
        for number in range(50):
            header = {"alg": "RS256", "kid": f"guess-{number}"}
            try:
                verifier.verify(unsigned(header, issuer.claims(), b"x" * 256))
            except KeyWanted as wanted:
                verifier.refresh(wanted.issuer)
            except RefusedToken:
                pass

    for _ in range(3):
        asked = issuer.asked
        clocks.pass_s(ASK_EVERY_S)
        threads = [threading.Thread(target=guess) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert issuer.asked == asked + 1


BAD_ANSWERS = {
    "error": (500, b""),
    "redirect": (302, b"http://127.0.0.1:1/keys"),
    "no json": (200, b"<html>"),
    "no keys": (200, b"{}"),
    "empty": (200, b'{"keys": []}'),
    "list": (200, b"[]"),
    "deep": (200, b"[" * 100_000),
    "nonsense": (200, b'{"keys": [7, {"kty": "RSA", "kid": "rsa"}, {"kty": "RSA", "kid": 1}]}'),
    "secret": (200, b'{"keys": [{"kty": "oct", "kid": "rsa", "k": "c2VjcmV0"}]}'),
    "large": (200, b'{"keys": [' + b" " * (2 << 20) + b"]}"),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_keys_stay_while_their_issuer_has_none(
    issuer: Issuer,
    verifier: OidcVerifier,
    clocks: Clocks,
    caplog: pytest.LogCaptureFixture,
    answer: tuple[int, bytes],
) -> None:
    issuer.answer = answer
    clocks.pass_s(KEYS_FRESH_S)
    with caplog.at_level(logging.WARNING):
        verifier.refresh_stale()
    assert "keys of the issuer corp cannot be had" in caplog.text
    verifier.verify(issuer.token("rsa"))
    # It is asked again, and no more often than for unknown keys.
    asked = issuer.asked
    clocks.pass_s(ASK_EVERY_S - 1)
    verifier.refresh_stale()
    assert issuer.asked == asked
    clocks.pass_s(1)
    verifier.refresh_stale()
    assert issuer.asked == asked + 1


def test_keys_that_are_not_for_signatures_are_passed_over(issuer: Issuer) -> None:
    tokens = {kid: issuer.token(kid) for kid in issuer.published}
    issuer.add_key("good", "EdDSA")
    verifier = OidcVerifier([issuer.table()])
    issuer.published["curve"]["use"] = "enc"
    issuer.published["rsa"]["alg"] = "RS512"
    issuer.published["edwards"]["d"] = "x"
    verifier.refresh(issuer.url)
    verifier.verify(issuer.token("good"))
    for token in tokens.values():
        assert refused(verifier, token)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_any_text_is_refused_by_name(issuer: Issuer, verifier: OidcVerifier, amount: int) -> None:
    """Nothing but a refusal comes of what a stranger sends: texts that were changed, and tokens
    that are signed by nobody and say anything."""
    chance = random.Random(amount)
    good = issuer.token("rsa")
    texts = ["", ".", "..", "...", "a.b.c", "\ud800", "é" * 99, good + ".x", "." + good, good[:-9]]
    deep = unsigned({"alg": "RS256", "kid": "rsa"}, {}).split(".")[0] + "." + "W1tb" * 30_000 + "."
    texts.append(deep)
    words = (b".", b"-", b"A", b"\0", "\u20ac".encode(), b"eyJhbGciOiJub25lIn0", b"W1tb" * 99, b"=")
    parts = good.split(".")

    def changed() -> str:
        if chance.random() < 0.5:
            return mutated(good.encode(), chance, words).decode("utf-8", "surrogateescape")
        at = chance.randrange(2)
        raw = base64.urlsafe_b64decode(parts[at] + "==")
        made = base64.urlsafe_b64encode(mutated(raw, chance)).decode().rstrip("=")
        return ".".join([*parts[:at], made, *parts[at + 1 :]])

    for text in (*texts, *(changed() for _ in range(amount))):
        if text != good:
            try:
                identity = verifier.verify(text)
            except RefusedToken:
                continue
            # The last letter of base64 has bits that nobody reads.
            assert identity == verifier.verify(good)


BAD_DOCUMENTS = {
    "another issuer": {"issuer": "https://elsewhere.example"},
    "plain": {"jwks_uri": "http://keys.example/keys"},
    "file": {"jwks_uri": "file:///etc/passwd"},
    "number": {"jwks_uri": 7},
}


def test_the_address_of_keys_may_be_discovered(issuer: Issuer) -> None:
    verifier = OidcVerifier([replace(issuer.table(), jwks="")])
    verifier.refresh(issuer.url)
    verifier.verify(issuer.token("rsa"))


@pytest.mark.parametrize("changed", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_a_bad_discovery_document_is_not_followed(
    issuer: Issuer, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    issuer.document |= changed
    verifier = OidcVerifier([replace(issuer.table(), jwks="")])
    verifier.refresh(issuer.url)
    assert "keys of the issuer corp cannot be had" in caplog.text
    assert refused(verifier, issuer.token("rsa"))


def test_only_algorithms_of_the_table_are_taken(issuer: Issuer) -> None:
    verifier = OidcVerifier([replace(issuer.table(), algorithms=("ES256", "RS512"))])
    verifier.refresh(issuer.url)
    verifier.verify(issuer.token("curve"))
    assert refused(verifier, issuer.token("rsa"))
    assert refused(verifier, issuer.token("edwards"))


def test_two_tables_of_one_issuer_are_refused(issuer: Issuer) -> None:
    with pytest.raises(InvalidConfiguration, match="two tables name the same issuer"):
        OidcVerifier([issuer.table(), issuer.table("other")])


def test_an_identity_of_another_issuer_is_another_principal() -> None:
    ann = OidcIdentity("corp", "ann", ("ops",), 0.0)
    assert not set(ann.principals) & set(replace(ann, issuer="partner").principals)
