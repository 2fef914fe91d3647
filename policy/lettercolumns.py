"""Finds the rows of a dead-letter topic that the sink made, and their originals, by column.

A list column is a flat column and a border for each row. Only a node can write
``slotwheel-dead-stage``. If the last one of a row is ``delivery``, the row is the sink's, and the
message ends before that header. Any other row was sent to the topic itself, by an application or
from intake.

The former format had no stage: reason, topic and perhaps partition stood last, and no error text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..wheel import compute as pc
from ..wheel.checks import TOPIC_PATTERN
from ..wheel.schema import Int64s, Mask
from .deadletters import DELIVERY, ERROR, PARTITION, REASON, STAGE, TOPIC


@dataclass(frozen=True, slots=True)
class SinkLetters:
    """The ``rows`` that are dead letters of the sink. ``first``: the place, in the flat column, of
    the first header that was added. ``reason``, ``topic``, ``partition``: values, binary."""

    rows: Int64s
    first: Int64s
    reason: pa.Array
    topic: pa.Array
    partition: pa.Array


def sink_letters(flat: pa.Array, starts: Int64s, ends: Int64s, rows: Int64s) -> SinkLetters:
    """Find the sink's letters among ``rows``. ``flat``: key and value of all headers; ``starts``,
    ``ends``: the borders of every row in it, without the headers that a delivery adds."""
    names, values = flat.field(0), flat.field(1)
    candidate = np.zeros(len(ends), np.bool_)
    candidate[rows] = True

    def last(of_name: Mask, behind: Int64s) -> Int64s:
        """The place of each row's last such header that is not before ``behind``; -1: none."""
        places = np.flatnonzero(of_name)
        row = np.searchsorted(ends, places, side="right")
        inside = row < len(ends)
        places, row = places[inside], row[inside]
        inside = (places >= starts[row]) & (places >= behind[row])
        lasts = np.full(len(ends), -1, np.int64)
        lasts[row[inside]] = places[inside]
        return lasts

    reasons, topics = _named(names, REASON), _named(names, TOPIC)
    partitions, errors = _named(names, PARTITION), _named(names, ERROR)
    first = last(_named(names, STAGE), starts)
    # The last stage decides: a letter of the sink that intake has buried again is intake's.
    stages = values.take(pa.array(first, mask=first < 0))
    first[~np.array(pc.fill_null(pc.equal(stages, DELIVERY.encode()), False), np.bool_)] = -1
    staged = first >= 0
    reason_at, topic_at = last(reasons, first), last(topics, first)
    partition_at = last(partitions, first)
    # The former format is known by the headers that stand last.
    asked = partition_at == ends - 1
    old = ~staged & (topic_at == ends - 1 - asked) & (reason_at == topic_at - 1)
    old &= (reason_at >= 0) & (last(errors, starts) < 0)
    # Values that the sink cannot have written are the application's own.
    legal = pc.match_substring_regex(values.take(pa.array(topic_at, mask=~old)), TOPIC_PATTERN)
    old &= np.asarray(pc.fill_null(legal, False), np.bool_)
    first[old] = reason_at[old]
    partition_at[old & ~asked] = -1
    letters = np.flatnonzero(candidate & (old | (staged & (reason_at >= 0) & (topic_at >= 0))))

    def value_at(places: Int64s) -> pa.Array:
        return values.take(pa.array(places[letters], mask=places[letters] < 0))

    return SinkLetters(
        rows=letters,
        first=first[letters],
        reason=value_at(reason_at),
        topic=value_at(topic_at),
        partition=value_at(partition_at),
    )


def _named(names: pa.Array, name: str) -> Mask:
    return np.array(pc.equal(names, name), np.bool_)
