"""Names of headers that travel with a record from one attempt to the next.

They are a format (docs/formats.md): consumers in any language read and copy them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..wheel.checks import STAGE_HEADER
from ..wheel.names import IF_EXISTS_HEADER, NAME_HEADER
from ..wheel.rows import Header

ID_HEADER = "slotwheel-id"
DUE_HEADER = "slotwheel-due-ms"
CREATED_HEADER = "slotwheel-created-ms"
DELIVERY = frozenset({ID_HEADER, DUE_HEADER, CREATED_HEADER})
"""The headers that a delivery adds; they are not true for the next delivery."""
SOURCE_HEADER = "slotwheel-source"
"""``TOPIC/PARTITION/OFFSET`` of the record of a delay topic that a wheel of a fleet took. A record
that two wheels took, as the first one died, is told by it: the two messages have different ids."""
OF_A_NODE = DELIVERY | {STAGE_HEADER, SOURCE_HEADER}
"""The headers that only a node writes; a record that is sent again must not have them."""

OF_A_NAME = frozenset({NAME_HEADER, IF_EXISTS_HEADER})
"""The headers that name a message. A record that is sent again has none: the name stood for the
message that has left, and another one may have it by now, which the record would replace."""

RETRY = "slotwheel-retry"
"""The policy by which a record of the delay topic comes again."""
ERROR = "slotwheel-error"
"""The error for which that record was not processed."""
BURY = "slotwheel-bury"
"""The error for which a record of the delay topic becomes a dead letter at once."""
ASKS_AGAIN = frozenset({RETRY, BURY})
"""The headers that mark a copy of a record that a consumer could not process."""

ATTEMPT = "slotwheel-retry-attempt"
POLICY = "slotwheel-retry-policy"
GROUP = "slotwheel-retry-group"
FIRST_ERROR = "slotwheel-retry-first-error"
LAST_ERROR = "slotwheel-retry-last-error"

ORIGIN_TOPIC = "slotwheel-origin-topic"
ORIGIN_PARTITION = "slotwheel-origin-partition"
ORIGIN_OFFSET = "slotwheel-origin-offset"
ORIGIN_ID = "slotwheel-origin-id"
TTL_HEADER = "ttl"
"""The time to live in other systems: seconds from the record's timestamp, 8 bytes, big-endian."""
ERROR_CHARACTERS = 500
"""An error's text is cut to so many characters."""


def value_of(headers: Sequence[Header], name: str) -> bytes | None:
    """The value of the first header of that name; None if there is none, or it is null."""
    for key, value in headers:
        if key == name:
            return value
    return None


def text_of(headers: Sequence[Header], name: str) -> str:
    """The first value as text, empty if there is none. Bytes that are not UTF-8 are escaped."""
    value = value_of(headers, name)
    return "" if value is None else value.decode("utf-8", "backslashreplace")


def number_of(headers: Sequence[Header], name: str) -> int | None:
    """The first value as a whole number of up to 18 digits; None if it is none."""
    value = value_of(headers, name)
    if value is None or not (value.isdigit() and len(value) <= 18):
        return None
    return int(value)


def without(headers: Sequence[Header], names: frozenset[str]) -> list[Header]:
    return [pair for pair in headers if pair[0] not in names]


def cut(error: str) -> bytes:
    """An error's text as a header's value."""
    return error[:ERROR_CHARACTERS].encode("utf-8", "replace")
