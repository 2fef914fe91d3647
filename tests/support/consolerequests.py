"""The console's pages without a node, a socket or a browser: requests as a browser sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from slotwheel.gateway.app import GatewayApp
from slotwheel.gateway.authentication import COUNTED, RequestAuthenticator
from slotwheel.gateway.console.refusing import error_page
from slotwheel.gateway.console.table import PAGES
from slotwheel.gateway.endpoint import resources
from slotwheel.gateway.fresh import FreshAnswers
from slotwheel.gateway.jobs import Jobs
from slotwheel.gateway.logins import Logins
from slotwheel.gateway.metrics import GatewayMetrics
from slotwheel.gateway.services import OneByOne, Services
from slotwheel.gateway.sessions import BrowserSessions
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.gateway.sites import SiteGuard
from slotwheel.security.accesslog import AccessLog
from slotwheel.security.quotas import CountedConnection
from slotwheel.security.rights import Right

HOST = "127.0.0.1:8082"


class GivenClock:
    """The time that a test gives; both clocks go by it. s."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@dataclass
class PageAnswer:
    """``cookies``: the text of each header that sets one, by its name."""

    status: int
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    text: str

    @property
    def to(self) -> str:
        return self.headers.get("location", "")


class ConsoleApp:
    """The application with the console's pages alone; those that ask a node fail."""

    def __init__(self, security: Path | None, clock: GivenClock, access_log: Path | None) -> None:
        self._runner = asyncio.Runner()
        self._pool = ThreadPoolExecutor(1)
        log = AccessLog(None if access_log is None else str(access_log))
        self.sessions = BrowserSessions(clock)
        self.authenticator = RequestAuthenticator(security, log, self.sessions, clock)
        nothing = cast("Any", None)
        services = Services(
            settings=GatewaySettings(nodes=("127.0.0.1:1",)),
            client=nothing,
            policies=nothing,
            pages={},
            gatherer=nothing,
            metrics=GatewayMetrics(dict),
            pool=self._pool,
            jobs=Jobs(),
            letters=nothing,
            redrives=nothing,
            logins=Logins(self.authenticator, OneByOne(self._pool).run, clock),
            front=None,
            searcher=None,
            lookup=None,
            lookup_questions=nothing,
            fresh=FreshAnswers(),
            audit=None,
            administration=None,
            closing=nothing,
            authenticator=self.authenticator,
        )
        self.app = GatewayApp(
            {},
            resources(PAGES, services),
            services.metrics,
            SiteGuard(HOST),
            self.authenticator,
            public=[page.path for page in PAGES if page.operation.right is Right.PUBLIC],
            error_forms={"console": error_page},
            http_log=False,
        )

    def answer(self, scope: dict[str, Any], body: bytes) -> PageAnswer:
        return self._runner.run(self._answer(scope, body))

    async def _answer(self, scope: dict[str, Any], body: bytes) -> PageAnswer:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
        cookies = {v.partition("=")[0]: v for n, v in pairs if n == "set-cookie"}
        return PageAnswer(sent[0]["status"], dict(pairs), cookies, sent[1]["body"].decode())

    def close(self) -> None:
        self.authenticator.close()
        self._pool.shutdown()
        self._runner.close()


@contextmanager
def console(
    security: Path | None, clock: GivenClock, access_log: Path | None = None
) -> Iterator[ConsoleApp]:
    app = ConsoleApp(security, clock, access_log)
    try:
        yield app
    finally:
        app.close()


@dataclass
class PageBrowser:
    """Keeps cookies as a browser does. ``headers``: sent with each request; ``names``: of its
    certificate."""

    app: ConsoleApp
    headers: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    scheme: str = "http"
    host: str = HOST
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> PageAnswer:
        return self.send("GET", path, b"", headers)

    def post(self, path: str, /, **fields: str) -> PageAnswer:
        """Send a form, with the token of this console's forms, if no other is given."""
        given = {"token": self.cookies.get("slotwheel-console", ""), **fields}
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return self.send("POST", path, urlencode(given).encode(), kind)

    def log_in(self, token: str, onward: str = "") -> PageAnswer:
        """Open the page of the login, and send its form."""
        where = "/console/login" + (f"?{urlencode({'next': onward})}" if onward else "")
        shown = self.get(where)
        assert shown.status == 200, shown.text
        return self.post(where, secret=token)

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> PageAnswer:
        split = urlsplit(path)
        given = {"host": self.host, "accept": "text/html", **self.headers, **headers}
        if body:
            given["content-length"] = str(len(body))
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            COUNTED: CountedConnection(),
            "method": method,
            "path": split.path,
            "raw_path": split.path.encode(),
            "query_string": split.query.encode(),
            "root_path": "",
            "headers": [(name.replace("_", "-").encode(), v.encode()) for name, v in given.items()],
            "scheme": self.scheme,
            "client": ("192.0.2.7", 5),
            "certificate_names": self.names,
        }
        answer = self.app.answer(scope, body)
        for name, text in answer.cookies.items():
            self.cookies[name] = text.partition("=")[2].partition(";")[0]
            if "Max-Age=0" in text:
                del self.cookies[name]
        return answer
