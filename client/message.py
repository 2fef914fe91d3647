"""A message as an application writes it, and as it is sent.

Rules: exactly one of ``due`` and ``delay``; a delay is sent as it is, and begins by the node's
clock (``wheel/delay.py``), as ours may be wrong; a fraction of a millisecond is rounded up, so that
no message becomes early. Text in ``value``, ``key`` and header values is encoded as UTF-8.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from numbers import Real
from operator import index
from typing import Any, NamedTuple, SupportsIndex, cast

import numpy as np

from ..policy.levels import span_of
from ..wheel.checks import (
    PARTITION_MAX,
    bad_partition,
    check_topic,
    due_before_1970,
    reserved_among,
    reserved_header,
)
from ..wheel.delay import as_due, delay_of
from ..wheel.errors import InvalidMessage
from ..wheel.expiry import (
    EXPIRES_HEADER,
    EXPIRES_LIMIT_MS,
    bad_expiries,
    expires_before_due,
)
from ..wheel.names import IF_EXISTS_HEADER, NAME_HEADER, IfExists, bad_names, check_name
from ..wheel.plain import are_good_headers
from ..wheel.rows import Content, Header, header_column

Headers = Sequence[tuple[str, Content]] | Mapping[str, Content]
DueTime = datetime | int | None
Delay = timedelta | float | str | None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LIMIT_MS = 1 << 62
_SAID_IN_HEADERS = frozenset({EXPIRES_HEADER, NAME_HEADER, IF_EXISTS_HEADER})


@dataclass(slots=True)
class Message:
    """A message. ``due``: a datetime with a time zone, or ms since the epoch; ``delay``: a
    timedelta, seconds, or a text as ``"3s"``. ``expires``, in the form of ``due``: the time from
    which on it is worth nothing; or ``ttl``, in the form of ``delay``: the time from due to then;
    without both it does not expire. ``headers``: pairs in order (a key may occur twice), or a
    mapping; names that begin with ``slotwheel-`` are reserved. ``level``: the name of a delay, in
    place of ``due`` and ``delay``. ``route``, in place of a topic: the message goes to all topics
    that the route's rules name, and is stored for all of them or for none.

    ``name``: what the application calls it, 1 to 200 bytes of UTF-8 without control characters. A
    name stands for at most one pending message of its topic. ``if_exists`` says what happens when
    another one has it: ``"replace"`` (which holds without it) cancels that one, ``"keep"`` leaves
    that one and drops this, ``"refuse"`` stores nothing and is an error.
    """

    topic: str = ""
    value: Content = None
    key: Content = None
    headers: Headers = ()
    partition: int | None = None
    due: DueTime = None
    delay: Delay = None
    expires: DueTime = None
    ttl: Delay = None
    level: str | None = None
    route: str | None = None
    name: str | None = None
    if_exists: str | None = None


def message_of(
    topic: str | Message,
    value: Content,
    key: Content,
    headers: Headers,
    partition: int | None,
    due: DueTime,
    delay: Delay,
    expires: DueTime,
    ttl: Delay,
    level: str | None,
    name: str | None,
    if_exists: str | None,
) -> Message:
    """The message itself, or one made of the arguments of a client's ``send``."""
    if isinstance(topic, Message):
        return topic
    return Message(
        topic=topic,
        value=value,
        key=key,
        headers=headers,
        partition=partition,
        due=due,
        delay=delay,
        expires=expires,
        ttl=ttl,
        level=level,
        name=name,
        if_exists=if_exists,
    )


def clock_ms() -> int:
    """The time of this machine's clock, ms since the epoch."""
    return time.time_ns() // 1_000_000


def due_of(due: DueTime, delay: Delay) -> int:
    """The due time, ms since the epoch, or the delay. Errors: ``InvalidMessage``."""
    if (due is None) == (delay is None):
        raise _unusable(
            "neither due nor delay" if due is None else "both due and delay",
            "nothing" if due is None else f"due {due} and delay {delay}",
            "exactly one of due and delay",
        )
    try:
        if due is None:
            return as_due(delay_ms_of(delay))
        due_ms = _due_ms(due)
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"unusable {'delay' if due is None else 'due time'}: {error}"
        raise _unusable(problem, repr(delay if due is None else due)[:80]) from None
    if due_ms >= _LIMIT_MS:
        raise _unusable("unusable due time", due_ms, _LIMIT_MS)
    if due_ms < 0:
        raise due_before_1970(due_ms)
    return due_ms


def _due_ms(due: datetime | SupportsIndex) -> int:
    if isinstance(due, datetime):
        if due.tzinfo is None:
            raise ValueError("a datetime without a time zone")
        return -((_EPOCH - due) // _MILLISECOND)
    if isinstance(due, bool):
        raise TypeError("not a time")
    if isinstance(due, float):
        raise TypeError("seconds are not taken, but ms since the epoch")
    return index(due)


def delay_ms_of(delay: Delay) -> int:
    """A delay in ms. Errors: ``TypeError``, ``ValueError``, ``OverflowError``."""
    number: Any = delay
    if type(number) is int:  # this check is quicker than those below
        return number * 1000
    if isinstance(delay, timedelta):
        return -(-delay // _MILLISECOND)
    if isinstance(delay, str):
        span = span_of(delay)
        if span is None:
            raise ValueError("not a time span as 3s, 500ms or 1.5h")
        number = span / 1000
    if number is None or issubclass(type(number), bool) or not isinstance(number, Real | Decimal):
        raise TypeError("not a delay")
    if not math.isfinite(number):
        raise ValueError("not a number of seconds")
    # Rounded first: 0.007 * 1000 is a little more than 7.
    return math.ceil(round(cast(float, number) * 1000, 6))


def _unusable(message: str, got: object, limit: object = None) -> InvalidMessage:
    return InvalidMessage(
        message,
        got=got,
        limit=limit,
        remedy="Give due (a datetime with time zone, or ms since the epoch) or delay (a timedelta,"
        ' seconds, or a text as "3s")',
    )


def has_own_headers(message: Message) -> bool:
    """Returns True when a message has headers, or fields that are stored as headers."""
    if message.headers or message.expires is not None or message.ttl is not None:
        return True
    return message.name is not None or message.if_exists is not None


def header_pairs(message: Message, due: int) -> Sequence[tuple[str, Content]]:
    """A message's headers, values as the caller gave them, with those of its expiry and its name.
    ``due``: as of ``due_of``. Errors: ``InvalidMessage``."""
    headers = message.headers or ()
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    added: list[tuple[str, Content]] = []
    if message.expires is not None or message.ttl is not None:
        added.append((EXPIRES_HEADER, _expiry(message.expires, message.ttl, due)))
    if message.name is not None or message.if_exists is not None:
        added += _name_headers(message.name, message.if_exists)
    return [*pairs, *added] if added else pairs


def _name_headers(name: object, if_exists: object) -> list[tuple[str, Content]]:
    """The headers of a name, and of what happens where another message has it. Errors:
    ``InvalidMessage``."""
    if name is None:
        raise InvalidMessage(
            "if_exists without a name",
            got=repr(if_exists)[:80],
            remedy="Give the message a name, or leave if_exists out",
        )
    if not isinstance(name, str):
        raise InvalidMessage(
            "unusable name", got=repr(name)[:80], limit="a text", remedy="Give it as a str"
        )
    check_name(name)
    if if_exists is None:
        return [(NAME_HEADER, name.encode())]
    if if_exists not in tuple(IfExists):
        raise InvalidMessage(
            "unknown if_exists",
            got=repr(if_exists)[:80],
            limit=", ".join(IfExists),
            remedy="Write one of these",
        )
    return [(NAME_HEADER, name), (IF_EXISTS_HEADER, str(if_exists))]


def _expiry(expires: DueTime, ttl: Delay, due: int) -> bytes:
    remedy = "Give expires (like due), or ttl (how long after it is due, like delay), or neither"
    if expires is not None and ttl is not None:
        got = f"expires {expires} and ttl {ttl}"
        raise InvalidMessage("both expires and ttl", got=got, limit="one of them", remedy=remedy)
    try:
        ms = _due_ms(expires) if expires is not None else delay_ms_of(ttl)
    except (TypeError, ValueError, OverflowError) as error:
        got = repr(ttl if expires is None else expires)
        raise InvalidMessage(f"unusable time to expire: {error}", got=got, remedy=remedy) from None
    if ttl is not None and ms <= 0:
        raise InvalidMessage(
            "no time to live", got=f"{ms} ms", limit="at least 1 ms", remedy=remedy
        )
    delayed = delay_of(due) is not None
    if ttl is not None and not delayed:
        ms += due
    if expires is not None and not delayed and ms <= due:
        raise expires_before_due(ms, due)
    if ms >= EXPIRES_LIMIT_MS:
        raise InvalidMessage(
            "unusable time to expire",
            got=ms,
            limit=f"less than {EXPIRES_LIMIT_MS}",
            remedy=remedy,
        )
    return b"+%d" % ms if ttl is not None and delayed else b"%d" % ms


class FlatMessage(NamedTuple):
    """A checked message in the types of the columns. ``due``: as of ``due_of``. ``nbytes``: the
    bytes of key, value and headers."""

    due: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    nbytes: int

    @property
    def place(self) -> tuple[str, bytes | None] | None:
        """The topic and the name; None: it has no name."""
        for name, value in self.headers:
            if name == NAME_HEADER:
                return self.topic, value
        return None

    @property
    def is_named(self) -> bool:
        return self.place is not None


def flatten(message: Message) -> FlatMessage:
    """Check a message by itself, except for horizon and size. Errors: ``InvalidMessage``."""
    due = due_of(message.due, message.delay)
    topic: object = message.topic
    if not isinstance(topic, str):
        raise _not_a_message("topic", topic)
    check_topic(topic)
    partition = message.partition
    if partition is not None:
        if isinstance(partition, bool) or not hasattr(partition, "__index__"):
            raise _not_a_message("partition", partition)
        partition = index(partition)
        if not 0 <= partition <= PARTITION_MAX:
            raise bad_partition(partition)
    key, value = content_of("key", message.key), content_of("value", message.value)
    nbytes = len(key or b"") + len(value or b"")
    headers, headers_bytes = encoded(header_pairs(message, due))
    nbytes += headers_bytes
    if headers:
        _check_headers(headers, due)
    return FlatMessage(due, message.topic, partition, key, value, headers, nbytes)


def _check_headers(headers: Sequence[Header], due: int) -> None:
    """Errors: ``InvalidMessage``."""
    names = [name for name, _ in headers]
    if wrong := reserved_among(names):
        raise reserved_header(wrong)
    if _SAID_IN_HEADERS.isdisjoint(names):
        return
    # Arrow only for what may be bad: where pandas is installed it imports that at its first list,
    # which takes half a second.
    if not are_good_headers([(name.encode(), value) for name, value in headers], due):
        column = header_column([headers])
        bad = {**bad_names(column), **bad_expiries(column, np.array([due]))}
        if bad:
            raise bad[0]


def encoded(pairs: Sequence[tuple[str, Content]]) -> tuple[list[Header], int]:
    """Headers with their values in bytes, and the number of bytes. Errors: ``InvalidMessage``."""
    headers: list[Header] = []
    nbytes = 0
    try:
        for name, content in pairs:
            nbytes += len(name.encode())
            if content is None or type(content) is bytes:  # or the text is made for nothing
                value = content
            else:
                value = content_of(f"header {name!r}", content)
            nbytes += len(value or b"")
            headers.append((name, value))
    except (TypeError, ValueError, AttributeError):
        raise _not_a_message("headers", pairs) from None
    return headers, nbytes


def content_of(what: str, content: Content) -> bytes | None:
    """A value or a key in bytes; ``what`` names it in the error. Errors: ``InvalidMessage``."""
    if content is None or type(content) is bytes:
        return content
    try:
        if isinstance(content, str):
            return content.encode()
        if isinstance(content, bytes | bytearray | memoryview):
            return bytes(content)
    except UnicodeEncodeError:
        pass
    raise _not_a_message(what, content)


def _not_a_message(part: str, got: object) -> InvalidMessage:
    return InvalidMessage(
        f"unusable {part}",
        got=repr(got)[:200],
        remedy="topic: str; partition: int or None; value, key: bytes, str or None; headers: pairs"
        " of str and bytes, str or None",
    )
