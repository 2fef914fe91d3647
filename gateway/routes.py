"""All routes of the gateway, put together."""

from __future__ import annotations

from dataclasses import replace

from ..security.rights import Right
from .app import GatewayApp
from .console.refusing import error_page
from .console.table import FIRST_SEGMENT, PAGES
from .direct import METHOD, PATH, DirectMessages
from .endpoint import resources
from .rest.errors import error_form
from .rest.routes import FIRST_SEGMENTS
from .rest.routes import routes as rest_routes
from .rest.topics import V3
from .services import Services
from .sites import SiteGuard
from .table import ENDPOINTS
from .v1.messages import SendMessages


def make_app(services: Services) -> tuple[GatewayApp, DirectMessages]:
    """The application, and what answers single messages past it."""
    messages = SendMessages(services)
    # Programs that were written for Kafka's REST proxy end a path by a slash now and then.
    slashed = [replace(one, path=f"{one.path}/") for one in V3]
    # They stand first, as behind a slash there may be a parameter, which may be empty.
    endpoints = [*slashed, *ENDPOINTS, *PAGES]
    app = GatewayApp(
        {(METHOD, PATH): messages},
        [*resources(endpoints, services), *rest_routes(services)],
        services.metrics,
        SiteGuard(services.settings.listen, services.settings.names),
        services.authenticator,
        public=[one.path for one in endpoints if one.operation.right is Right.PUBLIC],
        error_forms={**dict.fromkeys(FIRST_SEGMENTS, error_form), FIRST_SEGMENT: error_page},
        http_log=services.settings.http_log,
    )
    return app, DirectMessages(app, messages, services.settings.body_bytes_max)
