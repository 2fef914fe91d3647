"""All routes of the gateway, put together."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .app import GatewayApp
from .services import Services
from .v1.messages import SendMessages


def make_app(services: Services) -> GatewayApp:
    return GatewayApp(
        {("POST", "/v1/messages"): SendMessages(services)},
        [*_of_the_node(services)],
        services.metrics,
        error_forms={},
        access_log=services.settings.access_log,
    )


def _of_the_node(services: Services) -> list[BaseRoute]:
    """What the node beside the gateway says of itself, and the gateway's own figures."""

    async def page(request: Request) -> Response:
        path = request.url.path
        found: dict[str, Any] = await services.run(services.own.page, path)
        body = found["body"].encode()
        if path == "/metrics":
            body += services.metrics.render()
        return Response(body, found["status"], media_type=found["type"])

    paths = ("/metrics", "/healthz", "/readyz")
    return [Route(path, page, methods=["GET"], name=path) for path in paths]
