"""An issuer of OpenID Connect tokens, with a real server for its public keys, and for logins."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS
from jwt.algorithms import get_default_algorithms

from slotwheel.security.securityfile import OidcIssuer

AUDIENCE = "slotwheel"
CLIENT_ID, CLIENT_SECRET = "the-console", "tell:nobody"
"""The console at an issuer."""
_MAKE: dict[str, Callable[[], Any]] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


@functools.cache
def _private(algorithm: str, number: int) -> Any:
    """The same key each time, as one of RSA takes a tenth of a second to make. ``number`` divides
    those of an issuer."""
    del number
    return _MAKE[algorithm]()


class Issuer:
    """Serves the keys in ``published``, by their id. ``asked``: requests for them so far.
    ``answer``: sent in place of the keys, if it is not None. ``user``: claims of who logs in.
    ``secret``: which the client has to show; empty: it is a public one. ``redeemed``: the requests
    for a token so far. ``reply``: sent in place of a token, if it is not None."""

    def __init__(self, **algorithms: str) -> None:
        """``algorithms``: of each key, by its id."""
        self.private: dict[str, Any] = {}
        self.published: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self.free = threading.Event()
        """Until it is set, the issuer does not answer."""
        self.free.set()
        self._made = 0
        self.user: dict[str, Any] = {}
        self.secret = ""
        self.redeemed: list[dict[str, str]] = []
        self.reply: tuple[int, bytes] | None = None
        self._codes: dict[str, dict[str, str]] = {}
        self.answer: tuple[int, bytes] | None = None
        for kid, algorithm in algorithms.items():
            self.add_key(kid, algorithm)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/authorize?"):
                    self._send(200, issuer.login_page(self.path).encode(), "text/html")
                    return
                issuer.asked += 1
                issuer.free.wait(30)
                keys = json.dumps({"keys": list(issuer.published.values())}).encode()
                if self.path.startswith("/.well-known/"):
                    keys = json.dumps(issuer.document).encode()
                self._send(*(issuer.answer or (200, keys)))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proof = self.headers.get("Authorization", "")
                self._send(*issuer.redeem(dict(parse_qsl(body.decode())), proof))

            def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", kind)
                if status == 302:
                    self.send_header("Location", body.decode())
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.document: dict[str, Any] = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        """Its discovery document."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add_key(self, kid: str, algorithm: str) -> None:
        """Make a key and publish it."""
        self._made += 1
        private = self.private[kid] = _private(algorithm, self._made)
        entry = get_default_algorithms()[algorithm].to_jwk(private.public_key(), as_dict=True)
        self.published[kid] = entry | {"kid": kid, "use": "sig", "alg": algorithm}

    def table(self, name: str = "corp") -> OidcIssuer:
        return OidcIssuer(name, self.url, AUDIENCE, f"{self.url}/keys", tuple(_MAKE))

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Claims of a good token; one that is ``None`` is left out."""
        good = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 600}
        return {name: value for name, value in (good | changed).items() if value is not None}

    def token(self, kid: str, **changed: Any) -> str:
        """A signed token, also of claims that no issuer would give."""
        claims = json.dumps(self.claims(**changed)).encode()
        return PyJWS().encode(claims, self.private[kid], self.published[kid]["alg"], {"kid": kid})

    def login_table(self, name: str = "corp", **more: Any) -> OidcIssuer:
        """``table``, by which people may log in."""
        return replace(self.table(name), client_id=CLIENT_ID, **more)

    def grant(self, address: str) -> str:
        """The address to which a browser goes from the page of a login (``address``), once its user
        has proved there who they are."""
        asked = dict(parse_qsl(urlsplit(address).query))
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert "openid" in asked["scope"].split()
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        # An issuer may add parameters of its own.
        back = {"code": code, "state": asked["state"], "session_state": "x", "iss": self.url}
        return f"{asked['redirect_uri']}?{urlencode(back)}"

    def login_page(self, address: str) -> str:
        link = html.escape(self.grant(address))
        return f'<!doctype html><title>Issuer</title><a href="{link}">I am ann</a>'

    def redeem(self, asked: dict[str, str], proof: str) -> tuple[int, bytes]:
        """Exchange a code for an ID token, once: status and body."""
        self.redeemed.append(asked)
        if self.reply is not None:
            return self.reply
        kept = self._codes.pop(asked.get("code", ""), None)
        digest = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if kept is None or kept["code_challenge"] != challenge:
            return 400, b'{"error": "invalid_grant"}'
        if kept["redirect_uri"] != asked["redirect_uri"]:
            return 400, b'{"error": "invalid_request"}'
        given = asked.get("client_id", ""), asked.get("client_secret", "")
        if proof.startswith("Basic "):
            name, _, secret = base64.b64decode(proof[6:]).decode().partition(":")
            given = unquote_plus(name), unquote_plus(secret)
        if given != (CLIENT_ID, self.secret):
            return 401, b'{"error": "invalid_client"}'
        claims = {"aud": CLIENT_ID, "nonce": kept["nonce"], **self.user}
        token = self.token(next(iter(self.published)), **claims)
        return 200, json.dumps({"id_token": token, "access_token": "x"}).encode()

    def public_pem(self, kid: str) -> bytes:
        public = self.private[kid].public_key()
        pem: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token of which each part is chosen freely."""
    parts = json.dumps(header).encode(), json.dumps(claims).encode(), signature
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
