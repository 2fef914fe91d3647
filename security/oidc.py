"""Tokens of OpenID Connect issuers: a JWT, checked against the public keys of who signed it.

Theory: a JWT says by itself who signed it, with which key and how. All three are the caller's text
until the signature is verified, so none of them may choose more than one of the things that the
settings name: the issuer is one of those in the security file, the key is one that this issuer
serves at its address in that file, and the algorithm is one that fits that kind of key. Otherwise
``alg: none``, or HS256 with the public key as its secret, would be a valid signature of anybody.

    token --iss--> issuer of the settings --kid--> key --its kind--> algorithms --> claims

Rules
- ``iss``, ``aud``, ``exp`` and ``sub`` must be there. Clocks may differ by ``LEEWAY_S``.
- ``verify`` never waits: it is called in an event loop's thread. A key that is not known is a
  ``KeyWanted``; whoever can wait calls ``refresh`` and verifies again.
- An issuer is asked for its keys at most once in ``ASK_EVERY_S``, however many unknown keys are
  named. Otherwise a stranger who makes up key ids would have us flood the issuer.
- Keys that cannot be fetched leave those that were there: an issuer that is away for a minute locks
  nobody out. Keys that the issuer has taken away are gone with the next answer, and with them each
  token that is remembered as valid.
- A token by which somebody logs in (an *ID token*) is for the client that asked for it, and carries
  the nonce of that login. A token for programs is none, nor the other way round: otherwise whoever
  runs another client of the same issuer could log in here with what its users have shown it.
- A reason of a refusal is for our log. The caller gets none, as each reason helps to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

from cachetools import LRUCache

from ..wheel.errors import InvalidConfiguration
from .securityfile import OidcIssuer

log = logging.getLogger("slotwheel.security")

LEEWAY_S = 30
"""How far, s, the clocks of an issuer and of this machine may be apart."""
ASK_EVERY_S = 30.0
KEYS_FRESH_S = 300.0
"""Keys are asked for again after so long, s, though none is missing: one may have been taken away.
"""
_FETCH_S = 5.0
ANSWER_BYTES_MAX = 1 << 20
"""A longer answer of an issuer is given up: it would fill the memory."""
_REMEMBERED_MAX = 10_000
_GROUPS_MAX = 256
_GROUP = "group:"
ALGORITHMS = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
"""Signatures that each kind of key (``kty``) can verify. All are asymmetric."""
_DISCOVERY = "/.well-known/openid-configuration"


class RefusedToken(Exception):
    """A token that proves nothing. Its text is the reason, for our log alone."""


class KeyWanted(RefusedToken):
    """A token whose key is not known, while its issuer may be asked: ``refresh`` it."""

    @property
    def issuer(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"a key that {self.issuer} is not known to have"


@dataclass(frozen=True, slots=True)
class OidcIdentity:
    """The user whom a valid token names. ``expires_s``: seconds since 1970, with the leeway."""

    issuer: str
    subject: str
    groups: tuple[str, ...]
    expires_s: float

    @property
    def principals(self) -> tuple[str, ...]:
        """``oidc:ISSUER:SUB`` and ``oidc:ISSUER:group:G`` for each group."""
        start = f"oidc:{self.issuer}:"
        return start + self.subject, *(f"{start}{_GROUP}{group}" for group in self.groups)


@dataclass(frozen=True, slots=True)
class _SigningKey:
    """A public key, and the algorithms of the signatures that it may verify. ``entry``: the JSON
    object of which it was made, by which two keys are compared."""

    public: Any = field(compare=False)
    algorithms: tuple[str, ...]
    entry: Mapping[str, Any]


@dataclass(slots=True)
class _Keys:
    """Keys of an issuer by their id, and when it was asked, by the monotonic clock, in seconds."""

    by_id: Mapping[str, _SigningKey]
    asked_s: float = float("-inf")
    fetched_s: float = float("-inf")


class OidcVerifier:
    """Verifies tokens of some issuers. Thread-safe. ``clock``: seconds since 1970; ``monotonic``:
    seconds. Errors: ``InvalidConfiguration``: two issuers with the same ``iss``."""

    def __init__(
        self,
        issuers: Iterable[OidcIssuer],
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuers: dict[str, OidcIssuer] = {}
        for issuer in issuers:
            if issuer.issuer in self._issuers:
                raise InvalidConfiguration(
                    "two tables name the same issuer of tokens",
                    got=issuer.issuer,
                    limit="one table for each issuer",
                    remedy="Leave one of them out: the principals of its users would be ambiguous",
                )
            self._issuers[issuer.issuer] = issuer
        self._clock, self._monotonic = clock, monotonic
        self._keys = {name: _Keys({}) for name in self._issuers}
        self._asking = {name: threading.Lock() for name in self._issuers}
        self._lock = threading.Lock()
        self._remembered: LRUCache[bytes, OidcIdentity] = LRUCache(_REMEMBERED_MAX)

    def verify(self, token: str) -> OidcIdentity:
        """The user whom a token names. It never waits for a network. A token that was valid is
        remembered by its SHA-256 until it expires or the keys change, as a signature costs 90 to
        160 µs. Errors: ``RefusedToken``; ``KeyWanted``."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            identity = self._remembered.get(digest)
        if identity is not None:
            if self._clock() < identity.expires_s:
                return identity
            raise RefusedToken("the token has expired")
        with _reading_strangers_text():
            issuer, key = self._signer(token)
            identity = _identity_of(_checked(token, issuer, key, issuer.audience), issuer)
        with self._lock:
            # Keys that another thread has fetched meanwhile may have made it void.
            if self._keys[issuer.issuer].by_id.get(key.entry["kid"]) == key:
                self._remembered[digest] = identity
        return identity

    def verify_login(self, token: str, table: OidcIssuer, nonce: str) -> OidcIdentity:
        """The user whom the ID token of a login names (OpenID Connect Core, 3.1.3.7). ``table``:
        the issuer that was asked for it; ``nonce``: that of the login. It may wait for the issuer's
        keys. Errors: ``RefusedToken``."""
        try:
            return self._verify_login(token, table, nonce)
        except KeyWanted as wanted:
            self.refresh(wanted.issuer)
            return self._verify_login(token, table, nonce)

    def _verify_login(self, token: str, table: OidcIssuer, nonce: str) -> OidcIdentity:
        with _reading_strangers_text():
            issuer, key = self._signer(token)
            if issuer != table:
                raise RefusedToken(f"a token of {issuer.name}, where {table.name} was asked")
            claims = _checked(token, issuer, key, issuer.client_id)
            audiences = claims["aud"]
            several = isinstance(audiences, list) and len(audiences) > 1
            if claims.get("azp", None if several else issuer.client_id) != issuer.client_id:
                raise RefusedToken("the token was made for another client")
            given = claims.get("nonce")
            if not isinstance(given, str) or not hmac.compare_digest(
                given.encode(), nonce.encode()
            ):
                raise RefusedToken("the token is of another login")
            return _identity_of(claims, issuer)

    def refresh(self, issuer: str) -> None:
        """Ask an issuer (its ``iss``) for its keys, unless it was asked within ``ASK_EVERY_S``. It
        waits for the network, and for another thread that asks the same: then the keys are there.
        """
        with self._asking[issuer]:
            keys, now_s = self._keys[issuer], self._monotonic()
            if now_s - keys.asked_s < ASK_EVERY_S:
                return
            table = self._issuers[issuer]
            try:
                by_id = _read_keys(fetch(table.jwks or _address_of_keys(table)), table)
            except (OSError, HTTPException, ValueError, RecursionError) as error:
                log.warning("keys of the issuer %s cannot be had: %s", table.name, error)
                keys.asked_s = self._monotonic()
                return
            now_s = self._monotonic()
            with self._lock:
                if by_id != keys.by_id:
                    self._remembered.clear()
                self._keys[issuer] = _Keys(by_id, now_s, now_s)

    def refresh_stale(self) -> None:
        """``refresh`` each issuer whose keys are older than ``KEYS_FRESH_S``."""
        for issuer, keys in list(self._keys.items()):
            if self._monotonic() - keys.fetched_s >= KEYS_FRESH_S:
                self.refresh(issuer)

    def _signer(self, token: str) -> tuple[OidcIssuer, _SigningKey]:
        """The issuer and the key that a token names. Errors: ``RefusedToken``, ``KeyWanted``; those
        of a text that is no token."""
        import jwt

        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
        except jwt.PyJWTError as error:
            raise RefusedToken(f"no token: {error}"[:200]) from None
        name = unverified["payload"].get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise RefusedToken(f"no issuer of ours: {name!r}"[:200])
        kid = unverified["header"].get("kid")
        if not isinstance(kid, str):
            raise RefusedToken("the token names no key")
        keys = self._keys[issuer.issuer]
        if (key := keys.by_id.get(kid)) is not None:
            return issuer, key
        if self._monotonic() - keys.asked_s >= ASK_EVERY_S:
            raise KeyWanted(issuer.issuer)
        raise RefusedToken(f"issuer {issuer.name} has no key {kid!r}"[:200])


@contextmanager
def _reading_strangers_text() -> Iterator[None]:
    """What a stranger's text brings about becomes a refusal: json and base64 raise ValueError,
    ``exp: 1e999`` an OverflowError, a signature that does not fit its key a TypeError."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, RecursionError, LookupError) as error:
        raise RefusedToken(f"{type(error).__name__}: {error}"[:200]) from None


def _checked(token: str, issuer: OidcIssuer, key: _SigningKey, audience: str) -> dict[str, Any]:
    """The claims of a token whose signature, issuer, audience and times are good."""
    import jwt

    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.public,
            algorithms=key.algorithms,
            audience=audience,
            issuer=issuer.issuer,
            leeway=LEEWAY_S,
            options={"require": ["iss", "aud", "exp", "sub"]},
        )
    except jwt.PyJWTError as error:
        raise RefusedToken(f"{type(error).__name__}: {error}"[:200]) from None
    return claims


def _identity_of(claims: Mapping[str, Any], issuer: OidcIssuer) -> OidcIdentity:
    subject = claims["sub"]
    # ``group:admins`` as a user's name would be the principal of the group of admins.
    if not isinstance(subject, str) or not subject or subject.startswith(_GROUP):
        raise RefusedToken(f"an unusable subject: {subject!r}"[:200])
    given = claims.get(issuer.groups_claim, ())
    groups = (given,) if isinstance(given, str) else given
    if not isinstance(groups, list | tuple) or not all(isinstance(g, str) for g in groups):
        raise RefusedToken(f"the claim {issuer.groups_claim} is no list of texts")
    if len(groups) > _GROUPS_MAX:
        raise RefusedToken(f"the claim {issuer.groups_claim} has more than {_GROUPS_MAX} groups")
    return OidcIdentity(issuer.name, subject, tuple(groups), float(claims["exp"]) + LEEWAY_S)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys come from the address in the settings: a redirect could lead to plain HTTP."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _address_of_keys(table: OidcIssuer) -> str:
    return address_in(discover(table), "jwks_uri", table)


def discover(table: OidcIssuer) -> dict[str, Any]:
    """The issuer's discovery document (OpenID Connect Discovery, 4). Errors: as of ``fetch``;
    ``ValueError``: it is another issuer's; ``RecursionError``."""
    document = json.loads(fetch(table.issuer.rstrip("/") + _DISCOVERY))
    if not isinstance(document, dict) or document.get("issuer") != table.issuer:
        raise ValueError("the discovery document is not that of this issuer")
    return document


def address_in(document: Mapping[str, Any], name: str, table: OidcIssuer) -> str:
    """An address of a discovery document. Only an issuer on loopback, which the security file
    allows, may have one without TLS: otherwise somebody on the way could answer in its place.
    Errors: ``ValueError``."""
    address = document.get(name)
    if not isinstance(address, str) or not address.isascii() or not address.isprintable():
        raise ValueError(f"the discovery document has no {name}")
    nearby, host = urlsplit(table.issuer), urlsplit(address)
    if host.scheme != "https" and (host.scheme, host.hostname) != (nearby.scheme, nearby.hostname):
        raise ValueError(f"the issuer's {name} is not https://")
    return address


def fetch(
    address: str, form: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """The answer to a GET, or to a POST of a ``form``. No redirect is followed. Errors:
    ``OSError``; ``HTTPException``; ``ValueError``: too large, or no address."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect(), urllib.request.ProxyHandler({})]
    if address.startswith("https:"):  # a context takes 20 ms to make
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    opener = urllib.request.build_opener(*handlers)
    ends_s = time.monotonic() + _FETCH_S
    data = b""
    request = urllib.request.Request(address, form, dict(headers or {}))  # noqa: S310
    with opener.open(request, timeout=_FETCH_S) as answer:
        for part in iter(partial(answer.read1, 64 << 10), b""):
            data += part
            if len(data) > ANSWER_BYTES_MAX:
                raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > ends_s:
                raise URLError(f"not whole after {_FETCH_S} s")
    return data


def _read_keys(data: bytes, table: OidcIssuer) -> dict[str, _SigningKey]:
    """Public keys for signatures, by their ids; keys of other kinds are passed over. Errors:
    ``ValueError``: no key set."""
    import jwt

    given = json.loads(data)
    listed = given.get("keys") if isinstance(given, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no JSON Web Key Set")
    keys: dict[str, _SigningKey] = {}
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
            continue
        algorithms = ALGORITHMS.get(str(entry.get("kty")), frozenset()) & {*table.algorithms}
        if "alg" in entry:
            algorithms &= {str(entry["alg"])}
        # A private key is not for us to have, and one for encryption signs nothing.
        if not algorithms or "d" in entry or entry.get("use", "sig") != "sig":
            continue
        try:
            public = jwt.PyJWK(entry).key
        except (jwt.PyJWTError, ValueError, TypeError, LookupError) as error:
            log.warning("a key that cannot be used: %s: %s", entry["kid"][:80], error)
            continue
        keys[entry["kid"]] = _SigningKey(public, tuple(sorted(algorithms)), entry)
    if not keys:
        raise ValueError("no key for signatures in the JSON Web Key Set")
    return keys
