"""The routes of Kafka's REST proxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from ...security.rights import Operation
from ..authentication import RequestAuthenticator, identity_of
from ..errors import HttpError
from ..requests import Reply
from ..services import Services
from .browsing import Browsing
from .cluster import Cluster
from .consuming import Consuming
from .embedded_cluster import EmbeddedCluster
from .instances import Instances
from .producing import Producing
from .records import Records

FIRST_SEGMENTS = ("topics", "brokers", "consumers")
"""The first segments of this interface's paths, below which errors have its form."""
_Handler = Callable[[Request], Awaitable[Reply]]
_Table = dict[tuple[str, str], tuple[Operation, _Handler]]
"""What a caller does, and so the right that it needs, and what answers it, by method and path."""


def routes(services: Services) -> list[BaseRoute]:
    """All routes of this interface. Clients and instances end with ``services.closing``."""
    cluster = _cluster_of(services)
    producing = Producing(services, cluster)
    partition = "/topics/{topic}/partitions/{partition}"
    append, consume = Operation.APPEND, Operation.CONSUME
    table: _Table = {
        ("POST", "/topics"): (append, producing.to_many_topics),
        ("POST", "/topics/{topic}"): (append, producing.to_topic),
        ("POST", partition): (append, producing.to_topic),
    }
    if cluster is None:
        reading = ("/topics", "/topics/{topic}", "/topics/{topic}/{rest:path}")
        table |= {("GET", path): (consume, _no_topics) for path in reading}
        table["GET", "/brokers"] = Operation.BROKERS, _no_topics
        return _made(table, services)
    services.closing.callback(cluster.close)
    browsing = Browsing(services, cluster)
    table |= {
        ("GET", "/topics"): (consume, browsing.topics),
        ("GET", "/topics/{topic}"): (consume, browsing.topic),
        ("GET", "/topics/{topic}/partitions"): (consume, browsing.partitions),
        ("GET", partition): (consume, browsing.partition),
        ("GET", partition + "/offsets"): (consume, browsing.offsets),
        ("GET", "/brokers"): (Operation.BROKERS, browsing.brokers),
    }
    instances = Instances(cluster, services.settings)
    services.closing.callback(instances.close)
    consuming = Consuming(cluster, instances)
    instance = "/consumers/{group}/instances/{name}"
    table |= {
        ("POST", "/consumers/{group}"): (consume, consuming.create),
        ("DELETE", instance): (consume, consuming.delete),
        ("POST", instance + "/subscription"): (consume, consuming.subscribe),
        ("GET", instance + "/subscription"): (consume, consuming.subscription),
        ("DELETE", instance + "/subscription"): (consume, consuming.unsubscribe),
        ("POST", instance + "/assignments"): (consume, consuming.assign),
        ("GET", instance + "/assignments"): (consume, consuming.assignments),
        ("POST", instance + "/positions"): (consume, consuming.seek),
        ("POST", instance + "/positions/beginning"): (consume, consuming.seek_to_beginning),
        ("POST", instance + "/positions/end"): (consume, consuming.seek_to_end),
        ("POST", instance + "/offsets"): (consume, consuming.commit),
        ("GET", instance + "/offsets"): (consume, consuming.committed),
        ("GET", instance + "/records"): (
            consume,
            Records(cluster, instances, services.authenticator).get,
        ),
    }
    return _made(table, services)


def _cluster_of(services: Services) -> Cluster | None:
    """The topics that this gateway reads; those of Kafka by the client that administers them."""
    if services.settings.bootstrap is not None:
        from .kafka_administration import KafkaAdministration

        assert isinstance(services.administration, KafkaAdministration)
        return services.administration.cluster
    data = services.settings.data
    return None if data is None else EmbeddedCluster(data)


def _made(table: _Table, services: Services) -> list[BaseRoute]:
    """A route for each path, with and without a slash at its end, as that interface takes both."""
    by_path: dict[str, dict[str, tuple[Operation, _Handler]]] = {}
    for (method, path), entry in table.items():
        by_path.setdefault(path, {})[method] = entry
    made: list[BaseRoute] = []
    for path, entries in by_path.items():
        for variant in (path, path + "/"):
            answer = _by_method(path, entries, services.authenticator)
            made.append(Route(variant, answer, methods=list(entries)))
    return made


def _by_method(
    path: str,
    entries: Mapping[str, tuple[Operation, _Handler]],
    authenticator: RequestAuthenticator,
) -> Any:
    async def answer(request: Request) -> Reply:
        operation, handler = entries["GET" if request.method == "HEAD" else request.method]
        authenticator.check(request.scope, operation)
        with identity_of(request.scope).doing(operation):
            return await handler(request)

    answer.__name__ = path  # by which the gateway counts requests
    answer.operations = {  # type: ignore[attr-defined]  # as of a resource
        method: operation for method, (operation, _) in entries.items()
    }
    return answer


async def _no_topics(_request: Request) -> Reply:
    raise HttpError(
        404,
        "this gateway reads no topics",
        remedy="Start it with --bootstrap for Kafka's, or --data for a node's embedded ones",
    )
