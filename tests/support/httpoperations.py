"""Every operation that there is over HTTP: /v1, the console, the REST proxy; and a request for each
that is right but for who sends it."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slotwheel.gateway.authentication import RequestAuthenticator
from slotwheel.gateway.console.table import PAGES
from slotwheel.gateway.rest.routes import routes
from slotwheel.gateway.table import ENDPOINTS
from slotwheel.security.rights import Operation
from support.rightsfile import TOPIC

PENDING_MS = 3_600_000
NOBODYS = "default.1.1.0000000000000"
"""An id that nobody gave out."""
Place = tuple[str, str]
"""A method and a path with its parameters."""


def all_operations() -> dict[Place, Operation]:
    """The operation of each method of each path."""
    own = {
        (endpoint.method, endpoint.path): endpoint.operation for endpoint in (*ENDPOINTS, *PAGES)
    }
    return own | _rest_operations()


def _rest_operations() -> dict[Place, Operation]:
    async def made() -> dict[Place, Operation]:
        with ExitStack() as stack:
            settings = SimpleNamespace(
                bootstrap=None, data=Path("/nowhere"), instances_max=1, instance_idle_s=1
            )
            services: Any = SimpleNamespace(
                settings=settings, closing=stack, authenticator=RequestAuthenticator()
            )
            return {
                (method, route.path): operation  # type: ignore[attr-defined]
                for route in routes(services)
                for method, operation in route.endpoint.operations.items()  # type: ignore[attr-defined]
            }

    return asyncio.run(made())


OPERATIONS = all_operations()


def request_for(place: Place, topic: str = TOPIC, message_id: str = NOBODYS) -> dict[str, Any]:
    """A request that is right but for who sends it; it names the topic and the id, where an
    operation has them."""
    method, path = place
    values = {
        "{id}": message_id,
        "{topic}": topic,
        "{topic_name}": topic,
        "{cluster_id}": "nothing",
        "{partition:int}": "0",
        "{position:int}": "0",
        "{partition}": "0",
        "/console/static/{name}": "/console/static/console.css",
        "/v1/schedules/{name}": f"/v1/schedules/{schedule_of(topic)}",
        "{name}": "none",
        "{group}": "g",
    }
    for parameter, value in values.items():
        path = path.replace(parameter, value)
    bodies: dict[Place, Any] = {
        ("POST", "/v1/messages"): {"topic": topic, "value": "x", "delay_ms": PENDING_MS},
        ("POST", "/v1/cancel"): {"ids": [message_id]},
        ("POST", "/v1/messages/{id}/reschedule"): {"delay_ms": PENDING_MS},
        ("PUT", "/v1/names/{topic}/{name}"): {"value": "x", "delay_ms": PENDING_MS},
        ("PATCH", "/v1/names/{topic}/{name}"): {"delay_ms": PENDING_MS},
        ("PUT", "/v1/schedules/{name}"): schedule_for(topic),
        ("POST", "/v1/cancellations"): {"where": {"topic": "none"}},
        ("POST", "/v1/dead/redrive"): {},
        ("POST", "/v1/routes/explain"): {"route": "none"},
        ("POST", "/v3/clusters/{cluster_id}/topics"): {"topic_name": topic},
        ("PATCH", "/v3/clusters/{cluster_id}/topics/{topic_name}"): {"partitions_count": 2},
        ("POST", "/v3/clusters/{cluster_id}/topics/{topic_name}/configs:alter"): {
            "data": [{"name": "retention.ms", "value": "1"}]
        },
    }
    request: dict[str, Any] = {"method": method, "url": path}
    if place in bodies:
        request["json"] = bodies[place]
    elif path.startswith("/topics") and method == "POST":
        record = {"value": "eA=="}
        if path.strip("/") == "topics":
            record["topic"] = topic
        request["content"] = json.dumps({"records": [record]})
        request["headers"] = {"Content-Type": "application/vnd.kafka.binary.v2+json"}
    elif path.startswith("/consumers") and method == "POST":
        request["content"] = b"{}"
        if path.strip("/").endswith("subscription"):
            request["content"] = json.dumps({"topics": [topic]})
        request["headers"] = {"Content-Type": "application/vnd.kafka.v2+json"}
    elif path.startswith("/console"):
        request["url"] += f"?{CONSOLE_QUERIES.get(path, '')}".format(id=message_id, topic=topic)
        if method == "POST":
            request["content"] = b""
            request["headers"] = {"Content-Type": "application/x-www-form-urlencoded"}
    return request


def schedule_of(topic: str) -> str:
    """The name of the schedule that requests about a topic are for."""
    return f"of-{topic}"


def schedule_for(topic: str, value: str = "x") -> dict[str, Any]:
    return {"every_ms": PENDING_MS, "template": {"topic": topic, "value": value}}


CONSOLE_QUERIES = {
    "/console/message": "id={id}&whole=true",
    "/console/message/cancel": "id={id}",
    "/console/pending": "topic={topic}&whole=true",
    "/console/dead": "for_topic={topic}&whole=true",
    "/console/schedules": "topic={topic}&whole=true",
    "/console/schedule": "name=of-{topic}&whole=true",
    **{
        f"/console/schedule/{act}": "name=of-{topic}&whole=true"
        for act in ("put", "pause", "resume", "run", "delete")
    },
}
"""What a page is asked for, where it says more about a topic or an id than without."""
