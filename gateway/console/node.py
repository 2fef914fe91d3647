"""Node: its health, status, figures and policies, and the settings of this gateway."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..endpoint import RouteCall
from ..requests import Reply
from ..settings import GatewaySettings
from ..v1.group import status_of
from .figures import node_figures, node_health
from .parts import PagePart, PartsQuery, node_part, page
from .shown import measured


async def node(call: RouteCall[PartsQuery, None]) -> Reply:
    """The node beside this gateway, its group's status and policies, and the gateway's settings."""
    services = call.services

    async def policies() -> dict[str, Any]:
        return (await services.policies()).to_dict()

    async def settings() -> list[tuple[str, str]]:
        return settings_shown(services.settings)

    if services.front is not None and services.front.is_whole:
        choose = {"settings": PagePart("node/settings.html", None, settings)}
        return await page(call, "node", "fleet_node.html", choose)
    parts = {
        "health": node_part("node/health.html", "health", lambda: node_health(services)),
        "status": node_part("node/status.html", "status", lambda: status_of(services)),
        "figures": node_part("node/figures.html", "figures", lambda: node_figures(services)),
        "policies": node_part("node/policies.html", "policies", policies),
        "settings": PagePart("node/settings.html", None, settings),
    }
    return await page(call, "node", "node.html", parts)


def settings_shown(settings: GatewaySettings) -> list[tuple[str, str]]:
    """The name of each setting, and its value as text. Of Kafka's settings only the names are
    shown, for some are passwords."""
    shown = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is None:
            text = "not given"
        elif field.name == "kafka":
            text = ", ".join(sorted(value)) or "none"
        elif isinstance(value, tuple):
            text = ", ".join(value) or "none"
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int | float):
            text = measured(value, field.name)
        else:
            text = str(value)
        shown.append((field.name, text))
    return shown
