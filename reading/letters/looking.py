"""What is shown of dead letters: how many there are of each kind, and each of them whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...wheel.schema import Mask
from ..messagefields import Fields, message_fields

LetterCounts = Counter[tuple[str, str | None, bool]]
"""By reason, by the topic that they were meant for, and whether they were redriven."""


def count_letters(letters: pa.RecordBatch, redriven: Mask) -> LetterCounts:
    """How many there are of each kind. ``redriven``: which of them are, shape (rows,)."""
    reason = letters.column("reason").dictionary_encode()
    topic = letters.column("for_topic").dictionary_encode("encode")
    reasons, topics = (one.dictionary.to_pylist() for one in (reason, topic))
    code = np.asarray(reason.indices) * len(topics) + np.asarray(topic.indices)
    codes, counts = np.unique(2 * code + redriven, return_counts=True)
    found: LetterCounts = Counter()
    for one, count in zip(codes.tolist(), counts.tolist(), strict=True):
        number, again = divmod(one, 2)
        found[reasons[number // len(topics)], topics[number % len(topics)], bool(again)] = count
    return found


def letter_at(letters: pa.RecordBatch, partition: int, position: int) -> pa.RecordBatch:
    """The letter among these that stands there, if it does."""
    at = np.asarray(letters.column("partition")) == partition
    at &= np.asarray(letters.column("position")) == position
    return letters.filter(pa.array(at))


def letter_fields(letters: pa.RecordBatch) -> Iterator[Fields]:
    """What is shown of each letter: where it stands, what it says, and the message with all of
    its headers."""
    names = ("id", "reason", "error", "for_topic", "for_partition", "group")
    said = zip(*(letters.column(name).to_pylist() for name in names), strict=True)
    positions = letters.column("position").to_pylist()
    buried = letters.column("buried").cast(pa.int64()).to_pylist()
    for position, buried_ms, texts, message in zip(
        positions, buried, said, message_fields(letters), strict=True
    ):
        where = {"partition": message.pop("partition"), "position": position}
        yield {**where, "buried_ms": buried_ms, **dict(zip(names, texts, strict=True)), **message}
