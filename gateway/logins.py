"""Logins of browsers: by a token, and by an issuer of OpenID Connect, to which they are sent.

Theory: between the two halves of a login by an issuer this gateway keeps nothing. What it has to
know again (which issuer, and where to go on) is in the browser's cookie, sealed by a key of this
process; the secrets of the login are made of its ``state`` by the same key. So strangers who begin
a million logins fill no memory, and no other browser can end the login of this one.

    begin: state --cookie, sealed--> browser --state--> issuer --state, code--> browser
    end:   cookie and state agree, the code is good --> session

Rules
- A login ends once, within ``ATTEMPT_S``, and at the issuer where it began: each has an address of
  its own for the way back, as one issuer could otherwise be given the code of another.
- Nobody learns why a login is refused. The access log has the reason.
- Whatever waits for an issuer waits on a thread, one login at a time, and few wait for their turn.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from cachetools import TTLCache

from ..policy.hostnames import is_loopback_host
from ..security.oidc import RefusedToken
from ..security.securityfile import OidcIssuer
from ..wheel.errors import Unauthenticated
from .authentication import RequestAuthenticator
from .errors import HttpError
from .requests import cookie_of, header_of
from .sessions import COOKIE, LOGIN_COOKIE, UserProof, host_cookie

ATTEMPT_S = 600
_ATTEMPTS_REMEMBERED = 4096
"""So many logins that have ended are remembered, so that none ends twice."""
Cookie = tuple[bytes, bytes]
Waiting = Callable[..., Awaitable[Any]]


class LoginAttempt(msgspec.Struct, frozen=True, array_like=True):
    """A login under way. ``issuer``: its name in the security file; ``state``: random; ``until_s``:
    by the monotonic clock; ``onward``: the address of the page that was asked for."""

    issuer: str
    state: str
    until_s: float
    onward: str


class LoginAttempts:
    """Makes logins under way, and knows them again. ``monotonic``: seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._key = secrets.token_bytes(32)
        self._ended: TTLCache[str, None] = TTLCache(
            _ATTEMPTS_REMEMBERED, ATTEMPT_S, timer=monotonic
        )

    def begin(self, issuer: str, onward: str) -> LoginAttempt:
        state = secrets.token_urlsafe(32)
        return LoginAttempt(issuer, state, self._monotonic() + ATTEMPT_S, onward)

    def sealed(self, attempt: LoginAttempt) -> str:
        """The attempt as text for a cookie."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(attempt)).decode().rstrip("=")
        return f"{text}.{self._digest('seal', text)}"

    def end(self, sealed: str, issuer: str, state: str) -> LoginAttempt:
        """The attempt of a cookie, which ends with it. ``issuer``, ``state``: those with which the
        browser comes back. Errors: ``Unauthenticated``."""
        text, _, seal = sealed.partition(".")
        if not hmac.compare_digest(self._digest("seal", text).encode(), seal.encode()):
            raise Unauthenticated(reason="a login that did not begin in this browser")
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        attempt = msgspec.json.decode(content, type=LoginAttempt)
        same = hmac.compare_digest(attempt.state.encode(), state.encode())
        if not same or attempt.issuer != issuer:
            raise Unauthenticated(reason="the end of a login that is not this browser's last one")
        if self._monotonic() >= attempt.until_s:
            raise Unauthenticated(reason="a login that took too long")
        if state in self._ended:
            raise Unauthenticated(reason="a login that has ended before")
        self._ended[state] = None
        return attempt

    def nonce_of(self, attempt: LoginAttempt) -> str:
        return self._digest("nonce", attempt.state)

    def verifier_of(self, attempt: LoginAttempt) -> str:
        """The code verifier (RFC 7636, 4.1), 64 characters. No browser ever sees it."""
        return self._digest("verifier", attempt.state)

    def _digest(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose} {text}".encode(), "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class CodeAnswer:
    """What an issuer sends a browser back with."""

    code: str
    state: str
    issuer: str
    """As of RFC 9207; empty: it does not say."""
    error: str


class Logins:
    """``waiting``: runs a function that waits on a thread."""

    def __init__(
        self,
        authenticator: RequestAuthenticator,
        waiting: Waiting,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._waiting = waiting
        self._attempts = LoginAttempts(monotonic)

    @property
    def issuers(self) -> list[str]:
        """The names of the issuers by which somebody can log in."""
        security = self._authenticator.security
        tables = () if security is None else security.issuers.values()
        return [table.name for table in tables if table.client_id]

    async def by_token(self, scope: Any, token: str) -> Cookie:
        """Log a browser in by a token; its cookie. Errors: ``Unauthenticated``."""
        proof = await self._authenticator.prove(scope, token)
        with self._authenticator.noting_strangers(scope):
            return self._authenticator.log_in(scope, proof)

    async def begin(self, scope: Any, name: str, way_back: str, onward: str) -> tuple[str, Cookie]:
        """Begin a login by an issuer: the address of its page, and a cookie for the way back.
        ``way_back``: the path to which it sends the browser then. Errors: ``HttpError`` 503: it
        cannot be asked; as of ``_table``; ``Overloaded``."""
        table, attempt = self._table(name), self._attempts.begin(name, onward)
        try:
            address = await self._waiting(
                self._authenticator.logins.address,
                table,
                _origin(scope) + way_back,
                state=attempt.state,
                nonce=self._attempts.nonce_of(attempt),
                verifier=self._attempts.verifier_of(attempt),
            )
        except RefusedToken as error:
            self._authenticator.note_stranger(scope, str(error))
            raise HttpError(
                503,
                f"{name} cannot be asked who you are",
                remedy="Try again in a minute, or log in by a token",
                headers={"Retry-After": "30"},
            ) from None
        sealed = self._attempts.sealed(attempt)
        return address, host_cookie(LOGIN_COOKIE, sealed, same_site="Lax", age_s=ATTEMPT_S)

    async def end(
        self, scope: Any, name: str, way_back: str, answer: CodeAnswer
    ) -> tuple[str, list[Cookie]]:
        """End a login by an issuer: the page that was asked for, and the browser's cookies. Errors:
        ``Unauthenticated``; as of ``begin``."""
        table = self._table(name)
        sealed = cookie_of(scope["headers"], LOGIN_COOKIE)
        with self._authenticator.noting_strangers(scope):
            attempt = self._attempts.end(sealed, name, answer.state)
            if answer.error:
                raise Unauthenticated(reason=f"issuer {name}: {answer.error!r}"[:200])
            user = await self._waiting(
                self._authenticator.logins.redeem,
                table,
                _origin(scope) + way_back,
                code=answer.code,
                given_issuer=answer.issuer,
                nonce=self._attempts.nonce_of(attempt),
                verifier=self._attempts.verifier_of(attempt),
            )
            cookie = self._authenticator.log_in(scope, UserProof(user, table))
        return attempt.onward, [cookie, host_cookie(LOGIN_COOKIE, "", same_site="Lax", age_s=0)]

    def log_out(self, scope: Any) -> Cookie:
        """End the session of a browser; the header that takes its cookie away."""
        self._authenticator.log_out(scope)
        return host_cookie(COOKIE, "", age_s=0)

    def _table(self, name: str) -> OidcIssuer:
        """Errors: ``HttpError`` 404."""
        security = self._authenticator.security
        table = None if security is None else security.issuers.get(name)
        if table is None or not table.client_id:
            raise HttpError(404, "nobody can log in by this issuer", place="path", got=name)
        return table


def _origin(scope: Any) -> str:
    """Scheme and host by which the browser knows this gateway. Its session works with TLS or on
    loopback alone, so for any other name there is a proxy with TLS before it."""
    host = header_of(scope["headers"], b"host") or ""
    plain = scope["scheme"] == "http" and is_loopback_host(host)
    return f"{'http' if plain else 'https'}://{host}"
