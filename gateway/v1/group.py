"""The group: its status, peers, levels, policies and routes."""

from __future__ import annotations

from typing import Any

import msgspec

from ...client import Client
from ...client.groupstatus import REPLICATION, group_status
from ...policy.routes import find_route
from ...security.rights import Operation
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..requests import Reply, as_json
from ..services import Services
from .types import MessageHeaders, header_bytes


class LevelDelays(msgspec.Struct):
    """Delay of each level, by its name, in milliseconds."""

    levels: dict[str, int]


class PoliciesAnswer(msgspec.Struct):
    """``version``: rises with each change. All else as in a node's ``--policies`` file, and the
    rules that consumer groups have registered."""

    version: int
    levels: list[str]
    policies: dict[str, Any]
    routes: dict[str, Any]
    groups: dict[str, Any]


class RoutesAnswer(msgspec.Struct):
    """Branches of each route, by its name; and the rule of each consumer group, null: it takes
    all messages."""

    version: int
    routes: dict[str, Any]
    groups: dict[str, Any]


class ExplainBody(msgspec.Struct, forbid_unknown_fields=True):
    """The headers of a message, and the route that it is for."""

    route: str
    headers: MessageHeaders = {}


class ExplainedBranch(msgspec.Struct):
    """A branch of a route. ``where``: its rule; null matches each message."""

    matches: bool
    where: dict[str, Any] | None
    to: list[str]


class ExplainedRoute(msgspec.Struct):
    """The topics that the message goes to. Without one it would be refused."""

    route: str
    branches: list[ExplainedBranch]
    topics: list[str]


async def status_of(services: Services) -> dict[str, Any]:
    """The status of the group, or of a fleet: ``Front.status``. Errors: as of ``group_status``."""
    if services.front is not None:
        return await services.run(services.front.status)
    assert isinstance(services.client, Client), "without a front it is of one wheel"
    return await services.run(group_status, services.client)


async def status(call: RouteCall[NoQuery, None]) -> Reply:
    """The status of the wheel, as ``slotwheel status --json`` prints it. With peers, that of the
    master, if it answers. Of a fleet, that of each wheel in `wheels`, and `complete`: false if one
    does not answer."""
    return as_json(await status_of(call.services))


async def peers(call: RouteCall[NoQuery, None]) -> Reply:
    """The group as its master sees it: role, epoch, commit index, and of each peer its state and
    how far it is behind. Empty for a node without peers; of a fleet, by wheel."""
    found = await status_of(call.services)
    if call.services.front is None or not call.services.front.is_whole:
        return as_json(found.get(REPLICATION, {}))
    wheels = {name: each["status"] for name, each in found["wheels"].items()}
    known = {name: status.get(REPLICATION, {}) for name, status in wheels.items() if status}
    return as_json({"complete": found["complete"], "wheels": known})


async def levels(call: RouteCall[NoQuery, None]) -> Reply:
    """The levels: names of delays that a message can ask for."""
    return as_json(LevelDelays(dict((await call.services.policies()).levels)))


async def policies(call: RouteCall[NoQuery, None]) -> Reply:
    """Levels, retry policies, routes, and rules of consumer groups."""
    return as_json((await call.services.policies()).to_dict())


async def routes(call: RouteCall[NoQuery, None]) -> Reply:
    """All routes, and the rules that consumer groups have registered."""
    policies = (await call.services.policies()).to_dict()
    return as_json({name: policies[name] for name in ("version", "routes", "groups")})


async def explain(call: RouteCall[NoQuery, ExplainBody]) -> Reply:
    """Show which branches of a route match a message with these headers, and to which topics it
    would go. Nothing is stored."""
    route = find_route((await call.services.policies()).routes, call.body.route)
    branches, topics = route.explained(header_bytes(call.body.headers))
    return as_json({"route": route.name, "branches": branches, "topics": topics})


ENDPOINTS: list[AnyEndpoint] = [
    endpoint(
        Operation.STATUS, "GET", "/v1/status", status, {200: dict[str, Any]}, name="getStatus"
    ),
    endpoint(Operation.STATUS, "GET", "/v1/peers", peers, {200: dict[str, Any]}, name="getPeers"),
    endpoint(Operation.POLICIES, "GET", "/v1/levels", levels, {200: LevelDelays}, name="getLevels"),
    endpoint(
        Operation.POLICIES,
        "GET",
        "/v1/policies",
        policies,
        {200: PoliciesAnswer},
        name="getPolicies",
    ),
    endpoint(
        Operation.POLICIES, "GET", "/v1/routes", routes, {200: RoutesAnswer}, name="getRoutes"
    ),
    endpoint(
        Operation.POLICIES,
        "POST",
        "/v1/routes/explain",
        explain,
        {200: ExplainedRoute},
        name="explainRoute",
    ),
]
