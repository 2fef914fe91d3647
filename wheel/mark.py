"""The mark: what has been delivered, in constant space.

A mark is ``(c, r, L)``. A row is *covered* iff ``offset <= L`` and ``(due, offset) <= (c, r)``. It
moves along one axis at a time: first ``L`` (late rows, in offset order), then ``(c, r)`` (rows in
due order, up to the clock). Either move may be cut after any row, so a chunk can have any size.

    offset
      ^          not covered: too new
    L +----------------+
      |    covered     |   not covered: not due yet
      +----------------+------------> (due, offset)
                     (c, r)

*Example.* The mark is (1000, 7, 9). A row due at 900 with offset 10 is late: it leaves, and the
mark becomes (1000, 7, 10). A row due at 2000 with offset 11 is no late one: ``L`` passes it and
becomes 11, and the row is covered when ``(c, r)`` has come to (2000, 11).

A mark that ran ahead with a wrong clock can be set back to the right one. What it covered has left
all the same: the mark as it was stays beside it (``former``), and covers on, until the mark has
passed it.

``Marks`` is what a journal entry carries: the main mark, a copy for each held-back topic, the
running counters that make "how much is pending" a subtraction, and its *reach*: the due time up to
which rows may be handed to a sink before the next mark is durable. So the mark that is found after
a crash bounds, without a clock, which rows may have left: none that is due later.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from .errors import Damaged, UnsupportedVersion
from .schema import Int64s, Mask

RowKey = tuple[int, int]
"""``(due, offset)``: the order of delivery."""


MARK_VERSION = 4
"""Written only where ``resets`` is not 0, with former marks at its end; else version 3."""

# +---------+---------+-------+---+---+---+---------+---------+-----------+------+-------+---------+
# | version | copies  | epoch | c | r | L | covered | cancels | delivered | dead | reach | expired |
# | u16     | u16+u32 | u64   |   i64     | u64     | u64     | u64       | u64  | i64   | u64     |
# +---------+---------+-------+---+---+---+---------+---------+-----------+------+-------+---------+
_HEAD_V1 = struct.Struct(
    "<"
    "H"  # version of this layout
    "H"  # number of copies that follow
    "I"  # exact, from version 3 on: the kind of sink that also knows what has left; else zero
    "Q"  # epoch the mark was made in
    "q"  # c: due time reached, ms
    "q"  # r: offset reached within c
    "q"  # L: offset up to which late rows have left
    "Q"  # covered: rows the main mark has passed, of every kind
    "Q"  # cancels: rows passed that are cancel rows, or messages that were cancelled
    "Q"  # delivered: rows a sink accepted
    "Q"  # dead: rows that no topic took, and that went to the dead-letter topic
)
BY_KAFKA, BY_TOPICS = 1, 2
"""The kinds of sink that know, beside the journal, which messages have left: ``Marks.exact``."""
_REACH = struct.Struct("<q")  # reach: due time up to which rows may be handed out, ms
_EXPIRED = struct.Struct("<Q")  # expired: rows that were not delivered as their time was over
_RESETS = struct.Struct("<Q")  # resets: how often the mark was set back
_HEADS = {
    1: _HEAD_V1.size,
    2: _HEAD_V1.size + _REACH.size,
    3: _HEAD_V1.size + _REACH.size + _EXPIRED.size,
    4: _HEAD_V1.size + _REACH.size + _EXPIRED.size + _RESETS.size,
}
"""Bytes before the copies, by version: 1 has no reach, 2 no expired rows, 3 no resets."""
_COUNT = struct.Struct("<H")  # former marks of one mark, which follow
_FORMER = struct.Struct("<qqq")  # c, r, L of each
# +---+---+---+--------+--------------+-------+
# | c | r | L | behind | topic length | topic |
# | i64 each  | u64    | u16 + pad    | utf-8 |
# +---+---+---+--------+--------------+-------+
_COPY = struct.Struct(
    "<"
    "q"  # c of the copy
    "q"  # r of the copy
    "q"  # L of the copy
    "Q"  # behind: messages of the topic between the copy and the main mark
    "H"  # bytes of the topic name that follows
    "6x"
)
assert _HEADS == {1: 72, 2: 80, 3: 88, 4: 96}
assert _COPY.size == 40


@dataclass(frozen=True, slots=True, order=False)
class Mark:
    """``c``: due time in ms; ``r``: offset within it; ``L``: up to where late rows have left.
    ``former``: where it stood when it was set back, as far as it has not come there again; later
    ones reach less far, but have a higher ``L``."""

    c: int = -1
    r: int = -1
    L: int = -1
    former: tuple[Mark, ...] = ()

    def covers(self, due: int, offset: int) -> bool:
        own = offset <= self.L and (due, offset) <= (self.c, self.r)
        return own or any(mark.covers(due, offset) for mark in self.former)

    @property
    def place(self) -> tuple[int, int, int]:
        """``(c, r, L)``, without the former marks."""
        return self.c, self.r, self.L

    @property
    def furthest_ms(self) -> int:
        """The latest due time of a row that it, or a former mark, can cover."""
        return max(self.c, *(mark.c for mark in self.former)) if self.former else self.c

    def at(self, c: int, r: int) -> Mark:
        """The mark, moved on to ``(c, r)``."""
        return Mark(c, r, self.L, tuple(mark for mark in self.former if (mark.c, mark.r) > (c, r)))

    def upto(self, last: int) -> Mark:
        """The mark with ``last`` as its ``L``."""
        return Mark(self.c, self.r, last, self.former)

    def set_back(self, c: int, r: int) -> Mark:
        """The mark, set back to ``(c, r)`` if it is ahead of that."""
        if (self.c, self.r) <= (c, r):
            return self
        return Mark(c, r, self.L, (*self.former, Mark(self.c, self.r, self.L)))

    def behind(self, due: Int64s, offset: Int64s) -> Mask:
        """True for rows with keys up to ``(c, r)``, whatever ``L`` is; shape (rows,)."""
        mask: Mask = (due < self.c) | ((due == self.c) & (offset <= self.r))
        return mask

    def covered(self, due: Int64s, offset: Int64s) -> Mask:
        """True for rows that it or a former mark covers; shape (rows,)."""
        mask: Mask = self.behind(due, offset) & (offset <= self.L)
        for mark in self.former:
            mask |= mark.covered(due, offset)
        return mask


@dataclass(frozen=True, slots=True)
class TopicMark:
    """A held-back topic's own copy; ``behind`` of its messages lie between it and the main mark."""

    mark: Mark
    behind: int = 0


@dataclass(frozen=True, slots=True)
class Marks:
    """The main mark, the copies, and counters since the wheel was created."""

    main: Mark = Mark()
    epoch: int = 0
    copies: dict[str, TopicMark] = field(default_factory=dict)
    covered: int = 0
    cancels: int = 0
    delivered: int = 0
    dead: int = 0
    expired: int = 0
    reach: int = -1
    """No row due later than this, ms, was handed out before another mark was durable. -1: not
    known, in a mark of version 1 or without any mark."""
    exact: int = 0
    """The kind of sink that, under exactly-once, knows at least as well what has left: ``BY_KAFKA``
    holds a mark of its own, ``BY_TOPICS`` are embedded; 0: there is none."""
    resets: int = 0
    """Counts the times that a person set the mark back, to a clock that was set right."""

    @property
    def every(self) -> list[Mark]:
        """The main mark and the copies."""
        return [self.main, *(copy.mark for copy in self.copies.values())]

    def follows(self, other: Marks) -> bool:
        """True if the main mark stands where ``other``'s does, or further, along both axes. A mark
        that was set back follows all before it."""
        if self.resets != other.resets:
            return self.resets > other.resets
        own, theirs = self.main, other.main
        return own.L >= theirs.L and (own.c, own.r) >= (theirs.c, theirs.r)

    def with_former(self, other: Marks) -> Marks:
        """These marks with the former ones of ``other``, which has at least these topics."""
        copies = {
            topic: replace(copy, mark=replace(copy.mark, former=other.copies[topic].mark.former))
            for topic, copy in self.copies.items()
        }
        return replace(self, main=replace(self.main, former=other.main.former), copies=copies)

    def all_cover(self, end_due: int, highest_offset: int) -> bool:
        """True if every mark covers every row due before ``end_due`` with offset <= highest, its
        former ones left aside."""
        return all(mark.c >= end_due and highest_offset <= mark.L for mark in self.every)

    def all_covered(self, due: Int64s, offset: Int64s) -> Mask:
        """True for rows that every mark covers, shape (rows,)."""
        mask = self.main.covered(due, offset)
        for copy in self.copies.values():
            mask &= copy.mark.covered(due, offset)
        return mask

    @property
    def answered(self) -> int:
        """Messages that were delivered, became dead letters, or expired."""
        return self.delivered + self.dead + self.expired

    @property
    def passed(self) -> int:
        """Messages that their own mark has passed and that were not cancelled. After a partial
        answer more were ``answered``: those ahead of the mark."""
        return self.covered - self.cancels - sum(copy.behind for copy in self.copies.values())

    def pending(self, rows: int, cancel_rows: int) -> int:
        """Messages that have not left, given how many rows and cancel rows were ever committed.

        Pending is what the main mark has not passed and what waits behind it for held-back topics.
        A cancel takes two rows out of the count, itself and its target, until each is passed.
        *Example.* Of 10 rows one is a cancel, and the mark has passed 4 others: 10 - 4 - 2 = 4.
        """
        behind = sum(copy.behind for copy in self.copies.values())
        return rows - self.covered + behind - (2 * cancel_rows - self.cancels)

    def encode(self) -> bytes:
        parts = [
            _HEAD_V1.pack(
                MARK_VERSION if self.resets else 3,
                len(self.copies),
                self.exact,
                self.epoch,
                self.main.c,
                self.main.r,
                self.main.L,
                self.covered,
                self.cancels,
                self.delivered,
                self.dead,
            ),
            _REACH.pack(self.reach),
            _EXPIRED.pack(self.expired),
            _RESETS.pack(self.resets) if self.resets else b"",
        ]
        for topic, copy in sorted(self.copies.items()):
            name = topic.encode()
            mark = copy.mark
            parts.append(_COPY.pack(mark.c, mark.r, mark.L, copy.behind, len(name)))
            parts.append(name)
        if self.resets:
            every = [self.main, *(copy.mark for _, copy in sorted(self.copies.items()))]
            for mark in every:
                parts.append(_COUNT.pack(len(mark.former)))
                parts += [_FORMER.pack(*former.place) for former in mark.former]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, where: str = "mark") -> Marks:
        """Parse marks. Errors: ``UnsupportedVersion``, ``Damaged`` naming ``where``."""
        if len(data) < _HEAD_V1.size:
            raise Damaged(where, len(data), expected=f"{_HEAD_V1.size} bytes", found=len(data))
        version, count, exact, epoch, c, r, last, covered, cancels, delivered, dead = (
            _HEAD_V1.unpack_from(data)
        )
        if version not in _HEADS:
            raise UnsupportedVersion(
                f"{where}: unknown mark version",
                got=version,
                limit=MARK_VERSION,
                remedy="Use the slotwheel version that wrote it, or a newer one",
            )
        if exact not in ((0, BY_KAFKA, BY_TOPICS) if version > 2 else (0,)):
            raise Damaged(where, 4, expected="0 to 2, what is exact", found=exact)
        at = _HEADS[version]
        if len(data) < at:
            raise Damaged(where, len(data), expected=f"{at} bytes", found=len(data))
        reach = _REACH.unpack_from(data, _HEADS[1])[0] if version > 1 else -1
        expired = _EXPIRED.unpack_from(data, _HEADS[2])[0] if version > 2 else 0
        resets = _RESETS.unpack_from(data, _HEADS[3])[0] if version > 3 else 0
        copies: dict[str, TopicMark] = {}
        for _ in range(count):
            if len(data) < at + _COPY.size:
                raise Damaged(where, at, expected="a topic's copy of the mark", found="the end")
            cc, cr, cl, behind, length = _COPY.unpack_from(data, at)
            at += _COPY.size
            name = data[at : at + length]
            if len(name) < length:
                raise Damaged(where, at, expected=f"{length} bytes of topic", found=len(name))
            try:
                topic = bytes(name).decode()
            except UnicodeDecodeError:
                raise Damaged(where, at, expected="a topic in UTF-8", found=name[:50]) from None
            copies[topic] = TopicMark(Mark(cc, cr, cl), behind)
            at += length
        main = Mark(c, r, last)
        if version > 3:
            main, at = _with_former(main, data, at, where)
            for topic, copy in copies.items():
                mark, at = _with_former(copy.mark, data, at, where)
                copies[topic] = TopicMark(mark, copy.behind)
        if at != len(data):
            raise Damaged(
                where, at, expected="the end of the mark", found=f"{len(data) - at} bytes"
            )
        return cls(
            main,
            epoch,
            copies,
            covered,
            cancels,
            delivered,
            dead,
            expired,
            reach,
            exact=exact,
            resets=resets,
        )


def _with_former(mark: Mark, data: bytes, at: int, where: str) -> tuple[Mark, int]:
    """The mark with the former ones that stand at ``at``, and their end. Errors: ``Damaged``."""
    count = _COUNT.unpack_from(data, at)[0] if len(data) >= at + _COUNT.size else 0
    begin, end = at + _COUNT.size, at + _COUNT.size + count * _FORMER.size
    if len(data) < end:
        raise Damaged(where, at, expected="former marks", found="the end")
    former = tuple(Mark(*place) for place in _FORMER.iter_unpack(data[begin:end]))
    return replace(mark, former=former), end
