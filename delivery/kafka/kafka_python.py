"""The default sink to a real Kafka, with kafka-python: no compiled parts needed.

Partitions are chosen here, for a chunk at once; ``ProducerLane`` sends. Each ``deliver`` waits for
all of its records and has a producer of its own meanwhile: one for all main chunks, and as many
others as there are trials at a time.

kafka-python has no bound on memory of its own; the bounds are those of ``KafkaSink``.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from ...wheel.ids import IdMint
from ...wheel.schema import Int64s
from ..sink import Answer
from .lane import ProducerLane
from .murmur2 import partitions_of
from .sink import NO_PARTITION, KafkaSettings, KafkaSink, SendFailure, SendPlan
from .topicbook import TOPIC_LIMIT, NotYet, TopicInfo, Unreachable

log = logging.getLogger(__name__)

_LATE_S = 0.5
"""The client gives up a record by itself; so much longer, s, is waited for it to do so."""

_REFUSED: tuple[type[Exception], ...] = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidTopicError,
    kafka_errors.InvalidRecordError,
    kafka_errors.InvalidTimestampError,
)
_MISSING = kafka_errors.UnknownTopicOrPartitionError.errno
_INVALID = kafka_errors.InvalidTopicError.errno


class KafkaPythonSink(KafkaSink):
    """Sends with kafka-python."""

    def __init__(self, mint: IdMint, settings: KafkaSettings) -> None:
        super().__init__(mint, settings)
        self._idle: dict[bool, list[ProducerLane]] = {False: [], True: []}
        self._lanes: set[ProducerLane] = set()
        self._lanes_lock = threading.Lock()
        self._closed = False
        self._admin: Any = None
        self._admin_lock = threading.Lock()

    def close(self) -> None:
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
            raise Unreachable(f"Kafka at {self.settings.bootstrap}: {error}") from error
        sound = False
        try:
            failures = self._send_by(lane, plan, timeout_s)
            sound = not failures  # a refusal has ended the producer as well
        finally:
            self._release(lane, trial=trial, sound=sound)
        return failures

    def _send_by(
        self, lane: ProducerLane, plan: SendPlan, timeout_s: float
    ) -> dict[int, SendFailure]:
        failures = self._ensure_topics(lane, plan)
        rows = [row for row in plan.rows if row not in failures] if failures else plan.rows
        deadline = time.monotonic() + timeout_s + _LATE_S
        try:
            futures = lane.send(plan, rows, choose_partitions(plan).tolist())
        except kafka_errors.IllegalStateError as error:  # it was closed meanwhile, maybe half-way
            return failures | dict.fromkeys(rows, SendFailure(Answer.UNKNOWN, str(error)))
        for row, future in zip(rows, futures, strict=True):
            if not future.is_done:
                with suppress(kafka_errors.KafkaError):
                    future.get(max(0.0, deadline - time.monotonic()))
            if not future.is_done:
                failures[row] = SendFailure(Answer.UNKNOWN, "no acknowledgement in time")
            elif future.exception is not None:
                failures[row] = classify(future.exception, aborted=lane.aborted(future))
        return failures

    def _ensure_topics(self, lane: ProducerLane, plan: SendPlan) -> dict[int, SendFailure]:
        """Let the producer find the topics' leaders; rows of topics without one fail."""
        failed: dict[str, SendFailure] = {}
        for topic in plan.topics:
            try:
                lane.ensure_topic(topic)
            except kafka_errors.KafkaError as error:
                failed[topic] = SendFailure(Answer.NOT_NOW, str(error))
        if not failed:
            return {}
        topics = plan.records.topics
        return {row: failed[topics[row]] for row in plan.rows if topics[row] in failed}

    def _acquire_lane(self, timeout_s: float, *, trial: bool) -> ProducerLane:
        """A producer for this call alone: one that fails gives up all that it has in flight."""
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

    def _fetch(self, topic: str) -> TopicInfo | None:
        with self._admin_lock:
            try:
                if self._admin is None:
                    self._admin = KafkaAdminClient(**self._admin_config())
                (found,) = self._admin.describe_topics([topic])
                bytes_max = self._bytes_max(topic) if found["error_code"] == 0 else None
            except (kafka_errors.KafkaError, OSError) as error:
                self._drop_admin()
                raise Unreachable(f"Kafka at {self.settings.bootstrap}: {error}") from error
        code = found["error_code"]
        if code in (_MISSING, _INVALID):
            return None
        if code:
            raise NotYet(f"topic {topic}: {kafka_errors.for_code(code).__name__}")
        partitions = found["partitions"]
        leaderless = sum(one["leader_id"] < 0 for one in partitions)
        return TopicInfo(len(partitions), leaderless, bytes_max)

    def _bytes_max(self, topic: str) -> int | None:
        """The topic's limit, bytes, so that larger rows are refused without ending the producer."""
        if self.settings.extra.get("compression_type"):
            return None  # the broker measures the compressed batch
        try:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, [TOPIC_LIMIT])
            found = self._admin.describe_configs([resource], config_filter="all")
            return int(found["topic"][topic][TOPIC_LIMIT]["value"])
        except (kafka_errors.BrokerResponseError, KeyError, TypeError, ValueError):
            return None  # not permitted; the broker refuses each record that is too large

    def _admin_config(self) -> dict[str, Any]:
        timeout_ms = int(self.settings.metadata_timeout_s * 1000)
        ours = {
            "bootstrap_servers": self.settings.bootstrap,
            "client_id": "slotwheel",
            "bootstrap_timeout_ms": timeout_ms,
            "request_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": 1000,
        }
        known = KafkaAdminClient.DEFAULT_CONFIG
        return ours | {key: value for key, value in self.settings.extra.items() if key in known}

    def _drop_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()


def choose_partitions(plan: SendPlan) -> Int64s:
    """The partition of each record, shape (rows,): the named one; else that of the key; else, for
    records without a key, any one, the same for the whole chunk so that batches stay large."""
    chosen = plan.partitions.copy()
    open_rows = np.array(plan.rows, np.int64)
    open_rows = open_rows[chosen[open_rows] == NO_PARTITION]
    if not len(open_rows):
        return chosen
    topics = plan.batch.column("topic").dictionary_encode()
    codes = np.asarray(topics.indices)[open_rows]
    for code, topic in enumerate(topics.dictionary.to_pylist()):
        info = plan.topics.get(topic)
        rows = open_rows[codes == code]
        if info is None or not len(rows):
            continue
        keys = plan.batch.column("key").take(pa.array(rows))
        partitions = partitions_of(keys, info.count)
        if keys.null_count:
            without = np.asarray(keys.is_null())
            partitions[without] = random.randrange(info.count)
        chosen[rows] = partitions
    return chosen


def typed(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings in the types that kafka-python expects: numbers and booleans, not texts."""
    found: dict[str, Any] = {}
    for name, text in settings.items():
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def classify(error: Exception, *, aborted: bool = False) -> SendFailure:
    """The answer for a record, from kafka-python's error. ``aborted``: the error is another
    record's, and ended the producer."""
    reason = str(error) or type(error).__name__
    refusal = isinstance(error, _REFUSED)
    # A bare KafkaError: the broker found a record of the batch invalid, but not this one.
    if type(error) is kafka_errors.KafkaError or aborted:
        return SendFailure(Answer.UNKNOWN, reason, bystander=True)
    if refusal:
        return SendFailure(Answer.REFUSED, reason)
    return SendFailure(Answer.UNKNOWN, reason)
