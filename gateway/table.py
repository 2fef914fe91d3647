"""All endpoints: the one table of routes, ``/openapi.json`` and ``/docs``."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from ..security.rights import Operation
from .description import describe
from .endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from .page import CONTENT_SECURITY_POLICY, HTML, page_of
from .requests import Reply
from .rest.topics import V3
from .v1.table import V1

_TEXT = "text/plain"
_VERSION = "1"
"""Of what is described; the 1 of ``/v1``."""


async def metrics(call: RouteCall[NoQuery, None]) -> Reply:
    """Figures of the node and of the gateway, for Prometheus."""
    found = await _of_node(call, "/metrics")
    return Reply(found.status, found.body + call.services.metrics.render(), found.content_type)


async def healthz(call: RouteCall[NoQuery, None]) -> Reply:
    """Say whether the node works. 503 with the reasons if it does not."""
    return _for_caller(call, await _of_node(call, "/healthz"))


async def readyz(call: RouteCall[NoQuery, None]) -> Reply:
    """Say whether the node does its whole job. 503 with the reasons if it does not."""
    return _for_caller(call, await _of_node(call, "/readyz"))


def _for_caller(call: RouteCall[NoQuery, None], answer: Reply) -> Reply:
    """The whole answer for who may observe; the status alone for others, as reasons have names of
    topics and peers in them."""
    rights = call.identity.rights
    if rights.may(Operation.STATUS):
        return answer
    return Reply(answer.status, b"{}")


async def _of_node(call: RouteCall[NoQuery, None], path: str) -> Reply:
    found = await call.services.pages[path]()
    return Reply(found["status"], found["body"].encode(), found["type"])


async def openapi(_call: RouteCall[NoQuery, None]) -> Reply:
    """This description, as OpenAPI 3.0."""
    return Reply(200, openapi_json())


async def docs(_call: RouteCall[NoQuery, None]) -> Reply:
    """This description, as a page to read."""
    headers = [(b"content-security-policy", CONTENT_SECURITY_POLICY.encode())]
    return Reply(200, _page(), HTML, headers)


@functools.cache
def openapi_json() -> bytes:
    """What ``/openapi.json`` serves, indented."""
    described = msgspec.json.encode(describe(ENDPOINTS, _VERSION))
    return msgspec.json.format(described, indent=2) + b"\n"


@functools.cache
def _page() -> bytes:
    return page_of(msgspec.json.decode(openapi_json()))


ENDPOINTS: list[AnyEndpoint] = [
    *V1,
    *V3,
    endpoint(
        Operation.METRICS,
        "GET",
        "/metrics",
        metrics,
        {200: None},
        answer_media={_TEXT: "Prometheus' text format."},
        name="getMetrics",
    ),
    endpoint(Operation.HEALTH, "GET", "/healthz", healthz, {200: dict[str, Any]}, name="getHealth"),
    endpoint(
        Operation.HEALTH, "GET", "/readyz", readyz, {200: dict[str, Any]}, name="getReadiness"
    ),
    endpoint(
        Operation.DESCRIBE,
        "GET",
        "/openapi.json",
        openapi,
        {200: dict[str, Any]},
        name="getDescription",
    ),
    endpoint(
        Operation.DESCRIBE,
        "GET",
        "/docs",
        docs,
        {200: None},
        answer_media={"text/html": "The page."},
        name="getDocs",
    ),
]
