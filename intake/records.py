"""From records of a delay topic to rows of the wheel, or to dead letters.

Theory: a record's headers have its topic and its due time. The rows of one append are the rows of
all its records: a bad record is a row for the dead-letter topic, due now, with the reason in its
headers. So dead letters are exactly-once like all other rows, and block no record.

Rules: control headers are removed before delivery; all others stay as they are, in order, also
repeated ones. A dead letter keeps *all* of the original, so that it can be corrected and sent
again; only parts that make it too large are left out, and their sizes noted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from ..wheel.checks import bad_rows, is_reserved, reserved_header
from ..wheel.config import WheelConfig
from ..wheel.errors import InvalidMessage
from ..wheel.expiry import EXPIRES_HEADER
from ..wheel.rows import Header, from_columns

TOPIC = "slotwheel-topic"
DUE_MS = "slotwheel-due-ms"
DELAY_MS = "slotwheel-delay-ms"
TTL_MS = "slotwheel-ttl-ms"
PARTITION = "slotwheel-partition"
_CONTROL = frozenset({TOPIC, DUE_MS, DELAY_MS, TTL_MS, PARTITION})

DEAD_TOPIC = "slotwheel-dead-letters"
DEAD_REASON = "slotwheel-dead-reason"
DEAD_FOR = "slotwheel-dead-topic"
DEAD_EXPIRES = "slotwheel-dead-expires-ms"
"""``slotwheel-expires-ms`` of a record: a dead letter does not expire."""
DEAD_SOURCE = "slotwheel-dead-source"
"""``topic/partition/offset`` of the record."""
DEAD_BYTES = "slotwheel-dead-{}-bytes"
"""Length of the value, key or headers that had to be left out, bytes."""

_NUMBER = re.compile(rb"-?[0-9]{1,18}")
_REASON_CHARACTERS = 500
_HEADER_OVERHEAD = 16
"""About the bytes of a header in a batch besides its key and value."""


class NotText(str):
    """A header key that is not UTF-8, as far as it can be shown."""


class ConsumerRecords(NamedTuple):
    """Records of one partition, by column; every list has one entry a record."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[Header]]

    def part(self, start: int, stop: int | None = None) -> ConsumerRecords:
        cut = slice(start, stop)
        return ConsumerRecords(
            self.offsets[cut],
            self.timestamps[cut],
            self.keys[cut],
            self.values[cut],
            self.headers[cut],
        )


class Row(NamedTuple):
    """One row, in the order of ``from_columns``."""

    due_ms: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


class IntakeRows(NamedTuple):
    """``rows``: one a record, in their order. ``dead``: how many of them are dead letters."""

    rows: pa.RecordBatch
    dead: int


def rows_of(
    records: ConsumerRecords,
    source: str,
    config: WheelConfig,
    now_ms: int,
    dead_topic: str = DEAD_TOPIC,
) -> IntakeRows:
    """Make rows of all ``records`` (at least one). ``source``: ``topic/partition``."""
    bytes_max = min(config.message_bytes_max, config.batch_bytes_max // 2)
    rows: list[Row] = []
    reasons: dict[int, InvalidMessage] = {}
    columns = zip(records.timestamps, records.keys, records.values, records.headers, strict=True)
    for number, (timestamp, key, value, headers) in enumerate(columns):
        try:
            rows.append(_row(timestamp, key, value, headers))
        except InvalidMessage as error:
            reasons[number] = error
            rows.append(Row(now_ms, dead_topic, None, None, None, ()))

    def bury() -> None:
        for number, error in reasons.items():
            where = f"{source}/{records.offsets[number]}"
            key, value = records.keys[number], records.values[number]
            original = records.headers[number]
            rows[number] = _dead_letter(
                error, where, key, value, original, now_ms, dead_topic, bytes_max
            )

    bury()
    batch = from_columns(*zip(*rows, strict=True))
    latest = now_ms + config.horizon_ms
    bad = bad_rows(
        batch,
        latest_due_ms=latest,
        message_bytes_max=config.message_bytes_max,
        reserved=True,  # dead letters have reserved headers
    )
    if bad:
        reasons |= bad
        bury()
        batch = from_columns(*zip(*rows, strict=True))
    if batch.num_rows == 1 and batch.nbytes > config.batch_bytes_max and not reasons:
        # Nothing but very many headers: a row that the wheel refuses would block all behind it.
        reasons[0] = InvalidMessage(
            "message too large",
            got=f"{batch.nbytes} bytes with {len(records.headers[0])} headers",
            limit=f"{config.batch_bytes_max} bytes",
        )
        bury()
        batch = from_columns(*zip(*rows, strict=True))
    return IntakeRows(batch, len(reasons))


def _row(timestamp_ms: int, key: bytes | None, value: bytes | None, headers: list[Header]) -> Row:
    """The row of one record. Errors: ``InvalidMessage`` for missing or contradictory headers."""
    control: dict[str, bytes | None] = {}
    kept: list[Header] = []
    reserved: list[str] = []
    for pair in headers:
        name = pair[0]
        if name in _CONTROL:
            if name in control:
                raise InvalidMessage(f"header {name} given twice", remedy="Send it once")
            control[name] = pair[1]
        else:
            if type(name) is not str or not name.isascii():
                _check_text(name)
            if is_reserved(name):
                reserved.append(name)
            kept.append(pair)
    if reserved:
        raise reserved_header(reserved)
    topic = control.get(TOPIC)
    if topic is None:
        raise InvalidMessage(f"no header {TOPIC}", remedy="Name the target topic in it")
    try:
        target = topic.decode()
    except UnicodeDecodeError:
        raise InvalidMessage(f"unreadable header {TOPIC}", got=repr(topic[:80])) from None
    if (DUE_MS in control) == (DELAY_MS in control):
        raise InvalidMessage(
            f"both {DUE_MS} and {DELAY_MS}" if DUE_MS in control else "no due time",
            limit=f"one of the headers {DUE_MS} and {DELAY_MS}",
        )
    if DUE_MS in control:
        due_ms = _number(DUE_MS, control[DUE_MS])
    else:
        if timestamp_ms < 0:
            raise InvalidMessage(
                f"{DELAY_MS} on a record without a timestamp", remedy=f"Give {DUE_MS}"
            )
        due_ms = timestamp_ms + _number(DELAY_MS, control[DELAY_MS])
    if TTL_MS in control:
        if any(name == EXPIRES_HEADER for name, _ in kept):
            raise InvalidMessage(
                f"both {TTL_MS} and {EXPIRES_HEADER}", remedy="Send one of the headers, or neither"
            )
        ttl_ms = _number(TTL_MS, control[TTL_MS])
        if ttl_ms <= 0:
            raise InvalidMessage(f"header {TTL_MS}", got=ttl_ms, limit="at least 1 ms")
        kept.append((EXPIRES_HEADER, b"%d" % (due_ms + ttl_ms)))
    partition = None
    if PARTITION in control:
        partition = _number(PARTITION, control[PARTITION])
        if partition >= 1 << 31:
            raise InvalidMessage("no such partition", got=partition)
    return Row(due_ms, target, partition, key, value, kept)


def _number(name: str, text: bytes | None) -> int:
    if text is None or not _NUMBER.fullmatch(text):
        raise InvalidMessage(
            f"unreadable header {name}",
            got="null" if text is None else repr(text[:80]),
            limit="a whole number in ASCII digits",
        )
    return int(text)


def _check_text(name: str) -> None:
    try:
        name.encode()
        sound = not isinstance(name, NotText)
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise InvalidMessage("a header key that is not UTF-8", got=ascii(str(name)[:80]))


def _dead_letter(
    error: InvalidMessage,
    where: str,
    key: bytes | None,
    value: bytes | None,
    original: list[Header],
    now_ms: int,
    dead_topic: str,
    bytes_max: int,
) -> Row:
    added: list[Header] = [
        (DEAD_REASON, str(error)[:_REASON_CHARACTERS].encode("utf-8", "replace")),
        (DEAD_SOURCE, where.encode()),
    ]
    wanted = next((value for name, value in original if name == TOPIC), None)
    if wanted is not None:
        added.append((DEAD_FOR, wanted[:_REASON_CHARACTERS]))
    renamed = {EXPIRES_HEADER: DEAD_EXPIRES}
    headers: list[Header] = [
        (renamed.get(name, name).encode("utf-8", "replace").decode(), content)
        for name, content in original
    ]
    # The value is left out first; a record may be too large without it, too.
    room = bytes_max - _size(added) - 3 * 48
    parts = {"value": len(value or b""), "key": len(key or b""), "headers": _size(headers)}
    extra = {"headers": len(headers) * _HEADER_OVERHEAD}
    for part in ("value", "headers", "key"):
        if sum(parts.values()) + sum(extra.values()) > room:
            added.append((DEAD_BYTES.format(part), str(parts.pop(part)).encode()))
            extra.pop(part, None)
    return Row(
        now_ms,
        dead_topic,
        None,
        key if "key" in parts else None,
        value if "value" in parts else None,
        [*(headers if "headers" in parts else ()), *added],
    )


def _size(headers: Sequence[Header]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)
