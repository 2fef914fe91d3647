"""Topics of Kafka and their configs in JSON, as version 3 of Kafka's REST proxy has them."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from ..administration import PARTITIONS_MAX, REPLICAS_MAX, AdministeredTopic, TopicConfig

CLUSTERS = "/v3/clusters"
_CONFIGS_MAX = 1000
_Partitions = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
_Replicas = Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]


class ConfigValue(msgspec.Struct, forbid_unknown_fields=True):
    """A config of a topic that is to be made; null: the default."""

    name: str
    value: str | None = None


class NewTopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """A topic that is to be made. Numbers that are left out are the brokers' default."""

    topic_name: str
    partitions_count: _Partitions | None = None
    replication_factor: _Replicas | None = None
    configs: Annotated[list[ConfigValue], Meta(max_length=_CONFIGS_MAX)] = []
    validate_only: bool = False
    """Judge it, and make nothing: the answer is 200 then."""


class PartitionsBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many partitions a topic is to have. It never gets fewer."""

    partitions_count: _Partitions


class ConfigChange(msgspec.Struct, forbid_unknown_fields=True):
    """A config that gets another value, or with ``DELETE`` the default again."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class ConfigsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Configs that are changed together, all or none of them."""

    data: Annotated[list[ConfigChange], Meta(min_length=1, max_length=_CONFIGS_MAX)]
    validate_only: bool = False
    """Judge them, and change nothing."""


class DeleteTopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Whether a topic is deleted for which messages are pending."""

    force: bool = False
    """Delete it though messages are pending: these become dead letters when they are due."""


class ResourceLink(msgspec.Struct):
    """Where a resource is, and its name."""

    self: str
    resource_name: str


class ListLink(msgspec.Struct):
    """Where a list is, and its next page: null, as it is whole."""

    self: str
    next: str | None = None


class RelatedLink(msgspec.Struct):
    """Where what belongs to a resource is."""

    related: str


class ClusterEntry(msgspec.Struct):
    """A Kafka."""

    metadata: ResourceLink
    cluster_id: str
    topics: RelatedLink
    kind: Literal["KafkaCluster"] = "KafkaCluster"

    @classmethod
    def of(cls, cluster_id: str) -> ClusterEntry:
        path = cluster_path(cluster_id)
        link = ResourceLink(path, _name(cluster_id))
        return cls(link, cluster_id, RelatedLink(f"{path}/topics"))


class ClusterEntries(msgspec.Struct):
    """The Kafka of this gateway, as a list of one."""

    metadata: ListLink
    data: list[ClusterEntry]
    kind: Literal["KafkaClusterList"] = "KafkaClusterList"


class TopicEntry(msgspec.Struct):
    """A topic."""

    metadata: ResourceLink
    cluster_id: str
    topic_name: str
    is_internal: bool
    """Whether it belongs to Kafka itself."""
    replication_factor: int
    """Replicas of each partition; 0: Kafka does not tell this gateway."""
    partitions_count: int
    """0: Kafka does not tell this gateway."""
    configs: RelatedLink
    kind: Literal["KafkaTopic"] = "KafkaTopic"

    @classmethod
    def of(cls, cluster_id: str, topic: AdministeredTopic) -> TopicEntry:
        path = topic_path(cluster_id, topic.name)
        return cls(
            ResourceLink(path, f"{_name(cluster_id)}/topic={topic.name}"),
            cluster_id,
            topic.name,
            topic.is_internal,
            topic.replicas,
            topic.partitions,
            RelatedLink(f"{path}/configs"),
        )


class TopicEntries(msgspec.Struct):
    """Topics, by name."""

    metadata: ListLink
    data: list[TopicEntry]
    kind: Literal["KafkaTopicList"] = "KafkaTopicList"


class ConfigEntry(msgspec.Struct):
    """A config of a topic."""

    cluster_id: str
    topic_name: str
    name: str
    value: str | None
    """Null: Kafka keeps it secret."""
    is_default: bool
    """Whether the topic has no value of its own."""
    is_read_only: bool
    is_sensitive: bool
    source: str
    """Where the value comes from, in Kafka's words."""
    kind: Literal["KafkaTopicConfig"] = "KafkaTopicConfig"

    @classmethod
    def of(cls, cluster_id: str, topic: str, config: TopicConfig) -> ConfigEntry:
        return cls(
            cluster_id,
            topic,
            config.name,
            config.value,
            config.is_default,
            config.is_read_only,
            config.is_sensitive,
            config.source,
        )


class ConfigEntries(msgspec.Struct):
    """All configs of a topic, by name."""

    metadata: ListLink
    data: list[ConfigEntry]
    kind: Literal["KafkaTopicConfigList"] = "KafkaTopicConfigList"


def cluster_path(cluster_id: str) -> str:
    return f"{CLUSTERS}/{quote(cluster_id)}"


def topic_path(cluster_id: str, topic: str) -> str:
    return f"{cluster_path(cluster_id)}/topics/{quote(topic)}"


def _name(cluster_id: str) -> str:
    return f"crn:///kafka={cluster_id}"
