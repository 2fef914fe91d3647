"""All routes of the gateway, put together."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .app import GatewayApp
from .rest.errors import error_form
from .rest.routes import FIRST_SEGMENTS
from .rest.routes import routes as rest_routes
from .services import Services
from .v1.messages import SendMessages


def make_app(services: Services) -> GatewayApp:
    return GatewayApp(
        {("POST", "/v1/messages"): SendMessages(services)},
        [*_of_the_node(services), *rest_routes(services)],
        services.metrics,
        error_forms=dict.fromkeys(FIRST_SEGMENTS, error_form),
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
