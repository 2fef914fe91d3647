"""A sum of messages, and the batch in which clients and consumers send theirs.

Theory: each tier sums what it sees by topic and due time: how many, and the sum of a hash of their
ids, which no order changes. Two tiers that saw the same have the same sums; where they differ, the
bucket says when, the tiers where.

Sums are differences since the sender's last batch, and batches are numbered: one that comes twice
is known by its number, and so is one that is missing.

A consumer's batch also says of each partition from where up to where its sums are complete. What a
consumer had done when it was killed, and had not sent yet, is behind that: no sum has it, and
whoever compares knows which offsets these are.

The batch is JSON, so that programs in any language can send it: docs/formats.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..account.limits import bucket_of
from ..account.vocabulary import Tier
from ..trace.events import EventSender
from ..wheel.checks import is_topic
from ..wheel.digest import id_hashes
from ..wheel.errors import InvalidMessage, UnsupportedVersion
from ..wheel.schema import Int64s

AUDIT_VERSION = 1
SUMS_MAX = 2_000
"""A batch has so many sums at most, and as many ranges: a larger one could be refused by Kafka,
whose default limit is twice its size."""
BATCH_BYTES_MAX = 1 << 20
_NAME_MAX = 1_000
_VERSION = "slotwheel-audit"
_HASHES = 1 << 64
_INT64_END = 1 << 63
_PARTITIONS = 1 << 31


class SumKey(NamedTuple):
    """Names the messages of a sum. ``wheel``: the group in their ids; ``group``: of consumers, else
    empty; ``bucket``: its first due time, ms."""

    tier: str
    wheel: str
    topic: str
    group: str
    bucket: int


@dataclass(slots=True)
class IdSum:
    """Messages: how many, and the sum of their ids' hashes, modulo 2^64."""

    count: int = 0
    hash: int = 0
    late_max_ms: int = 0
    """PRODUCED: from the call of the client to the answer; DELIVERED: since it was ready; CONSUMED:
    from its delivery to the answer, ms; of the one that took longest."""
    late_ms: int = 0
    """The sum of how late each was, ms."""
    unsure: int = 0
    """PRODUCED: further ones of which the client does not know whether the node has them."""

    def add(self, other: IdSum) -> None:
        self.count += other.count
        self.hash = (self.hash + other.hash) % _HASHES
        self.late_max_ms = max(self.late_max_ms, other.late_max_ms)
        self.late_ms += other.late_ms
        self.unsure += other.unsure

    def take_off(self, other: IdSum) -> None:
        """Without these; how late they were stays."""
        self.count -= other.count
        self.hash = (self.hash - other.hash) % _HASHES


Sums = dict[SumKey, IdSum]


class SummedRange(NamedTuple):
    """A consumer's sums have all messages of a partition from ``start`` to before ``position``."""

    group: str
    topic: str
    partition: int
    start: int
    position: int


@dataclass(frozen=True, slots=True)
class SumBatch:
    """The sums of a sender since its batch before. ``missing``: as many messages are in no sum;
    ``last``: the sender has ended behind it."""

    sender: EventSender
    number: int
    interval_ms: int
    sums: Mapping[SumKey, IdSum] = field(default_factory=dict)
    ranges: Sequence[SummedRange] = ()
    missing: int = 0
    last: bool = False


def add_sum(sums: Sums, key: SumKey, more: IdSum) -> None:
    found = sums.get(key)
    if found is None:
        sums[key] = found = IdSum()
    found.add(more)


def add_rows(
    sums: Sums,
    about: tuple[str, str, str],
    interval_ms: int,
    topic: pa.Array,
    due: Int64s,
    offset: Int64s,
    late_ms: Int64s | None = None,
) -> None:
    """Add messages. ``about``: tier, wheel, group; ``topic``, ``due`` (ms), ``offset`` and
    ``late_ms``, which counts above 0: shape (rows,) each."""
    tier, wheel, group = about
    if not len(due):
        return
    groups = BucketGroups(topic, due, offset, interval_ms)
    hashes = id_hashes(pa.array([wheel]), np.ascontiguousarray(offset, np.int64))
    late = np.zeros(len(due), np.int64) if late_ms is None else np.maximum(late_ms, 0)
    columns = (
        groups.counts,
        groups.reduced(np.add, hashes),
        groups.reduced(np.maximum, late),
        groups.reduced(np.add, late),
    )
    values = zip(groups.keys, *(one.tolist() for one in columns), strict=True)
    for (name, bucket), count, hashed, late_max_ms, all_late_ms in values:
        found = IdSum(count=count, hash=hashed, late_max_ms=late_max_ms, late_ms=all_late_ms)
        add_sum(sums, SumKey(tier, wheel, name, group, bucket), found)


class BucketGroups:
    """Rows by topic and bucket. ``keys``: these; ``counts``: how many rows each has."""

    def __init__(self, topic: pa.Array, due: Int64s, offset: Int64s, interval_ms: int) -> None:
        """At least one row."""
        encoded = topic if pa.types.is_dictionary(topic.type) else topic.dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices, np.int64)
        bucket = bucket_of(due, interval_ms)
        self._order = np.lexsort((offset, due, codes))
        codes, bucket = codes[self._order], bucket[self._order]
        changes = (np.diff(codes) != 0) | (np.diff(bucket) != 0)
        self._starts = np.flatnonzero(np.concatenate([[True], changes]))
        self.counts: Int64s = np.diff(np.append(self._starts, len(due)))
        pairs = zip(codes[self._starts].tolist(), bucket[self._starts].tolist(), strict=True)
        self.keys: list[tuple[str, int]] = [(names[code], at) for code, at in pairs]

    def reduced(self, by: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``by`` over the values of each group, shape (groups,)."""
        found: npt.NDArray[Any] = by.reduceat(values[self._order], self._starts)
        return found

    def last(self, values: Int64s) -> Int64s:
        """The value of the last row of each group, by due time and offset, shape (groups,)."""
        found: Int64s = values[self._order[self._starts + self.counts - 1]]
        return found


# -- the batch


_COLUMNS = (*SumKey._fields, "count", "hash", "late_max_ms", "late_ms", "unsure")
_TEXTS = frozenset({"tier", "wheel", "topic", "group"})


def encode_sums(batch: SumBatch) -> bytes:
    """A batch as the value of a message."""
    rows = [
        (*key, one.count, f"{one.hash:016x}", one.late_max_ms, one.late_ms, one.unsure)
        for key, one in batch.sums.items()
    ]
    found = {
        _VERSION: AUDIT_VERSION,
        "sender": {"name": batch.sender.name, "client": batch.sender.client},
        "number": batch.number,
        "interval_ms": batch.interval_ms,
        "missing": batch.missing,
        "last": batch.last,
        "sums": {name: [row[at] for row in rows] for at, name in enumerate(_COLUMNS)},
        "ranges": {
            name: [one[at] for one in batch.ranges] for at, name in enumerate(SummedRange._fields)
        },
    }
    return json.dumps(found, separators=(",", ":")).encode()


def decode_sums(value: bytes) -> SumBatch:
    """The batch in the value of a message, whoever wrote it. Errors: ``InvalidMessage``: it is no
    batch of sums; ``UnsupportedVersion``."""
    try:
        if len(value) > BATCH_BYTES_MAX:
            raise ValueError(f"{len(value)} bytes")
        found = json.loads(value)
        version = found[_VERSION]
        if version != AUDIT_VERSION:
            raise UnsupportedVersion(
                "audit sums of an unknown version",
                got=str(version)[:50],
                limit=AUDIT_VERSION,
                remedy="Use the slotwheel version that wrote them, or a newer one",
            )
        sender = EventSender(_text(found["sender"]["name"]), _text(found["sender"]["client"]))
        if not sender.name:
            raise ValueError("a sender without a name")
        if not isinstance(found["last"], bool):
            raise ValueError("last is no boolean")
        interval_ms = _number(found["interval_ms"], 1)
        return SumBatch(
            sender,
            _number(found["number"]),
            interval_ms,
            dict(_sum(row, interval_ms) for row in _rows(found["sums"], _COLUMNS)),
            [_range(row) for row in _rows(found["ranges"], SummedRange._fields)],
            _number(found["missing"]),
            found["last"],
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidMessage("no batch of audit sums", got=str(error)[:200]) from None


def _rows(columns: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    lists = [columns[name] for name in names]
    if not all(isinstance(one, list) and len(one) <= SUMS_MAX for one in lists):
        raise ValueError(f"columns are lists of {SUMS_MAX} values at most")
    return list(zip(*lists, strict=True))


def _sum(row: tuple[Any, ...], interval_ms: int) -> tuple[SumKey, IdSum]:
    tier, wheel, topic, group, bucket, count, hashed, late_max_ms, late_ms, unsure = row
    known = (Tier.PRODUCED, Tier.CONSUMED, Tier.LEFT_OUT)
    if tier not in known or (tier == Tier.PRODUCED) != (group == ""):
        raise ValueError(f"no tier of a sender: {str(tier)[:50]}")
    bucket = _number(bucket, -_INT64_END)
    if bucket % interval_ms or len(_text(hashed)) != 16:
        raise ValueError(f"no bucket or no hash: {bucket}, {hashed[:50]}")
    key = SumKey(str(tier), _text(wheel), _topic(topic), _text(group), bucket)
    return key, IdSum(
        count=_number(count),
        hash=int(hashed, 16),
        late_max_ms=_number(late_max_ms),
        late_ms=_number(late_ms),
        unsure=_number(unsure),
    )


def _range(row: tuple[Any, ...]) -> SummedRange:
    group, topic, *numbers = row
    partition, start, position = map(_number, numbers)
    if position < start or partition >= _PARTITIONS or not group:
        raise ValueError(f"no range: {numbers}")
    return SummedRange(_text(group), _topic(topic), partition, start, position)


def _topic(value: Any) -> str:
    if not is_topic(_text(value)):
        raise ValueError(f"no topic: {value[:50]}")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _NAME_MAX:
        raise ValueError(f"no name: {str(value)[:50]}")
    if not value.isprintable():  # it is shown in logs and terminals
        raise ValueError(f"a name with control characters: {value[:50]!r}")
    return value


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < _INT64_END:
        raise ValueError(f"no number: {str(value)[:50]}")
    return value
