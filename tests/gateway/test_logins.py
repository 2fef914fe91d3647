"""Logins to the console: what a session is worth, how long, and every way in that is none."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest

from slotwheel.gateway.console.login import own_page
from slotwheel.gateway.console.rendering import rendered
from slotwheel.gateway.console.viewer import Viewer
from slotwheel.gateway.endpoint import PUBLIC_BODY_BYTES_MAX
from slotwheel.gateway.logins import ATTEMPT_S
from slotwheel.gateway.sessions import (
    COOKIE,
    IDLE_S,
    LOGIN_COOKIE,
    LONGEST_S,
    OF_ONE_MAX,
    SESSIONS_MAX,
    BrowserSessions,
)
from slotwheel.gateway.v1.pending import KnownMessage
from slotwheel.security.oidc import ANSWER_BYTES_MAX, ASK_EVERY_S, LEEWAY_S
from slotwheel.security.principals import Identity, IdentityProof
from slotwheel.security.quotas import Meter
from slotwheel.security.rights import Right
from support.consolerequests import ConsoleApp, GivenClock, PageBrowser, console
from support.issuer import CLIENT_ID, CLIENT_SECRET, Issuer, unsigned
from support.rightsfile import ALL, OTHER, OTHER_PREFIX, STRANGERS, TOPIC, token_of, write_rights
from support.securing import write_private
from support.waiting import now_ms

JOBS = "/console/jobs"
"""A page that needs no node; everybody who is known may look at it."""


@dataclass
class Lab:
    """A console with a security file of ``rightsfile`` and one issuer, ``corp``."""

    clock: GivenClock
    issuer: Issuer
    folder: Path
    app: ConsoleApp = field(init=False)

    def write(self, *, table: str = "", left_out: str = "", member: str = "read") -> None:
        """``table``: further lines of the issuer's table."""
        write_rights(
            self.folder / "security.toml",
            further=f"""
"oidc:corp:ann" = ["{member}"]
[oidc.corp]
issuer = "{self.issuer.url}"
audience = "slotwheel"
client-id = "{CLIENT_ID}"
{table}""",
            left_out=left_out,
        )

    def browser(self, **more: Any) -> PageBrowser:
        return PageBrowser(self.app, **more)

    def logged_in(self, token: str = Right.READ.value) -> PageBrowser:
        browser = self.browser()
        assert browser.log_in(token_of(token)).status == 303
        return browser

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = (self.folder / "access.log").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def come_back(self, browser: PageBrowser, onward: str = JOBS) -> str:
        """Go to the issuer and log in there; the address to which it sends the browser back."""
        begun = browser.get(f"/console/login/corp?{urlencode({'next': onward})}")
        assert begun.status == 303, begun.text
        split = urlsplit(self.issuer.grant(begun.to))
        assert f"{split.scheme}://{split.netloc}" == "http://127.0.0.1:8082"
        return f"{split.path}?{split.query}"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(curve="ES256") as started:
        yield started


@pytest.fixture
def lab(issuer: Issuer, tmp_path: Path) -> Iterator[Lab]:
    issuer.user, issuer.secret, issuer.reply, issuer.answer = {}, "", None, None
    document, published = dict(issuer.document), dict(issuer.published)
    clock = GivenClock(now_ms() / 1000)
    made = Lab(clock, issuer, tmp_path)
    made.write()
    with console(tmp_path / "security.toml", clock, tmp_path / "access.log") as app:
        made.app = app
        yield made
    issuer.document, issuer.published = document, published


# By a token


def test_a_login_by_a_token_leads_to_the_page_that_was_asked_for(lab: Lab) -> None:
    browser = lab.browser()
    asked = browser.get("/console/jobs?whole=true")
    assert (asked.status, asked.to) == (
        303,
        "/console/login?next=%2Fconsole%2Fjobs%3Fwhole%3Dtrue",
    )
    shown = browser.get(asked.to)
    assert "Log in with corp" in shown.text
    assert "aria-label" not in shown.text.partition("<main")[0]  # no navigation for strangers
    done = browser.post(asked.to, secret=token_of(Right.READ.value))
    assert (done.status, done.to) == (303, "/console/jobs?whole=true")
    page = browser.get(done.to)
    assert page.status == 200
    assert "token:read" in page.text
    assert "Log out" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert lab.events("login")[-1]["principal"] == "token:read"
    assert lab.events("login")[-1]["host"] == "192.0.2.7"


def test_the_cookie_of_a_session_is_for_this_host_and_no_script(lab: Lab) -> None:
    browser = lab.browser()
    text = browser.log_in(token_of(ALL)).cookies[COOKIE]
    value, *attributes = text.partition("=")[2].split("; ")
    assert attributes == ["Path=/", "Secure", "HttpOnly", "SameSite=Strict"]
    assert len(base64.urlsafe_b64decode(value + "=")) == 32
    text = browser.get("/console/login/corp").cookies[LOGIN_COOKIE]
    attributes = ["Path=/", "Secure", "HttpOnly", "SameSite=Lax", f"Max-Age={ATTEMPT_S}"]
    assert text.partition("=")[2].split("; ")[1:] == attributes


@pytest.mark.parametrize(
    "secret", ["", " ", "x", *map(token_of, STRANGERS), "a.b.c", "é", "x" * 9000, "\x00"]
)
def test_a_token_that_proves_nothing_logs_nobody_in(lab: Lab, secret: str) -> None:
    browser = lab.browser()
    refused = browser.log_in(secret)
    assert refused.status == 401
    assert "nobody was logged in" in refused.text
    assert COOKIE not in refused.cookies
    # Nobody learns why.
    assert refused.text == browser.post("/console/login", secret="another one").text
    assert lab.events("stranger")[-1]["reason"]
    assert len(lab.app.sessions) == 0
    log = (lab.folder / "access.log").read_text()
    assert len(secret) < 3 or secret not in log


def test_a_signed_token_logs_in_until_it_ends(lab: Lab) -> None:
    browser = lab.browser()
    token = lab.issuer.token("curve", exp=int(lab.clock.now_s) + 100)
    assert browser.log_in(token).status == 303
    assert "oidc:corp:ann" in browser.get(JOBS).text
    lab.clock.now_s += 100 + LEEWAY_S + 1
    assert browser.get(JOBS).to.startswith("/console/login")


def test_the_id_is_another_one_after_each_login(lab: Lab) -> None:
    """A session that somebody planted in the browser is not the one that its user gets."""
    attacker = lab.logged_in()
    planted = attacker.cookies[COOKIE]
    browser = lab.browser(cookies={COOKIE: planted})
    assert browser.log_in(token_of(ALL)).status == 303
    first = browser.cookies[COOKIE]
    assert first != planted
    assert attacker.get(JOBS).to.startswith("/console/login")
    assert browser.log_in(token_of(ALL)).status == 303
    assert lab.browser(cookies={COOKIE: first}).get(JOBS).status == 303
    made_up = lab.browser(cookies={COOKIE: "x" * 43})
    assert made_up.log_in(token_of(ALL)).status == 303
    assert made_up.cookies[COOKIE] != "x" * 43


# What a session is worth


def test_a_session_ends_at_the_server_when_its_user_logs_out(lab: Lab) -> None:
    browser = lab.logged_in()
    kept = dict(browser.cookies)
    forged = browser.post("/console/logout", token="x" * 32)
    assert forged.status == 403
    assert browser.get("/console/logout").status == 405
    assert browser.get(JOBS).status == 200
    done = browser.post("/console/logout")
    assert (done.status, done.to) == (303, "/console/login")
    assert COOKIE not in browser.cookies
    assert lab.browser(cookies=kept).get(JOBS).status == 303
    assert [line["principal"] for line in lab.events("logout")] == ["token:read"]
    assert len(lab.app.sessions) == 0


def test_what_a_page_fetches_by_itself_keeps_no_session(lab: Lab) -> None:
    browser = lab.logged_in()
    for _ in range(3):
        lab.clock.now_s += IDLE_S - 1
        assert browser.get(JOBS).status == 200
    for _ in range(3):
        lab.clock.now_s += IDLE_S / 4
        assert browser.get(f"{JOBS}?part=jobs", hx_request="true").status == 200
    lab.clock.now_s += IDLE_S / 4 + 1
    ended = browser.get(f"{JOBS}?part=jobs", hx_request="true")
    assert (ended.status, ended.headers["hx-refresh"]) == (401, "true")
    again = browser.get(JOBS)
    assert again.to == "/console/login?next=%2Fconsole%2Fjobs"
    assert "Max-Age=0" in again.cookies[COOKIE]
    assert browser.get(f"{JOBS}?part={'x' * 9000}").to == "/console/login"
    # What was sent by a form is gone: there is no page to lead back to.
    assert lab.browser(cookies={COOKIE: "x"}).post("/console/job/stop?id=x").to == "/console/login"


def test_a_session_ends_however_busy_it_is(lab: Lab) -> None:
    browser = lab.logged_in()
    for _ in range(int(LONGEST_S / 1000)):
        lab.clock.now_s += 1000
        assert browser.get(JOBS).status == 200
    lab.clock.now_s += 1000
    assert browser.get(JOBS).status == 303


def test_whoever_loses_their_rights_is_out(lab: Lab) -> None:
    by_token = lab.logged_in(Right.OBSERVE.value)
    by_issuer = lab.browser()
    assert by_issuer.get(lab.come_back(by_issuer)).status == 200
    assert "Pending" in by_issuer.get(JOBS).text
    lab.write(member="observe")
    lab.app.authenticator.look()
    assert "Pending" not in by_issuer.get(JOBS).text  # other rights, the same session
    lab.write(left_out=Right.OBSERVE.value)
    lab.app.authenticator.look()
    assert by_token.get(JOBS).status == 303
    assert by_issuer.get(JOBS).status == 200
    lab.write(table='scopes = ["groups"]')  # another table of the issuer
    lab.app.authenticator.look()
    assert by_issuer.get(JOBS).status == 303
    assert len(lab.app.sessions) == 0
    write_private(lab.folder / "security.toml", "no TOML")
    lab.app.authenticator.look()
    assert lab.logged_in().get(JOBS).status == 200


def test_sessions_are_bounded_and_nobody_puts_out_others() -> None:
    clock = GivenClock(0)
    sessions = BrowserSessions(clock)
    proof = IdentityProof()
    others = [sessions.begin(f"token:{n}", proof) for n in range(3)]
    own = [sessions.begin("token:eve", proof) for _ in range(OF_ONE_MAX + 5)]
    assert len(sessions) == OF_ONE_MAX + 3
    alive = [sessions.recall(kept, is_use=False) is not None for kept in own]
    assert alive == [False] * 5 + [True] * OF_ONE_MAX
    assert sessions.recall(others[0], is_use=True)
    for number in range(SESSIONS_MAX - len(sessions) + 1):
        sessions.begin(f"token:further-{number}", proof)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.recall(others[0], is_use=True)
    assert not sessions.recall(others[1], is_use=True)  # which was idle for longest
    assert not sessions.recall("", is_use=True)


def test_a_session_counts_for_pages_alone(lab: Lab) -> None:
    browser = lab.logged_in(ALL)
    for path in ("/v1/status", "/topics", "/consolex", "/metrics", "/v1/messages"):
        assert browser.get(path).status == 401, path
    assert browser.get("/console/nothing").status == 404


def test_a_token_in_the_header_counts_before_a_session_and_that_before_a_certificate(
    lab: Lab,
) -> None:
    browser = lab.logged_in(Right.READ.value)
    browser.headers = {"authorization": f"Bearer {token_of(Right.OBSERVE.value)}"}
    shown = browser.get(JOBS).text
    assert "token:observe" in shown
    assert "Log out" not in shown
    browser.headers = {"authorization": "Bearer swt_unknown"}
    assert browser.get(JOBS).status == 401
    browser.headers, browser.names = {}, ("gateway.example",)
    assert "token:read" in browser.get(JOBS).text


def test_who_has_a_certificate_needs_no_login(lab: Lab) -> None:
    write_private(
        lab.folder / "security.toml",
        '[roles.r]\nobserve = true\n[members]\n"cert:ann" = ["r"]\n',
    )
    lab.app.authenticator.look()
    browser = lab.browser(names=("ann",))
    shown = browser.get(JOBS).text
    assert "cert:ann" in shown
    assert "Log out" not in shown
    assert "You are" in browser.get("/console/login").text
    browser.cookies[COOKIE] = "ended"
    assert browser.get(JOBS).to.startswith("/console/login")
    assert browser.get(JOBS).status == 200  # the cookie of the ended session is gone


def test_programs_get_401_as_before(lab: Lab) -> None:
    for accepted in ("*/*", "application/json", ""):
        answer = lab.browser().get(JOBS, accept=accepted)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    answer = lab.browser(headers={"accept": "*/*"}).post("/console/logout")
    assert answer.status == 401


def test_pages_show_what_their_reader_may_use(lab: Lab) -> None:
    shown = {
        Right.READ.value: "Pending Message Dead letters Jobs",
        Right.OBSERVE.value: "Overview Audit Jobs Node",
        Right.SCHEDULE.value: "Jobs",
        ALL: "Overview Pending Message Dead letters Audit Jobs Node",
    }
    for token, titles in shown.items():
        browser = lab.logged_in(token)
        navigation = browser.get(JOBS).text.partition("<nav")[2].partition("</nav")[0]
        for title in shown[ALL].replace("Dead letters", "Dead").split():
            assert (f">{title}" in navigation) == (title in titles.split()), (token, title)
    browser = lab.browser()
    assert browser.log_in(token_of(Right.READ.value)).to == "/console/pending"
    refused = browser.get("/console/node")
    assert refused.status == 403
    assert "not allowed: status" in refused.text
    assert "Log out" in refused.text
    denied = lab.events("denied")[-1]
    assert (denied["principal"], denied["operation"]) == ("token:read", "status")
    assert browser.post("/console/message/cancel?id=x").status == 403
    # A stranger cannot find out which pages there are.
    assert lab.browser().get("/console/nothing").to.startswith("/console/login")


def test_without_a_security_file_there_is_nothing_to_log_in_to(tmp_path: Path) -> None:
    with console(None, GivenClock(0)) as app:
        browser = PageBrowser(app)
        assert browser.get("/console/login").to == "/console"
        assert browser.get("/console/login/corp").status == 404
        shown = browser.get(JOBS).text
        assert "Log out" not in shown
        assert "local" not in shown
        assert browser.post("/console/login", secret="x").to == "/console"
        assert browser.post("/console/logout").to == "/console/login"


def test_an_address_without_tls_has_no_form(lab: Lab) -> None:
    """A browser keeps no session there, and others could read the token."""
    lab.app.app.guard = type("Any", (), {"check": lambda *_: None})()
    far = lab.browser(host="10.0.0.7:8082")
    assert "Nobody can log in at this address" in far.get("/console/login").text
    for safe in (lab.browser(host="10.0.0.7", scheme="https"), lab.browser(host="localhost:1")):
        assert "f-secret" in safe.get("/console/login").text
    # Behind a proxy with TLS; browsers send that header to no address without.
    assert "f-secret" in far.get("/console/login", sec_fetch_site="none").text


OWN = ("/console", "/console/", "/console/job?id=x&y=%2F", "/console?part=x")
FOREIGN = (
    *("//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil", "/v1/messages", "/"),
    *(
        "",
        "console",
        "/consolex",
        "/console\\..\\evil",
        "/console\nx",
        "/console é",
        "javascript:x",
    ),
    *(" /console", "/console/login", "/console/login?next=/console", "/console/logout", "/docs"),
    *("/console/" + "x" * 2000, '/console/"', "/console/\x00", "https:/console", "///console"),
)


def test_a_login_leads_to_no_other_page(lab: Lab) -> None:
    assert [own_page(text) for text in OWN] == list(OWN)
    assert [own_page(text) for text in FOREIGN] == [""] * len(FOREIGN)
    for onward in ("//evil.example", "https://evil.example/console"):
        browser = lab.browser()
        assert browser.log_in(token_of(Right.READ.value), onward).to == "/console/pending"
        browser = lab.browser()
        back = browser.get(lab.come_back(browser, onward))
        assert 'url=/console/pending"' in back.text


def test_forms_need_the_token_of_this_browser(lab: Lab) -> None:
    browser = lab.browser()
    token = {"secret": token_of(ALL)}
    assert browser.post("/console/login", **token).status == 403  # without a page of ours
    browser.get("/console/login")
    assert browser.post("/console/login", token="x" * 32, **token).status == 403
    before = browser.cookies["slotwheel-console"]
    assert browser.post("/console/login", **token).status == 303
    assert browser.cookies["slotwheel-console"] != before
    foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    browser.headers = foreign
    assert browser.post("/console/login", **token).status == 403


def test_a_stranger_sends_little(lab: Lab) -> None:
    browser = lab.browser()
    browser.get("/console/login")
    refused = browser.post("/console/login", secret="x" * PUBLIC_BODY_BYTES_MAX)
    assert refused.status == 413
    fine = browser.post("/console/login", secret="x" * (PUBLIC_BODY_BYTES_MAX - 100))
    assert fine.status == 401


def test_a_link_from_elsewhere_is_asked_for_again_from_here(lab: Lab) -> None:
    """The cookie of a session is not sent with it, and its reader would be a stranger."""
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    link["sec_fetch_dest"] = "document"
    path = "/console/message?id=a&done=%22%3E%3Cscript%3E"
    followed = lab.browser().get(path, **link)
    assert followed.status == 200
    assert f'url={path.replace("&", "&amp;")}"' in followed.text
    assert lab.browser().get(path, sec_fetch_site="same-origin").status == 303
    ended = lab.browser(cookies={COOKIE: "ended"})
    assert ended.get(path, **link).status == 303


# By an issuer


def test_a_login_by_an_issuer(lab: Lab) -> None:
    browser = lab.browser()
    begun = browser.get("/console/login/corp?next=%2Fconsole%2Fjobs")
    asked = dict(parse_qsl(urlsplit(begun.to).query))
    assert begun.to.startswith(f"{lab.issuer.url}/authorize?")
    assert asked["redirect_uri"] == "http://127.0.0.1:8082/console/login/corp/back"
    assert asked["scope"] == "openid"
    # Nothing of what the browser has gives the verifier or the nonce of another login away.
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    split = urlsplit(lab.issuer.grant(begun.to))
    done = browser.get(
        f"{split.path}?{split.query}",
        sec_fetch_site="cross-site",
        sec_fetch_mode="navigate",
        sec_fetch_dest="document",
    )
    assert done.status == 200, done.text
    assert 'http-equiv="refresh" content="0; url=/console/jobs"' in done.text
    assert LOGIN_COOKIE not in browser.cookies
    assert "oidc:corp:ann" in browser.get(JOBS).text
    assert lab.events("login")[-1]["principal"] == "oidc:corp:ann"
    assert "code_verifier" in lab.issuer.redeemed[-1]
    assert lab.issuer.redeemed[-1]["code_verifier"] not in begun.to


def test_a_login_by_an_issuer_ends_with_its_token(lab: Lab) -> None:
    browser = lab.browser()
    lab.issuer.user = {"exp": int(lab.clock.now_s) + 300, "groups": ["ops"]}
    assert browser.get(lab.come_back(browser)).status == 200
    lab.clock.now_s += 300 + LEEWAY_S - 2
    assert browser.get(JOBS).status == 200
    lab.clock.now_s += 3
    assert browser.get(JOBS).status == 303


def test_the_console_proves_itself_by_its_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the way that the issuer takes; a changed secret counts without a restart."""
    path = write_private(lab.folder / "client.secret", "wrong\n")
    lab.write(table=f'client-secret = "file:{path}"\nscopes = ["groups", "profile"]')
    lab.app.authenticator.look()
    lab.issuer.secret = CLIENT_SECRET
    browser = lab.browser()
    assert browser.get(lab.come_back(browser)).status == 401
    assert "invalid_client" in lab.events("stranger")[-1]["reason"]
    write_private(path, f"{CLIENT_SECRET}\n")
    assert browser.get(lab.come_back(browser)).status == 200
    assert "client_secret" not in lab.issuer.redeemed[-1]  # in the header
    begun = browser.get("/console/login/corp")
    assert parse_qs(urlsplit(begun.to).query)["scope"] == ["openid groups profile"]
    lab.issuer.document["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    lab.write(table=f'client-secret = "file:{path}"')
    lab.app.authenticator.look()
    assert browser.get(lab.come_back(browser)).status == 200
    assert lab.issuer.redeemed[-1]["client_secret"] == CLIENT_SECRET
    path.unlink()
    assert browser.get(lab.come_back(browser)).status == 401
    monkeypatch.setenv("CONSOLE_SECRET", CLIENT_SECRET)
    lab.write(table='client-secret = "env:CONSOLE_SECRET"')
    lab.app.authenticator.look()
    assert browser.get(lab.come_back(browser)).status == 200
    assert CLIENT_SECRET not in (lab.folder / "access.log").read_text()


BAD_CLAIMS: dict[str, dict[str, Any]] = {
    "wrong nonce": {"nonce": "x"},
    "no nonce": {"nonce": None},
    "nonce number": {"nonce": 7},
    "for programs": {"aud": "slotwheel"},
    "for another client": {"aud": "another"},
    "azp": {"azp": "another"},
    "several without azp": {"aud": [CLIENT_ID, "another"]},
    "expired": {"exp": 1_000_000_000},
    "no exp": {"exp": None},
    "no sub": {"sub": None},
    "iss": {"iss": "https://elsewhere.example"},
    "no member": {"sub": "eve"},
    "a group as user": {"sub": "group:ops"},
}


@pytest.mark.parametrize("claims", BAD_CLAIMS.values(), ids=BAD_CLAIMS)
def test_a_bad_id_token_logs_nobody_in(lab: Lab, claims: dict[str, Any]) -> None:
    browser = lab.browser()
    lab.issuer.user = claims
    refused = browser.get(lab.come_back(browser))
    assert refused.status == 401
    assert "nobody was logged in" in refused.text
    assert COOKIE not in refused.cookies
    assert lab.events("stranger")[-1]["reason"] not in refused.text
    assert len(lab.app.sessions) == 0


def test_azp_of_this_client_is_fine(lab: Lab) -> None:
    lab.issuer.user = {"aud": [CLIENT_ID, "another"], "azp": CLIENT_ID}
    browser = lab.browser()
    assert browser.get(lab.come_back(browser)).status == 200


def test_the_id_token_of_a_login_is_no_token_for_programs(lab: Lab) -> None:
    token = lab.issuer.token("curve", aud=CLIENT_ID, nonce="x")
    assert lab.browser().log_in(token).status == 401


def changed(address: str, **fields: str | None) -> str:
    """An address with other parameters; None: without that one."""
    split = urlsplit(address)
    query = {**dict(parse_qsl(split.query)), **fields}
    kept = {name: value for name, value in query.items() if value is not None}
    return f"{split.path}?{urlencode(kept)}"


BAD_ENDS: dict[str, dict[str, str | None]] = {
    "other state": {"state": "x"},
    "no state": {"state": None},
    "empty state": {"state": ""},
    "odd state": {"state": "é"},
    "other code": {"code": "x"},
    "no code": {"code": None},
    "long code": {"code": "x" * 5000},
    "other issuer": {"iss": "https://elsewhere.example"},
    "refused": {"error": "access_denied", "code": None},
    "refused with a code": {"error": "access_denied"},
}


@pytest.mark.parametrize("fields", BAD_ENDS.values(), ids=BAD_ENDS)
def test_a_bad_end_of_a_login_logs_nobody_in(lab: Lab, fields: dict[str, str | None]) -> None:
    browser = lab.browser()
    refused = browser.get(changed(lab.come_back(browser), **fields))
    assert refused.status == 401
    assert COOKIE not in refused.cookies
    assert "access_denied" not in refused.text


def test_a_login_ends_once_in_its_browser_and_in_time(lab: Lab) -> None:
    browser = lab.browser()
    back = lab.come_back(browser)
    cookie = browser.cookies[LOGIN_COOKIE]
    assert lab.browser().get(back).status == 401  # another browser
    for forged in (cookie[:-1] + "0", "x." + cookie.partition(".")[2], ".", "é", cookie + "."):
        if forged != cookie:
            assert lab.browser(cookies={LOGIN_COOKIE: forged}).get(back).status == 401
    assert browser.get(back).status == 200
    redeemed = len(lab.issuer.redeemed)
    again = lab.browser(cookies={LOGIN_COOKIE: cookie})
    assert again.get(back).status == 401
    assert len(lab.issuer.redeemed) == redeemed
    # The code of one login in another one: the issuer refuses it by its verifier.
    stolen, own = lab.come_back(lab.browser()), lab.browser()
    code = parse_qs(urlsplit(stolen).query)["code"][0]
    assert own.get(changed(lab.come_back(own), code=code)).status == 401
    late = lab.browser()
    back = lab.come_back(late)
    lab.clock.now_s += ATTEMPT_S
    assert late.get(back).status == 401


def test_a_login_ends_at_the_issuer_where_it_began(lab: Lab) -> None:
    with Issuer(curve="ES256") as other:
        lab.write(
            table=f"""
[oidc.other]
issuer = "{other.url}"
audience = "slotwheel"
client-id = "{CLIENT_ID}"
[oidc.programs]
issuer = "{other.url}/programs"
audience = "slotwheel"
"""
        )
        lab.app.authenticator.look()
        browser = lab.browser()
        back = lab.come_back(browser).replace("/corp/", "/other/")
        assert browser.get(back).status == 401
        assert other.redeemed == []
        assert browser.get("/console/login/programs").status == 404
        assert browser.get("/console/login/nobody/back?code=x").status == 404
        assert "Log in with programs" not in browser.get("/console/login").text


BAD_DOCUMENTS: dict[str, dict[str, Any]] = {
    "another issuer": {"issuer": "https://elsewhere.example"},
    "plain": {"authorization_endpoint": "http://elsewhere.example/login"},
    "script": {"authorization_endpoint": "javascript:alert(1)"},
    "file": {"authorization_endpoint": "file:///etc/passwd"},
    "number": {"authorization_endpoint": 7},
    "missing": {"authorization_endpoint": None},
    "a header more": {"authorization_endpoint": "https://x.example/\r\nset-cookie: x=y"},
}


@pytest.mark.parametrize("fields", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_a_bad_discovery_document_leads_nowhere(lab: Lab, fields: dict[str, Any]) -> None:
    lab.issuer.document |= fields
    refused = lab.browser().get("/console/login/corp")
    assert refused.status == 503
    assert refused.to == ""
    assert lab.events("stranger")[-1]["reason"] not in refused.text


BAD_ANSWERS: dict[str, tuple[int, bytes]] = {
    "error": (500, b""),
    "redirect": (302, b"http://127.0.0.1:1/token"),
    "no json": (200, b"<html>"),
    "list": (200, b"[]"),
    "none": (200, b"{}"),
    "number": (200, b'{"id_token": 7}'),
    "no token": (200, b'{"id_token": "a.b.c"}'),
    "deep": (200, b"[" * 100_000),
    "long": (200, json.dumps({"id_token": "x" * 70_000}).encode()),
    "large": (200, b" " * (ANSWER_BYTES_MAX + 1)),
    "error of another form": (400, b'{"error": 7}'),
}


@pytest.mark.parametrize("reply", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_a_bad_answer_to_a_code_logs_nobody_in(lab: Lab, reply: tuple[int, bytes]) -> None:
    browser = lab.browser()
    back = lab.come_back(browser)
    lab.issuer.reply = reply
    assert browser.get(back).status == 401
    assert "corp" in lab.events("stranger")[-1]["reason"] or reply[1] == BAD_ANSWERS["no token"][1]


@pytest.mark.parametrize("answer", [(200, b"[" * 100_000), (200, b" " * (ANSWER_BYTES_MAX + 1))])
def test_an_issuer_is_asked_again_after_a_while(lab: Lab, answer: tuple[int, bytes]) -> None:
    lab.issuer.answer = answer
    monotonic = GivenClock(0)
    lab.app.authenticator.logins._monotonic = monotonic
    browser, asked = lab.browser(), lab.issuer.asked
    for _ in range(5):
        assert browser.get("/console/login/corp").status == 503
    assert lab.issuer.asked == asked + 1
    lab.issuer.answer = None
    monotonic.now_s = ASK_EVERY_S
    for _ in range(5):
        assert browser.get("/console/login/corp").status == 303
    assert lab.issuer.asked == asked + 2


def test_tokens_of_unknown_keys_and_of_none_log_nobody_in(lab: Lab) -> None:
    browser = lab.browser()
    for header in ({"alg": "none", "kid": "curve"}, {"alg": "ES256", "kid": "unknown"}):
        asked = browser.get("/console/login/corp")
        nonce = parse_qs(urlsplit(asked.to).query)["nonce"][0]
        split = urlsplit(lab.issuer.grant(asked.to))
        claims = lab.issuer.claims(aud=CLIENT_ID, nonce=nonce)
        token = unsigned(header, claims, b"x" * 64)
        lab.issuer.reply = 200, json.dumps({"id_token": token}).encode()
        assert browser.get(f"{split.path}?{split.query}").status == 401


@pytest.mark.parametrize("template", ["known", "confirm_cancel", "confirm_move"])
def test_messages_of_topics_of_others_have_no_buttons(lab: Lab, template: str) -> None:
    """A role may cancel messages of its own topics, and read others."""
    security = lab.app.authenticator.security
    assert security is not None
    viewers = {
        token: Viewer(Identity(("x",), security.rights_of([f"token:{token}"]), Meter("x")))
        for token in (Right.CANCEL.value, OTHER_PREFIX, Right.READ.value)
    }
    seen = {
        (token, topic)
        for token, viewer in viewers.items()
        for topic in (TOPIC, OTHER)
        if "<form"
        in rendered(
            f"message/{template}.html",
            it=KnownMessage("id", "pending", "why", 1, None, None, topic, None),
            viewer=viewer,
            action="/console",
            token="x",
            due_ms=1,
        )
    }
    assert seen == {(Right.CANCEL.value, TOPIC), (OTHER_PREFIX, OTHER)}
