"""The default sink to a real Kafka, with kafka-python: no compiled parts needed.

Each ``deliver`` has a producer of its own until all its records are answered, as a failure ends the
producer: one serves all main chunks, and there are as many others as trials at a time.

kafka-python has no bound on memory of its own; the bounds are those of ``KafkaSink``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from ...broker.reach import why_not
from ...broker.settings import named
from ...wheel.ids import IdMint
from .kafka_python_client import admin_config, configs_of, send_by
from .kafka_python_transactions import KafkaPythonTransactions
from .lane import ProducerLane
from .plan import KafkaSettings, SendFailure, SendPlan
from .sink import KafkaSink
from .topicbook import Found, NotYet, TopicInfo, Unreachable
from .transactions import Transactions

_MISSING = kafka_errors.UnknownTopicOrPartitionError.errno
_INVALID = kafka_errors.InvalidTopicError.errno


class KafkaPythonSink(KafkaSink):
    """Sends with kafka-python."""

    def __init__(
        self, mint: IdMint, settings: KafkaSettings, transactions: Transactions | None = None
    ) -> None:
        super().__init__(mint, settings, transactions)
        self._idle: dict[bool, list[ProducerLane]] = {False: [], True: []}
        self._lanes: set[ProducerLane] = set()
        self._lanes_lock = threading.Lock()
        self._closed = False
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    @staticmethod
    def make_transactions(settings: KafkaSettings, group: str, topic: str) -> Transactions:
        return KafkaPythonTransactions(settings, group, topic)

    def close(self) -> None:
        if self.transactions is not None:
            self.transactions.close()
        with self._lanes_lock:
            lanes, self._lanes = self._lanes, set()
            self._closed = True
        for lane in lanes:
            lane.abandon()
        with self._admin_lock:
            self._drop_admin()

    def _send(self, plan: SendPlan, timeout_s: float, *, trial: bool) -> dict[int, SendFailure]:
        try:
            lane = self._acquire_lane(timeout_s, trial=trial)
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._unreachable(error) from error
        sound = False
        try:
            failures = send_by(lane, plan, timeout_s)
            sound = not failures  # a refusal has ended the producer as well
        finally:
            self._release(lane, trial=trial, sound=sound)
        return failures

    def _acquire_lane(self, timeout_s: float, *, trial: bool) -> ProducerLane:
        """A producer for this call alone. Errors: kafka-python's, ``Unreachable``."""
        with self._lanes_lock:
            if self._idle[trial] and not self._closed:
                return self._idle[trial].pop()
        lane = ProducerLane(self.settings, timeout_s)
        with self._lanes_lock:
            if not self._closed:
                self._lanes.add(lane)
                return lane
        lane.abandon()
        raise Unreachable("the sink is closed")

    def _release(self, lane: ProducerLane, *, trial: bool, sound: bool) -> None:
        with self._lanes_lock:
            if sound and not self._closed:
                self._idle[trial].append(lane)
                return
            self._lanes.discard(lane)
        lane.abandon()

    def _fetch(self, topics: Sequence[str]) -> Mapping[str, Found]:
        with self._admin_lock:
            if self._closed:
                raise Unreachable("the sink is closed")
            try:
                if self._admin is None:
                    self._admin = KafkaAdminClient(**admin_config(self.settings))
                described = {
                    entry["name"]: entry for entry in self._admin.describe_topics(list(topics))
                }
                existing = [name for name, entry in described.items() if entry["error_code"] == 0]
                configs = configs_of(self._admin, existing)
            except (kafka_errors.KafkaError, OSError) as error:
                self._drop_admin()
                raise self._unreachable(error) from error
        compressed = named(self.settings.extra).get("compression.type", "none") != "none"
        infos: dict[str, Found] = {}
        for topic in topics:
            code = described[topic]["error_code"] if topic in described else _MISSING
            if code in (_MISSING, _INVALID):
                infos[topic] = None
            elif code:
                infos[topic] = NotYet(f"topic {topic}: {kafka_errors.for_code(code).__name__}")
            else:
                partitions = described[topic]["partitions"]
                leaderless = sum(entry["leader_id"] < 0 for entry in partitions)
                infos[topic] = TopicInfo.described(
                    len(partitions), leaderless, configs.get(topic, {}), compressed=compressed
                )
        return infos

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = why_not(self.settings.bootstrap, self.settings.extra, error)
        return Unreachable(f"Kafka at {self.settings.bootstrap}: {reason}")

    def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()
