"""Templates, and the replies that are made of them.

Rules
- Whatever goes into a template is escaped there, but for ``Markup``, which ``shown`` makes of parts
  that it has escaped.
- Characters that nobody would see in a text are written out (``visible_text``): otherwise a key
  that looks like another one, with a mark of direction or a blank more, would be cancelled in its
  place. Fields have text in this form, too, and what comes from them is read back (``acting``).
- No page has a script or a style in its text, and none takes anything from another host: the
  policy in its headers forbids both, so that what is planted in a message stays text even if
  escaping fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ...client.message import clock_ms
from ...wheel.texts import span_text, visible_text
from ..authentication import CONSOLE
from ..front.front import ASKED_WHEEL, WHEEL
from ..requests import Reply
from . import shown

HTML = "text/html; charset=utf-8"
BASE = CONSOLE
_HERE = Path(__file__).parent
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
STATIC = {
    file.name: (file.read_bytes(), _KINDS[file.suffix])
    for file in sorted((_HERE / "static").rglob("*.*"))
}
"""Bytes and media type of each file that pages use, by its name."""
_VERSIONS = {name: hashlib.sha256(data).hexdigest()[:12] for name, (data, _) in STATIC.items()}

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_NO_STORE = b"cache-control", b"no-store"
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # A page's address has what was searched for; with `no-referrer` forms would lose their origin.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def address(path: str, **query: Any) -> str:
    """The address of a page; what is None, empty or false is left out of the query. It is about the
    wheel that the present page is about."""
    if wheel := ASKED_WHEEL.get():
        query = {WHEEL: wheel, **query}
    given = {
        name: "true" if value is True else _as_typed(value)
        for name, value in query.items()
        if value not in (None, "", False) or type(value) is int
    }
    return BASE + path + (f"?{urlencode(given)}" if given else "")


def kept_fields() -> Markup:
    """What a form that only asks has to send along: its browser drops the query of its address."""
    wheel = ASKED_WHEEL.get()
    field = Markup('<input type="hidden" name="{}" value="{}">').format(WHEEL, wheel)
    return field if wheel else Markup()


def _as_typed(value: Any) -> Any:
    """The value so that ``typed_text`` gives it back. Characters that nobody sees stay as they are,
    for an address can hold them."""
    return value.replace("\\u{", "\\u{5c}u{") if type(value) is str else value


def _visible(value: Any) -> Any:
    return visible_text(value) if type(value) is str else value


def static_address(name: str) -> str:
    """The address of a file with its version, so that a browser may keep it for ever."""
    return f"{BASE}/static/{name}?v={_VERSIONS[name]}"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_visible,
    )
    environment.filters |= {
        "number": shown.number,
        "size": shown.size,
        "span": span_text,
        "seconds": shown.seconds,
        "time": shown.time_element,
        "plain": shown.plain,
        "measured": shown.measured,
        "iso": shown.iso,
        "content": shown.content,
        "header_value": shown.header_value,
        "json": json.dumps,
        "as_json": shown.as_json,
        "as_written": escape,
    }
    environment.globals |= {
        "address": address,
        "kept_fields": kept_fields,
        "static": static_address,
        "now_ms": clock_ms,
        "zip": zip,
    }
    return environment


_ENVIRONMENT = _environment()


def rendered(template: str, **values: Any) -> Markup:
    return Markup(_ENVIRONMENT.get_template(template).render(**values))  # noqa: S704


def page_reply(text: Markup, status: int = 200, *more: tuple[bytes, bytes]) -> Reply:
    return Reply(status, text.encode(), HTML, [*HEADERS, _NO_STORE, *more])


def redirect(to: str, status: int = 303, cookies: Iterable[tuple[bytes, bytes]] = ()) -> Reply:
    """``to``: as ``address`` makes it."""
    headers = [*HEADERS, _NO_STORE, (b"location", to.encode("ascii")), *cookies]
    return Reply(status, b"", HTML, headers)


def going_on(to: str, cookies: Iterable[tuple[bytes, bytes]] = ()) -> Reply:
    """A page that goes on to another one of this console by itself, so that the browser asks for
    that one as this site, and sends its cookies along. ``to``: as ``address`` makes it."""
    return page_reply(rendered("going_on.html", to=to), 200, *cookies)
