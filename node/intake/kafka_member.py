"""The membership of a wheel in its fleet (``fleet.py``), by kafka-python beside either reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import MemberState, OffsetAndMetadata

from ...broker.settings import ClientKind, for_kafka_python
from ...broker.sources import Place, StoredOffset
from .fleet import FleetLost, FleetName, SeenMember
from .kafka_reader import error_text, passes, reaching
from .source_reader import TIMEOUT_S, until_answered

SESSION_MS = 30_000
"""A wheel that does not answer for so long has died for the others, who take its partitions over;
the setting ``session.timeout.ms`` of Kafka's clients changes it."""
CONFIRM_SHARE = 0.4
"""The age of a confirmation, as a share of the session timeout, from which it is made anew."""
_HEARTBEAT_MS = 1000
_STUCK_MS = 60_000
"""The group waits so long for a member that has an append under way."""
_NOT_A_MEMBER = (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)


T = TypeVar("T")


class KafkaFleetMember:
    """The membership of the wheel ``name`` in its fleet, for ``topics``. ``settings``: of Kafka's
    client, in librdkafka's names.

    A ``FleetMember``. Errors on construction: ``SourceUnreachable``."""

    def __init__(
        self,
        bootstrap: str,
        name: FleetName,
        topics: Collection[str],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        timeout_ms = int(TIMEOUT_S * 1000)
        given = {"reconnect.backoff.max.ms": 1000, **(settings or {})}
        common = {"bootstrap_servers": bootstrap, "bootstrap_timeout_ms": timeout_ms}
        consumer_config: dict[str, Any] = {
            "session_timeout_ms": SESSION_MS,
            **for_kafka_python(given, ClientKind.CONSUMER),
            **common,
            "client_id": str(name),
            "group_id": name.fleet,
            "group_instance_id": name.wheel,
            "partition_assignment_strategy": [CooperativeStickyAssignor],
            "heartbeat_interval_ms": _HEARTBEAT_MS,
            "max_poll_interval_ms": _STUCK_MS,
            "metadata_max_age_ms": 5000,
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        self._confirm_s = CONFIRM_SHARE * consumer_config["session_timeout_ms"] / 1000
        admin_config = for_kafka_python(given, ClientKind.ADMIN) | common
        with reaching():
            self._admin = KafkaAdminClient(**{**admin_config, "request_timeout_ms": timeout_ms})
        try:
            with reaching():
                self._consumer = KafkaConsumer(**consumer_config)
        except BaseException:
            self._admin.close()
            raise
        self._coordinator: Any = self._consumer._coordinator
        self._counts: dict[str, int] = {}
        self._confirmed = -float("inf")
        self.places: frozenset[Place] = frozenset()
        self.generation = -1
        try:
            with reaching():
                self._consumer.subscribe(sorted(topics))
                # A leader that knows no partitions yet would share out none.
                self._update_metadata()
        except BaseException:
            self.close()
            raise

    def watch(self) -> list[SeenMember]:
        fleet = self._name.fleet
        described = self._ask(lambda: self._admin.describe_groups([fleet]))[fleet]
        # A group that nobody has joined yet is reported as an error.
        return [
            SeenMember(
                member["group_instance_id"] or "", member["client_id"], member["client_host"]
            )
            for member in described.get("members", ())
        ]

    def turn(self, timeout_s: float) -> bool:
        try:
            with reaching():
                # Not the consumer's poll: it would fetch records, too.
                self._coordinator.poll(timeout_ms=int(timeout_s * 1000))
        except (GroupAuthorizationFailedError, InconsistentGroupProtocolError) as error:
            raise FleetLost(
                f"the wheel cannot join the consumer group {self._name.fleet!r}:"
                f" {error_text(error)}"
            ) from None
        except KafkaError as error:
            raise self._lost(error) from None
        if not self.shared:
            return False
        self.generation = self._consumer.group_metadata().generation_id
        self.places = frozenset(Place(*target) for target in self._consumer.assignment())
        return True

    @property
    def shared(self) -> bool:
        stable = self._consumer.group_metadata().state == MemberState.STABLE
        return stable and not self._coordinator.need_rejoin()

    def count(self, topic: str, partitions: int) -> None:
        # A leader that joined anew under its name does not see that by itself.
        if self._counts.setdefault(topic, partitions) != partitions:
            self._counts[topic] = partitions
            with reaching():
                self._update_metadata()
            self._coordinator.request_rejoin()

    def store(self, offsets: Mapping[Place, StoredOffset]) -> None:
        targets = {
            TopicPartition(*place): OffsetAndMetadata(stored.offset, stored.topic_id, -1)
            for place, stored in offsets.items()
        }
        if not targets:
            return
        asked = now()
        try:
            with reaching():
                self._consumer.commit(targets, timeout_ms=int(TIMEOUT_S * 1000))
        except KafkaError as error:
            raise self._lost(error) from None
        self._confirmed = asked

    def confirm(self, offsets: Mapping[Place, StoredOffset]) -> None:
        self._coordinator.heartbeat.poll()
        if now() - self._confirmed > self._confirm_s:
            self.store(offsets)

    def leave(self) -> None:
        member = self._consumer.group_metadata().member_id
        if not member:
            return
        # A client that closes does not leave: a static member's partitions wait for it.
        leaving = MemberToRemove(member, self._name.wheel, "the wheel is stopped")
        self._ask(lambda: self._admin.remove_group_members(self._name.fleet, [leaving]))

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=int(TIMEOUT_S * 1000))
        self._admin.close()

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            with reaching():
                return until_answered(question, passes)
        except KafkaError as error:
            raise self._lost(error) from None

    def _update_metadata(self) -> None:
        """Wait until the client knows the partitions of its topics. Errors: ``KafkaError``."""
        update = self._coordinator._cluster.request_update()
        wait = self._coordinator._manager.wait_for
        self._coordinator._net.run(wait, update, int(TIMEOUT_S * 1000))

    def _lost(self, error: KafkaError) -> FleetLost:
        fleet = self._name.fleet
        if isinstance(error, _NOT_A_MEMBER):
            return FleetLost(
                f"the wheel is no member of the fleet {fleet!r} any more: {error_text(error)}"
            )
        return FleetLost(f"the consumer group {fleet!r}: {error_text(error)}")


def now() -> float:
    """Seconds of a clock that runs on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
