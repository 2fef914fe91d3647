"""A sum of messages, and the batch in which clients and consumers send theirs.

Theory: each tier sums the messages that it sees by topic and due time: their number, and the sum of
a hash of their ids, which no order changes. Two tiers that saw the same messages have the same
sums; where they differ, the bucket says when the messages were due, the tiers where they are.

Rules
- A batch has what was added since the sender's last one, and a number. A batch that comes twice
  would count its messages twice; the number shows it, and also that one is missing.
- A consumer's batch says of each partition from where up to where its sums are complete. What a
  killed consumer had done and not sent lies behind that: these positions are unknown, not lost.
- The batch is JSON, so that programs in any language can send it: docs/formats.md.
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
    """The longest time of a message, ms: PRODUCED: from the client's call to the answer; DELIVERED:
    since it was ready; CONSUMED: from its delivery to the answer."""
    late_ms: int = 0
    """The sum of these times of all messages, ms."""
    unsure: int = 0
    """PRODUCED: the number of further messages that the node may have stored, and whose answer did
    not come."""

    def add(self, other: IdSum) -> None:
        self.count += other.count
        self.hash = (self.hash + other.hash) % _HASHES
        self.late_max_ms = max(self.late_max_ms, other.late_max_ms)
        self.late_ms += other.late_ms
        self.unsure += other.unsure

    def take_off(self, other: IdSum) -> None:
        """Subtract count and hash; the times stay."""
        self.count -= other.count
        self.hash = (self.hash - other.hash) % _HASHES


Sums = dict[SumKey, IdSum]


class SummedRange(NamedTuple):
    """The positions of a partition that a consumer's sums cover: ``start`` to before
    ``position``."""

    group: str
    topic: str
    partition: int
    start: int
    position: int


@dataclass(frozen=True, slots=True)
class SumBatch:
    """The sums of a sender since its batch before. ``missing``: the number of messages that are in
    no sum, for want of room; ``last``: the sender ends with this batch."""

    sender: EventSender
    number: int
    interval_ms: int
    sums: Mapping[SumKey, IdSum] = field(default_factory=dict)
    ranges: Sequence[SummedRange] = ()
    missing: int = 0
    last: bool = False


def add_sum(sums: Sums, key: SumKey, more: IdSum) -> None:
    known = sums.get(key)
    if known is None:
        sums[key] = known = IdSum()
    known.add(more)


def add_rows(
    sums: Sums,
    origin: tuple[str, str, str],
    interval_ms: int,
    topic: pa.Array,
    due: Int64s,
    offset: Int64s,
    late_ms: Int64s | None = None,
) -> None:
    """Add messages. ``origin``: tier, wheel and group of all of them; ``topic``, ``due`` (ms),
    ``offset`` and ``late_ms`` (below 0 counts as 0) have shape (rows,)."""
    tier, wheel, group = origin
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
    values = zip(groups.keys, *(column.tolist() for column in columns), strict=True)
    for (name, bucket), count, hashed, late_max_ms, all_late_ms in values:
        id_sum = IdSum(count=count, hash=hashed, late_max_ms=late_max_ms, late_ms=all_late_ms)
        add_sum(sums, SumKey(tier, wheel, name, group, bucket), id_sum)


class BucketGroups:
    """Rows, at least one, grouped by topic and bucket. ``keys``: topic and bucket of each group;
    ``counts``: its number of rows, shape (groups,)."""

    def __init__(self, topic: pa.Array, due: Int64s, offset: Int64s, interval_ms: int) -> None:
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
        values_of: npt.NDArray[Any] = by.reduceat(values[self._order], self._starts)
        return values_of

    def last(self, values: Int64s) -> Int64s:
        """The value of the last row of each group, by due time and offset, shape (groups,)."""
        lasts: Int64s = values[self._order[self._starts + self.counts - 1]]
        return lasts


# -- the batch


_COLUMNS = (*SumKey._fields, "count", "hash", "late_max_ms", "late_ms", "unsure")


def encode_sums(batch: SumBatch) -> bytes:
    """A batch as the value of a message."""
    rows = [
        (
            *key,
            id_sum.count,
            f"{id_sum.hash:016x}",
            id_sum.late_max_ms,
            id_sum.late_ms,
            id_sum.unsure,
        )
        for key, id_sum in batch.sums.items()
    ]
    fields = {
        _VERSION: AUDIT_VERSION,
        "sender": {"name": batch.sender.name, "client": batch.sender.client},
        "number": batch.number,
        "interval_ms": batch.interval_ms,
        "missing": batch.missing,
        "last": batch.last,
        "sums": {name: [row[at] for row in rows] for at, name in enumerate(_COLUMNS)},
        "ranges": {
            name: [summed[at] for summed in batch.ranges]
            for at, name in enumerate(SummedRange._fields)
        },
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_sums(value: bytes) -> SumBatch:
    """The batch in the value of a message, whoever wrote it. Errors: ``InvalidMessage``: it is no
    batch of sums; ``UnsupportedVersion``."""
    try:
        if len(value) > BATCH_BYTES_MAX:
            raise ValueError(f"{len(value)} bytes")
        fields = json.loads(value)
        version = fields[_VERSION]
        if version != AUDIT_VERSION:
            raise UnsupportedVersion(
                "audit sums of an unknown version",
                got=str(version)[:50],
                limit=AUDIT_VERSION,
                remedy="Use the slotwheel version that wrote them, or a newer one",
            )
        sender = EventSender(_text(fields["sender"]["name"]), _text(fields["sender"]["client"]))
        if not sender.name:
            raise ValueError("a sender without a name")
        if not isinstance(fields["last"], bool):
            raise ValueError("last is no boolean")
        interval_ms = _number(fields["interval_ms"], 1)
        return SumBatch(
            sender,
            _number(fields["number"]),
            interval_ms,
            dict(_sum(row, interval_ms) for row in _rows(fields["sums"], _COLUMNS)),
            [_range(row) for row in _rows(fields["ranges"], SummedRange._fields)],
            _number(fields["missing"]),
            fields["last"],
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidMessage("no batch of audit sums", got=str(error)[:200]) from None


def _rows(columns: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    lists = [columns[name] for name in names]
    if not all(isinstance(column, list) and len(column) <= SUMS_MAX for column in lists):
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
