"""A message as a consumer gets it, and the values in its headers.

Theory: a record's fields are taken as they come; a header is decoded when its value is asked for,
so that a message whose headers nobody needs costs one object only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..policy.failure import Origin, attempt_of, bad_attempt
from ..policy.headers import (
    DUE_HEADER,
    FIRST_ERROR,
    ID_HEADER,
    LAST_ERROR,
    ORIGIN_ID,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    TTL_HEADER,
    number_of,
    text_of,
    value_of,
)
from ..wheel.checks import is_time
from ..wheel.expiry import EXPIRES_HEADER
from ..wheel.rows import Header

_log = logging.getLogger("slotwheel.consumer")

_HEADER_BYTES = 100
"""An estimate of a header's bytes: looking at each header would take longer than all else."""
_EXPIRIES = frozenset({EXPIRES_HEADER, TTL_HEADER})


class SourcePartition(NamedTuple):
    """A partition of a topic; embedded topics have one, 0."""

    topic: str
    partition: int


@dataclass(slots=True, eq=False)
class Received:
    """A message. ``timestamp_ms`` is the record's. ``lane`` is the consumer's tracker of the
    assignment that it came with; None in another process."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    lane: Any = None
    received_s: float = 0.0
    """The time at which the application got it, monotonic; set only if there is an observer."""
    counted: int = 0
    """The bytes with which its tracker counts it."""

    @property
    def id(self) -> str:
        """The id that the wheel gave the message; empty if it did not come from a wheel."""
        return text_of(self.headers, ID_HEADER)

    @property
    def due_ms(self) -> int | None:
        """The due time, ms since the epoch; None if the message did not come from a wheel."""
        return number_of(self.headers, DUE_HEADER)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on. A copied dead letter begins with 1; so does a
        record with an unusable number, which is logged."""
        self.note_attempt()
        return attempt_of(self.headers)

    def note_attempt(self) -> None:
        """Log a number of attempts that is unusable."""
        if (bad := bad_attempt(self.headers)) is not None:
            place = f"{self.topic}/{self.partition}/{self.offset}"
            _log.warning("slotwheel consumer: %s: %s; it is counted as attempt 1", place, bad)

    @property
    def origin(self) -> Origin:
        """The place of the first attempt's record by the headers; -1: unknown."""
        topic = value_of(self.headers, ORIGIN_TOPIC)
        if topic is None:
            return self.place
        partition = number_of(self.headers, ORIGIN_PARTITION)
        offset = number_of(self.headers, ORIGIN_OFFSET)
        unknown = -1
        return Origin(
            topic.decode("utf-8", "backslashreplace"),
            unknown if partition is None else partition,
            unknown if offset is None else offset,
        )

    @property
    def place(self) -> Origin:
        """The place of this record itself."""
        return Origin(self.topic, self.partition, self.offset)

    @property
    def origin_id(self) -> str:
        """The id that the record of the first attempt had; empty if it had none."""
        return text_of(self.headers, ORIGIN_ID) or self.id

    @property
    def first_error(self) -> str:
        """The error of the first attempt; empty at the first attempt."""
        return text_of(self.headers, FIRST_ERROR)

    @property
    def last_error(self) -> str:
        """The error of the attempt before this one; empty at the first attempt."""
        return text_of(self.headers, LAST_ERROR)

    @property
    def expires_ms(self) -> int | None:
        """The time from which on the message is worth nothing, ms since the epoch; None: never."""
        return expiry(self.headers, self.timestamp_ms)

    @property
    def committed(self) -> bool:
        """True when its position was committed by this consumer: it does not come again."""
        return self.lane is not None and self.lane.passed(self.offset)

    @property
    def nbytes(self) -> int:
        """An estimate of the bytes of key, value and headers."""
        total = _HEADER_BYTES * len(self.headers)
        if self.value is not None:
            total += len(self.value)
        return total if self.key is None else total + len(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message without its lane, which belongs to this process."""
        fields = (self.topic, self.partition, self.offset, self.key, self.value)
        return Received, (*fields, self.headers, self.timestamp_ms)


def expiry(headers: Sequence[Header], timestamp_ms: int) -> int | None:
    """The time at which a record expires, ms since the epoch, by slotwheel's header or by ``ttl``
    (seconds from ``timestamp_ms`` on), whichever is sooner; None: it does not expire. A header from
    which no time can be computed is ignored."""
    soonest = None
    for name, value in headers:
        if name not in _EXPIRIES:
            continue
        if name == EXPIRES_HEADER:
            expires_ms = number_of(((name, value),), name)
        elif value is not None and len(value) == 8 and value[0] < 0x80 and is_time(timestamp_ms):
            expires_ms = timestamp_ms + int.from_bytes(value, "big") * 1000
        else:
            continue
        if expires_ms is not None and is_time(expires_ms):
            soonest = expires_ms if soonest is None else min(soonest, expires_ms)
    return soonest


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A record that leaves together with the position behind the message it was made of."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    partition: int | None = None
    timestamp_ms: int | None = None
    """None: the time at which it is sent."""

    @property
    def nbytes(self) -> int:
        """The bytes of key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return headers + len(self.key or b"") + len(self.value or b"")
