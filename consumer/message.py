"""A message as a consumer gets it, and what is read from its headers.

Theory: a record's fields are taken as they come; everything that is in its headers is read when it
is asked for, so that a message nobody asks costs one object and nothing more.
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
"""What a header takes, about; to look at each would take longer than all else."""
_EXPIRIES = frozenset({EXPIRES_HEADER, TTL_HEADER})


class SourcePartition(NamedTuple):
    """A partition of a topic; embedded topics have one, 0."""

    topic: str
    partition: int


@dataclass(slots=True, eq=False)
class Received:
    """One message. ``timestamp_ms``: the record's. ``lane``: the assignment of its partition that
    it came with, for the consumer; None in another process."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    lane: Any = None
    received_s: float = 0.0
    """When the application got it, by the monotonic clock; only if an observer wants to know."""
    counted: int = 0
    """``nbytes``, for as long as it is not finished."""

    @property
    def id(self) -> str:
        """The id that the wheel gave the message; empty if it did not come from a wheel."""
        return text_of(self.headers, ID_HEADER)

    @property
    def due_ms(self) -> int | None:
        """When it was due; None if it did not come from a wheel."""
        return number_of(self.headers, DUE_HEADER)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on. It is the first of a copied dead letter, and where the
        record's count is none, which is logged."""
        self.note_attempt()
        return attempt_of(self.headers)

    def note_attempt(self) -> None:
        """Log a count of attempts that is none."""
        if (bad := bad_attempt(self.headers)) is not None:
            place = f"{self.topic}/{self.partition}/{self.offset}"
            _log.warning("slotwheel consumer: %s: %s; it is counted as attempt 1", place, bad)

    @property
    def origin(self) -> Origin:
        """The record of the first attempt: this one, unless it is a retry."""
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
        """Where this very record stands."""
        return Origin(self.topic, self.partition, self.offset)

    @property
    def origin_id(self) -> str:
        """The id that the record of the first attempt had; empty if it had none."""
        return text_of(self.headers, ORIGIN_ID) or self.id

    @property
    def first_error(self) -> str:
        """Why the first attempt failed; empty at the first attempt."""
        return text_of(self.headers, FIRST_ERROR)

    @property
    def last_error(self) -> str:
        """Why the attempt before this one failed; empty at the first attempt."""
        return text_of(self.headers, LAST_ERROR)

    @property
    def expires_ms(self) -> int | None:
        """From when on it is worth nothing, ms since the epoch; None: never."""
        return expiry(self.headers, self.timestamp_ms)

    @property
    def committed(self) -> bool:
        """Whether its position was committed while the consumer had its partition: then it does not
        come again."""
        return self.lane is not None and self.lane.passed(self.offset)

    @property
    def nbytes(self) -> int:
        """About the bytes of key, value and headers."""
        total = _HEADER_BYTES * len(self.headers)
        if self.value is not None:
            total += len(self.value)
        return total if self.key is None else total + len(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        """Without its lane, which is of this process alone."""
        fields = (self.topic, self.partition, self.offset, self.key, self.value)
        return Received, (*fields, self.headers, self.timestamp_ms)


def expiry(headers: Sequence[Header], timestamp_ms: int) -> int | None:
    """When a record expires, by slotwheel's header or by ``ttl``, whichever is sooner; None: it
    does not. A header that is unreadable, or that no time can be computed from, says nothing."""
    found = None
    for name, value in headers:
        if name not in _EXPIRIES:
            continue
        if name == EXPIRES_HEADER:
            own = number_of(((name, value),), name)
        elif value is not None and len(value) == 8 and value[0] < 0x80 and is_time(timestamp_ms):
            own = timestamp_ms + int.from_bytes(value, "big") * 1000
        else:
            continue
        if own is not None and is_time(own) and (found is None or own < found):
            found = own
    return found


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
        """Bytes of key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return headers + len(self.key or b"") + len(self.value or b"")
