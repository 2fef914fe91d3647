"""What becomes of a message that was not processed, as a record to send: ``policy/failure.py``
decides, here it gets the message's content, within the limits of where it goes."""

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
"""About what a Kafka topic takes by default: a larger letter in a transaction is shortened."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a message was not processed. ``exception``: the name of its class; empty: there was
    none."""

    error: str
    exception: str = ""

    @classmethod
    def of(cls, error: BaseException | str) -> Cause:
        if isinstance(error, str):
            return cls(error)
        name = type(error).__name__
        try:
            text = f"{name}: {error}".removesuffix(": ")
        except Exception:  # an application's error may not be able to say what it is
            text = name
        return cls(text, name)


@dataclass(frozen=True, slots=True)
class Failing:
    """A group's way with what fails. ``dead_topic``: where dead letters go, unless the policy says
    otherwise."""

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
        """The next attempt, or a dead letter. Where the node's clock is not known, the node says
        whether the attempt would come too late (``BEFORE_DUE``)."""
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
        """A letter without value and headers, as it was too large with them; it says how large."""
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
        found = self.letter(small, REFUSED, Cause(error))
        return OutputRecord(found.topic, None, key, found.headers)

    def for_delay_topic(
        self, message: Received, cause: Cause, policy: str, delay_topic: str
    ) -> OutputRecord:
        """The next attempt as any language asks a node for it. ``policy``: its name, or levels. Its
        delay begins when the node reads the record, whatever the timestamp."""
        message.note_attempt()
        headers = living(lasting(message))
        own = [one for one in headers if one[0] in DELIVERY or not is_reserved(one[0])]
        own += [(RETRY, policy.encode()), (ERROR, cut(cause.error))]
        own = [*without(own, frozenset({GROUP})), (GROUP, self.group.encode())]
        if value_of(own, ORIGIN_TOPIC) is None:
            own += [
                (ORIGIN_TOPIC, message.topic.encode()),
                (ORIGIN_PARTITION, b"%d" % message.partition),
                (ORIGIN_OFFSET, b"%d" % message.offset),
            ]
        return OutputRecord(
            delay_topic, message.value, message.key, own, timestamp_ms=self.clock.now_ms()
        )


def lasting(message: Received) -> list[Header]:
    """A message's headers for its next attempt: what ``ttl`` says counts from the first record, so
    it is written down as a time."""
    expires_ms = expiry(message.headers, message.timestamp_ms)
    headers = without(message.headers, frozenset({EXPIRES_HEADER}))
    if expires_ms is not None:
        headers.append((EXPIRES_HEADER, b"%d" % max(0, expires_ms)))
    return headers


def _nbytes(header: Header) -> int:
    return len(header[0]) + len(header[1] or b"")
