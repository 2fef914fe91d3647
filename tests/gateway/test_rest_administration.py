"""Topics of Kafka are made, changed and deleted over HTTP; what Kafka or the gateway refuses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from kafka import errors as kafka_errors

from slotwheel.gateway.administration import (
    KEPT_OUT,
    NOT_FOUND,
    PARTITIONS_MAX,
    REFUSED,
    AdministeredTopic,
)
from slotwheel.gateway.errors import HttpError
from slotwheel.gateway.rest.kafka_administration import KafkaAdministration
from slotwheel.gateway.rest.kafka_cluster import KafkaCluster
from support.broker import Cluster
from support.gatewayprocess import NodeWithGateway
from support.rest import BINARY

DUE_LATER = {"records": [{"value": "eA==", "delay_ms": 3_600_000}]}


class Topics:
    """The paths of version 3, at the gateway of a node with Kafka."""

    def __init__(self, node: NodeWithGateway) -> None:
        self.node = node
        (cluster,) = self.ask("GET", "/v3/clusters/").json()["data"]
        self.root = f"/v3/clusters/{cluster['cluster_id']}/topics"

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        more = {} if body is None else {"json": body}
        return self.node.ask(method, path, **more)

    def make(self, name: str, **more: Any) -> httpx.Response:
        return self.ask("POST", self.root, {"topic_name": name, **more})

    def of(self, method: str, name: str, body: Any = None) -> httpx.Response:
        return self.ask(method, f"{self.root}/{name}", body)

    def alter(self, name: str, *changes: dict[str, str]) -> httpx.Response:
        return self.of("POST", f"{name}/configs:alter", {"data": changes})

    def configs(self, name: str) -> dict[str, Any]:
        return {entry["name"]: entry for entry in self.of("GET", f"{name}/configs").json()["data"]}


@pytest.fixture(scope="module")
def topics(with_kafka: NodeWithGateway) -> Topics:
    return Topics(with_kafka)


@pytest.fixture(scope="module")
def name(broker: Cluster) -> Iterator[str]:
    """A topic with two partitions, which no test changes."""
    made = broker.create_topic(f"administered-{uuid.uuid4().hex[:8]}", 2)
    yield made
    broker.delete_topic(made)


def test_a_topic_is_made_changed_and_deleted(topics: Topics) -> None:
    new = f"new-{uuid.uuid4().hex[:8]}"
    configs = [{"name": "retention.ms", "value": "60000"}, {"name": "cleanup.policy"}]
    made = topics.make(new, partitions_count=2, replication_factor=1, configs=configs)
    assert made.status_code == 201, made.text
    entry = made.json()
    assert (entry["kind"], entry["topic_name"]) == ("KafkaTopic", new)
    assert (entry["partitions_count"], entry["replication_factor"]) == (2, 1)
    assert topics.ask("GET", entry["metadata"]["self"]).json() == entry
    assert entry in topics.ask("GET", topics.root).json()["data"]
    # It is there for who sends at once.
    sent = topics.node.ask("POST", f"/topics/{new}", json=DUE_LATER, headers=BINARY)
    assert sent.status_code == 200, sent.text

    for _ in range(2):  # a request that comes again is no error
        grown = topics.of("PATCH", new, {"partitions_count": 3})
        assert (grown.status_code, grown.json()["partitions_count"]) == (200, 3), grown.text
    fewer = topics.of("PATCH", new, {"partitions_count": 2})
    assert (fewer.status_code, fewer.json()["error_code"]) == (400, REFUSED)
    assert (fewer.json()["got"], fewer.json()["limit"]) == ("2", "at least 3")

    changes = {"name": "retention.ms", "value": "70000"}, {"name": "segment.ms", "value": "9000"}
    assert topics.alter(new, *changes).status_code == 204
    configs_now = topics.configs(new)
    assert configs_now["retention.ms"]["value"] == "70000"
    assert not configs_now["segment.ms"]["is_default"]
    assert configs_now["cleanup.policy"]["is_default"]
    # One that is wrong, and none is changed.
    wrong = topics.alter(new, {"name": "retention.ms", "value": "1"}, {"name": "no", "value": "1"})
    assert (wrong.status_code, wrong.json()["error_code"]) == (400, REFUSED)
    assert "no" in wrong.json()["message"]
    assert topics.alter(new, {"name": "segment.ms", "operation": "DELETE"}).status_code == 204
    configs_now = topics.configs(new)
    assert configs_now["retention.ms"]["value"] == "70000"
    assert configs_now["segment.ms"]["is_default"]

    waits = topics.of("DELETE", new)
    assert waits.status_code == 409, waits.text
    assert waits.json()["got"] == f"1 for {new}"
    assert "force=true" in waits.json()["remedy"]
    assert topics.of("GET", new).status_code == 200
    assert topics.of("DELETE", f"{new}?force=true").status_code == 204
    for method in ("GET", "DELETE"):
        gone = topics.of(method, new)
        assert (gone.status_code, gone.json()["error_code"]) == (404, NOT_FOUND)
    # Nobody who sends takes it for a topic that there is.
    sent = topics.node.ask("POST", f"/topics/{new}", json=DUE_LATER, headers=BINARY)
    assert sent.json()["error_code"] == 40401


def test_what_is_only_validated_is_not_done(topics: Topics, name: str) -> None:
    judged = topics.make("judged", partitions_count=4, replication_factor=1, validate_only=True)
    assert (judged.status_code, judged.json()["partitions_count"]) == (200, 4)
    assert topics.of("GET", "judged").status_code == 404
    body = {"data": [{"name": "retention.ms", "value": "1"}], "validate_only": True}
    assert topics.of("POST", f"{name}/configs:alter", body).status_code == 204
    assert topics.configs(name)["retention.ms"]["is_default"]
    body["data"] = [{"name": "retention.ms", "value": "soon"}]
    assert topics.of("POST", f"{name}/configs:alter", body).status_code == 400


BAD_TOPICS: dict[str, tuple[dict[str, Any], int, str]] = {
    "exists": ({}, 400, "already exists"),
    "empty name": ({"topic_name": ""}, 422, "$.topic_name"),
    "bad name": ({"topic_name": "a b"}, 422, "1 to 249 of a-z"),
    "long name": ({"topic_name": "a" * 250}, 422, "1 to 249"),
    "no partitions": ({"partitions_count": 0}, 422, "Expected `int` >= 1"),
    "many partitions": ({"partitions_count": 10**6}, 422, f"<= {PARTITIONS_MAX}"),
    "huge partitions": ({"partitions_count": 1 << 70}, 422, "$.partitions_count"),
    "replicas": ({"topic_name": "x", "replication_factor": 3}, 400, "fewer"),
    "many replicas": ({"replication_factor": 1 << 15}, 422, "32767"),
    "config": ({"topic_name": "x", "configs": [{"name": "no"}, {"name": "n", "value": "1"}]},
               400, "Unknown topic config name: n"),
    "value": ({"topic_name": "x", "configs": [{"name": "retention.ms", "value": "soon"}]},
              400, "Invalid value soon for configuration retention.ms"),
    "twice": ({"configs": [{"name": "a"}, {"name": "a"}]}, 422, "$.configs[1].name"),
    "unknown field": ({"replicas_assignments": []}, 422, "topic_name, partitions_count"),
    "own": ({"topic_name": "slotwheel-x"}, 403, "create-topic for topic 'slotwheel-x'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TOPICS)
def test_a_bad_topic_is_not_made(topics: Topics, name: str, case: str) -> None:
    body, status, text = BAD_TOPICS[case]
    answer = topics.ask("POST", topics.root, {"topic_name": name, **body})
    assert answer.status_code == status, answer.text
    assert text in answer.text
    assert answer.json()["error_code"] == (REFUSED if status == 400 else status)
    assert topics.of("GET", "x").status_code == 404


BAD_CHANGES: dict[str, tuple[str, str, Any, int, str]] = {
    "another kafka": ("GET", "/v3/clusters/other/topics", None, 404, "another Kafka"),
    "unknown": ("GET", "nothing", None, 404, "nothing"),
    "unknown configs": ("GET", "nothing/configs", None, 404, "nothing"),
    "unknown to grow": ("PATCH", "nothing", {"partitions_count": 3}, 404, "nothing"),
    "unknown to alter": ("POST", "nothing/configs:alter",
                         {"data": [{"name": "retention.ms", "value": "1"}]}, 404, "nothing"),
    "no name": ("GET", "a%20b", None, 404, "a b"),
    "no name to alter": ("POST", "a%20b/configs:alter",
                         {"data": [{"name": "retention.ms", "value": "1"}]}, 404, "a b"),
    "no name to delete": ("DELETE", "a%20b", None, 404, "a b"),
    "zero": ("PATCH", "NAME", {"partitions_count": 0}, 422, '"got":"0"'),
    "many": ("PATCH", "NAME", {"partitions_count": 2_000_000}, 422, "2000000"),
    "none": ("PATCH", "NAME", {}, 422, "partitions_count"),
    "no change": ("POST", "NAME/configs:alter", {"data": []}, 422, "$.data"),
    "no value": ("POST", "NAME/configs:alter", {"data": [{"name": "retention.ms"}]},
                 422, "SET takes a value"),
    "value to delete": ("POST", "NAME/configs:alter",
                        {"data": [{"name": "a", "value": "1", "operation": "DELETE"}]},
                        422, "DELETE takes no value"),
    "operation": ("POST", "NAME/configs:alter",
                  {"data": [{"name": "a", "value": "1", "operation": "ADD"}]}, 422, "operation"),
    "value": ("POST", "NAME/configs:alter", {"data": [{"name": "retention.ms", "value": "soon"}]},
              400, "Invalid value soon"),
    "kafka's own": ("DELETE", "__consumer_offsets?force=true", None, 403, "delete-topic"),
    "slotwheel's own": ("PATCH", "slotwheel-x", {"partitions_count": 3}, 403, "alter-topic"),
    "force": ("DELETE", "NAME?force=maybe", None, 422, "force"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CHANGES)
def test_a_bad_change_is_not_made(topics: Topics, name: str, case: str) -> None:
    method, path, body, status, text = BAD_CHANGES[case]
    if not path.startswith("/"):
        path = f"{topics.root}/{path.replace('NAME', name)}"
    answer = topics.ask(method, path, body)
    assert answer.status_code == status, answer.text
    assert text in answer.text
    assert topics.of("GET", name).json()["partitions_count"] == 2


# What Kafka answers


class AnsweringAdmin:
    """A client of Kafka whose every request for a change gets one error."""

    def __init__(self, kind: type[kafka_errors.KafkaError]) -> None:
        self.kind = kind
        self.entry = {"error_code": kind.errno, "error_message": "in Kafka's words"}

    def describe_topics(self, names: list[str]) -> list[Any]:
        part = {"replica_nodes": [1], "leader_id": 1}
        return [{"error_code": 0, "name": names[0], "is_internal": False, "partitions": [part]}]

    def describe_configs(self, asked: list[Any], config_filter: str) -> Any:
        assert config_filter == "all"
        return {"topic": {asked[0].name: {}}}

    def create_topics(self, *_: Any, **__: Any) -> Any:
        return {"topics": [self.entry]}

    delete_topics = create_topics

    def create_partitions(self, *_: Any, **__: Any) -> Any:
        return self

    def to_dict(self) -> Any:
        return {"results": [self.entry]}

    def alter_configs(self, resources: list[Any], **_: Any) -> Any:
        return {"topic": {resources[0].name: str(self.kind("in Kafka's words"))}}

    def close(self) -> None: ...


def answering(kind: type[kafka_errors.KafkaError]) -> KafkaAdministration:
    cluster = KafkaCluster("127.0.0.1:1", {})
    cluster._admin = cast(Any, AnsweringAdmin(kind))
    return KafkaAdministration(cluster)


CHANGES: dict[str, Any] = {
    "create": lambda kafka: kafka.create("t", 1, 1, {}, validate_only=False),
    "grow": lambda kafka: kafka.grow("t", 5),
    "alter": lambda kafka: kafka.alter("t", {"a": "1", "b": None}, validate_only=False),
    "delete": lambda kafka: kafka.delete("t"),
}
ANSWERS = [
    (kafka_errors.TopicAuthorizationFailedError, 403, KEPT_OUT, "principal of the gateway's own"),
    (kafka_errors.ClusterAuthorizationFailedError, 403, KEPT_OUT, "the caller's roles are enough"),
    (kafka_errors.UnknownTopicOrPartitionError, 404, NOT_FOUND, "lists those"),
    (kafka_errors.PolicyViolationError, 400, REFUSED, "Kafka's own settings"),
    (kafka_errors.TopicDeletionDisabledError, 400, REFUSED, "delete.topic.enable"),
    (kafka_errors.NotControllerError, 503, 50302, "Try again later"),
    (kafka_errors.ThrottlingQuotaExceededError, 503, 50302, "Try again later"),
    (kafka_errors.RequestTimedOutError, 503, 50302, "GET the topic"),
    (kafka_errors.UnknownError, 500, 50002, "Kafka's own log"),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer[0].__name__)
def test_each_answer_of_kafka_is_an_answer_of_the_gateway(change: str, answer: Any) -> None:
    kind, status, code, remedy = answer
    kafka = answering(kind)
    with pytest.raises(HttpError) as refused:
        CHANGES[change](kafka)
    error = refused.value
    assert (error.status, error.error_code) == (status, code)
    assert remedy in error.remedy
    assert "in Kafka's words" in error.message or status == 404
    # Others who ask for topics are not kept by what one may not do.
    assert kafka.cluster.ask_partitions(["t"]) == {"t": 1}


def test_configs_that_kafka_does_not_show_are_no_empty_list() -> None:
    kafka = answering(kafka_errors.UnknownError)
    with pytest.raises(HttpError) as refused:
        kafka.configs("t")
    assert (refused.value.status, refused.value.error_code) == (403, KEPT_OUT)


def test_a_topic_that_was_made_and_may_not_be_seen_is_made_all_the_same() -> None:
    kafka = answering(kafka_errors.TopicAuthorizationFailedError)
    admin = kafka.cluster._admin
    unseen = {**admin.entry, "name": "t", "partitions": []}
    made = {"error_code": 0, "num_partitions": -1, "replication_factor": -1}
    admin.create_topics = lambda *_, **__: {"topics": [made]}
    admin.describe_topics = lambda _: [unseen]
    assert kafka.create("t", 3, None, {}, validate_only=False) == AdministeredTopic("t", 3, 0)
