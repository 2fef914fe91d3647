"""Dead letters as columns: what each says of itself, and which of them are wanted.

All of it is done by column, a batch at a time: half a million letters are counted in seconds. What
a letter says stands in its headers (``policy/deadletters.py``), from its last reason on: whoever
buried the message added them behind all others, and the message may have brought the same names.

A letter of the former format has its text in place of the reason's word, and a record that somebody
else wrote may have no reason: that one counts as ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...policy import deadletters
from ...policy.headercolumns import HeaderColumn, decimals, texts
from ...policy.headers import ID_HEADER
from ...policy.parameters import Question
from ...policy.written import Instant, Text, as_bytes
from ...wheel.checks import PARTITION_MAX, check_topic, is_topic
from ...wheel.schema import HEADERS, TIME, Int64s, Mask

LETTER = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("buried", TIME),
        pa.field("id", pa.utf8()),
        pa.field("reason", pa.utf8(), nullable=False),
        pa.field("error", pa.utf8()),
        pa.field("for_topic", pa.utf8()),
        pa.field("for_partition", pa.int32()),
        pa.field("group", pa.utf8()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
    ],
    metadata={b"slotwheel.letters": b"1"},
)
"""A dead letter: where it stands in its topic and since when, what it says, and what it is."""

OWN_PARTITION = -1
"""Of letters that a node before a Kafka keeps in its own directory: no topic in Kafka has it."""
UNKNOWN = "unknown"
"""The reason of a letter that says none: somebody else wrote it."""
_WORDS = [
    *(deadletters.REFUSED, deadletters.EXPIRED, deadletters.BAD_RECORD),
    *(deadletters.RETRIES_USED_UP, deadletters.BURIED, deadletters.UNUSABLE_RETRY),
]
_PLACE = re.compile(r"(own|\d{1,9})/(\d{1,18})")


def letters_of(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records of a dead-letter topic, as a dump has them, in the schema ``LETTER``."""
    headers = HeaderColumn(records.column("headers"))
    starts = letter_starts(headers)

    def said(name: str) -> pa.Array:
        return texts(headers.last_values(name, starts))

    reason, error = said(deadletters.REASON), said(deadletters.ERROR)
    word = pc.or_(error.is_valid(), pc.is_in(reason, pa.array(_WORDS)))
    by_intake = said(deadletters.SOURCE).is_valid()
    former = pc.if_else(by_intake, deadletters.BAD_RECORD, deadletters.REFUSED)
    partition = decimals(headers.last_values(deadletters.PARTITION, starts))
    asked = (partition >= 0) & (partition <= PARTITION_MAX)
    columns = {
        "partition": records.column("record_partition"),
        "position": records.column("position"),
        "buried": records.column("delivered"),
        "id": texts(headers.last_values(ID_HEADER)),
        "reason": pc.if_else(reason.is_null(), UNKNOWN, pc.if_else(word, reason, former)),
        "error": pc.if_else(pc.and_(error.is_null(), pc.invert(word)), reason, error),
        "for_topic": said(deadletters.TOPIC),
        "for_partition": pa.array(np.where(asked, partition, 0), pa.int32(), mask=~asked),
        "group": said(deadletters.GROUP),
        **{name: records.column(name) for name in ("key", "value", "headers")},
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in LETTER.names], schema=LETTER)


def any_letters(records: pa.RecordBatch) -> bool:
    """Whether one of these records says why it is dead, by our names or by Kafka Connect's."""
    headers = HeaderColumn(records.column("headers"))
    names = (deadletters.REASON, f"{deadletters.CONNECT_PREFIX}topic")
    return any(bool((headers.last_places(name) >= 0).any()) for name in names)


def letter_starts(headers: HeaderColumn) -> Int64s:
    """Where what the burial added begins: at the last reason, or the stage before it; the start of
    a row that has no reason."""
    reason = headers.last_places(deadletters.REASON)
    staged = np.concatenate([[False], headers.of_name(deadletters.STAGE)])[reason]
    starts: Int64s = reason - (staged & (reason > headers.starts))
    return np.where(reason < 0, headers.starts, starts)


class LetterPlace(Question, frozen=True):
    """In which topic the letters lie."""

    topic: str | None = None
    """Where the dead letters are. Null: in the topic of the node."""

    def check(self) -> None:
        """Errors: ``InvalidMessage``: no topic has such a name; as of ``Question.check``."""
        if self.topic:
            check_topic(self.topic)
        super().check()


class LetterQuery(LetterPlace, frozen=True):
    """Which letters are wanted: all kinds of conditions must hold; of one kind, one of those
    given. A letter that does not say when it was buried fulfils no condition on that."""

    reason: tuple[str, ...] = ()
    """Only letters with this reason; may be repeated."""
    for_topic: tuple[str, ...] = ()
    """Only those meant for this topic; may be repeated."""
    key: tuple[Text, ...] = ()
    """Only those with this key; may be repeated."""
    id: tuple[str, ...] = ()
    """Only the message with this id; may be repeated."""
    group: tuple[str, ...] = ()
    """Only those of this group; may be repeated. It is the consumer group that buried them."""
    from_ms: Instant | None = None
    """Only those buried from this time on."""
    to_ms: Instant | None = None
    """Only those buried before this time."""

    def of(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        """Those of ``letters`` (schema ``LETTER``) that are wanted."""
        wanted: Mask = np.ones(letters.num_rows, np.bool_)
        for name in ("reason", "for_topic", "group", "id"):
            wanted &= _among(letters.column(name), getattr(self, name))
        wanted &= _among(letters.column("key"), [as_bytes(key) for key in self.key])
        buried = np.asarray(pc.fill_null(letters.column("buried").cast(pa.int64()), -1))
        if self.from_ms is not None:
            wanted &= buried >= self.from_ms
        if self.to_ms is not None:
            wanted &= (buried >= 0) & (buried < self.to_ms)
        return letters if wanted.all() else letters.filter(pa.array(wanted))


def _among(column: pa.Array, values: Sequence[str] | Sequence[bytes]) -> Mask:
    if not values:
        return np.ones(len(column), np.bool_)
    return np.asarray(pc.is_in(column, pa.array(values, column.type)))


def place_of(text: str) -> tuple[int, int] | None:
    """The partition and the position that ``PARTITION/POSITION`` names; None if it is no such.
    ``own/POSITION``: in the directory of a node before a Kafka."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    return (OWN_PARTITION if found[1] == "own" else int(found[1])), int(found[2])


def place_text(partition: int, position: int) -> str:
    """The reverse of ``place_of``."""
    return f"{'own' if partition == OWN_PARTITION else partition}/{position}"


def sendable(letters: pa.RecordBatch, to_topic: str | None) -> Mask:
    """Which letters can be sent again: those that name a legal topic, if ``to_topic`` does not, and
    that are whole. Shape (rows,)."""
    headers = HeaderColumn(letters.column("headers"))
    starts = letter_starts(headers)
    found = np.ones(letters.num_rows, np.bool_)
    for part in ("value", "key", "headers"):
        length = headers.last_values(deadletters.LEFT_OUT.format(part), starts)
        found &= np.asarray(length.is_null())
    # A consumer says it before all else; then the value is missing, whatever else is.
    short = headers.last_places(deadletters.LEFT_OUT.format("value")) >= 0
    found &= ~(short & np.asarray(letters.column("value").is_null()))
    if to_topic is None:
        names = letters.column("for_topic")
        legal = [name for name in names.unique().to_pylist() if name and is_topic(name)]
        found &= np.asarray(pc.is_in(names, pa.array(legal, pa.utf8())))
    return found
