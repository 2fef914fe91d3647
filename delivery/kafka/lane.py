"""One kafka-python producer, and the way into its accumulator.

kafka-python's ``send`` cannot express every Kafka record - it refuses a record without key and
value, and a header without a value - and computes for each record what is the same for a whole
chunk. So records are appended to the producer's accumulator directly, as ``send`` does in the end.
Only this module depends on that, and the sinks' contract tests check it. Idempotence and acks=all
are kafka-python's defaults and stay on.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import IllegalStateError, InvalidRecordError, KafkaError
from kafka.structs import TopicPartition

from ...broker.settings import ClientKind, for_kafka_python
from ...wheel.rows import Header
from .plan import KafkaSettings, SendPlan

BATCH_BYTES = 128 * 1024
_CLOSE_S = 1.0


class _HeadersWithNull(list[Header]):
    """Headers of which one has no value. kafka-python can encode them, but fails when it sums up
    their lengths, which it leaves out where the list is false."""

    def __bool__(self) -> bool:
        return False


class ProducerLane:
    """A producer with its own connections and its own place in each partition's sequence."""

    def __init__(
        self, settings: KafkaSettings, timeout_s: float, own: dict[str, Any] | None = None
    ) -> None:
        """Connect. A record is given up after ``timeout_s``. ``own``: settings that the user's do
        not override. Errors: those of kafka-python when no broker answers."""
        timeout_ms = int(timeout_s * 1000)
        config: dict[str, Any] = {
            "bootstrap_servers": settings.bootstrap,
            "client_id": "slotwheel",
            "bootstrap_timeout_ms": int(settings.metadata_timeout_s * 1000),
            "max_block_ms": int(settings.metadata_timeout_s * 1000),
            "delivery_timeout_ms": timeout_ms,
            "request_timeout_ms": timeout_ms // 2,  # so that there is a second try
            "max_request_size": settings.record_bytes_max,
            "batch_size": BATCH_BYTES,
            "reconnect_backoff_max_ms": 1000,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        config |= for_kafka_python(settings.extra, ClientKind.PRODUCER)
        self._producer = KafkaProducer(**config | (own or {}))
        self._keep_batches_in_flight()
        self._forget_topics_that_went()
        self._keep_the_kind_of_errors()

    def _keep_batches_in_flight(self) -> None:
        # After a refused batch kafka-python gives up all others, also those that the broker may
        # have by then, which would be sent twice. Here it gives up unsent batches only; the broker
        # answers for the others.
        sender = self._producer._sender
        sender._maybe_abort_batches = self._producer._accumulator.abort_undrained_batches

    def _forget_topics_that_went(self) -> None:
        # kafka-python asks for the leader of each partition it has ever sent to, without a pause,
        # also when no record waits: a topic that was deleted would cost most of a core.
        accumulator = self._producer._accumulator
        ready = accumulator.ready

        def ready_of_waiting(cluster: Any, now: float | None = None) -> tuple[Any, float, bool]:
            nodes, next_check_s, leaderless = ready(cluster, now)
            if leaderless:
                waiting = [target for target, some in [*accumulator._batches.items()] if some]
                leaders = map(cluster.leader_for_partition, waiting)
                leaderless = any(leader in {None, -1} for leader in leaders)
            return nodes, next_check_s, leaderless

        accumulator.ready = ready_of_waiting

    def _keep_the_kind_of_errors(self) -> None:
        # Where the broker names several records of a refused batch, kafka-python calls each of them
        # an invalid record, whatever the batch was refused for: a wrong clock, for example.
        sender = self._producer._sender
        exceptions_of = sender._record_exceptions_fn

        def exceptions_of_kind(error: Any, record_errors: Any, message: Any) -> Any:
            exception_of = exceptions_of(error, record_errors, message)

            def of_record(number: int) -> Any:
                exception = exception_of(number)
                invalid = type(exception) is InvalidRecordError
                return type(error)(*exception.args) if invalid else exception

            return of_record

        sender._record_exceptions_fn = exceptions_of_kind

    def ensure_topics(self, topics: Iterable[str]) -> dict[str, KafkaError]:
        """Let the producer find the leaders of these topics. Returns the topics whose leaders it
        does not find, each with its error. All are asked for at once: singly, each would wait for
        the pause between two requests."""
        metadata, sender = self._producer._metadata, self._producer._sender
        unknown = [topic for topic in topics if metadata.partitions_for_topic(topic) is None]
        for topic in unknown:
            sender.add_topic(topic)
        failed: dict[str, KafkaError] = {}
        for topic in unknown:
            try:
                self._producer.partitions_for(topic)
            except KafkaError as error:
                failed[topic] = error
        return failed

    def send(self, plan: SendPlan, rows: list[int], partitions: list[int]) -> list[Any]:
        """Append ``rows`` of the plan, whose records go to ``partitions`` (one for each record of
        the plan). Returns a future for each row. Never blocks."""
        append = self._producer._accumulator.append
        wake = self._producer._sender.wakeup
        records = plan.records
        targets = {
            (topic, partition): TopicPartition(topic, partition)
            for topic, info in plan.topics.items()
            for partition in range(info.count)
        }
        nulls = plan.batch.column("headers").flatten().field(1).null_count > 0
        futures = []
        for row in rows:
            headers = records.headers[row]
            if nulls and any(value is None for _, value in headers):
                headers = _HeadersWithNull(headers)
            target = targets[records.topics[row], partitions[row]]
            result = append(target, None, records.keys[row], records.values[row], headers)
            futures.append(result[0])
            if result[1] or result[2]:  # a batch is full, or new
                wake()
        wake()
        return futures

    def append(
        self,
        target: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        timestamp_ms: int | None = None,
    ) -> Any:
        """Append a record. Returns its future. Never blocks."""
        if any(value is None for _, value in headers):
            headers = _HeadersWithNull(headers)
        result = self._producer._accumulator.append(target, timestamp_ms, key, value, headers)
        if result[1] or result[2]:
            self._producer._sender.wakeup()
        return result[0]

    @staticmethod
    def aborted(future: Any) -> bool:
        """Returns True when the producer gave a record up, unsent, because another one had failed.

        A refused batch is a fatal error for kafka-python's idempotent producer: it ends all others
        with the very same exception. Those have base offset -1; a batch that failed itself, None.
        After ``abandon`` the outcome is unknown.
        """
        if isinstance(future.exception, IllegalStateError):
            return False
        outcome = future._produce_future.value
        return outcome is not None and outcome[0] == -1

    def abandon(self) -> None:
        """End the producer without sending the records it still holds."""
        with suppress(Exception):
            sender = self._producer._sender
            sender.force_close()
            sender.join(_CLOSE_S)
            self._producer.close(timeout=0)
