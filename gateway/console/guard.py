"""Whether an action was asked for by a page of this console, and not by one of another site.

Theory: the gateway has no login, so a browser that can reach it may act. Any page that this
browser has open can make it send a form here, and the browser itself is what can tell: it says in
``Sec-Fetch-Site``, and before that in ``Origin``, where a request comes from, and no script can
write these two. Both are looked at. A client that sends neither is held to the token: the same
value in a cookie, which a browser sends along only from pages of this site (``SameSite=Strict``),
and in the form, which another site's page can neither read nor guess. A token that is kept nowhere
needs no session and survives a restart of the gateway; it is asked for of everybody, so that one
of the two checks may fail to be understood by some browser.
"""

from __future__ import annotations

import secrets
from typing import Any

from ..errors import HttpError
from ..requests import header_of

COOKIE = "slotwheel-console"
TOKEN_LENGTH = 32
_REMEDY = "Open the page again, and send its form from there"


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


def check_own(scope: Any, token: str) -> None:
    """``token``: of the form. Errors: ``HttpError`` 403: the form is not from a page of ours."""
    headers = scope["headers"]
    site = header_of(headers, b"sec-fetch-site")
    if site is not None and site != "same-origin":
        raise _foreign("header Sec-Fetch-Site", site, "same-origin")
    origin = header_of(headers, b"origin")
    host = header_of(headers, b"host") or ""
    # "null" is what a browser says for a page that belongs to no site.
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        raise _foreign("header Origin", origin, host)
    known = token_of(scope)
    if not known or not secrets.compare_digest(known.encode(), token.encode()):
        raise HttpError(
            403,
            "the form has not the token that was given to this browser",
            place="form token",
            remedy=_REMEDY,
        )


def _foreign(place: str, got: str, limit: str) -> HttpError:
    text = "the form was sent from another site"
    return HttpError(403, text, place=place, got=got, limit=limit, remedy=_REMEDY)
