"""The fast sink to a real Kafka, with confluent-kafka (librdkafka): the extra ``fast``.

A record costs one call of ``produce`` and, when it succeeds, no Python at all: only failures are
called back (``delivery.report.only.error``), and ``flush`` returns whether everything was reported.

librdkafka fails a refused batch as a whole: one oversized or invalid record makes its neighbours
fail. So a refused batch is sent again, one record a batch, by a *careful* producer, which shows the
bad record; and for a while that topic is sent carefully from the start, at a fraction of the rate.
The batches behind the refused one have been accepted by then: its rows arrive after theirs.
So what can be known before is: a record larger than the topic's limit is never sent, where we may
read that limit. Where we may not, batches of the main producer are far below the usual limits of
topics, so that an oversized record is a batch of its own from the start.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from cachetools import TTLCache

from ...wheel.errors import SlotwheelError
from ...wheel.ids import IdMint
from ..sink import Answer
from .sink import KafkaSettings, KafkaSink, SendFailure, SendPlan
from .topicbook import TOPIC_LIMIT, TOPICS_REMEMBERED, NotYet, TopicInfo, Unreachable

ck: Any = None  # None when the extra is not installed, which is reported when a sink is made
ck_admin: Any = None
with suppress(ImportError):
    ck = importlib.import_module("confluent_kafka")
    ck_admin = importlib.import_module("confluent_kafka.admin")

log = logging.getLogger(__name__)
_client_log = logging.getLogger("slotwheel.librdkafka")

BATCH_BYTES = 256 * 1024
_LATE_S = 0.5
"""librdkafka gives up a record by itself; so much longer, s, is waited for it to do so."""
_SILENT_MAX = 5
"""Requests without an answer, in a row, after which the client is made anew: the client may be
stuck, and the broker long up."""
_MAIN, _TRIAL, _CAREFUL = "main", "trial", "careful"
_COMPRESSION = ("compression.type", "compression.codec")

_REFUSED = {
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "TOPIC_EXCEPTION",
    "INVALID_MSG_SIZE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
}
CAREFUL_S = 60.0
"""How long, s, a topic is sent record by record after one of its batches was refused."""


class MissingExtra(SlotwheelError):
    """An optional dependency is needed and not installed."""

    code = "missing-extra"


class ConfluentSink(KafkaSink):
    """Sends with confluent-kafka. Errors: ``MissingExtra`` when it is not installed."""

    def __init__(self, mint: IdMint, settings: KafkaSettings) -> None:
        if ck is None:
            raise MissingExtra(
                "the confluent sink needs confluent-kafka, which is not installed",
                remedy="Run: pip install 'slotwheel[fast]', or use --sink kafka-python",
            )
        super().__init__(mint, settings)
        self._lock = threading.Lock()
        self._producers: dict[str, Any] = {}
        # Trials run in parallel. After a failure the producer is thrown away, with all that it has
        # in flight, so each trial has its own.
        self._trials: list[Any] = []
        self._idle_trials: list[Any] = []
        self._careful: TTLCache[str, bool] = TTLCache(TOPICS_REMEMBERED, CAREFUL_S)
        self._admin: Any = None
        self._silent = 0  # requests for metadata without an answer, in a row
        self._closed = False
        self._careful_alone = threading.Lock()  # for one call at a time

    def close(self) -> None:
        with self._lock:
            self._closed = True
            trials, self._trials, self._idle_trials = self._trials, [], []
            self._admin = None
        for name in (_MAIN, _CAREFUL):
            self._abandon(name)
        for producer in trials:
            _end(producer)

    def _send(self, plan: SendPlan, timeout_s: float, *, trial: bool) -> dict[int, SendFailure]:
        topics = plan.records.topics
        with self._lock:
            careful = {topic for topic in plan.topics if topic in self._careful}
        usual = plan.rows
        if careful:
            usual = [row for row in plan.rows if topics[row] not in careful]
        if trial:
            failures = self._try(plan, usual, timeout_s)
        else:
            failures = self._run(plan, usual, timeout_s, _MAIN)
        again = [row for row, failure in failures.items() if failure.answer is Answer.REFUSED]
        with self._lock:
            for row in again:
                self._careful[topics[row]] = True
        one_by_one = sorted(again + [row for row in plan.rows if topics[row] in careful])
        if one_by_one:
            for row in again:
                del failures[row]
            try:
                with self._careful_alone:
                    failures |= self._run(plan, one_by_one, timeout_s, _CAREFUL)
            except Unreachable as error:  # closed meanwhile; the other rows have answers
                failures |= dict.fromkeys(one_by_one, SendFailure(Answer.NOT_NOW, str(error)))
        return failures

    def _run(
        self, plan: SendPlan, rows: list[int], timeout_s: float, name: str
    ) -> dict[int, SendFailure]:
        """Send ``rows`` by the producer of that name; abandon it if an outcome is unknown."""
        if not rows:
            return {}
        failures = self._send_by(self._producer(name), plan, rows, timeout_s)
        if _any_unknown(failures):
            self._abandon(name)
        return failures

    def _try(self, plan: SendPlan, rows: list[int], timeout_s: float) -> dict[int, SendFailure]:
        """Send ``rows`` by a trial producer that no other call uses meanwhile."""
        if not rows:
            return {}
        with self._lock:
            if self._idle_trials:
                producer = self._idle_trials.pop()
            else:
                producer = self._make(_TRIAL)
                self._trials.append(producer)
        sound = False
        try:
            failures = self._send_by(producer, plan, rows, timeout_s)
            sound = not _any_unknown(failures)
        finally:
            self._release(producer, sound=sound)
        return failures

    def _release(self, producer: Any, *, sound: bool) -> None:
        with self._lock:
            if producer not in self._trials:  # the sink was closed meanwhile
                return
            if sound:
                self._idle_trials.append(producer)
                return
            self._trials.remove(producer)
        _end(producer)

    def _send_by(
        self, producer: Any, plan: SendPlan, rows: list[int], timeout_s: float
    ) -> dict[int, SendFailure]:
        """Send ``rows`` by one producer and wait until each is reported."""
        failures: dict[int, SendFailure] = {}

        def note(row: int, error: Any, _message: Any) -> None:
            failures[row] = classify(error)

        deadline = time.monotonic() + timeout_s + _LATE_S
        produce, records = producer.produce, plan.records
        topics, keys, values, headers = (
            records.topics,
            records.keys,
            records.values,
            records.headers,
        )
        partitions = plan.partitions.tolist()
        for row in rows:
            report = partial(note, row)
            while True:
                try:
                    produce(
                        topics[row],
                        values[row],
                        keys[row],
                        partitions[row],
                        report,
                        headers=headers[row],
                    )
                except BufferError:
                    if time.monotonic() < deadline:
                        producer.poll(0.05)
                        continue
                    failures[row] = SendFailure(Answer.NOT_NOW, "the client's queue is full")
                except ck.KafkaException as error:  # the client did not accept it
                    failure = classify(error.args[0])
                    unsent = failure.answer is Answer.UNKNOWN
                    failures[row] = replace(failure, answer=Answer.NOT_NOW) if unsent else failure
                break
        if producer.flush(max(0.0, deadline - time.monotonic())) > 0:
            producer.purge()
            if producer.flush(_LATE_S) > 0:  # still not all: the outcome of every row is unknown
                late = SendFailure(Answer.UNKNOWN, "no acknowledgement in time")
                return dict.fromkeys(rows, late) | failures
        return dict(failures)  # the client may go on to report into the original

    def _fetch(self, topic: str) -> TopicInfo | None:
        deadline = time.monotonic() + self.settings.metadata_timeout_s
        try:
            known = self._producer(_MAIN).list_topics(topic, self.settings.metadata_timeout_s)
        except ck.KafkaException as error:
            self._silent += 1
            if self._silent % _SILENT_MAX == 0:
                self._abandon(_MAIN)
            with self._lock:
                self._admin = None  # nobody would read what it logs meanwhile
            raise Unreachable(f"Kafka at {self.settings.bootstrap}: {error}") from error
        self._silent = 0
        found = known.topics[topic]
        if found.error is not None:
            name = found.error.name()
            if name in ("UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION"):
                return None
            raise NotYet(f"topic {topic}: {name}")
        partitions = found.partitions.values()
        leaderless = sum(one.leader < 0 for one in partitions)
        return TopicInfo(len(partitions), leaderless, self._bytes_max(topic, deadline))

    def _bytes_max(self, topic: str, deadline: float) -> int | None:
        """The topic's limit, bytes, so that larger rows are refused without sending them."""
        extra = self.settings.extra
        if any(extra.get(name, "none") != "none" for name in _COMPRESSION):
            return None  # the broker measures the compressed batch
        admin = self._admin_client()
        resource = ck_admin.ConfigResource(ck_admin.RESOURCE_TOPIC, topic)
        left_s = max(0.01, deadline - time.monotonic())
        try:
            asked = admin.describe_configs([resource], request_timeout=left_s)
            return int(asked[resource].result(left_s)[TOPIC_LIMIT].value)
        except (ck.KafkaException, TimeoutError, KeyError, TypeError, ValueError):
            return None  # not permitted; the broker refuses each record that is too large
        finally:
            admin.poll(0)  # for its log lines

    def _admin_client(self) -> Any:
        with self._lock:
            if self._closed:
                raise Unreachable("the sink is closed")
            if self._admin is None:
                self._admin = ck_admin.AdminClient(self._client_config(), logger=_client_log)
            return self._admin

    def _producer(self, name: str) -> Any:
        """The producer of that name, made on first use. Never blocks: it connects in the
        background."""
        with self._lock:
            producer = self._producers.get(name)
            if producer is None:
                producer = self._producers[name] = self._make(name)
            return producer

    def _make(self, name: str) -> Any:
        if self._closed:
            raise Unreachable("the sink is closed")
        return ck.Producer(self._config(name), logger=_client_log)

    def _config(self, name: str) -> dict[str, Any]:
        settings = self.settings
        timeout_s = settings.trial_timeout_s if name == _TRIAL else settings.delivery_timeout_s
        config: dict[str, Any] = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
            "delivery.report.only.error": True,
            "message.timeout.ms": int(timeout_s * 1000),
            "request.timeout.ms": int(timeout_s * 500),
            "message.max.bytes": settings.record_bytes_max,
            "batch.size": BATCH_BYTES,
            "linger.ms": 1,
            "queue.buffering.max.messages": settings.rows_in_flight_max * 2,
            "queue.buffering.max.kbytes": settings.bytes_in_flight_max * 2 // 1024,
            "socket.timeout.ms": max(1000, int(timeout_s * 1000)),
        }
        if name == _CAREFUL:
            config |= {"batch.num.messages": 1, "linger.ms": 0}
        return config | self._client_config()

    def _client_config(self) -> dict[str, Any]:
        """What every client needs, also one that sends nothing."""
        return {
            "bootstrap.servers": self.settings.bootstrap,
            "client.id": "slotwheel",
            "reconnect.backoff.max.ms": 1000,
            "log.connection.close": False,
        } | self.settings.extra

    def _abandon(self, name: str) -> None:
        """End a producer, and drop all records that it still holds."""
        with self._lock:
            producer = self._producers.pop(name, None)
        if producer is not None:
            _end(producer)


def _end(producer: Any) -> None:
    """End a producer without sending what it still holds."""
    producer.purge()
    producer.flush(0)
    # Destroying it waits for its threads, in a thread that nothing waits for.
    threading.Thread(target=producer.close, name="confluent-close", daemon=True).start()


def _any_unknown(failures: dict[int, SendFailure]) -> bool:
    return any(failure.answer is Answer.UNKNOWN for failure in failures.values())


def classify(error: Any) -> SendFailure:
    """The answer for a record, from librdkafka's error. A record that the client gave up may have
    been sent before, whatever the error: the broker reads what is in its socket's buffer."""
    reason = f"{error.name()}: {error.str()}"
    if error.name() == "_INVALID_DIFFERENT_RECORD":
        return SendFailure(Answer.UNKNOWN, reason, bystander=True)
    if error.name() in _REFUSED:
        return SendFailure(Answer.REFUSED, reason)
    return SendFailure(Answer.UNKNOWN, reason)
