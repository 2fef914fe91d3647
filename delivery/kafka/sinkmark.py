"""The sink's mark: how far delivery has come, kept by Kafka as the offset of a consumer group.

Theory: under exactly-once the marks are committed in the same Kafka transaction as the rows, as the
metadata of an offset, which is text and must stay below 4096 bytes. With 64 held-back topics their
names alone may be four times that, so a name is replaced by a hash. The names are in the journal:
a topic is held back there first (``Dispatcher.hold``).

    base64( head | copy * n )
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ...wheel.errors import SlotwheelError
from ...wheel.ids import IdMint
from ...wheel.mark import BY_KAFKA, Mark, Marks, TopicMark

VERSION = 1
# +---------+--------+-------+-------+-----------+-----------------------------------------------+
# | version | copies | resets| group | epoch     | c, r, L, covered, cancels, delivered, dead,   |
# | u16     | u16    | u32   | 8s    | u64       | expired: i64 each                             |
# +---------+--------+-------+-------+-----------+-----------------------------------------------+
_HEAD = struct.Struct("<HHI8sQ8q")
# +------+---+---+---+--------+
# | hash | c | r | L | behind |
# | 8s   | i64 each  | i64    |
# +------+---+---+---+--------+
_COPY = struct.Struct("<8s4q")
assert _HEAD.size == 88
assert _COPY.size == 40


class ForeignMark(SlotwheelError):
    """Kafka holds a mark that is not of this group's data, or is not readable."""

    code = "foreign-mark"


class NamesMissing(Exception):
    """The mark names a held-back topic that the journal does not: the journal is newer."""


def group_print(mint: IdMint) -> bytes:
    """The 8 bytes that tell the data of one group from another's of the same name."""
    pairs = np.array([-1, -2], np.int64)  # below every offset, so their checks are short
    return mint.checks(pairs, pairs).astype("<u4").tobytes()


def encode(marks: Marks, group: bytes) -> str:
    """The text beside the offset; at most 3,532 bytes for 64 topics. ``group``: ``group_print``."""
    main = marks.main
    counters = marks.covered, marks.cancels, marks.delivered, marks.dead, marks.expired
    head = _HEAD.pack(
        VERSION,
        len(marks.copies),
        marks.resets,
        group,
        marks.epoch,
        main.c,
        main.r,
        main.L,
        *counters,
    )
    copies = (
        _COPY.pack(_hash(topic.encode()), copy.mark.c, copy.mark.r, copy.mark.L, copy.behind)
        for topic, copy in sorted(marks.copies.items())
    )
    return base64.b64encode(head + b"".join(copies)).decode()


def epoch_of(text: str, group: bytes) -> int:
    """The epoch in which the mark was made. Errors: ``ForeignMark``."""
    return int(_head(text, group)[1][4])


def decode(text: str, group: bytes, topics: Iterable[str]) -> Marks:
    """Decode a mark. ``topics`` are the names that its hashes may stand for: those that the journal
    holds back. Errors: ``ForeignMark``, ``NamesMissing``."""
    data, (_, count, resets, _, epoch, c, r, last, *counters) = _head(text, group)
    names = {_hash(topic.encode()): topic for topic in topics}
    copies = {}
    for at in range(_HEAD.size, _HEAD.size + count * _COPY.size, _COPY.size):
        name, cc, cr, cl, behind = _COPY.unpack_from(data, at)
        if name not in names:
            raise NamesMissing
        copies[names[name]] = TopicMark(Mark(cc, cr, cl), behind)
    covered, cancels, delivered, dead, expired = counters
    marks = Marks(Mark(c, r, last), epoch, copies, covered, cancels, delivered, dead, expired)
    return replace(marks, exact=BY_KAFKA, resets=resets)


def _head(text: str, group: bytes) -> tuple[bytes, tuple[int, ...]]:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        data = b""
    if len(data) < _HEAD.size or (len(data) - _HEAD.size) % _COPY.size:
        raise ForeignMark(
            "the offset that Kafka holds is no mark of slotwheel: somebody else has committed it",
            got=repr(text[:80]),
            remedy="End whoever commits offsets for this group; then start the node once with"
            " --accept-repeats",
        )
    head = _HEAD.unpack_from(data)
    version, count = head[0], head[1]
    if version != VERSION or len(data) != _HEAD.size + count * _COPY.size:
        raise ForeignMark(
            "the mark that Kafka holds has an unknown version",
            got=version,
            limit=VERSION,
            remedy="Use the slotwheel version that wrote it, or a newer one",
        )
    if head[3] != group:
        raise ForeignMark(
            "the mark that Kafka holds belongs to another data directory of this group's name",
            remedy="Choose another --group; or, if that directory is lost for good, start the node"
            " once with --accept-repeats",
        )
    return data, head


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
