"""All routes of the gateway, put together."""

from __future__ import annotations

from .app import GatewayApp
from .console.rendering import error_page
from .console.table import FIRST_SEGMENT, PAGES
from .endpoint import resources
from .rest.errors import error_form
from .rest.routes import FIRST_SEGMENTS
from .rest.routes import routes as rest_routes
from .services import Services
from .sites import SiteGuard
from .table import ENDPOINTS
from .v1.messages import SendMessages


def make_app(services: Services) -> GatewayApp:
    return GatewayApp(
        {("POST", "/v1/messages"): SendMessages(services)},
        [*resources([*ENDPOINTS, *PAGES], services), *rest_routes(services)],
        services.metrics,
        SiteGuard(services.settings.listen, services.settings.names),
        error_forms={**dict.fromkeys(FIRST_SEGMENTS, error_form), FIRST_SEGMENT: error_page},
        access_log=services.settings.access_log,
    )
