"""The headers of a dead letter: one format for node and consumers.

A dead letter is the whole original - key, value, all headers - and behind its headers those that
are made here: the reason, in a word and in a text, the topic it was addressed to, and the record it
was made of. The same stands there under the names of Kafka Connect's error reporter, so that tools
that know those show our letters, too.

The stage comes first, and only a node can write it (``wheel/checks.py``): the last stage among a
record's headers is where the message ends and the letter begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..wheel.checks import DEAD_ERROR_HEADER, DEAD_PREFIX, STAGE_HEADER
from ..wheel.expiry import EXPIRES_HEADER
from ..wheel.names import IF_EXISTS_HEADER, NAME_HEADER
from ..wheel.rows import Header
from .headers import cut

DEAD_LETTER_TOPIC = "slotwheel-dead-letters"
"""The topic of dead letters, unless a setting names another."""

STAGE = STAGE_HEADER
REASON = "slotwheel-dead-reason"
ERROR = DEAD_ERROR_HEADER
TOPIC = "slotwheel-dead-topic"
"""The topic that the message was addressed to."""
PARTITION = "slotwheel-dead-partition"
"""The partition that it was addressed to, if it names one."""
SOURCE = "slotwheel-dead-source"
"""``topic/partition/offset`` of the record that the letter was made of."""
GROUP = "slotwheel-dead-group"
"""The consumer group that buried it."""
ATTEMPTS = "slotwheel-dead-attempts"
"""The number of attempts after which a consumer group gave it up."""
EXPIRES = "slotwheel-dead-expires-ms"
"""``slotwheel-expires-ms`` of a record of the delay topic: a letter is a message, too, and must not
expire on its way."""
TTL = "slotwheel-dead-ttl"
"""The header ``ttl`` of the message, renamed for the same reason."""
NAME = "slotwheel-dead-name"
IF_EXISTS = "slotwheel-dead-if-exists"
"""The headers of the message's name, renamed: otherwise a letter that is sent through the wheel
would replace the letter before it whose message had the same name."""
AT_REST = {
    EXPIRES_HEADER: EXPIRES,
    NAME_HEADER: NAME,
    IF_EXISTS_HEADER: IF_EXISTS,
}
"""The names of headers in a letter that mean something to the wheel in a message."""
LEFT_OUT = "slotwheel-dead-{}-bytes"
"""The bytes of a value, key or headers that had to be left out."""
CONNECT_PREFIX = "__connect.errors."

# Reasons
REFUSED = "refused"
"""The sink refused the message for good."""
EXPIRED = "expired"
"""The message expired before it could be delivered, or processed."""
BAD_RECORD = "bad-record"
"""A record of the delay topic that no wheel can take, or whose headers a consumer cannot read."""
RETRIES_USED_UP = "retries-used-up"
BURIED = "buried"
"""The application gave the message up."""
UNUSABLE_RETRY = "unusable-retry"
"""A record asked for a retry with headers that the node cannot read, or cannot fulfil."""

# Stages
DELIVERY = "delivery"
INTAKE = "intake"
CONSUMER = "consumer"


def notes_topic(topic: str) -> str:
    """The topic of the notes on redriven letters of ``topic``."""
    return f"{topic}-redriven"


def topics_of_letters(topic: str) -> tuple[str, str]:
    """The topic of dead letters, and that of their notes."""
    return topic, notes_topic(topic)


def is_letter(headers: Sequence[Header]) -> bool:
    """Returns True for the headers of a dead letter, or of a copy of one."""
    return any(name == REASON for name, _ in headers)


def unburied(headers: Sequence[Header]) -> list[Header]:
    """The headers without those of an earlier burial: a letter may have been copied back by hand
    with all its headers."""
    if not is_letter(headers):
        return list(headers)
    start = next(at for at, (name, _) in enumerate(headers) if name in (REASON, STAGE))
    return [
        pair
        for at, pair in enumerate(headers)
        if not pair[0].startswith((DEAD_PREFIX, CONNECT_PREFIX) if at >= start else DEAD_PREFIX)
    ]


def letter_headers(
    stage: str,
    reason: str,
    error: str,
    topic: bytes | None,
    *,
    partition: int | None = None,
    source: tuple[str, int, int] | None = None,
    group: str = "",
    exception: str = "",
) -> list[Header]:
    """The headers to be added to a message that becomes a dead letter, in their order.

    ``topic``, ``partition``: those it was addressed to, as far as they are known. ``source``:
    topic, partition and offset of the record that it is made of. ``exception``: the name of its
    class; empty: there was none, and the reason stands for it.
    """
    text = cut(error)
    headers: list[Header] = [] if stage == CONSUMER else [(STAGE, stage.encode())]
    headers += [(REASON, reason.encode()), (ERROR, text)]
    if topic is not None:
        headers.append((TOPIC, topic))
    if partition is not None:
        headers.append((PARTITION, b"%d" % partition))
    if source is not None:
        headers.append((SOURCE, "{}/{}/{}".format(*source).encode()))
    if group:
        headers.append((GROUP, group.encode()))
    return headers + _for_connect(stage, exception or reason, text, topic, partition, source)


def _for_connect(
    stage: str,
    exception: str,
    text: bytes,
    topic: bytes | None,
    partition: int | None,
    source: tuple[str, int, int] | None,
) -> list[Header]:
    """The same under the names of Kafka Connect; topic and partition are those of the record, or
    without one those that the message was addressed to."""
    place: list[tuple[str, bytes | None]] = [("topic", topic)]
    if source is not None:
        name, number, offset = source
        place = [
            ("topic", name.encode()),
            ("partition", b"%d" % number),
            ("offset", b"%d" % offset),
        ]
    elif partition is not None:
        place.append(("partition", b"%d" % partition))
    cause = [
        ("connector.name", b"slotwheel"),
        ("stage", stage.encode()),
        ("exception.class.name", exception.encode()),
        ("exception.message", text),
    ]
    return [(CONNECT_PREFIX + name, value) for name, value in (*place, *cause) if value is not None]
