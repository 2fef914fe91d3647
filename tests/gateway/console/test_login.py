"""Logins in a real Chromium: its cookies, what each role sees, and how a login ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from slotwheel import Client, Message
from slotwheel.gateway.sessions import COOKIE, IDLE_S, LOGIN_COOKIE
from slotwheel.gateway.settings import GatewaySettings
from slotwheel.security.rights import Right
from support.browsing import check_readable, settle
from support.certificates import Authority
from support.consolerequests import GivenClock
from support.issuer import CLIENT_ID, Issuer
from support.nodeprocess import NodeProcess
from support.rightsfile import ALL, TOPIC, token_of, write_rights
from support.servedgateway import served_gateway


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(curve="ES256") as started:
        yield started


@pytest.fixture(scope="module")
def security(folder: Path, issuer: Issuer) -> Path:
    table = f"""
"oidc:corp:ann" = ["{ALL}"]
[oidc.corp]
issuer = "{issuer.url}"
audience = "slotwheel"
client-id = "{CLIENT_ID}"
"""
    return write_rights(folder / "security.toml", further=table)


@pytest.fixture(scope="module")
def clock() -> GivenClock:
    return GivenClock(0)


@pytest.fixture(scope="module")
def site(folder: Path, security: Path, clock: GivenClock) -> Iterator[str]:
    """The address of a gateway without TLS. The issuer's is another site: one is called
    ``localhost``, and the other by its number."""
    with NodeProcess(folder / "data") as node:
        with Client(node.address) as client:
            client.send(Message(TOPIC, b"x", delay=3_600))
        settings = GatewaySettings(
            listen="127.0.0.1:0", nodes=(node.address,), data=node.data, security=security
        )
        with served_gateway(settings, clock) as port:
            yield f"http://localhost:{port}"
        node.signal()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(ignore_https_errors=True)
    yield made
    made.close()


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token_of(token))
    page.get_by_role("button", name="Log in with a token").click()


def check_cookie(context: BrowserContext, host: str) -> None:
    (cookie,) = [kept for kept in context.cookies() if kept["name"] == COOKIE]
    assert cookie["domain"] == host  # of this host alone, none below it
    assert cookie["path"] == "/"
    assert cookie["secure"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert cookie["expires"] == -1


def test_a_login_by_a_token_and_its_end(context: BrowserContext, site: str) -> None:
    page = context.new_page()
    asked = f"{site}/console/pending?topic={TOPIC}"
    page.goto(asked)
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    expect(page.get_by_role("navigation")).to_have_count(0)
    check_readable(page)
    log_in(page, "unknown")
    expect(page.get_by_role("alert")).to_contain_text("nobody was logged in")
    log_in(page, ALL)
    page.wait_for_url(asked)
    settle(page)
    expect(page.locator(".who")).to_contain_text("token:all")
    expect(page.locator("#part-count")).to_contain_text("Cancel it…")
    check_readable(page)
    check_cookie(context, "localhost")
    assert page.evaluate("document.cookie") == ""
    kept = context.cookies()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{site}/console/login")
    assert COOKIE not in [cookie["name"] for cookie in context.cookies()]
    context.add_cookies([{**cookie, "url": None} for cookie in kept])
    page.goto(asked)
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_a_role_has_its_buttons_and_no_others(context: BrowserContext, site: str) -> None:
    page = context.new_page()
    page.goto(site)
    log_in(page, Right.READ.value)
    page.wait_for_url(f"{site}/console/pending")
    settle(page)
    expect(page.locator("nav a")).to_have_text(
        ["Pending", "Message", "Schedules", "Dead letters", "Jobs"]
    )
    expect(page.locator("#part-count")).to_contain_text("1 message waits")
    expect(page.locator("#part-count a")).to_have_count(0)
    page.locator("#part-rows tbody a").click()
    settle(page)
    expect(page.locator("#part-known")).to_contain_text("pending")
    expect(page.get_by_text("Change it")).to_have_count(0)
    token = page.locator("input[name=token]").first.input_value()
    status = page.evaluate(
        """async (token) => (await fetch('/console/pending/cancel?topic=orders', {
             method: 'POST', headers: {'Content-Type': 'application/x-www-form-urlencoded'},
             body: new URLSearchParams({token, shown: 1, typed: 1})})).status""",
        token,
    )
    assert status == 403
    page.goto(f"{site}/console/node")
    expect(page.get_by_role("alert")).to_contain_text("not allowed: status")


def test_a_page_that_stays_open_leads_to_the_login_when_its_session_ends(
    context: BrowserContext, site: str, clock: GivenClock
) -> None:
    page = context.new_page()
    page.goto(f"{site}/console/jobs")
    log_in(page, Right.OBSERVE.value)
    page.wait_for_url(f"{site}/console/jobs")
    clock.now_s += IDLE_S
    page.evaluate("htmx.trigger(document.body, 'tick')")
    page.wait_for_url(f"{site}/console/login?next=%2Fconsole%2Fjobs")
    log_in(page, Right.OBSERVE.value)
    page.wait_for_url(f"{site}/console/jobs")


def test_a_login_by_an_issuer_of_another_site(
    context: BrowserContext, site: str, issuer: Issuer
) -> None:
    page = context.new_page()
    asked = f"{site}/console/pending?topic={TOPIC}"
    page.goto(asked)
    page.get_by_role("link", name="Log in with corp").click()
    page.wait_for_url(f"{issuer.url}/authorize?**")
    (cookie,) = [kept for kept in context.cookies(site) if kept["name"] == LOGIN_COOKIE]
    assert (cookie["sameSite"], cookie["secure"], cookie["httpOnly"]) == ("Lax", True, True)
    page.get_by_role("link", name="I am ann").click()
    page.wait_for_url(asked)
    expect(page.locator(".who")).to_contain_text("oidc:corp:ann")
    check_cookie(context, "localhost")
    assert LOGIN_COOKIE not in [cookie["name"] for cookie in context.cookies(site)]
    # The cookie is not sent with a link of another site; its reader stays logged in.
    page.goto(f"{issuer.url}/keys")
    page.evaluate(f"location.href = '{site}/console/message?id={quote('a b')}'")
    page.wait_for_url(f"{site}/console/message?id=a%20b")
    expect(page.locator(".who")).to_contain_text("oidc:corp:ann")


def test_a_login_with_tls(context: BrowserContext, security: Path, folder: Path) -> None:
    files = Authority(folder / "authority").issue("127.0.0.1", "localhost")
    settings = GatewaySettings(
        listen="127.0.0.1:0",
        nodes=("127.0.0.1:1",),
        security=security,
        tls_cert=Path(files.cert or ""),
        tls_key=Path(files.key or ""),
    )
    with served_gateway(settings, GivenClock(0)) as port:
        page = context.new_page()
        shown = page.goto(f"https://127.0.0.1:{port}/console/jobs")
        assert shown is not None
        assert shown.headers["strict-transport-security"] == "max-age=31536000"
        assert shown.headers["cache-control"] == "no-store"
        log_in(page, Right.OBSERVE.value)
        expect(page.locator(".who")).to_contain_text("token:observe")
        check_cookie(context, "127.0.0.1")
