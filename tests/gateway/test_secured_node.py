"""A node with TLS, a security file and a gateway beside it: each proves itself to the other."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx
import pytest

from slotwheel import Client, Tls
from support.certificates import Authority
from support.gatewayprocess import NodeWithGateway
from support.rightsfile import ALL, TOPIC, bearer, token_of, write_rights
from support.securing import write_private


@pytest.fixture(scope="module")
def node(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeWithGateway]:
    folder = tmp_path_factory.mktemp("secured")
    files = authority.issue("127.0.0.1", "localhost")
    token = write_private(folder / "gateway.token", token_of("gateway"))
    log = folder / "access.log"
    options = [
        *("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca)),
        *("--security", str(write_rights(folder / "security.toml"))),
        *("--token-file", str(token), "--access-log", str(log)),
    ]
    with NodeWithGateway(folder / "data", *options) as started:
        yield started
        started.signal()


def test_a_message_goes_through_both(node: NodeWithGateway, authority: Authority) -> None:
    url = node.url.replace("http://", "https://")
    verify = ssl.create_default_context(cafile=authority.ca)
    with httpx.Client(base_url=url, verify=verify, headers=bearer(ALL), timeout=60) as http:
        body = {"topic": TOPIC, "value": "x", "delay_ms": 60_000}
        stored = http.post("/v1/messages", json=body)
        assert stored.status_code == 201, stored.text
        assert http.get("/v1/status").status_code == 200
        assert http.get("/v1/messages/count").json()["messages"] == 1
        assert http.get("/readyz").status_code == 200
        with Client(
            f"tls://{node.address}",
            tls=Tls(ca=authority.ca),
            token=f"file:{write_private(node.data.with_name('all.token'), token_of(ALL))}",
        ) as client:
            assert client.cancel(stored.json()["id"]) == ["cancelled"]
        assert http.get("/v1/status", headers={"Authorization": ""}).status_code == 401
