"""Whether an action was asked for by a page of this console, and not by one of another site.

Theory: what a browser says of where a request comes from was looked at before
(``gateway/sites.py``). A client that says nothing is held to the token: the same value in a
cookie, which a browser sends along only from pages of this site (``SameSite=Strict``), and in the
form, which another site's page can neither read nor guess. A token that is kept nowhere needs no
session and survives a restart of the gateway; it is asked for of everybody, so that one of the two
checks may fail to be understood by some browser.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from ..errors import HttpError
from ..requests import header_of

COOKIE = "slotwheel-console"
TOKEN_LENGTH = 32


def token_of(scope: Any) -> str:
    """The token that the browser has; empty: none that is of use."""
    # Cookies of other programs of this host come along, whatever their form.
    pairs = (one.strip() for one in (header_of(scope["headers"], b"cookie") or "").split(";"))
    value = next((one[len(COOKIE) + 1 :] for one in pairs if one.startswith(f"{COOKIE}=")), "")
    return value if len(value) == TOKEN_LENGTH and value.isascii() and value.isalnum() else ""


def new_token() -> str:
    return secrets.token_hex(TOKEN_LENGTH // 2)


def cookie_header(token: str) -> tuple[bytes, bytes]:
    """That gives a browser a token. No script needs it."""
    text = f"{COOKIE}={token}; Path=/console; HttpOnly; SameSite=Strict"
    return b"set-cookie", text.encode()


def check_token(scope: Any, token: str) -> None:
    """``token``: of the form. Errors: ``HttpError`` 403: the form is not from a page of ours."""
    known = token_of(scope)
    if not known or not secrets.compare_digest(known.encode(), token.encode()):
        raise HttpError(
            403,
            "the form has not the token that was given to this browser",
            place="form token",
            remedy="Open the page again, and send its form from there",
        )


def seal_of(token: str, *said: str) -> str:
    """Proof that this browser was told so: whoever has not its token can make none, so what a link
    from elsewhere has in its address is not shown as an answer."""
    return hmac.new(token.encode(), repr(said).encode(), "sha256").hexdigest()[:TOKEN_LENGTH]


def is_sealed(scope: Any, seal: str, *said: str) -> bool:
    """Whether ``seal`` is the proof of what is said, for the browser that asks."""
    token = token_of(scope)
    return bool(token) and secrets.compare_digest(seal_of(token, *said).encode(), seal.encode())
