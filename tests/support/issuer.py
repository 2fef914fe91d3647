"""An issuer of OpenID Connect tokens, with a real server for its public keys."""

from __future__ import annotations

import base64
import functools
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWS
from jwt.algorithms import get_default_algorithms

from slotwheel.security.securityfile import OidcIssuer

AUDIENCE = "slotwheel"
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
    ``answer``: sent in place of the keys, if it is not None."""

    def __init__(self, **algorithms: str) -> None:
        """``algorithms``: of each key, by its id."""
        self.private: dict[str, Any] = {}
        self.published: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self.free = threading.Event()
        """Until it is set, the issuer does not answer."""
        self.free.set()
        self._made = 0
        self.answer: tuple[int, bytes] | None = None
        for kid, algorithm in algorithms.items():
            self.add_key(kid, algorithm)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.free.wait(30)
                keys = json.dumps({"keys": list(issuer.published.values())}).encode()
                if self.path.startswith("/.well-known/"):
                    keys = json.dumps(issuer.document).encode()
                status, body = issuer.answer or (200, keys)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status == 302:
                    self.send_header("Location", body.decode())
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
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

    def public_pem(self, kid: str) -> bytes:
        public = self.private[kid].public_key()
        pem: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token of which each part is chosen freely."""
    parts = json.dumps(header).encode(), json.dumps(claims).encode(), signature
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
