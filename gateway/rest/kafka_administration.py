"""Administration of Kafka's topics, by the client of kafka-python that ``KafkaCluster`` has.

Theory: each answer of Kafka carries an error for each topic, with a text that names the value. So
errors are read from answers and not caught: the library's exceptions show the whole request in
their place. A broker learns of a change from the controller a moment after it was made, so each
change is followed by questions until the broker shows it.

Rules
- Requests are judged by Kafka, which knows its limits and policies. Checked here is what it would
  not survive (``PARTITIONS_MAX``), and what would make a repeated request an error.
- When Kafka does not let this client do something, the caller's own rights are not the reason, and
  the error says so: otherwise people would look for a role that they have.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka import errors as kafka_errors
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from ...wheel.checks import is_topic
from ..administration import KEPT_OUT, NOT_FOUND, REFUSED, AdministeredTopic, TopicConfig
from ..errors import TEXT_MAX, HttpError
from .errors import KAFKA_REFUSES, not_now
from .kafka_cluster import KafkaCluster

T = TypeVar("T")
_SEEN_S = 5.0
"""A change is waited for so long, s, until a broker shows it; it was made all the same."""
_LOOK_AGAIN_S = 0.02
_OF_BROKERS = -1
"""How Kafka writes: as the brokers' default says."""
_REFUSALS: dict[type[kafka_errors.KafkaError], str] = {
    kafka_errors.TopicAlreadyExistsError: "Change it by PATCH or configs:alter, or DELETE it first",
    kafka_errors.InvalidTopicError: "Take another name",
    kafka_errors.InvalidPartitionsError: "A topic can only get more partitions",
    kafka_errors.InvalidReplicationFactorError: "Take as many as there are brokers, or fewer",
    kafka_errors.InvalidConfigurationError: "GET the topic's configs for those that there are",
    kafka_errors.InvalidRequestError: "Correct the request",
    kafka_errors.PolicyViolationError: "Kafka's own settings set the limit",
    kafka_errors.ReassignmentInProgressError: "Wait until the replicas have moved",
    kafka_errors.TopicDeletionDisabledError: "Kafka's setting delete.topic.enable is false",
}
"""What is the request's fault, and what to do about it."""
_ALTERED = re.compile(r"\[Error (-?\d+)\] \w+: (.*)", re.DOTALL)
"""How the library writes an error of a change of configs, of which it keeps the text alone."""
_DONE = "OK"
_IN_DOUBT = "GET the topic: if it was changed, only the answer is lost"


class KafkaAdministration:
    """A ``TopicAdministration`` of ``cluster``."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self._cluster_id = ""

    def cluster_id(self) -> str:
        if not self._cluster_id:
            described = self.cluster.ask(lambda admin: admin.describe_cluster())
            self._cluster_id = described["cluster_id"]
        return self._cluster_id

    def topics(self) -> list[AdministeredTopic]:
        entries = self.cluster.ask(lambda admin: admin.describe_topics())
        found = [_topic(entry) for entry in entries if not entry["error_code"]]
        named = [topic for topic in found if not topic.name.startswith("__")]
        return sorted(named, key=lambda topic: topic.name)

    def topic(self, name: str) -> AdministeredTopic:
        _demand_name(name)
        (entry,) = self.cluster.ask(lambda admin: admin.describe_topics([name]))
        _check(name, entry)
        return _topic(entry)

    def create(
        self,
        name: str,
        partitions: int | None,
        replicas: int | None,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool,
    ) -> AdministeredTopic:
        new = {
            "num_partitions": _OF_BROKERS if partitions is None else partitions,
            "replication_factor": _OF_BROKERS if replicas is None else replicas,
            "configs": dict(configs),
        }
        answer = self._change(
            lambda admin: admin.create_topics(
                {name: new}, validate_only=validate_only, raise_errors=False
            )
        )
        (entry,) = answer["topics"]
        _check(name, entry)
        # A client that may make topics, and not see their configs, is not told these.
        counts = entry.get("num_partitions", -1), entry.get("replication_factor", -1)
        told = AdministeredTopic(
            name,
            counts[0] if counts[0] > 0 else partitions or 0,
            counts[1] if counts[1] > 0 else replicas or 0,
        )
        if validate_only:
            return told
        self._await(lambda: self._has_leaders(name))
        if min(counts) > 0:
            return told
        try:
            return self.topic(name)
        except HttpError:  # it is made all the same
            return told

    def grow(self, name: str, partitions: int) -> AdministeredTopic:
        topic = self.topic(name)
        if topic.partitions == partitions:
            return topic
        if topic.partitions > partitions:
            raise HttpError(
                400,
                f"a topic keeps its partitions: {name} has {topic.partitions}",
                error_code=REFUSED,
                place="$.partitions_count",
                got=partitions,
                limit=f"at least {topic.partitions}",
                remedy="Make another topic, and let producers and consumers move to it",
            )
        answer = self._change(
            lambda admin: admin.create_partitions({name: partitions}, raise_errors=False)
        )
        (entry,) = answer.to_dict()["results"]
        _check(name, entry)
        self._await(lambda: self.topic(name).partitions >= partitions)
        self.cluster.forget(name)
        return AdministeredTopic(name, partitions, topic.replicas, topic.is_internal)

    def configs(self, name: str) -> list[TopicConfig]:
        self.topic(name)  # of one that there is not Kafka shows no config, and no error
        asked = [ConfigResource(ConfigResourceType.TOPIC, name)]
        entries = self.cluster.ask(
            lambda admin: admin.describe_configs(asked, config_filter="all")["topic"][name]
        )
        if not entries:  # every topic has some
            raise _refused(name, kafka_errors.TopicAuthorizationFailedError, "")
        return [
            TopicConfig(
                config,
                entry["value"],
                entry["config_source"],
                entry["read_only"],
                entry["is_sensitive"],
            )
            for config, entry in sorted(entries.items())
        ]

    def alter(self, name: str, changes: Mapping[str, str | None], *, validate_only: bool) -> None:
        _demand_name(name)
        written = {
            config: (AlterConfigOp.DELETE, None) if value is None else (AlterConfigOp.SET, value)
            for config, value in changes.items()
        }
        resource = ConfigResource(ConfigResourceType.TOPIC, name, written)
        # Kafka itself judges the names; the library would take those for unknown that it may not
        # see.
        answer = self._change(
            lambda admin: admin.alter_configs(
                [resource], validate_only=validate_only, raise_on_unknown=False
            )
        )
        text = answer["topic"][name]
        if text != _DONE:
            match = _ALTERED.fullmatch(text)
            code, message = (-1, text) if match is None else (int(match[1]), match[2])
            _check(name, {"error_code": code, "error_message": message})
        if not validate_only:
            self._await(lambda: self._shows(name, changes))

    def delete(self, name: str) -> None:
        _demand_name(name)
        answer = self._change(lambda admin: admin.delete_topics([name], raise_errors=False))
        (entry,) = answer["topics"]
        _check(name, entry)
        self.cluster.forget(name)
        self._await(lambda: self._is_gone(name))

    def _change(self, question: Callable[[Any], T]) -> T:
        """Ask Kafka to change something. Errors: as of ``KafkaCluster.ask``."""
        try:
            return self.cluster.ask(question)
        except HttpError as error:
            if error.status == 503:
                error.remedy = _IN_DOUBT
            raise

    def _await(self, is_seen: Callable[[], bool]) -> None:
        until_s = time.monotonic() + _SEEN_S
        while time.monotonic() < until_s:
            try:
                if is_seen():
                    return
            except HttpError:  # it is done, though this client may not see it, or not now
                return
            time.sleep(_LOOK_AGAIN_S)

    def _has_leaders(self, name: str) -> bool:
        (entry,) = self.cluster.ask(lambda admin: admin.describe_topics([name]))
        if entry["error_code"] != kafka_errors.UnknownTopicOrPartitionError.errno:
            _check(name, entry)
        partitions = entry["partitions"]
        return bool(partitions) and all(part["leader_id"] >= 0 for part in partitions)

    def _shows(self, name: str, changes: Mapping[str, str | None]) -> bool:
        shown = {config.name: config for config in self.configs(name)}
        return all(
            config not in shown
            or shown[config].is_sensitive
            or (shown[config].is_default if value is None else _is_alike(value, shown[config]))
            for config, value in changes.items()
        )

    def _is_gone(self, name: str) -> bool:
        try:
            self.topic(name)
        except HttpError as error:
            return error.error_code == NOT_FOUND
        return False


def _is_alike(value: str, shown: TopicConfig) -> bool:
    """True when Kafka shows what was given: it writes ``Compact, delete`` as ``compact,delete``."""
    given, seen = ("".join(text.lower().split()) for text in (value, shown.value or ""))
    return given == seen


def _topic(entry: Mapping[str, Any]) -> AdministeredTopic:
    partitions = entry["partitions"]
    replicas = max((len(part["replica_nodes"]) for part in partitions), default=0)
    return AdministeredTopic(entry["name"], len(partitions), replicas, entry["is_internal"])


def _demand_name(name: str) -> None:
    """Errors: ``NOT_FOUND`` for a name that no topic can have: the library would raise."""
    if not is_topic(name):
        raise _refused(name, kafka_errors.UnknownTopicOrPartitionError, "")


def _check(name: str, entry: Mapping[str, Any]) -> None:
    """Check Kafka's answer for a topic. Errors: ``HttpError``."""
    if entry["error_code"]:
        kind = kafka_errors.for_code(entry["error_code"])
        raise _refused(name, kind, entry.get("error_message") or "")


def _refused(name: str, kind: type[kafka_errors.KafkaError], message: str) -> HttpError:
    """The error for what Kafka does not do. ``message``: in Kafka's words, if it gave any."""
    text = (message or str(getattr(kind, "description", None) or kind.__name__))[:TEXT_MAX]
    if issubclass(kind, kafka_errors.UnknownTopicOrPartitionError):
        return HttpError(
            404,
            "no such topic",
            error_code=NOT_FOUND,
            got=name,
            remedy="GET …/topics lists those that there are",
        )
    if issubclass(kind, kafka_errors.AuthorizationError):
        return HttpError(
            403,
            f"Kafka does not let this gateway do it: {text}",
            error_code=KEPT_OUT,
            got=name,
            remedy="Kafka's rules have to allow it to the principal of the gateway's own"
            " settings for Kafka; the caller's roles are enough",
        )
    if (remedy := _REFUSALS.get(kind)) is not None:
        return HttpError(400, text, error_code=REFUSED, got=name, remedy=remedy)
    if kind.retriable:  # it is no reason to take the brokers for away, and keep others waiting
        later = not_now(f"Kafka cannot do it now: {text}")
        if issubclass(kind, kafka_errors.RequestTimedOutError):
            later.remedy = _IN_DOUBT
        return later
    return HttpError(
        500,
        f"Kafka refuses: {text}",
        error_code=KAFKA_REFUSES,
        got=name,
        remedy="Kafka's own log may say why",
    )
