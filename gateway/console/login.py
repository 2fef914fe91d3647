"""Login and logout: by a token, or by an issuer of OpenID Connect, and on to what was asked for.

Rules
- A login leads on to a page of this console, and to nothing else (``own_page``). Otherwise a link
  to this login could end at a page of somebody else, which looks like this one and asks again.
- Who comes back from an issuer gets a page that goes on by itself, as its cookie is sent from pages
  of this site alone: a redirect would still be the issuer's, and its reader a stranger. So does who
  follows a link from elsewhere: it is asked for again from here, and the cookie comes along.
- A login is begun at an issuer by a link and not by a form, of which ``form-action`` in the pages'
  policy demands that it leads nowhere else.
"""

from __future__ import annotations

import re
from typing import Any

from ...policy.hostnames import is_loopback_host
from ...wheel.errors import Unauthenticated
from ..endpoint import RouteCall
from ..errors import HttpError, from_slotwheel
from ..logins import CodeAnswer
from ..requests import Reply, header_of
from .acting import ActionBody
from .guard import cookie_header, new_token
from .parts import PartsQuery, page
from .rendering import BASE, address, going_on, redirect
from .viewer import LOGIN_PATH, viewer_of

_ONWARD_MAX = 2000
_OWN = re.compile(rf"{BASE}(?:[/?][!#-\[\]-~]*)?")
"""A path of the console with its query: printable ASCII without a quotation mark or a backslash."""
_FOR_NOBODY = (f"{BASE}{LOGIN_PATH}", f"{BASE}/logout")
"""Pages to which no login leads on."""


class LoginForm(PartsQuery, forbid_unknown_fields=True):
    """``next``: the page that was asked for."""

    next: str = ""


class LoginBody(ActionBody, forbid_unknown_fields=True):
    """``secret``: the token by which somebody logs in."""

    secret: str = ""


class CodeQuery(PartsQuery):
    """What an issuer sends a browser back with (RFC 6749, 4.1.2; RFC 9207)."""

    code: str = ""
    state: str = ""
    iss: str = ""
    error: str = ""


def own_page(text: str) -> str:
    """The page of this console that a text names; empty: it names none."""
    if len(text) > _ONWARD_MAX or not _OWN.fullmatch(text) or text.startswith(_FOR_NOBODY):
        return ""
    return text


async def login(call: RouteCall[Any, Any], problem: HttpError | None = None) -> Reply:
    """The page with all ways to log in."""
    scope, services = call.scope, call.services
    if services.authenticator.is_open:
        return redirect(address(""))
    # A browser says by these headers that it takes the address for one from which nobody can read.
    headers = scope["headers"]
    is_safe = scope["scheme"] == "https" or header_of(headers, b"sec-fetch-site") is not None
    is_safe = is_safe or is_loopback_host(header_of(headers, b"host") or "")
    onward = own_page(getattr(call.query, "next", ""))
    ways = {name: address(f"{LOGIN_PATH}/{name}", next=onward) for name in services.logins.issuers}
    action = address(LOGIN_PATH, next=onward)
    more = {"action": action, "ways": ways, "is_safe": is_safe}
    return await page(call, "", "login.html", {}, problem, **more)


async def log_in(call: RouteCall[LoginForm, LoginBody]) -> Reply:
    """Log in by a token. If it is not good, the form is shown again, and nobody learns why."""
    if call.services.authenticator.is_open:
        return redirect(address(""))
    try:
        cookie = await call.services.logins.by_token(call.scope, call.body.secret.strip())
    except Unauthenticated:
        return await login(call, _refused("Type it again, or ask for another one"))
    to = own_page(call.query.next) or _home(call.scope)
    return redirect(to, cookies=[cookie, cookie_header(new_token())])


async def begin(call: RouteCall[LoginForm, None]) -> Reply:
    """Lead to an issuer's own login."""
    name, onward = call.path["name"], own_page(call.query.next)
    to, cookie = await call.services.logins.begin(call.scope, name, _way_back(name), onward)
    return redirect(to, cookies=[cookie])


async def end(call: RouteCall[CodeQuery, None]) -> Reply:
    """Come back from an issuer's login, with a code."""
    name, query = call.path["name"], call.query
    answer = CodeAnswer(query.code, query.state, query.iss, query.error)
    try:
        onward, cookies = await call.services.logins.end(call.scope, name, _way_back(name), answer)
    except Unauthenticated:
        return await login(call, _refused(f"Try again from here, or ask who runs {name}"))
    to = onward or _home(call.scope)
    return going_on(to, [*cookies, cookie_header(new_token())])


async def logout(call: RouteCall[PartsQuery, ActionBody]) -> Reply:
    """End the session."""
    cookie = call.services.logins.log_out(call.scope)
    return redirect(address(LOGIN_PATH), cookies=[cookie, cookie_header(new_token())])


def _way_back(name: str) -> str:
    return f"{BASE}{LOGIN_PATH}/{name}/back"


def _home(scope: Any) -> str:
    """The first page that who has just logged in may look at."""
    return address(viewer_of(scope).home)


def _refused(remedy: str) -> HttpError:
    return from_slotwheel(Unauthenticated("nobody was logged in", remedy=remedy))
