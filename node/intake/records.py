"""Makes rows of the wheel of a delay topic's records, or dead letters.

Theory: a record's headers have its topic and its due time. The rows of one append are the rows of
all its records: a bad record is a row for the dead-letter topic, due now, with the reason in its
headers. So dead letters are exactly-once like all other rows, and block no record.

Rules: control headers are removed before delivery; all others stay as they are, in order, also
repeated ones. A dead letter keeps *all* of the original, so that it can be corrected and sent
again; only parts that make it too large are left out, and their sizes noted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from ...policy import deadletters
from ...policy.deadletters import DEAD_LETTER_TOPIC, letter_headers
from ...policy.failure import Origin
from ...policy.headers import ASKS_AGAIN, SOURCE_HEADER
from ...policy.policyset import PolicySet
from ...security.rights import EVERYTHING, Operation, Rights
from ...wheel.checks import bad_rows, is_time
from ...wheel.config import WheelConfig
from ...wheel.errors import Forbidden, InvalidMessage, NameTaken, SlotwheelError, UnknownTopic
from ...wheel.rows import Header, from_columns
from ...wheel.texts import counted
from .control import TOPIC, Row, is_relative, rows_of_record

_TOPIC_BYTES_MAX = 500
"""A dead letter names its target with at most so many bytes, as that may be no topic's name."""
FAR_MS = 10_000
"""A record's timestamp that is further from the node's clock is reported."""
_HEADER_OVERHEAD = 16
"""An estimate of a header's bytes in a batch besides its key and value."""


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


class IntakeRows(NamedTuple):
    """The ``rows`` of all records, in their order. ``dead``: the number of records that became dead
    letters. ``off``: the distances, ms, of timestamps that are far from this node's clock and from
    which delays count: the records have waited for so long, or their producer's clock is off."""

    rows: pa.RecordBatch
    dead: int
    off: tuple[int, ...] = ()


def rows_of(
    records: ConsumerRecords,
    source: str,
    config: WheelConfig,
    now_ms: int,
    dead_topic: str = DEAD_LETTER_TOPIC,
    settings: PolicySet | None = None,
    absent: Collection[str] = (),
    rights: Rights = EVERYTHING,
    refused: NameTaken | None = None,
    of_fleet: bool = False,
) -> IntakeRows:
    """Make rows of all ``records`` (at least one). ``source`` is ``topic/partition``. ``refused``:
    the wheel refuses the only record, so it is a dead letter. ``of_fleet``: rows get the header
    ``SOURCE_HEADER``. A row for one
    of the topics ``absent`` is a dead letter, unless its record is a retry. A record is one if
    ``rights`` do not let it schedule to each of its topics. The topic of dead letters, to which a
    retry may lead, is the node's choice and not the record's; the topic that such a letter is meant
    for is the record's. A letter for a topic that ``rights`` do not have names none: a redrive
    sends letters where they are meant to go, so whoever may write to a delay topic would only have
    to wait for one."""
    settings = settings or PolicySet()
    for_letters = {dead_topic, *(policy.dead_letters for policy in settings.policies.values())}
    bytes_max = min(config.message_bytes_max, config.batch_bytes_max // 2)
    made: list[list[Row]] = []
    reasons: dict[int, SlotwheelError] = {}
    topic, _, partition = source.rpartition("/")
    places = [Origin(topic, int(partition), offset) for offset in records.offsets]
    columns = zip(records.timestamps, records.keys, records.values, records.headers, strict=True)
    off: list[int] = []
    lost: set[int] = set()

    def letter(number: int, row: Row) -> Row:
        original = (records.keys[number], records.values[number], records.headers[number])
        error = UnknownTopic.of([row.topic])
        return _dead_letter(error, places[number], *original, now_ms, dead_topic, bytes_max, rights)

    for number, (record, at) in enumerate(zip(columns, places, strict=True)):
        if abs(record[0] - now_ms) > FAR_MS and is_time(record[0]) and is_relative(record[3]):
            off.append(record[0] - now_ms)
        try:
            if refused is not None:
                raise refused
            wheel_rows = rows_of_record(*record, settings, dead_topic, at, now_ms)
            again = any(name in ASKS_AGAIN for name, _ in record[3])
            chosen = {
                _meant_for(row) if again and row.topic in for_letters else row.topic
                for row in wheel_rows
            }
            for chosen_topic in chosen - {""}:  # for no topic there is a better error
                rights.demand(Operation.APPEND, chosen_topic)
            # A retry's consumer has gone on: the sink decides when it is due.
            gone = () if again else absent
            if of_fleet:
                wheel_rows = [_with_source(row, at) for row in wheel_rows]
            lost |= {number} if any(row.topic in gone for row in wheel_rows) else set()
            made.append([letter(number, row) if row.topic in gone else row for row in wheel_rows])
        except (InvalidMessage, Forbidden) as error:
            reasons[number] = copy(error)
            made.append([Row(now_ms, dead_topic, None, None, None, ())])

    def bury() -> pa.RecordBatch:
        for number, error in reasons.items():
            key, value = records.keys[number], records.values[number]
            original, at = records.headers[number], places[number]
            made[number] = [
                _dead_letter(error, at, key, value, original, now_ms, dead_topic, bytes_max, rights)
            ]
        return from_columns(*zip(*chain.from_iterable(made), strict=True))

    batch = bury()
    latest = now_ms + config.horizon_ms
    bad = bad_rows(
        batch,
        latest_due_ms=latest,
        message_bytes_max=config.message_bytes_max,
        reserved=True,  # dead letters have reserved headers
    )
    if bad:
        of_row = [number for number, rows in enumerate(made) for _ in rows]
        for row, fault in bad.items():
            reasons.setdefault(of_row[row], fault)
        batch = bury()
    too_much = batch.nbytes > config.batch_bytes_max or batch.num_rows > config.batch_rows_max
    if len(made) == 1 and too_much and not reasons:
        # It has very many headers, or a route with very many topics. The wheel would refuse such
        # rows for ever, and the records behind them would wait.
        reasons[0] = InvalidMessage(
            "message too large",
            got=f"{batch.nbytes} bytes with {len(records.headers[0])} headers, for"
            f" {counted(batch.num_rows, 'topic')}",
            limit=f"{config.batch_bytes_max} bytes, {counted(config.batch_rows_max, 'topic')}",
        )
        batch = bury()
    return IntakeRows(batch, len(lost | reasons.keys()), tuple(off))


def _dead_letter(
    error: SlotwheelError,
    at: Origin,
    key: bytes | None,
    value: bytes | None,
    original: list[Header],
    now_ms: int,
    dead_topic: str,
    bytes_max: int,
    rights: Rights,
) -> Row:
    target = next((value for name, value in original if name == TOPIC), None)
    if target and not rights.may(Operation.APPEND, target.decode("utf-8", "replace")):
        target = None
    reason = deadletters.REFUSED if isinstance(error, NameTaken) else deadletters.BAD_RECORD
    if isinstance(error, UnknownTopic):
        target, reason = str(error.got).encode(), deadletters.REFUSED
    elif any(name in ASKS_AGAIN for name, _ in original):
        reason = deadletters.UNUSABLE_RETRY
    added = letter_headers(
        deadletters.INTAKE,
        reason,
        str(error),
        None if target is None else target[:_TOPIC_BYTES_MAX],
        source=(at.topic, at.partition, at.offset),
    )
    headers: list[Header] = [
        (deadletters.AT_REST.get(name, name).encode("utf-8", "replace").decode(), content)
        for name, content in deadletters.unburied(original)
    ]
    # The value is left out first; the record may still be too large.
    room = bytes_max - _size(added) - len(added) * _HEADER_OVERHEAD - 3 * 48
    parts = {"value": len(value or b""), "key": len(key or b""), "headers": _size(headers)}
    extra = {"headers": len(headers) * _HEADER_OVERHEAD}
    for part in ("value", "headers", "key"):
        if sum(parts.values()) + sum(extra.values()) > room:
            added.append((deadletters.LEFT_OUT.format(part), str(parts.pop(part)).encode()))
            extra.pop(part, None)
    return Row(
        now_ms,
        dead_topic,
        None,
        key if "key" in parts else None,
        value if "value" in parts else None,
        [*(headers if "headers" in parts else ()), *added],
    )


def _with_source(row: Row, at: Origin) -> Row:
    place = f"{at.topic}/{at.partition}/{at.offset}".encode()
    return row._replace(headers=[*row.headers, (SOURCE_HEADER, place)])


def _meant_for(letter: Row) -> str:
    """The topic to which a redrive would send a letter."""
    names = (content for name, content in reversed(letter.headers) if name == deadletters.TOPIC)
    return (next(names, None) or b"").decode("utf-8", "replace")


def _size(headers: Sequence[Header]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)
