"""Makes rows of a record of a delay topic, by its control headers.

A record's headers have its target (a topic, or a route) and its time (a due time, a delay, or a
level). Or a consumer could not process the record, and asks for its next attempt, for which its
retry policy has topic and delay, or for its burial (``policy/failure.py``).

Rules: control headers are removed before delivery; all others stay as they are, in order, also
repeated ones. A record becomes all of its rows, or none. A retry's delay begins when the node
reads it: a copy of the failed record often has that one's timestamp, and would come at once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from ...broker.header_names import NotText
from ...policy import deadletters
from ...policy.failure import Origin, bad_attempt, buried, failed
from ...policy.headers import ASKS_AGAIN, BURY, ERROR, GROUP, OF_A_NODE, RETRY
from ...policy.levels import level_ms
from ...policy.policyset import PolicySet
from ...policy.retry import find_policy
from ...policy.routes import find_route
from ...wheel.checks import (
    PARTITION_MAX,
    bad_partition,
    is_time,
    reserved_among,
    reserved_header,
)
from ...wheel.errors import InvalidMessage
from ...wheel.expiry import EXPIRES_HEADER, EXPIRES_LIMIT_MS
from ...wheel.rows import Header
from ...wheel.texts import is_utf8

TOPIC = "slotwheel-topic"
ROUTE = "slotwheel-route"
DUE_MS = "slotwheel-due-ms"
DELAY_MS = "slotwheel-delay-ms"
LEVEL = "slotwheel-delay-level"
TTL_MS = "slotwheel-ttl-ms"
PARTITION = "slotwheel-partition"
_TIMES = (DUE_MS, DELAY_MS, LEVEL)
_RELATIVE = frozenset({DELAY_MS, LEVEL})
_CONTROL = frozenset({TOPIC, ROUTE, *_TIMES, TTL_MS, PARTITION, ERROR}) | ASKS_AGAIN
_NUMBER = re.compile(rb"-?[0-9]{1,18}")

Control = dict[str, bytes | None]


class Row(NamedTuple):
    """One row, in the order of ``from_columns``."""

    due_ms: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def rows_of_record(
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    settings: PolicySet,
    dead_topic: str,
    source: Origin,
    now_ms: int,
) -> list[Row]:
    """The rows of one record, which stands at ``source`` and is read at ``now_ms``.

    Errors: ``InvalidMessage`` for headers that are missing, cannot be read, or contradict each
    other."""
    control, kept = _sorted_out(headers)
    if control.keys() & ASKS_AGAIN:
        return [_failed(now_ms, key, value, control, kept, settings, dead_topic, source)]
    if ERROR in control:
        raise InvalidMessage(
            f"{ERROR} without {RETRY} or {BURY}",
            remedy="Send it beside one of them, or leave it out",
        )
    topics = _topics(control, kept, settings)
    due_ms = _due_ms(timestamp_ms, control, settings, now_ms)
    if TTL_MS in control:
        if any(name == EXPIRES_HEADER for name, _ in kept):
            raise InvalidMessage(
                f"both {TTL_MS} and {EXPIRES_HEADER}", remedy="Send one of the headers, or neither"
            )
        ttl_ms = _number(TTL_MS, control[TTL_MS])
        if not 0 < ttl_ms < EXPIRES_LIMIT_MS - due_ms:
            raise InvalidMessage(
                f"header {TTL_MS}",
                got=ttl_ms,
                limit=f"at least 1 ms, and an end before {EXPIRES_LIMIT_MS} ms since 1970",
                remedy="Leave it out for a message that does not expire",
            )
        kept.append((EXPIRES_HEADER, b"%d" % (due_ms + ttl_ms)))
    partition = None
    if PARTITION in control:
        partition = _number(PARTITION, control[PARTITION])
        if not 0 <= partition <= PARTITION_MAX:
            raise bad_partition(partition)
    return [Row(due_ms, topic, partition, key, value, kept) for topic in topics]


def _sorted_out(headers: Sequence[Header]) -> tuple[Control, list[Header]]:
    """Splits headers into the control headers and the others. Errors: ``InvalidMessage``."""
    # A consumer that sends a failed record also copies the headers that the last delivery added.
    delivered = OF_A_NODE if any(name in ASKS_AGAIN for name, _ in headers) else frozenset()
    control: Control = {}
    kept: list[Header] = []
    for pair in headers:
        name = pair[0]
        if name in _CONTROL and name not in delivered:
            if name in control:
                raise InvalidMessage(f"header {name} given twice", remedy="Send it once")
            control[name] = pair[1]
        else:
            if type(name) is not str or not name.isascii():
                _check_text(name)
            kept.append(pair)
    if reserved := reserved_among([name for name, _ in kept if name not in delivered]):
        raise reserved_header(reserved)
    return control, kept


def _failed(
    now_ms: int,
    key: bytes | None,
    value: bytes | None,
    control: Control,
    kept: Sequence[Header],
    settings: PolicySet,
    dead_topic: str,
    source: Origin,
) -> Row:
    """The row for another attempt, or for a dead letter."""
    asked = BURY if BURY in control else RETRY
    others = sorted(control.keys() - {*ASKS_AGAIN, ERROR})
    if others:
        raise InvalidMessage(
            f"{asked} and other headers that say where or when",
            got=", ".join(others),
            limit=f"{asked}, {ERROR} and those of the failed record",
            remedy="Leave the others out: the policy says where and when",
        )
    if bad := bad_attempt(kept):
        raise bad
    groups = [content for name, content in kept if name == GROUP and content]
    if not groups:
        raise InvalidMessage(
            "a retry without its consumer group",
            got=f"no header {GROUP}",
            remedy="Name the group in it: retries go to <group>-retry",
        )
    group = _text(GROUP, groups[0])
    error = (control.get(BURY) or control.get(ERROR) or b"").decode("utf-8", "replace")
    policy = None
    if RETRY in control:
        policy = find_policy(settings.policies, _text(RETRY, control[RETRY]))
    if BURY in control or policy is None:
        dead_topic = (policy and policy.dead_letters) or dead_topic
        outcome = buried(
            kept,
            deadletters.BURIED,
            group,
            error,
            origin=None,
            dead_topic=dead_topic,
            stage=deadletters.INTAKE,
            source=source,
        )
    else:
        outcome = failed(
            kept,
            policy,
            group=group,
            error=error,
            origin=None,
            now_ms=now_ms,
            chance=random.random(),
            dead_topic=dead_topic,
            stage=deadletters.INTAKE,
            source=source,
        )
    return Row(now_ms + outcome.delay_ms, outcome.topic, None, key, value, outcome.headers)


def is_relative(headers: Sequence[Header]) -> bool:
    """Returns True when a record's due time counts from its timestamp."""
    return any(name in _RELATIVE for name, _ in headers)


def _start_ms(name: str, timestamp_ms: int, now_ms: int) -> int:
    """The begin of a delay, ms: the record's timestamp, or the time ``now_ms`` at which the node
    reads it, if that is earlier. A later timestamp comes from a producer whose clock is ahead, and
    would make the message late. Errors: ``InvalidMessage``."""
    if not is_time(timestamp_ms):
        raise InvalidMessage(
            f"{name} on a record without a timestamp",
            got=timestamp_ms,
            limit="ms since the epoch, from the year 2000 on",
            remedy=f"Produce it with one: the delay counts from there. Or give {DUE_MS}",
        )
    return min(timestamp_ms, now_ms)


def _due_ms(timestamp_ms: int, control: Control, settings: PolicySet, now_ms: int) -> int:
    given = [name for name in _TIMES if name in control]
    if len(given) != 1:
        raise InvalidMessage(
            "both " + " and ".join(given) if given else "no due time",
            limit=f"one of the headers {', '.join(_TIMES)}",
        )
    (name,) = given
    if name == DUE_MS:
        return _number(name, control[name])
    start_ms = _start_ms(name, timestamp_ms, now_ms)
    if name == LEVEL:
        return start_ms + level_ms(settings.levels, _text(name, control[name]))
    return start_ms + _number(name, control[name])


def _topics(control: Control, kept: Sequence[Header], settings: PolicySet) -> list[str]:
    topic, route = control.get(TOPIC), control.get(ROUTE)
    if (topic is None) == (route is None):
        raise InvalidMessage(
            f"no header {TOPIC}" if topic is None else f"both {TOPIC} and {ROUTE}",
            limit=f"one of the headers {TOPIC} and {ROUTE}",
            remedy="Name the target topic, or the route to it",
        )
    if topic is not None:
        return [_text(TOPIC, topic)]
    if PARTITION in control:
        raise InvalidMessage(
            f"both {ROUTE} and {PARTITION}", remedy="Leave the partition out: the key decides"
        )
    return find_route(settings.routes, _text(ROUTE, route)).topics(kept)


def _number(name: str, text: bytes | None) -> int:
    if text is None or not _NUMBER.fullmatch(text):
        raise InvalidMessage(
            f"unreadable header {name}",
            got="null" if text is None else repr(text[:80]),
            limit="a whole number in ASCII digits",
        )
    return int(text)


def _text(name: str, content: bytes | None) -> str:
    try:
        return (content or b"").decode()
    except UnicodeDecodeError:
        raise InvalidMessage(f"unreadable header {name}", got=repr((content or b"")[:80])) from None


def _check_text(name: str) -> None:
    if isinstance(name, NotText) or not is_utf8(name):
        raise InvalidMessage("a header key that is not UTF-8", got=ascii(str(name)[:80]))
