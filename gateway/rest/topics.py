"""Administration of Kafka's topics over HTTP, as in version 3 of Kafka's REST proxy: made, looked
at, changed, deleted.

Rules
- Who has the right ``admin`` may do it for every topic but slotwheel's own and Kafka's, which have
  to be named for the caller, in ``schedule``: otherwise an operator of topics could delete dead
  letters, or the positions of all consumers. Where everybody may do everything nobody is named.
- A topic for which messages are pending is not deleted unless that is asked for: they could only
  become dead letters when they are due, hours after somebody has tidied up.
- The access log names the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ...reading.search.query import Query
from ...security.rights import Operation
from ...wheel.checks import check_topic
from ...wheel.errors import Forbidden, InvalidMessage
from ..administration import TopicAdministration
from ..endpoint import AnyEndpoint, NoQuery, RouteCall, endpoint
from ..errors import HttpError, from_slotwheel
from ..requests import Reply, as_json
from ..services import Services
from .topic_types import (
    CLUSTERS,
    ClusterEntries,
    ClusterEntry,
    ConfigEntries,
    ConfigEntry,
    ConfigsBody,
    DeleteTopicQuery,
    ListLink,
    NewTopicBody,
    PartitionsBody,
    TopicEntries,
    TopicEntry,
    cluster_path,
    topic_path,
)

T = TypeVar("T")
_DONE = Reply(204, b"")
_TOPICS = CLUSTERS + "/{cluster_id}/topics"
_TOPIC = _TOPICS + "/{topic_name}"


async def list_clusters(call: RouteCall[NoQuery, None]) -> Reply:
    """List the Kafka whose topics this gateway administers."""
    cluster_id = await call.services.run(_administration(call.services).cluster_id)
    return as_json(ClusterEntries(ListLink(CLUSTERS), [ClusterEntry.of(cluster_id)]))


async def get_cluster(call: RouteCall[NoQuery, None]) -> Reply:
    """Show the Kafka with this id."""
    cluster_id, _ = await _asked(call, lambda _: None)
    return as_json(ClusterEntry.of(cluster_id))


async def list_topics(call: RouteCall[NoQuery, None]) -> Reply:
    """List all topics, but for those that belong to Kafka itself."""
    cluster_id, topics = await _asked(call, lambda kafka: kafka.topics())
    entries = [TopicEntry.of(cluster_id, topic) for topic in topics]
    return as_json(TopicEntries(ListLink(f"{cluster_path(cluster_id)}/topics"), entries))


async def get_topic(call: RouteCall[NoQuery, None]) -> Reply:
    """Show how many partitions and replicas a topic has."""
    topic = call.path["topic_name"]
    cluster_id, found = await _asked(call, lambda kafka: kafka.topic(topic))
    return as_json(TopicEntry.of(cluster_id, found))


async def list_configs(call: RouteCall[NoQuery, None]) -> Reply:
    """List all configs of a topic, also those of which it has the brokers' default."""
    topic = call.path["topic_name"]
    cluster_id, configs = await _asked(call, lambda kafka: kafka.configs(topic))
    entries = [ConfigEntry.of(cluster_id, topic, config) for config in configs]
    return as_json(ConfigEntries(ListLink(f"{topic_path(cluster_id, topic)}/configs"), entries))


async def create_topic(call: RouteCall[NoQuery, NewTopicBody]) -> Reply:
    """Make a topic. The answer comes when messages can be sent to it. One that exists is 400 with
    the code 40002, so a request that is sent again changes nothing."""
    body = call.body
    try:
        check_topic(body.topic_name)
    except InvalidMessage as error:
        raise from_slotwheel(error, "$.topic_name") from None
    _check_once("configs", [config.name for config in body.configs])
    _allow(call, Operation.CREATE_TOPIC, body.topic_name)
    configs = {config.name: config.value for config in body.configs if config.value is not None}
    cluster_id, made = await _asked(
        call,
        lambda kafka: kafka.create(
            body.topic_name,
            body.partitions_count,
            body.replication_factor,
            configs,
            validate_only=body.validate_only,
        ),
    )
    return as_json(TopicEntry.of(cluster_id, made), 200 if body.validate_only else 201)


async def add_partitions(call: RouteCall[NoQuery, PartitionsBody]) -> Reply:
    """Let a topic have more partitions. Messages with equal keys may go to other ones from then on,
    so their order is lost for a while."""
    topic, count = call.path["topic_name"], call.body.partitions_count
    _allow(call, Operation.ALTER_TOPIC, topic)
    cluster_id, grown = await _asked(call, lambda kafka: kafka.grow(topic, count))
    return as_json(TopicEntry.of(cluster_id, grown))


async def alter_configs(call: RouteCall[NoQuery, ConfigsBody]) -> Reply:
    """Give configs of a topic other values, or the default again. All are changed, or none."""
    topic, body = call.path["topic_name"], call.body
    _check_once("data", [change.name for change in body.data])
    changes: dict[str, str | None] = {}
    for number, change in enumerate(body.data):
        if (change.value is None) is not (change.operation == "DELETE"):
            raise HttpError(
                422,
                f"{change.operation} takes {'a' if change.value is None else 'no'} value",
                place=f"$.data[{number}].value",
                got=change.value,
                remedy="Give the value to SET, and none to DELETE",
            )
        changes[change.name] = change.value
    _allow(call, Operation.ALTER_TOPIC, topic)
    validate_only = body.validate_only
    await _asked(call, lambda kafka: kafka.alter(topic, changes, validate_only=validate_only))
    return _DONE


async def delete_topic(call: RouteCall[DeleteTopicQuery, None]) -> Reply:
    """Delete a topic and all that is in it. While messages for it are pending the answer is 409
    with their number: they would become dead letters when they are due. With ``force`` it is
    deleted all the same."""
    topic = call.path["topic_name"]
    _allow(call, Operation.DELETE_TOPIC, topic)
    await _asked(call, lambda kafka: kafka.topic(topic))
    if not call.query.force:
        await _check_nothing_pends(call.services, topic)
    await _asked(call, lambda kafka: kafka.delete(topic))
    return _DONE


def _administration(services: Services) -> TopicAdministration:
    if services.administration is None:
        raise HttpError(
            404,
            "this gateway has no Kafka whose topics it could administer",
            remedy="Start it with --bootstrap. Embedded topics come into being with their first"
            " message",
        )
    return services.administration


async def _asked(
    call: RouteCall[Any, Any], question: Callable[[TopicAdministration], T]
) -> tuple[str, T]:
    """The id of the Kafka in a request's path, and Kafka's answer. Errors: ``HttpError``; 404:
    this gateway has another Kafka."""
    administration = _administration(call.services)
    asked = call.path["cluster_id"]

    def ask() -> tuple[str, T]:
        cluster_id = administration.cluster_id()
        if asked != cluster_id:
            remedy = f"GET {CLUSTERS} shows it"
            raise HttpError(404, "this gateway has another Kafka", got=asked, remedy=remedy)
        return cluster_id, question(administration)

    return await call.services.run(ask)


def _allow(call: RouteCall[Any, Any], operation: Operation, topic: str) -> None:
    """Check a change of a topic for the caller of a request, and log it. Errors: ``Forbidden``."""
    authenticator = call.services.authenticator
    if authenticator.is_open and authenticator.is_own(topic):
        raise Forbidden(
            f"not allowed: {operation.label} for topic {topic!r}",
            limit="topics that are not slotwheel's own or Kafka's (slotwheel-…, __…)",
            remedy="Use Kafka's own tools, or give the gateway a security file in which a role"
            " names this topic in schedule",
        )
    authenticator.check(call.scope, operation, topic)


async def _check_nothing_pends(services: Services, topic: str) -> None:
    """Errors: ``HttpError`` 409: messages for the topic are pending, or that cannot be known;
    ``Overloaded``."""
    unknown = "whether messages are pending for this topic is not known"
    force = "with force=true it is deleted, and they become dead letters when they are due"
    if services.searcher is None:
        remedy = f"Start the gateway beside a node, or with --data; {force}"
        raise HttpError(409, unknown, got=topic, remedy=remedy)
    try:
        counted = await services.searcher.count(Query(topics=(topic,)))
    except HttpError as error:
        raise HttpError(409, unknown, got=error.got, limit=error.limit, remedy=force) from None
    if counted.total or not counted.complete:
        least = "" if counted.complete else "at least "
        raise HttpError(
            409,
            "messages are pending for this topic",
            got=f"{least}{counted.total} for {topic}",
            limit=0,
            remedy=f"Cancel them (POST /v1/cancellations), or wait; {force}",
        )


def _check_once(field: str, names: Iterable[str]) -> None:
    """Errors: ``HttpError`` 422: a config is there twice, and which one is meant cannot be told."""
    seen = set[str]()
    for number, name in enumerate(names):
        if name in seen:
            raise HttpError(
                422,
                "a config is given twice",
                place=f"$.{field}[{number}].name",
                got=name,
                limit="each config once",
                remedy="Leave one of them out",
            )
        seen.add(name)


V3: list[AnyEndpoint] = [
    endpoint(
        Operation.TOPICS,
        "GET",
        CLUSTERS,
        list_clusters,
        {200: ClusterEntries},
        name="listClusters",
    ),
    endpoint(
        Operation.TOPICS,
        "GET",
        CLUSTERS + "/{cluster_id}",
        get_cluster,
        {200: ClusterEntry},
        name="getCluster",
    ),
    endpoint(Operation.TOPICS, "GET", _TOPICS, list_topics, {200: TopicEntries}, name="listTopics"),
    endpoint(
        Operation.CREATE_TOPIC,
        "POST",
        _TOPICS,
        create_topic,
        {200: TopicEntry, 201: TopicEntry},
        name="createTopic",
        names_topic=True,
    ),
    endpoint(Operation.TOPICS, "GET", _TOPIC, get_topic, {200: TopicEntry}, name="getTopic"),
    endpoint(
        Operation.ALTER_TOPIC,
        "PATCH",
        _TOPIC,
        add_partitions,
        {200: TopicEntry},
        name="addPartitions",
        names_topic=True,
    ),
    endpoint(
        Operation.DELETE_TOPIC,
        "DELETE",
        _TOPIC,
        delete_topic,
        {204: None},
        (409,),
        name="deleteTopic",
        names_topic=True,
    ),
    endpoint(
        Operation.TOPICS,
        "GET",
        _TOPIC + "/configs",
        list_configs,
        {200: ConfigEntries},
        name="listTopicConfigs",
    ),
    endpoint(
        Operation.ALTER_TOPIC,
        "POST",
        _TOPIC + "/configs:alter",
        alter_configs,
        {204: None},
        name="alterTopicConfigs",
        names_topic=True,
    ),
]
"""All endpoints below ``/v3``."""
