"""The common part of all clients of kafka-python.

It chooses partitions for a chunk at once, sends records by a ``ProducerLane`` and waits for them,
has the clients' settings, and translates an error.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from ...broker.murmur2 import partitions_of
from ...broker.settings import ClientKind, for_kafka_python
from ...wheel.schema import Int64s
from ..sink import Answer
from .lane import ProducerLane
from .plan import NO_PARTITION, KafkaSettings, SendFailure, SendPlan
from .topicbook import TOPIC_CONFIGS

_LATE_S = 0.5
"""The client gives up a record by itself, and gets so much longer, s, to report that."""
_PAUSE_S = 0.1
_STARTING = (
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.NotCoordinatorError,
)


def send_by(lane: ProducerLane, plan: SendPlan, timeout_s: float) -> dict[int, SendFailure]:
    """Send the plan's rows by one producer and wait until each is acknowledged, for ``timeout_s``
    and a moment. Returns those that failed."""
    failures = _ensure_topics(lane, plan)
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


def _ensure_topics(lane: ProducerLane, plan: SendPlan) -> dict[int, SendFailure]:
    """Let the producer find the topics' leaders. Returns failures for rows of topics without."""
    failed = {
        topic: SendFailure(Answer.NOT_NOW, str(error))
        for topic, error in lane.ensure_topics(plan.topics).items()
    }
    if not failed:
        return {}
    topics = plan.records.topics
    return {row: failed[topics[row]] for row in plan.rows if topics[row] in failed}


def choose_partitions(plan: SendPlan) -> Int64s:
    """The partition of each record, shape (rows,): the one that its row names, else that of its
    key. Keyless records go to one random partition of the topic, so that batches are large."""
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


def classify(error: Exception, *, aborted: bool = False) -> SendFailure:
    """The answer for a record, from kafka-python's error. ``aborted``: another record's error ended
    the producer, and this record with it."""
    reason = str(error) or type(error).__name__
    # A bare KafkaError: the broker found a record of the batch invalid, but not this one.
    if type(error) is kafka_errors.KafkaError or aborted:
        return SendFailure(Answer.UNKNOWN, reason, bystander=True)
    return SendFailure.by_code(getattr(error, "errno", None), reason)


def configs_of(admin: KafkaAdminClient, topics: list[str]) -> dict[str, dict[str, str | None]]:
    """The readable configurations of topics, by topic and name; none where the node has not the
    right. With a topic's limit an oversized record is refused without being sent.

    Errors: kafka-python's."""
    if not topics:
        return {}
    kind, names = ConfigResourceType.TOPIC, list(TOPIC_CONFIGS)
    resources = [ConfigResource(kind, topic, names) for topic in topics]
    try:
        configs = admin.describe_configs(resources, config_filter="all")["topic"]
    except (kafka_errors.BrokerResponseError, KeyError):
        return {}  # not permitted; the broker refuses each record that is too large
    return {
        topic: {name: entry["value"] for name, entry in entries.items()}
        for topic, entries in configs.items()
    }


def members_of(settings: KafkaSettings, group: str, deadline: float) -> int:
    """The number of members of a consumer group. It asks again until ``deadline`` (monotonic, s)
    while the group's coordinator is only starting.

    Errors: kafka-python's, ``OSError``, ``InvalidConfiguration``."""
    admin = KafkaAdminClient(**admin_config(settings))
    try:
        while True:
            try:
                return len(admin.describe_groups([group])[group]["members"])
            except _STARTING:
                if time.monotonic() + _PAUSE_S > deadline:
                    raise
                time.sleep(_PAUSE_S)
    finally:
        admin.close()


def client_config(settings: KafkaSettings, kind: ClientKind) -> dict[str, Any]:
    """The settings of a client that sends no messages; the user's override ours."""
    timeout_ms = int(settings.metadata_timeout_s * 1000)
    defaults = {
        "bootstrap_servers": settings.bootstrap,
        "client_id": "slotwheel",
        "bootstrap_timeout_ms": timeout_ms,
        "reconnect_backoff_max_ms": 1000,
    }
    return defaults | for_kafka_python(settings.extra, kind)


def admin_config(settings: KafkaSettings) -> dict[str, Any]:
    """The settings of a client for administration."""
    defaults = {"request_timeout_ms": int(settings.metadata_timeout_s * 1000)}
    return defaults | client_config(settings, ClientKind.ADMIN)
