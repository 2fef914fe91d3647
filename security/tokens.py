"""Tokens: random texts that prove who calls. A server knows only their SHA-256.

Theory: a token is 256 random bits, so its digest needs no salt and no slow function: nobody finds
it by trying. A file of digests that is read by a stranger lets nobody in.

Rules
- A token is never an argument of a command or a value in a file of settings, which others can see:
  a ``SecretPlace`` names where it stands, and it is read when a connection is opened, so that a new
  token in the file counts without a restart.
- Nothing here shows a token in an error or a ``repr``.
"""

from __future__ import annotations

import hashlib
import secrets

from ..wheel.errors import InvalidConfiguration
from .secretplace import SECRET_BYTES_MAX, SecretPlace

PREFIX = "swt_"
"""A token begins so, and a scanner of repositories can find one that was committed."""
TOKEN_BYTES_MAX = SECRET_BYTES_MAX
"""A longer token is refused unread: it would not fit into a hello."""
_RANDOM_BYTES = 32


def new_token() -> str:
    """A new random token of 256 bits: ``swt_`` and 43 characters."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: str) -> str:
    """The SHA-256 of a token, 64 hexadecimal digits; empty for no token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest() if token else ""


def read_token(place: SecretPlace) -> str:
    """The token that stands in a place now, without white space around it. Errors:
    ``InvalidConfiguration``, as of ``SecretPlace.read``, or it is no plain text."""
    token = place.read().strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidConfiguration(
            f"{place.shown} has no usable token",
            got=f"{len(token)} characters",
            limit=f"1 to {TOKEN_BYTES_MAX} printable ASCII characters without spaces",
            remedy="Make one with 'slotwheel token new'",
        )
    return token
