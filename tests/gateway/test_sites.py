"""Requests for a name that somebody outside could have, and those of pages of other sites."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.sites import SiteGuard
from support.gatewayprocess import GatewayProcess
from support.nodeprocess import NodeProcess

LOOPBACK = (
    *("localhost", "LOCALHOST:8082", "a.localhost", "127.0.0.1:1", "127.9.9.9", "[::1]:8082"),
    *("localhost.", "localhost.:8082", "[::1]", "localhost:"),
)
NEAR = ("10.0.0.7:8082", "[fe80::1]:8082", "gateway:8082", "g.local", "g.jobs.svc", "g.internal.")
FOREIGN = (
    *("evil.example", "evil.example:8082", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("evil-localhost.example", "xlocalhost.example", "1.2.3.4.example", "[::1].example"),
)
BROKEN = (
    "",
    ":8082",
    "a b.example",
    "localhost@evil.example",
    "[::1",
    "::1",
    "[x]",
    "a..",
    "é.local",
)


def status(
    guard: SiteGuard, method: str = "GET", path: str = "/v1/dead", **headers: str | None
) -> int:
    """What these headers get; 200: they get to a route. Names with ``_`` for ``-``."""
    given = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, value in headers.items()
        if value is not None
    ]
    try:
        guard.check({"method": method, "path": path, "headers": given})
    except HttpError as error:
        return error.status
    return 200


def hosts(guard: SiteGuard, names: tuple[str, ...]) -> set[int]:
    """Asked twice: what is remembered gets the same answer."""
    return {status(guard, host=one) for one in names + names}


@pytest.mark.parametrize("listen", ["127.0.0.1:8082", "localhost:0", "[::1]:8082"])
def test_on_loopback_only_its_names_are_taken(listen: str) -> None:
    guard = SiteGuard(listen)
    assert hosts(guard, LOOPBACK) == {200}
    assert hosts(guard, NEAR + FOREIGN + BROKEN + ("x", "0.0.0.0:8082")) == {421}
    assert status(guard, host=None) == 200


@pytest.mark.parametrize("listen", ["0.0.0.0:8082", "[::]:8082", "10.0.0.7:8082", "g1.example:1"])
def test_elsewhere_names_that_nobody_outside_can_have_are_taken(listen: str) -> None:
    guard = SiteGuard(listen)
    own = (socket.gethostname(), listen)
    assert hosts(guard, LOOPBACK + NEAR + own) == {200}
    assert hosts(guard, FOREIGN + BROKEN) == {421}


def test_further_names_are_taken_exactly_or_by_what_they_end_with() -> None:
    guard = SiteGuard("127.0.0.1:8082", ("Wheel.example.com", "*.corp.example"))
    given = ("wheel.example.com", "WHEEL.example.com.:443", "a.corp.example", "a.b.corp.example:1")
    assert hosts(guard, given) == {200}
    others = (
        "example.com",
        "a.wheel.example.com",
        "corp.example",
        "xcorp.example",
        "*.corp.example",
    )
    assert hosts(guard, others) == {421}


def test_the_refusal_names_the_host_what_is_allowed_and_the_option() -> None:
    with pytest.raises(HttpError) as caught:
        SiteGuard("127.0.0.1:8082", ("wheel.example",)).check(
            {"method": "GET", "headers": [(b"host", b"evil.example")]}
        )
    error = caught.value
    assert (error.status, error.place, error.got) == (421, "header Host", "evil.example")
    assert error.limit == "localhost, *.localhost, 127.0.0.0/8, [::1], wheel.example"
    assert "--http-name" in error.remedy


def test_however_many_names_are_asked_for_few_are_remembered() -> None:
    guard = SiteGuard("127.0.0.1:8082")
    names = tuple(f"a{n}.localhost" for n in range(5_000))
    assert hosts(guard, names) == {200}
    assert len(guard._names._known) <= 1_001


HERE = "127.0.0.1:8082"
PAGE = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.mark.parametrize(
    ("method", "headers", "expected"),
    [
        ("GET", {}, 200),
        ("GET", {"sec_fetch_mode": "cors"}, 200),  # a program that sends this alone
        ("GET", {"sec_fetch_site": "same-origin", "sec_fetch_dest": "empty"}, 200),
        ("GET", {"sec_fetch_site": "none", **PAGE}, 200),
        ("GET", {"sec_fetch_site": "cross-site", **PAGE}, 200),
        ("HEAD", {"sec_fetch_site": "same-site", **PAGE}, 200),
        ("GET", {"sec_fetch_site": "cross-site", **PAGE, "sec_purpose": "prefetch"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", **PAGE, "sec_fetch_dest": "iframe"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", **PAGE, "sec_fetch_dest": "object"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", **PAGE, "sec_fetch_dest": "embed"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_dest": "document"}, 403),
        ("GET", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ("GET", {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors"}, 403),
        ("GET", {"sec_fetch_site": "cross-site"}, 403),
        ("GET", {"origin": "http://evil.example"}, 403),
        ("GET", {"origin": f"http://{HERE}"}, 200),
        ("POST", {"sec_fetch_site": "same-origin", "origin": f"http://{HERE}"}, 200),
        ("POST", {"sec_fetch_site": "cross-site", **PAGE}, 403),
        ("POST", {"sec_fetch_site": "none", **PAGE}, 403),
        # The page of a proxy, which gives the gateway a ``Host`` of its own.
        ("POST", {"sec_fetch_site": "same-origin", "origin": "https://jobs.example"}, 200),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "http://127.0.0.1:9999"}, 403),
        ("OPTIONS", {"origin": "http://evil.example"}, 403),
        ("DELETE", {"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_site_gets_nothing_but_a_link_that_is_followed(
    method: str, headers: dict[str, str], expected: int
) -> None:
    assert status(SiteGuard(HERE), method, host=HERE, **headers) == expected


def test_no_link_moves_a_consumer() -> None:
    path = "/consumers/g/instances/i/records"
    guard = SiteGuard(HERE)
    assert status(guard, path=path, host=HERE, sec_fetch_site="cross-site", **PAGE) == 403
    assert status(guard, path=path, host=HERE, sec_fetch_site="none", **PAGE) == 200


def test_an_origin_without_a_host_is_foreign() -> None:
    assert status(SiteGuard(HERE), origin=f"http://{HERE}") == 403


PATHS = [
    ("GET", "/console"),
    ("GET", "/console/dead?topic=any"),
    ("GET", "/v1/dead?topic=any"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/cancel"),
    ("POST", "/topics/t"),
    ("POST", "/consumers/g"),
    ("POST", "/consumers/g/instances/i/positions/end"),
    ("POST", "/consumers/g/instances/i/offsets"),
    ("GET", "/consumers/g/instances/i/records"),
    ("GET", "/metrics"),
    ("GET", "/nothing"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_path_is_guarded(gateway: GatewayProcess, method: str, path: str) -> None:
    def asked(**headers: str) -> Any:
        return gateway.request(method, path, headers={"Accept": "*/*", **headers})

    rebound = asked(Host="evil.example")
    assert rebound.status_code == 421, rebound.text
    assert "evil.example" in rebound.text
    assert asked(**{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert asked(Origin="http://evil.example").status_code == 403
    assert asked().status_code not in (403, 421)
    with gateway.connect() as one:
        one.sendall(
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n".encode()
        )
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_a_request_without_a_host_is_taken(gateway: GatewayProcess) -> None:
    with gateway.connect() as one:
        one.sendall(b"GET /v1/levels HTTP/1.0\r\n\r\n")
        assert b" 200 OK" in one.recv(1 << 16)


def test_names_are_given_by_an_option(node: NodeProcess) -> None:
    names = ("--http-name", "wheel.example", "--http-name", "*.corp.example")
    with GatewayProcess(node, *names, beside=False) as gateway:
        for host, expected in (
            ("wheel.example:8082", 200),
            ("a.corp.example", 200),
            ("evil.example", 421),
        ):
            assert (
                gateway.request("GET", "/v1/levels", headers={"Host": host}).status_code == expected
            )
