"""Logins by an issuer of OpenID Connect: an authorization code, with PKCE, becomes a user.

Theory: a person proves who they are to the issuer alone, which sends their browser back with a
*code*. The code is worth nothing to whoever sees it on the way: it is exchanged for an ID token at
the issuer's own address, and only together with the verifier whose SHA-256 the login began with.

    browser --address: state, nonce, SHA-256 of the verifier--> issuer
    browser <--code, state-- issuer
    redeem: code, verifier --> issuer --> ID token: nonce, user, groups

Rules
- The issuer's addresses come from its discovery document, and are as safe as its own address
  (``address_in``): otherwise a document could have us send a secret to a machine within.
- A document is asked for at most once in ``ASK_EVERY_S``, however many logins begin. Otherwise a
  stranger who begins logins would have us flood the issuer.
- The client's secret is read at each login, so another one in its file counts without a restart.
- A reason of a refusal is for our log, as of every other token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote_plus, urlencode

from ..wheel.errors import InvalidConfiguration
from .oidc import (
    ASK_EVERY_S,
    KEYS_FRESH_S,
    OidcIdentity,
    OidcVerifier,
    RefusedToken,
    address_in,
    discover,
    fetch,
)
from .securityfile import OidcIssuer

CODE_CHARACTERS_MAX = 4096
"""A longer code is refused unsent."""
_ID_TOKEN_CHARACTERS_MAX = 64 << 10
_ERROR_BYTES = 2048
_UNUSABLE = (OSError, HTTPException, ValueError, RecursionError)
"""What asking an issuer may raise."""


class OidcLogins:
    """Logins of users by issuers. Thread-safe; ``address`` and ``redeem`` wait for the network.
    ``verifier``: of the same issuers. ``monotonic``: seconds."""

    def __init__(
        self, verifier: OidcVerifier, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._verifier = verifier
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._documents: dict[OidcIssuer, tuple[float, dict[str, Any] | RefusedToken]] = {}

    def address(
        self, table: OidcIssuer, redirect_uri: str, *, state: str, nonce: str, verifier: str
    ) -> str:
        """The address of the issuer's page at which a login begins. ``redirect_uri``: where the
        issuer sends the browser then. Errors: ``RefusedToken``: the issuer cannot be asked."""
        digest = hashlib.sha256(verifier.encode()).digest()
        fields = {
            "response_type": "code",
            "client_id": table.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(table.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        page = self._endpoint(table, "authorization_endpoint")
        return f"{page}{'&' if '?' in page else '?'}{urlencode(fields)}"

    def redeem(
        self,
        table: OidcIssuer,
        redirect_uri: str,
        *,
        code: str,
        given_issuer: str,
        nonce: str,
        verifier: str,
    ) -> OidcIdentity:
        """The user whose login ended with this code. ``given_issuer``: the ``iss`` that came with
        the code (RFC 9207); empty: none did. The others: as of ``address``. Errors:
        ``RefusedToken``."""
        expected = self._document(table).get("authorization_response_iss_parameter_supported")
        if (given_issuer or expected is True) and given_issuer != table.issuer:
            raise RefusedToken(f"a code of another issuer: {given_issuer!r}"[:200])
        if not 0 < len(code) <= CODE_CHARACTERS_MAX:
            raise RefusedToken(f"a code of {len(code)} characters")
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        self._prove_client(table, fields, headers)
        where = self._endpoint(table, "token_endpoint")
        try:
            answer = json.loads(fetch(where, urlencode(fields).encode(), headers))
        except HTTPError as error:
            raise RefusedToken(f"issuer {table.name} refuses a code: {_reason(error)}") from None
        except _UNUSABLE as error:
            raise _cannot_ask(table, error) from None
        token = answer.get("id_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or len(token) > _ID_TOKEN_CHARACTERS_MAX:
            raise RefusedToken(f"issuer {table.name} gives no usable ID token for a code")
        return self._verifier.verify_login(token, table, nonce)

    def _prove_client(
        self, table: OidcIssuer, fields: dict[str, str], headers: dict[str, str]
    ) -> None:
        """Add the client's name, and its secret, if it has one, in the way that the issuer takes
        (RFC 6749, 2.3.1). Errors: ``RefusedToken``: the secret cannot be read."""
        secret = ""
        if table.client_secret is not None:
            try:
                secret = table.client_secret.read()
            except InvalidConfiguration as error:
                raise RefusedToken(f"the client-secret of {table.name}: {error}") from None
        methods = self._document(table).get("token_endpoint_auth_methods_supported")
        basic = not isinstance(methods, list) or "client_secret_basic" in methods
        if secret and basic:
            pair = f"{quote_plus(table.client_id)}:{quote_plus(secret)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
            return
        fields["client_id"] = table.client_id
        if secret:
            fields["client_secret"] = secret

    def _endpoint(self, table: OidcIssuer, name: str) -> str:
        try:
            return address_in(self._document(table), name, table)
        except ValueError as error:
            raise _cannot_ask(table, error) from None

    def _document(self, table: OidcIssuer) -> Mapping[str, Any]:
        """The issuer's discovery document, of which an error is remembered for a while, too.
        Errors: ``RefusedToken``."""
        with self._lock:
            asked_s, document = self._documents.get(table, (float("-inf"), None))
            fresh_s = KEYS_FRESH_S if isinstance(document, dict) else ASK_EVERY_S
            if document is None or self._monotonic() - asked_s >= fresh_s:
                try:
                    document = discover(table)
                except _UNUSABLE as error:
                    document = _cannot_ask(table, error)
                self._documents[table] = self._monotonic(), document
        if isinstance(document, RefusedToken):
            raise RefusedToken(*document.args)
        return document


def _cannot_ask(table: OidcIssuer, error: BaseException) -> RefusedToken:
    return RefusedToken(f"issuer {table.name} cannot be asked: {error}"[:200])


def _reason(error: HTTPError) -> str:
    """The status of an answer, and its error as of RFC 6749, 5.2, such as ``invalid_grant``."""
    try:
        fields = json.loads(error.read(_ERROR_BYTES))
        return f"{error.code} {fields['error'][:100]!r}"
    except (*_UNUSABLE, TypeError, LookupError):
        return str(error.code)
