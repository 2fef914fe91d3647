"""Makes records of messages that were not processed: retries and dead letters.

``policy/failure.py`` decides on topic, delay and headers; here the record gets the message's
content, as far as its topic takes so much.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..policy.deadletters import LEFT_OUT, REFUSED
from ..policy.failure import Failure, buried, failed, living, retry_topic
from ..policy.headers import (
    DELIVERY,
    ERROR,
    GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    RETRY,
    cut,
    value_of,
    without,
)
from ..policy.retry import RetryPolicy
from ..wheel.checks import is_reserved
from ..wheel.expiry import EXPIRES_HEADER
from ..wheel.rows import Header
from .clock import RemoteClock
from .message import OutputRecord, Received, expiry

LETTER_BYTES_MAX = 1_000_000
"""About what a Kafka topic takes by default: a larger letter in a transaction is cut."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The error for which a message was not processed. ``exception``: the name of its class; empty:
    the application gave a text."""

    error: str
    exception: str = ""

    @classmethod
    def of(cls, error: BaseException | str) -> Cause:
        if isinstance(error, str):
            return cls(error)
        name = type(error).__name__
        try:
            text = f"{name}: {error}".removesuffix(": ")
        except Exception:  # an application's error may fail in its own text
            text = name
        return cls(text, name)


@dataclass(frozen=True, slots=True)
class Failing:
    """A group's rules for messages that fail. ``dead_topic``: the topic of dead letters, unless the
    policy names another."""

    group: str
    policy: RetryPolicy
    dead_topic: str
    clock: RemoteClock

    @property
    def dead_letters(self) -> str:
        return self.policy.dead_letters or self.dead_topic

    @property
    def retries(self) -> str:
        return retry_topic(self.group)

    def again(self, message: Received, cause: Cause) -> Failure:
        """The next attempt, or a dead letter. Where the node's clock is not known, the node refuses
        an attempt that would come after the message expires (``BEFORE_DUE``)."""
        message.note_attempt()
        expires = message.expires_ms is not None
        return failed(
            lasting(message),
            self.policy,
            self.group,
            cause.error,
            message.place,
            self.clock.known_ms() if expires else None,
            random.random(),
            dead_topic=self.dead_topic,
            exception=cause.exception,
        )

    def letter(self, message: Received, reason: str, cause: Cause) -> Failure:
        return buried(
            message.headers,
            reason,
            self.group,
            cause.error,
            message.place,
            self.dead_letters,
            exception=cause.exception,
        )

    def short_letter(self, message: Received, error: str) -> OutputRecord:
        """A letter without value and headers, which were too large; it has their sizes."""
        sizes: list[Header] = [
            (LEFT_OUT.format("value"), b"%d" % len(message.value or b"")),
            (LEFT_OUT.format("headers"), b"%d" % sum(map(_nbytes, message.headers))),
        ]
        key = message.key if len(message.key or b"") <= 1000 else None
        small = Received(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            key=key,
            value=None,
            headers=sizes,
            timestamp_ms=message.timestamp_ms,
        )
        failure = self.letter(small, REFUSED, Cause(error))
        return OutputRecord(failure.topic, None, key, failure.headers)

    def for_delay_topic(
        self, message: Received, cause: Cause, policy: str, delay_topic: str
    ) -> OutputRecord:
        """The record with which a program of any language asks a node for the next attempt.
        ``policy``: its name, or levels. The delay begins when the node reads the record."""
        message.note_attempt()
        headers = living(lasting(message))
        kept = [pair for pair in headers if pair[0] in DELIVERY or not is_reserved(pair[0])]
        kept += [(RETRY, policy.encode()), (ERROR, cut(cause.error))]
        kept = [*without(kept, frozenset({GROUP})), (GROUP, self.group.encode())]
        if value_of(kept, ORIGIN_TOPIC) is None:
            kept += [
                (ORIGIN_TOPIC, message.topic.encode()),
                (ORIGIN_PARTITION, b"%d" % message.partition),
                (ORIGIN_OFFSET, b"%d" % message.offset),
            ]
        return OutputRecord(
            delay_topic, message.value, message.key, kept, timestamp_ms=self.clock.now_ms()
        )


def lasting(message: Received) -> list[Header]:
    """A message's headers for its next attempt. A header ``ttl`` counts from the first record's
    timestamp, which a retry has not, so it becomes a time."""
    expires_ms = expiry(message.headers, message.timestamp_ms)
    headers = without(message.headers, frozenset({EXPIRES_HEADER}))
    if expires_ms is not None:
        headers.append((EXPIRES_HEADER, b"%d" % max(0, expires_ms)))
    return headers


def _nbytes(header: Header) -> int:
    return len(header[0]) + len(header[1] or b"")
