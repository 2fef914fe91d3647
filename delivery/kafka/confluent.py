"""The fast sink to a real Kafka, with confluent-kafka (librdkafka): the extra ``fast``.

librdkafka fails a refused batch as a whole: one oversized or invalid record makes its neighbours
fail. So a refused batch is sent again, one record a batch, by a *careful* producer, which shows the
bad record; and for a while that topic is sent carefully from the start, at a fraction of the rate.
The batches behind the refused one have been accepted by then, so its rows arrive after theirs. To
keep that rare, a topic's limit is read where the node may read it: a record above the limit is
never sent, and a topic whose limit is below the size of a batch is sent carefully from the start.
Elsewhere the batches of the main producer are far below the usual limits of topics, so that an
oversized record is a batch of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from cachetools import TTLCache
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from ...broker.reach import why_not
from ...broker.settings import ClientKind, named
from ...wheel.errors import SlotwheelError
from ...wheel.ids import IdMint
from ..sink import Answer
from .confluent_client import (
    BATCH_BYTES,
    ck,
    ck_admin,
    client_config,
    client_log,
    end_producer,
    need_extra,
    producer_config,
    send_by,
)
from .confluent_transactions import ConfluentTransactions
from .kafka_python_client import admin_config, configs_of
from .plan import KafkaSettings, SendFailure, SendPlan
from .sink import KafkaSink
from .topicbook import TOPICS_REMEMBERED, Found, NotYet, TopicInfo, Unreachable
from .transactions import Transactions

_MAIN, _TRIAL, _CAREFUL = "main", "trial", "careful"
_MISSING = ("UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION")

CAREFUL_S = 60.0
"""A topic is sent record by record for so long, s, after one of its batches was refused."""


class ConfluentSink(KafkaSink):
    """Sends with confluent-kafka. Errors: ``MissingExtra`` when it is not installed."""

    def __init__(
        self, mint: IdMint, settings: KafkaSettings, transactions: Transactions | None = None
    ) -> None:
        need_extra()
        super().__init__(mint, settings, transactions)
        self._lock = threading.Lock()
        self._producers: dict[str, Any] = {}
        # Trials run in parallel, and each has a producer of its own: after a failure it is thrown
        # away, with every record that it has in flight.
        self._trials: list[Any] = []
        self._idle_trials: list[Any] = []
        self._careful: TTLCache[str, bool] = TTLCache(TOPICS_REMEMBERED, CAREFUL_S)
        self._admin: Any = None
        self._configs_admin: Any = None
        self._configs_lock = threading.Lock()
        self._closed = False
        self._careful_alone = threading.Lock()  # the careful producer serves one call at a time

    @staticmethod
    def make_transactions(settings: KafkaSettings, group: str, topic: str) -> Transactions:
        return ConfluentTransactions(settings, group, topic)

    def close(self) -> None:
        if self.transactions is not None:
            self.transactions.close()
        with self._lock:
            self._closed = True
            trials, self._trials, self._idle_trials = self._trials, [], []
            self._admin = None
        with self._configs_lock:
            self._drop_configs_admin()
        for name in (_MAIN, _CAREFUL):
            self._abandon(name)
        for producer in trials:
            end_producer(producer)

    def _send(self, plan: SendPlan, timeout_s: float, *, trial: bool) -> dict[int, SendFailure]:
        topics = plan.records.topics
        batch_bytes = int(named(self.settings.extra).get("batch.size", BATCH_BYTES))
        with self._lock:
            careful = {
                topic
                for topic, info in plan.topics.items()
                if topic in self._careful or (info.bytes_max or batch_bytes) < batch_bytes
            }
        usual, one_by_one = plan.rows, list[int]()
        if careful:
            usual = [row for row in plan.rows if topics[row] not in careful]
            one_by_one = [row for row in plan.rows if topics[row] in careful]
        if trial:
            failures = self._try(plan, usual, timeout_s)
        else:
            failures = self._run(plan, usual, timeout_s, _MAIN)
        again = [row for row, failure in failures.items() if failure.answer is Answer.REFUSED]
        with self._lock:
            for row in again:
                self._careful[topics[row]] = True
        one_by_one = sorted(again + one_by_one)
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
        """Send ``rows`` by the producer ``name``; abandon it if an outcome is unknown."""
        if not rows:
            return {}
        failures = send_by(self._producer(name), plan, rows, timeout_s)
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
            failures = send_by(producer, plan, rows, timeout_s)
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
        end_producer(producer)

    def _fetch(self, topics: Sequence[str]) -> Mapping[str, Found]:
        deadline = time.monotonic() + self.settings.metadata_timeout_s
        try:
            if self.transactions is None:
                self._producer(_MAIN)  # ready after a second: no message has to wait
            admin = self._admin_client()
            asked = admin.describe_topics(
                ck.TopicCollection(list(topics)), request_timeout=self.settings.metadata_timeout_s
            )
            answers = {topic: _answer(asked[topic], deadline) for topic in topics}
        except (ck.KafkaException, TimeoutError) as error:
            with self._lock:
                self._admin = None  # it may be stuck, and nobody would read its log meanwhile
            with self._configs_lock:
                self._drop_configs_admin()  # it would try to connect, and log each time
            reason = why_not(self.settings.bootstrap, self.settings.extra, error)
            raise Unreachable(f"Kafka at {self.settings.bootstrap}: {reason}") from error
        described = [topic for topic, answer in answers.items() if isinstance(answer, list)]
        configs = self._configs(described) if described else {}
        compressed = named(self.settings.extra).get("compression.type", "none") != "none"
        infos: dict[str, Found] = {}
        for topic, answer in answers.items():
            if isinstance(answer, list):
                leaderless = sum(
                    partition.leader is None or partition.leader.id < 0 for partition in answer
                )
                infos[topic] = TopicInfo.described(
                    len(answer), leaderless, configs.get(topic, {}), compressed=compressed
                )
            else:
                infos[topic] = answer
        return infos

    def _configs(self, topics: list[str]) -> dict[str, dict[str, str | None]]:
        """Read configurations with a client of kafka-python (``configs_of``): librdkafka ends the
        process when this request runs out of time while a broker comes back. Returns none of a
        topic whose configuration cannot be read: the broker refuses its oversized records."""
        with self._configs_lock, suppress(SlotwheelError):
            try:
                if self._closed:
                    return {}
                if self._configs_admin is None:
                    self._configs_admin = KafkaAdminClient(**admin_config(self.settings))
                return configs_of(self._configs_admin, topics)
            except (KafkaError, OSError):
                self._drop_configs_admin()
        return {}

    def _drop_configs_admin(self) -> None:
        admin, self._configs_admin = self._configs_admin, None
        if admin is not None:
            with suppress(Exception):
                admin.close()

    def _admin_client(self) -> Any:
        with self._lock:
            if self._closed:
                raise Unreachable("the sink is closed")
            if self._admin is None:
                self._admin = ck_admin.AdminClient(
                    client_config(self.settings, ClientKind.ADMIN), logger=client_log
                )
            return self._admin

    def _producer(self, name: str) -> Any:
        """The producer ``name``, made on first use. Never blocks: it connects in the background."""
        with self._lock:
            producer = self._producers.get(name)
            if producer is None:
                producer = self._producers[name] = self._make(name)
            return producer

    def _make(self, name: str) -> Any:
        if self._closed:
            raise Unreachable("the sink is closed")
        return ck.Producer(self._config(name), logger=client_log)

    def _config(self, name: str) -> dict[str, Any]:
        settings = self.settings
        timeout_s = settings.trial_timeout_s if name == _TRIAL else settings.delivery_timeout_s
        config = producer_config(settings, timeout_s)
        if name == _CAREFUL:
            config |= {"batch.num.messages": 1, "linger.ms": 0}
        return config | client_config(settings, ClientKind.PRODUCER)

    def _abandon(self, name: str) -> None:
        with self._lock:
            producer = self._producers.pop(name, None)
        if producer is not None:
            end_producer(producer)


def _any_unknown(failures: dict[int, SendFailure]) -> bool:
    return any(failure.answer is Answer.UNKNOWN for failure in failures.values())


def _answer(asked: Any, deadline: float) -> Any:
    """A topic's partitions, None without the topic, or ``NotYet``. Errors: of the whole request."""
    try:
        described = asked.result(max(0.01, deadline - time.monotonic()))
    except ck.KafkaException as error:
        name = error.args[0].name()
        if name in _MISSING:
            return None
        if error.args[0].code() > 0:
            return NotYet(f"the topic cannot be used now: {name}")
        raise
    return list(described.partitions)
