"""From Kafka records to facts, by the headers that slotwheel added to a record.

The same code reads a dump's rows and those of Spark's Kafka source. Ids are parsed by column: no
Python object a record.

Rules
- The message as it was sent is judged: the headers that slotwheel added are removed before the
  digest, and due and created are those of the headers, not of the id.
- A record without an id, or with an id of another group, is only counted.
- A text that begins like an id of this group and is malformed is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...broker import murmur2
from ...policy.headercolumns import HeaderColumn, decimals, split_dead_letter, split_identity, texts
from ...reading.files import File
from ...wheel.digest import content_digests, topic_crcs
from ...wheel.expiry import expires_ms
from ...wheel.ids import LONG_CHECKS
from ...wheel.schema import Int64s, Mask, UInt64s
from .fact import ELSEWHERE, FORGED, Seen
from .making import FactBatch, GroupTerms, bury, empty, judge_expiry, names_of, partitions_of

_UNREADABLE_MAX = 100
_TENS = 10 ** np.arange(1, 19, dtype=np.int64)
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def facts_of_records(batch: pa.RecordBatch, file: File, terms: GroupTerms) -> FactBatch:
    """Facts of the records that have an id of the group, in their order.

    ``batch``: columns ``topic``, ``key``, ``value``, ``headers`` and either a dump's
    ``record_partition``, ``position``, ``delivered`` or Spark's ``partition``, ``offset``,
    ``timestamp``.
    """
    headers = HeaderColumn(batch.column("headers"))
    identity = split_identity(headers)
    ids = parse_ids(identity.id, terms.group)
    rows = identity.rows[ids.rows]
    facts = empty(len(rows), file, Seen.DELIVERED)
    facts["offset"] = ids.offset
    facts["due"] = identity.due[ids.rows]
    facts["created"] = identity.created[ids.rows]
    position = _int64s(batch, "position", "offset")
    facts["where"] = position[rows]
    facts["at"] = _milliseconds(batch, "delivered", "timestamp")[rows]
    facts["partition"] = partitions_of(_column(batch, "record_partition", "partition"))[rows]
    facts["flags"][terms.forged(ids.due, ids.offset, ids.check)] = FORGED

    topic = batch.column("topic")
    for name in set(topic.unique().to_pylist()) & terms.partitions.keys():
        of_topic = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(topic, name), False))[rows])
        if not len(of_topic):
            continue
        keys = batch.column("key").take(pa.array(rows[of_topic]))
        wrong = _elsewhere(keys, facts["partition"][of_topic], terms.partitions[name])
        facts["flags"][of_topic[wrong]] |= ELSEWHERE
    topics, names = topic_crcs(topic), names_of(topic)
    read = frozenset(names)
    facts["topic"] = topics[rows]
    buried = np.asarray(pc.fill_null(pc.equal(topic, terms.dead_letter_topic), False))[rows]
    if buried.any():
        dead = split_dead_letter(headers, rows[buried])
        names |= bury(facts, replace(dead, rows=np.searchsorted(rows, dead.rows)))
        topics[rows] = facts["topic"]
    until = expires_ms(batch.column("headers"))
    judge_expiry(facts, None if until is None else until[rows])
    digest = content_digests(topics, batch.column("key"), batch.column("value"), headers.left())
    facts["digest"] = digest[rows]
    unreadable = [
        (int(position[identity.rows[at]]), texts(identity.id.slice(at, 1))[0].as_py()[:200])
        for at in ids.unreadable[:_UNREADABLE_MAX].tolist()
    ]
    foreign = batch.num_rows - len(rows) - len(ids.unreadable)
    return FactBatch(facts, names, read, foreign, unreadable, len(ids.unreadable) - len(unreadable))


def _elsewhere(keys: pa.Array, partition: npt.NDArray[np.int32], count: int) -> Mask:
    """True for keys that belong to another of ``count`` partitions; a null belongs to any."""
    keyed = np.asarray(pc.fill_null(pc.greater(pc.binary_length(keys), 0), False))
    wrong: Mask = keyed & (partition != murmur2.partitions_of(keys, count))
    return wrong


@dataclass(frozen=True, slots=True)
class Ids:
    """Parsed ids of a group, for the ``rows`` that have one. ``unreadable``: rows whose text begins
    with the group's name and is malformed."""

    rows: Int64s
    due: Int64s
    offset: Int64s
    check: UInt64s
    unreadable: Int64s


def parse_ids(ids: pa.Array, group: str) -> Ids:
    """Parse a binary column of ids, ``group.due.offset.check`` (``wheel/ids.py``). ``group``: ids
    of other groups are left out; empty: none are."""
    ids = texts(ids)
    ours = np.asarray(pc.fill_null(pc.starts_with(ids, f"{group}." if group else ""), False))
    parts = pc.split_pattern(ids, ".")
    four = ours & (np.asarray(pc.fill_null(pc.list_value_length(parts), 0)) == 4)
    if not four.all():
        parts = parts.filter(pa.array(four))
    flat = parts.flatten()
    first = np.arange(0, len(flat), 4)
    due_text, offset_text, check_text = (flat.take(pa.array(first + part)) for part in (1, 2, 3))
    due, offset = decimals(due_text), decimals(offset_text)
    good = _is_decimal(due, due_text) & _is_decimal(offset, offset_text)
    check, is_check = _hexadecimal(check_text)
    good &= is_check
    candidates = np.flatnonzero(four)
    readable = np.zeros(len(ids), np.bool_)
    readable[candidates[good]] = True
    return Ids(
        candidates[good], due[good], offset[good], check[good], np.flatnonzero(ours & ~readable)
    )


def _is_decimal(numbers: Int64s, text: pa.Array) -> Mask:
    """True for texts that the wheel would write: no sign, no leading zeros."""
    lengths = np.asarray(pc.binary_length(text))
    same: Mask = (numbers >= 0) & (lengths == 1 + np.searchsorted(_TENS, numbers, side="right"))
    return same


def _hexadecimal(text: pa.Array) -> tuple[UInt64s, Mask]:
    """Checks as numbers, and a mask of the texts that are one: 16 lower-case hexadecimal digits, or
    8 of a short id (``wheel/ids.py``)."""
    lengths = np.asarray(pc.binary_length(text))
    is_short = lengths == 8
    good = is_short | (lengths == 16)
    whole = text if good.all() else pc.if_else(pa.array(good), text, "z" * 16)
    whole = pc.utf8_lpad(whole, 16, "0") if is_short.any() else whole
    _, ends, data = whole.buffers()
    start = np.frombuffer(ends, np.int32)[whole.offset] if len(whole) else 0
    digits = np.frombuffer(data or b"", np.uint8, len(whole) * 16, int(start)).reshape(-1, 16)
    nibbles = _NIBBLES[digits]
    good &= (nibbles < 16).all(axis=1)
    pairs = nibbles[:, ::2] << 4 | nibbles[:, 1::2]
    check = np.ascontiguousarray(pairs).view(">u8").ravel().astype(np.uint64)
    good &= is_short | (check >= LONG_CHECKS)
    return check, good


def _column(batch: pa.RecordBatch, *names: str) -> pa.Array:
    (name,) = (name for name in names if name in batch.schema.names)
    return batch.column(name)


def _int64s(batch: pa.RecordBatch, *names: str) -> Int64s:
    return np.asarray(_column(batch, *names), dtype=np.int64)


def _milliseconds(batch: pa.RecordBatch, *names: str) -> Int64s:
    """Times of any unit in ms; -1 for a null."""
    column = _column(batch, *names)
    column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return np.asarray(pc.fill_null(column, -1), dtype=np.int64)
