"""All routes of the gateway, put together."""

from __future__ import annotations

from .app import GatewayApp
from .endpoint import resources
from .services import Services
from .table import ENDPOINTS
from .v1.messages import SendMessages


def make_app(services: Services) -> GatewayApp:
    return GatewayApp(
        {("POST", "/v1/messages"): SendMessages(services)},
        resources(ENDPOINTS, services),
        services.metrics,
        error_forms={},
        access_log=services.settings.access_log,
    )
