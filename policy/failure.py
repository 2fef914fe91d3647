"""Decides on a record that a consumer could not process: the next attempt, or a dead letter.

A consumer of ours decides here itself; other programs send the failed record to a delay topic, and
the node decides here.

Rules
- An attempt is counted once, where it failed; the record of the first attempt stays the origin of
  all later ones; an attempt that would come after the message expires does not come.
- Anybody may write such headers, and copy them. An unreadable header counts as missing: an
  exception would come at the same record for ever.
- The count ends with a burial, and headers are replaced: a letter that is sent again, by whatever
  tool, begins with attempt 1, and does not get longer with each burial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..wheel.errors import InvalidMessage
from ..wheel.expiry import EXPIRES_HEADER
from ..wheel.rows import Header
from .deadletters import (
    AT_REST,
    ATTEMPTS,
    CONSUMER,
    DEAD_LETTER_TOPIC,
    EXPIRED,
    RETRIES_USED_UP,
    TTL,
    is_letter,
    letter_headers,
    unburied,
)
from .headers import (
    ATTEMPT,
    FIRST_ERROR,
    GROUP,
    ID_HEADER,
    LAST_ERROR,
    OF_A_NAME,
    OF_A_NODE,
    ORIGIN_ID,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_TOPIC,
    POLICY,
    TTL_HEADER,
    cut,
    number_of,
    text_of,
    value_of,
    without,
)
from .retry import RetryPolicy

RETRY_TOPIC = "{}-retry"
_ATTEMPTS_MAX = 1_000_000
# A letter is a message, too: with these names it would expire on its way, or replace another one.
_AT_REST = {**AT_REST, TTL_HEADER: TTL}
_ORIGIN = frozenset({ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_ID})
_COUNTED = frozenset({ATTEMPT, POLICY, GROUP, FIRST_ERROR, LAST_ERROR})


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a record that a consumer read."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The message that a failed record becomes: it goes to ``topic``, ``delay_ms`` after the
    failure. ``reason``: that of a dead letter; empty for another attempt."""

    topic: str
    headers: list[Header]
    delay_ms: int = 0
    reason: str = ""


def retry_topic(group: str) -> str:
    """The topic on which a consumer group gets its retries."""
    return RETRY_TOPIC.format(group)


def attempt_of(headers: Sequence[Header]) -> int:
    """The number of the attempt that a delivery of the record is, from 1 on. It is 1 for a copied
    dead letter, and for an unusable number."""
    attempt = number_of(headers, ATTEMPT)
    if attempt is None or not 1 <= attempt <= _ATTEMPTS_MAX or is_letter(headers):
        return 1
    return attempt


def bad_attempt(headers: Sequence[Header]) -> InvalidMessage | None:
    """The error for a record's unusable number of attempts; None if it has none, or a good one."""
    attempt = number_of(headers, ATTEMPT)
    numbered = any(name == ATTEMPT for name, _ in headers)
    if not numbered or (attempt is not None and 1 <= attempt <= _ATTEMPTS_MAX):
        return None
    return InvalidMessage(
        f"unreadable header {ATTEMPT}",
        got=repr(text_of(headers, ATTEMPT)[:80]),
        limit=f"1 to {_ATTEMPTS_MAX}, in ASCII digits",
        remedy="Copy it from the record that failed, or leave it out at the first failure",
    )


def living(headers: Sequence[Header]) -> list[Header]:
    """A message's headers without an unusable number of attempts; those of a copied dead letter
    without burial, attempts and origin, as it begins anew."""
    if is_letter(headers):
        return without(unburied(headers), _COUNTED | _ORIGIN)
    return without(headers, frozenset({ATTEMPT})) if bad_attempt(headers) else list(headers)


def failed(
    headers: Sequence[Header],
    policy: RetryPolicy,
    group: str,
    error: str,
    origin: Origin | None,
    now_ms: int | None,
    chance: float,
    *,
    dead_topic: str = DEAD_LETTER_TOPIC,
    stage: str = CONSUMER,
    exception: str = "",
    source: Origin | None = None,
) -> Failure:
    """Decide on a record that has failed at ``now_ms``; None: the time is not known, so the node
    that takes the next attempt has to refuse it if it comes too late.

    ``origin``: the place of the record; None: its headers must have it. ``source``: the record that
    a dead letter is made of, if that is another one, in a delay topic. ``chance``: as of
    ``RetryPolicy.delay_ms``. ``exception``: the name of its class. Errors: ``InvalidMessage`` for
    headers without an origin when they must have one.
    """
    attempt = attempt_of(headers)
    delay_ms = policy.delay_ms(attempt, chance)
    expires_ms = number_of(headers, EXPIRES_HEADER)
    if delay_ms is None:
        reason = RETRIES_USED_UP
    elif expires_ms is not None and now_ms is not None and expires_ms <= now_ms + delay_ms:
        reason = EXPIRED
    else:
        kept = without(noted(headers, error, origin, group), OF_A_NAME)
        kept += [(ATTEMPT, b"%d" % (attempt + 1)), (POLICY, policy.name.encode())]
        return Failure(retry_topic(group), kept, delay_ms)
    topic = policy.dead_letters or dead_topic
    return buried(
        headers,
        reason,
        group,
        error,
        origin,
        topic,
        stage=stage,
        exception=exception,
        source=source,
    )


def buried(
    headers: Sequence[Header],
    reason: str,
    group: str,
    error: str,
    origin: Origin | None,
    dead_topic: str = DEAD_LETTER_TOPIC,
    *,
    stage: str = CONSUMER,
    exception: str = "",
    source: Origin | None = None,
) -> Failure:
    """The dead letter of a record that is not tried again. It is addressed to the group's retry
    topic: a redrive to the original topic would give it to other groups a second time. Arguments
    and errors: as of ``failed``; ``reason``: one of the words in ``deadletters``."""
    kept = noted(headers, error, origin, group)
    kept = [(_AT_REST.get(name, name), value) for name, value in kept]
    source = source or origin
    kept += letter_headers(
        stage,
        reason,
        error,
        retry_topic(group).encode(),
        source=None if source is None else (source.topic, source.partition, source.offset),
        group=group,
        exception=exception,
    )
    kept.append((ATTEMPTS, b"%d" % attempt_of(headers)))
    return Failure(dead_topic, kept, reason=reason)


def noted(headers: Sequence[Header], error: str, origin: Origin | None, group: str) -> list[Header]:
    """A failed record's headers with its origin, its group and its errors, and without the number
    of attempts. Errors: ``InvalidMessage``."""
    if origin is not None:
        headers = living(headers)
    kept = without(unburied(headers), OF_A_NODE | _COUNTED | _ORIGIN)
    place, message_id = _origin_of(headers, origin), value_of(headers, ORIGIN_ID)
    if message_id is None and attempt_of(headers) == 1:  # later, the id is that of a retry
        message_id = value_of(headers, ID_HEADER)
    kept += [
        (ORIGIN_TOPIC, place.topic.encode()),
        (ORIGIN_PARTITION, b"%d" % place.partition),
        (ORIGIN_OFFSET, b"%d" % place.offset),
    ]
    if message_id is not None:
        kept.append((ORIGIN_ID, message_id))
    first = value_of(headers, FIRST_ERROR)
    kept += [
        (GROUP, group.encode()),
        (FIRST_ERROR, cut(error) if first is None else first),
        (LAST_ERROR, cut(error)),
    ]
    return kept


def _origin_of(headers: Sequence[Header], origin: Origin | None) -> Origin:
    """The origin in the headers; ``origin`` if they do not have all of it, as their sender may have
    written anything there. Errors: ``InvalidMessage`` if there is none either."""
    topic = value_of(headers, ORIGIN_TOPIC)
    partition, offset = number_of(headers, ORIGIN_PARTITION), number_of(headers, ORIGIN_OFFSET)
    if topic and partition is not None and offset is not None:
        return Origin(text_of(headers, ORIGIN_TOPIC), partition, offset)
    if origin is not None:
        return origin
    missing = ORIGIN_OFFSET if topic and partition is not None else ORIGIN_PARTITION
    missing = missing if topic else ORIGIN_TOPIC
    raise InvalidMessage(
        "a retry without its origin",
        got=f"{missing}: {text_of(headers, missing)[:80]!r}",
        limit=f"{ORIGIN_TOPIC}, {ORIGIN_PARTITION} and {ORIGIN_OFFSET}",
        remedy="Say at the first failure which record has failed, in text and ASCII digits",
    )
