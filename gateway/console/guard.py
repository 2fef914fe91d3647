"""Proof that an action was asked for by a page of this console, and not by one of another site.

Theory: ``gateway/sites.py`` refuses what a browser says comes from another site. A browser that
does not say it would let such a page cancel messages in its user's name, so everybody needs a token
as well: the same value in a cookie, which a browser sends along only from pages of this site
(``SameSite=Strict``), and in the form, which a page of another site can neither read nor guess. The
gateway stores no such token, so a form may be sent after a restart, and the form of a login, which
comes before any session, has one as well: no page of another site logs its reader in as somebody
else.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from ..errors import HttpError
from ..requests import cookie_of

COOKIE = "slotwheel-console"
TOKEN_LENGTH = 32


def token_of(scope: Any) -> str:
    """The token in the browser's cookie; empty: it has none, or one that is not of the form of
    ``new_token``."""
    value = cookie_of(scope["headers"], COOKIE)
    return value if len(value) == TOKEN_LENGTH and value.isascii() and value.isalnum() else ""


def new_token() -> str:
    return secrets.token_hex(TOKEN_LENGTH // 2)


def cookie_header(token: str) -> tuple[bytes, bytes]:
    """The header that gives a browser its token. No script needs it, so none may read it."""
    text = f"{COOKIE}={token}; Path=/console; HttpOnly; SameSite=Strict"
    return b"set-cookie", text.encode()


def check_token(scope: Any, token: str) -> None:
    """``token``: of the form. Errors: ``HttpError`` 403: it is not that of the browser's cookie."""
    known = token_of(scope)
    if not known or not secrets.compare_digest(known.encode(), token.encode()):
        raise HttpError(
            403,
            "the form has not the token that was given to this browser",
            place="form token",
            remedy="Open the page again, and send its form from there",
        )


def seal_of(token: str, *told: str) -> str:
    """The seal of what an action tells a browser by the address of the next page. It needs the
    browser's token; without it, a link from elsewhere could make a page say *It was cancelled*."""
    return hmac.new(token.encode(), repr(told).encode(), "sha256").hexdigest()[:TOKEN_LENGTH]


def is_sealed(scope: Any, seal: str, *told: str) -> bool:
    """Whether ``seal`` is that of ``told`` for the browser that asks."""
    token = token_of(scope)
    return bool(token) and secrets.compare_digest(seal_of(token, *told).encode(), seal.encode())
