"""What a browser gets below ``/console`` in place of a page that it cannot have.

Rules
- Whose reader is not known is led to the login, and from there back to the page that was asked for;
  what a page fetches by itself makes that page load anew, which leads there as well. Otherwise a
  session that ends leaves a page that shows old figures.
- Whatever does not say that it takes HTML, or sends a token, is a program, and gets 401 as
  everywhere else.
- Who follows a link from another site is asked once more, from here (``login.py`` says why).
"""

from __future__ import annotations

from typing import Any

from ..errors import HttpError
from ..requests import Reply, cookie_of, header_of
from ..sessions import COOKIE, host_cookie
from .guard import token_of
from .login import own_page
from .rendering import BASE, address, going_on, page_reply, redirect, rendered
from .viewer import LOGIN_PATH, viewer_of

_ELSEWHERE = ("cross-site", "same-site")
"""Where a browser says that a link was which it follows, if it is not a page of this console."""


def error_page(error: HttpError, scope: Any) -> Reply:
    """The page of an error below ``/console``."""
    further = error.raw_headers
    try:
        token = token_of(scope)
        if error.status == 401:
            if reply := _to_login(scope):
                return reply
            further = [*further, (b"hx-refresh", b"true")]
    except HttpError:  # a header that it has twice
        token = ""
    values = {"here": "", "error": error, "token": token, "late": False}
    text = rendered("error.html", viewer=viewer_of(scope), **values)
    return page_reply(text, error.status, *further)


def _to_login(scope: Any) -> Reply | None:
    """The way to the login, for a browser; None: it is a program, or a page that fetches something.
    Errors: ``HttpError``: a header that it has twice."""
    headers = scope["headers"]
    accepted = header_of(headers, b"accept") or ""
    of_programs = header_of(headers, b"hx-request") or header_of(headers, b"authorization")
    if "text/html" not in accepted or of_programs is not None:
        return None
    if scope["method"] not in ("GET", "HEAD"):  # what was sent is gone
        return redirect(address(LOGIN_PATH), cookies=_without_session(scope))
    query = scope["query_string"]
    asked = (scope["raw_path"] + (b"?" + query if query else b"")).decode("ascii", "replace")
    followed = header_of(headers, b"sec-fetch-site") in _ELSEWHERE
    if followed and not cookie_of(headers, COOKIE):
        return going_on(asked)
    # Who asked for the console as such gets the first page that they may look at.
    onward = "" if asked == BASE else own_page(asked)
    return redirect(address(LOGIN_PATH, next=onward), cookies=_without_session(scope))


def _without_session(scope: Any) -> list[tuple[bytes, bytes]]:
    """The header that takes the cookie of an ended session away, so that a certificate counts."""
    return [host_cookie(COOKIE, "", age_s=0)] if cookie_of(scope["headers"], COOKIE) else []
