"""The routes of Kafka's REST proxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

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


def routes(services: Services) -> list[BaseRoute]:
    """All routes of this interface. Clients and instances end with ``services.closing``."""
    cluster = _cluster_of(services)
    producing = Producing(services, cluster)
    partition = "/topics/{topic}/partitions/{partition}"
    table: dict[tuple[str, str], _Handler] = {
        ("POST", "/topics"): producing.to_many_topics,
        ("POST", "/topics/{topic}"): producing.to_topic,
        ("POST", partition): producing.to_topic,
    }
    if cluster is None:
        reading = ("/topics", "/topics/{topic}", "/topics/{topic}/{rest:path}", "/brokers")
        return _made(table | {("GET", path): _no_topics for path in reading})
    services.closing.callback(cluster.close)
    browsing = Browsing(services, cluster)
    table |= {
        ("GET", "/topics"): browsing.topics,
        ("GET", "/topics/{topic}"): browsing.topic,
        ("GET", "/topics/{topic}/partitions"): browsing.partitions,
        ("GET", partition): browsing.partition,
        ("GET", partition + "/offsets"): browsing.offsets,
        ("GET", "/brokers"): browsing.brokers,
    }
    instances = Instances(cluster, services.settings)
    services.closing.callback(instances.close)
    consuming = Consuming(cluster, instances)
    instance = "/consumers/{group}/instances/{name}"
    table |= {
        ("POST", "/consumers/{group}"): consuming.create,
        ("DELETE", instance): consuming.delete,
        ("POST", instance + "/subscription"): consuming.subscribe,
        ("GET", instance + "/subscription"): consuming.subscription,
        ("DELETE", instance + "/subscription"): consuming.unsubscribe,
        ("POST", instance + "/assignments"): consuming.assign,
        ("GET", instance + "/assignments"): consuming.assignments,
        ("POST", instance + "/positions"): consuming.seek,
        ("POST", instance + "/positions/beginning"): consuming.seek_to_beginning,
        ("POST", instance + "/positions/end"): consuming.seek_to_end,
        ("POST", instance + "/offsets"): consuming.commit,
        ("GET", instance + "/offsets"): consuming.committed,
        ("GET", instance + "/records"): Records(cluster, instances).get,
    }
    return _made(table)


def _cluster_of(services: Services) -> Cluster | None:
    settings = services.settings
    if settings.bootstrap is not None:
        from .kafka_cluster import KafkaCluster

        return KafkaCluster(settings.bootstrap, settings.kafka)
    return None if settings.data is None else EmbeddedCluster(settings.data)


def _made(table: Mapping[tuple[str, str], _Handler]) -> list[BaseRoute]:
    """A route for each path, with and without a slash at its end, as that interface takes both."""
    by_path: dict[str, dict[str, _Handler]] = {}
    for (method, path), handler in table.items():
        by_path.setdefault(path, {})[method] = handler
    made: list[BaseRoute] = []
    for path, handlers in by_path.items():
        for variant in (path, path + "/"):
            made.append(Route(variant, _by_method(path, handlers), methods=list(handlers)))
    return made


def _by_method(path: str, handlers: Mapping[str, _Handler]) -> Any:
    async def answer(request: Request) -> Reply:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    answer.__name__ = path  # by which the gateway counts requests
    return answer


async def _no_topics(_request: Request) -> Reply:
    raise HttpError(
        404,
        "this gateway reads no topics",
        remedy="Start it with --bootstrap for Kafka's, or --data for a node's embedded ones",
    )
