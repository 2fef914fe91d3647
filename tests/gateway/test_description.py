"""The description of all endpoints: served, checked in, and shown as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from slotwheel.gateway.table import openapi_json
from support.gatewayprocess import GatewayProcess

PAGE = Path(__file__).resolve().parents[2] / "docs/openapi.json"
AGAIN = "from slotwheel.gateway.table import openapi_json as o; print(o().decode(), end='')"


def test_what_is_checked_in_is_what_is_served(gateway: GatewayProcess) -> None:
    served = gateway.request("GET", "/openapi.json")
    assert served.content == openapi_json()
    assert PAGE.read_bytes() == openapi_json(), f"write it again: {AGAIN} > docs/openapi.json"


def test_every_path_answers_other_methods_with_those_it_has(gateway: GatewayProcess) -> None:
    for path, methods in gateway.get("/openapi.json")["paths"].items():
        filled = re.sub(r"\{\w+\}", "1", path)
        answer = gateway.request("OPTIONS", filled)
        assert answer.status_code == 405, path
        allowed = set(answer.headers["Allow"].split(", ")) - {"HEAD"}
        assert allowed == {one.upper() for one in methods}, path
        assert answer.json()["error_code"] == 405


class Looked(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name == "id":
                self.ids.add(value or "")
            elif name == "href":
                self.links.add(value or "")


def test_the_page_needs_no_script_and_no_other_file(gateway: GatewayProcess) -> None:
    answer = gateway.request("GET", "/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    looked = Looked()
    looked.feed(answer.text)
    assert not looked.tags & {"script", "link", "img", "iframe", "form", "object"}
    inside = {link.removeprefix("#") for link in looked.links if link.startswith("#")}
    assert inside <= looked.ids
    assert looked.links - {"#" + one for one in inside} == {"/openapi.json"}
    described = gateway.get("/openapi.json")
    for path, methods in described["paths"].items():
        assert path in answer.text
        assert {one["operationId"] for one in methods.values()} <= looked.ids
