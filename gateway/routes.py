"""All routes of the gateway, put together."""

from __future__ import annotations

from .app import GatewayApp
from .console.rendering import error_page
from .console.table import FIRST_SEGMENT, PAGES
from .direct import METHOD, PATH, DirectMessages
from .endpoint import resources
from .rest.errors import error_form
from .rest.routes import FIRST_SEGMENTS
from .rest.routes import routes as rest_routes
from .services import Services
from .sites import SiteGuard
from .table import ENDPOINTS
from .v1.messages import SendMessages


def make_app(services: Services) -> tuple[GatewayApp, DirectMessages]:
    """The application, and what answers single messages past it."""
    messages = SendMessages(services)
    app = GatewayApp(
        {(METHOD, PATH): messages},
        [*resources([*ENDPOINTS, *PAGES], services), *rest_routes(services)],
        services.metrics,
        SiteGuard(services.settings.listen, services.settings.names),
        error_forms={**dict.fromkeys(FIRST_SEGMENTS, error_form), FIRST_SEGMENT: error_page},
        access_log=services.settings.access_log,
    )
    return app, DirectMessages(app, messages, services.settings.body_bytes_max)
