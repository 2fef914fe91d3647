"""Node: its health, its figures, and what it and this gateway were told when they started."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ...client.groupstatus import group_status
from ..endpoint import RouteCall
from ..requests import Reply
from ..settings import GatewaySettings
from .figures import node_figures, node_health
from .parts import PagePart, PartsQuery, node_part, page
from .shown import measured


class NodeQuery(PartsQuery, forbid_unknown_fields=True):
    """No filter."""


async def node(call: RouteCall[NodeQuery, None]) -> Reply:
    """The node beside this gateway, and the group's status."""
    services = call.services

    async def status() -> dict[str, Any]:
        return await services.run(group_status, services.client)

    async def policies() -> dict[str, Any]:
        return (await services.policies()).to_dict()

    async def told() -> list[tuple[str, str]]:
        return settings_shown(services.settings)

    parts = {
        "health": node_part("node/health.html", "health", lambda: node_health(services)),
        "status": node_part("node/status.html", "status", status),
        "figures": node_part("node/figures.html", "figures", lambda: node_figures(services)),
        "policies": node_part("node/policies.html", "policies", policies),
        "settings": PagePart("node/settings.html", None, told),
    }
    return await page(call, "node", "node.html", parts)


def settings_shown(settings: GatewaySettings) -> list[tuple[str, str]]:
    """Names and values. Of Kafka's settings only the names, for some are secrets."""
    found = []
    for one in fields(settings):
        value = getattr(settings, one.name)
        if value is None:
            text = "not given"
        elif one.name == "kafka":
            text = ", ".join(sorted(value)) or "none"
        elif isinstance(value, tuple):
            text = ", ".join(value) or "none"
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int | float):
            text = measured(value, one.name)
        else:
            text = str(value)
        found.append((one.name, text))
    return found
