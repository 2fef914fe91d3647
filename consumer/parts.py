"""Checks the arguments of a consumer, and makes its parts."""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..broker.header_names import UNREADABLE
from ..broker.settings import CONFLUENT, KAFKA_PYTHON, check
from ..client import Client
from ..client.addresses import Nodes
from ..policy.failure import retry_topic
from ..policy.policyset import PolicySet
from ..policy.retry import RetryPolicy, find_policy
from ..policy.rule import Rule, parse_rule
from ..wheel.checks import check_topic
from ..wheel.errors import InvalidConfiguration, SlotwheelError
from ..wheel.protocol import DEFAULT_ADDRESS
from ..wheel.rows import Header
from .clock import RemoteClock
from .confluent_source import confluent
from .failing import Failing
from .inflight import InFlight
from .making import no_brokers
from .observing import ConsumerObserver
from .outbox import ConsumerOutbox, KafkaOutbox, WheelOutbox
from .source import Source, SourceAway
from .transactions import Transactor

CLIENTS = ("kafka-python", "confluent")
_ASK_S = 5.0
_AGAIN_S = 0.5
_log = logging.getLogger("slotwheel.consumer")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of a ``Consumer``."""

    topics: tuple[str, ...]
    group: str
    bootstrap: str | None
    data: str | os.PathLike[str] | None
    client: str
    wheel: str | Sequence[str] | Nodes | None
    retry: str
    where: Mapping[str, Any] | None
    transactional: bool
    transactional_id: str | None
    delay_topic: str | None
    dead_letter_topic: str
    create_topics: bool
    messages_max: int
    bytes_max: int
    kafka: Mapping[str, Any] = field(repr=False)
    observer: ConsumerObserver | None
    wait_s: float | None

    def check(self) -> None:
        """Errors: ``InvalidConfiguration``, ``InvalidMessage`` for a topic's name."""
        for topic in (*self.topics, retry_topic(self.group), self.dead_letter_topic):
            check_topic(topic)
        if not self.topics:
            raise _unusable("no topics to read", "none", "at least one", "Name the topics")
        if (self.bootstrap is None) == (self.data is None):
            got = "neither" if self.bootstrap is None else "both"
            remedy = "Give bootstrap for Kafka, or data for embedded topics"
            raise _unusable("bootstrap or data", got, "exactly one", remedy)
        if self.client not in CLIENTS:
            remedy = "Choose one of these"
            raise _unusable("unknown client", repr(self.client), ", ".join(CLIENTS), remedy)
        if self.kafka and self.client == "confluent":
            confluent()
        if self.kafka:
            check(self.kafka, CONFLUENT if self.client == "confluent" else KAFKA_PYTHON)
        for name, value in (("messages_max", self.messages_max), ("bytes_max", self.bytes_max)):
            if value < 1:
                raise _unusable(f"no usable {name}", str(value), "at least 1", "Raise it")
        if self.transactional_id is not None and not self.transactional:
            remedy = "Leave it out, or give transactional=True"
            raise _unusable("a transactional id without transactions", "", "", remedy)
        if self.transactional and self.bootstrap is None:
            remedy = "Read from Kafka, or leave transactional out"
            raise _unusable("transactions of embedded topics", "data", "bootstrap", remedy)
        if self.transactional and self.delay_topic is None:
            raise _unusable(
                "transactional without a delay topic",
                "delay_topic=None",
                "the delay topic of a node",
                "Name the topic that a node takes in (slotwheel node --delay-topic): retries go"
                " through it",
            )
        if self.delay_topic is not None and not self.transactional:
            remedy = "Leave it out: retries go to the node at wheel=…"
            raise _unusable("a delay topic without transactions", self.delay_topic, "", remedy)


class Parts:
    """The parts of a consumer. When one of them cannot be made, the others are closed. Errors: as
    of ``Consumer``."""

    def __init__(self, wanted: Wanted) -> None:
        wanted.check()
        self.wanted = wanted
        self.retries = retry_topic(wanted.group)
        self.rule: Rule | None = None if wanted.where is None else parse_rule(wanted.where)
        self._give_up_s = math.inf if wanted.wait_s is None else time.monotonic() + wanted.wait_s
        policy = self._awaited(self._policy)
        self.inflight = InFlight(
            wanted.messages_max, wanted.bytes_max, transactional=wanted.transactional
        )
        # With transactions the consumer needs no node, and has one only if it is given.
        no_node = wanted.transactional and wanted.wheel is None
        self._client = (
            None if no_node else Client(wanted.wheel or DEFAULT_ADDRESS, observer=wanted.observer)
        )
        self.clock = RemoteClock(self._client)
        failing = Failing(wanted.group, policy, wanted.dead_letter_topic, self.clock)
        self.transactor: Transactor | None = None
        self.outbox: ConsumerOutbox
        if wanted.transactional:
            assert wanted.delay_topic is not None
            self.outbox = KafkaOutbox(failing, wanted.retry, wanted.delay_topic, self.inflight)
        else:
            assert self._client is not None
            self.outbox = WheelOutbox(self._client, failing, self.inflight)
        try:
            if wanted.transactional:
                self.transactor = self._make_transactor()
                self._awaited(self.transactor.start)
            self.source = self._awaited(lambda: self._make_source(failing.dead_letters))
        except BaseException:
            self.outbox.close(0)
            if self.transactor is not None:
                self.transactor.close()
            self.close()
            raise
        if self.rule is not None:
            self.source.unwanted = self._unwanted

    def close(self) -> None:
        if self._client is not None:
            self._client.close(0)

    def _awaited(self, call: Callable[[], T]) -> T:
        """Call again until the node, or the brokers, answer; the log has the first error. Errors:
        those of the call that do not pass; ``NodeUnreachable`` after ``wait_s``."""
        logged = False
        while True:
            try:
                return call()
            except SourceAway as error:
                away: SlotwheelError = no_brokers(
                    str(self.wanted.bootstrap), self.wanted.kafka, error
                )
            except SlotwheelError as error:
                away = error
            if not away.retryable or time.monotonic() > self._give_up_s:
                raise away
            if not logged:
                _log.warning("slotwheel consumer: waits: %s", away)
                logged = True
            time.sleep(_AGAIN_S)

    def _unwanted(self, topic: str, headers: Sequence[Header]) -> bool:
        """Returns True when the group's rule leaves a record out."""
        # A retry of this group has passed its rule before.
        if topic == self.retries or headers is UNREADABLE or self.rule is None:
            return False
        if self.rule.matches(headers):
            return False
        if self.wanted.observer is not None:
            self.wanted.observer.left_out(self.wanted.group, topic, headers)
        return True

    def _policy(self) -> RetryPolicy:
        """The retry policy, from the node if need be, where the group's rule is registered as well.
        Errors: ``InvalidMessage`` for an unknown policy, or if the group has another rule;
        ``NodeUnreachable``."""
        wanted = self.wanted
        literal = wanted.retry[:1].isdigit()
        asks = wanted.wheel is not None if wanted.transactional else not literal
        settings = PolicySet()
        if asks or self.rule is not None:
            with Client(wanted.wheel or DEFAULT_ADDRESS, timeout_s=_ASK_S) as client:
                settings = ask(client, wanted.group, self.rule)
        elif wanted.transactional:
            # The node that reads the delay topic has the policy.
            return RetryPolicy.literal(wanted.retry) if literal else settings.policies["default"]
        return find_policy(settings.policies, wanted.retry)

    def _make_transactor(self) -> Transactor:
        wanted = self.wanted
        assert wanted.bootstrap is not None
        name = wanted.transactional_id or f"{wanted.group}-{uuid.uuid4().hex[:12]}"
        if wanted.client == "confluent":
            from .confluent_transactor import ConfluentTransactor

            return ConfluentTransactor(wanted.bootstrap, name, wanted.kafka)
        from .kafka_python_transactor import KafkaPythonTransactor

        return KafkaPythonTransactor(wanted.bootstrap, name, wanted.kafka)

    def _make_source(self, dead_letters: str) -> Source:
        wanted = self.wanted
        topics = list(dict.fromkeys((*wanted.topics, self.retries)))
        if wanted.bootstrap is None:
            from .embedded_source import EmbeddedSource

            assert wanted.data is not None
            return EmbeddedSource(wanted.data, wanted.group, topics, self.inflight)
        from .confluent_source import ConfluentSource
        from .kafka_python_source import KafkaPythonSource

        kind = ConfluentSource if wanted.client == "confluent" else KafkaPythonSource
        needed = [dead_letters, *([wanted.delay_topic] if wanted.delay_topic else [])]
        return kind(
            wanted.bootstrap,
            wanted.group,
            topics,
            self.inflight,
            create=[self.retries, dead_letters] if wanted.create_topics else [],
            needed=needed,
            extra=wanted.kafka,
        )


def ask(client: Client, group: str, rule: Rule | None) -> PolicySet:
    """The wheel's policies, with the group's rule registered there. Errors: ``InvalidMessage`` when
    the group has another rule; ``NodeUnreachable``."""
    if rule is not None:
        return PolicySet.from_dict(client.register(group, rule.to_dict()))
    settings = PolicySet.from_dict(client.policies())
    if settings.groups.get(group) is not None:
        settings.registered(group, None)  # raises: this member would get messages others leave out
    return settings


def _unusable(message: str, got: str, limit: str, remedy: str) -> InvalidConfiguration:
    return InvalidConfiguration(message, got=got or None, limit=limit or None, remedy=remedy)
