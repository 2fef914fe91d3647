"""What becomes of a message whose name another one has: decided for a whole batch at one instant.

Theory: two callers may send under one name at once, the message that has it may just leave, and a
master may fail between. So the decision falls under the owner's lock, in the same instant in which
the entry gets its place in the log, and the entry does all of it: it brings the rows, and the
cancels of those that they replace. Either all of that is committed or nothing.

| the name's message | replace | keep | refuse |
| --- | --- | --- | --- |
| none, or it has left, or was cancelled | stored | stored | stored |
| pending | stored, the other one cancelled | stored and cancelled at once | refused |
| with the sink, or may leave once more | refused for now | refused for now | refused for now |

Rules
- Rows of a batch are decided in their order: a later one may replace, or keep, an earlier one.
- Of several callers in one entry a refused one has changed nothing for those behind it. *Example.*
  A sends ``order-17`` and a second row that is refused; B sends ``order-17``, too, and refuses to
  replace. Nothing of A is stored, so B's is.
- Behind a row that is refused the others are decided as if it were not there, so that its caller
  learns of all of them at once, and sends what is left (``refusal_of``).
- A message that is kept out is a row all the same, which its own entry cancels. So offsets stay
  dense, a repeat of the batch gets the same answer, and every reader of the log understands it.
- A refusal is told once the message for which it is refused is committed. *Example.* A master that
  has lost its peers takes ``order-17`` and refuses another one. The first is never committed: who
  was told that it is pending would wait for a message that there never was.
- The last line is what keeps two messages of one name from being pending at once. *Example.* The
  sink has ``order-17`` and does not answer. It may take the message, or refuse it, and then it is
  handed out again: until that is clear no other ``order-17`` is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from ..answers import Before, NamedAnswer
from ..errors import NOTHING_STORED, NameTaken, Overloaded, SlotwheelError
from ..ids import IdMint
from ..names import IfExists, NamedRows, NamePlace, TakenNames, due_and_offset, place_of
from ..schema import Int64s
from .canceller import Canceller, RowState
from .lines import Lines


class _Holder(Enum):
    """What is known of the message that has a name."""

    PENDING = 0
    LEAVING = 1
    """It is with the sink, or may have left and may be handed out again."""
    GONE = 2
    """It was cancelled."""
    DELIVERED = 3
    UNKNOWN = 4
    """It is passed, and may have left or not."""


_HOLDERS = dict.fromkeys(RowState, _Holder.LEAVING) | {
    RowState.APPEND: _Holder.PENDING,
    RowState.CANCELLED: _Holder.GONE,
    RowState.PENDING: _Holder.GONE,
    RowState.DELIVERED: _Holder.DELIVERED,
}
"""What a row's state says, as far as it does: see ``Namer._holder_of_unknown``."""
_BEFORE = {_Holder.DELIVERED: Before.DELIVERED, _Holder.UNKNOWN: Before.UNKNOWN}


class RefusedRow(NamedTuple):
    """A row that is not stored, and nothing of its batch. ``holder``: the offset of the message for
    which it is refused; -1 if the error is true whatever becomes of that message."""

    error: SlotwheelError
    holder: int


@dataclass(slots=True)
class NameDecisions:
    """What an entry does to names. ``names``: those that it takes. ``due``, ``offset``: of the rows
    that it cancels. ``refused``: by row; if there are any, nothing may be stored."""

    names: TakenNames = field(default_factory=TakenNames)
    answers: list[NamedAnswer] = field(default_factory=list)
    due: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    refused: dict[int, RefusedRow] = field(default_factory=dict)

    def refusal_of(self, start: int, end: int, next_offset: int) -> RefusedRow | None:
        """The error for the caller who has the rows from ``start`` to before ``end``; None: they
        are not refused. Its ``holder`` is the last of those for which it names rows, so it is true
        of all once that one is committed. ``next_offset``: what is at it or behind it may yet not
        be stored."""
        rows = [(row, at) for row, at in self.refused.items() if start <= row < end]
        if not rows:
            return None
        (_, refused), *others = rows
        error, holder = refused
        if isinstance(error, NameTaken) and holder < next_offset:
            more = [
                (row, at)
                for row, at in others
                if isinstance(at.error, NameTaken) and at.holder < next_offset
            ][: NameTaken.MORE_MAX]
            error = error.naming([(row, str(at.error.got)) for row, at in more])
            holder = max([holder, *(at.holder for _, at in more)])
        return RefusedRow(error.of_rows_from(start), holder)

    def cancel(self, place: NamePlace) -> None:
        due, offset = due_and_offset(place)
        self.due.append(due)
        self.offset.append(offset)


class Namer:
    """Decides about names. All of it is called under the owner's lock, and reads no file."""

    def __init__(self, mint: IdMint, lines: Lines, canceller: Canceller) -> None:
        self._mint = mint
        self._lines = lines
        self._canceller = canceller

    def decide(
        self,
        named: NamedRows,
        due: Sequence[int] | Int64s,
        base_offset: int,
        places: Mapping[bytes, NamePlace],
        ends: Sequence[int] = (),
    ) -> NameDecisions:
        """Decide about the named rows of a batch, the first of whose rows gets ``base_offset``.
        ``due``: of all its rows, ms. ``places``: of those of the keys that have one. ``ends``: the
        rows behind each caller's last one; empty if all of them are one caller's."""
        keys = named.keys
        taken = TakenNames.of(named, due, base_offset)
        if not places and keys.differ:  # the usual case
            return NameDecisions(taken)
        decided = NameDecisions()
        names: dict[bytes, NamePlace] = {}
        """Those that rows have taken until now."""
        holders = self._holders(named, places)
        own = [
            place_of(*place)
            for place in zip(_numbers(taken.due), _numbers(taken.offset), strict=True)
        ]
        callers = iter(ends or [len(due)])
        first = end = 0
        replaced: dict[bytes, NamePlace | None] = {}
        """By name what rows before this caller's have taken, where its rows took it."""
        refused = False
        rows = _numbers(named.rows)
        for row, key, mode, place in zip(rows, keys, named.modes, own, strict=True):
            while row >= end:
                if refused:
                    _give_back(names, replaced)
                first, end, refused, replaced = end, next(callers), False, {}
            former = before = names.get(key)
            holder = _Holder.PENDING
            if before is None and (before := places.get(key)) is not None:
                holder = holders[key]
            if before is not None and holder is _Holder.PENDING:
                if mode is IfExists.KEEP:
                    decided.answers.append(NamedAnswer(row, Before.KEPT, *due_and_offset(before)))
                    decided.cancel(place)
                    continue
                if mode is IfExists.REFUSE:
                    decided.refused[row] = self._taken(row, before, base_offset, first)
                else:
                    was = due_and_offset(before)
                    decided.answers.append(NamedAnswer(row, Before.REPLACED, *was))
                    decided.cancel(before)
            elif before is not None and holder is _Holder.LEAVING:
                decided.refused[row] = RefusedRow(_leaving(row), -1)
            elif before is not None and holder is not _Holder.GONE:
                decided.answers.append(NamedAnswer(row, _BEFORE[holder], *due_and_offset(before)))
            if row not in decided.refused:
                replaced.setdefault(key, former)
                names[key] = place
                continue
            refused = True
        decided.names = TakenNames.at(names)
        return decided

    def _holders(self, named: NamedRows, places: Mapping[bytes, NamePlace]) -> dict[bytes, _Holder]:
        if not places:
            return {}
        topic_of = dict(zip(named.keys, named.topics, strict=True))
        texts = {topic: topic.decode() for topic in set(named.topics)}
        topics = np.array([texts[topic_of[key]] for key in places], object)
        due, offset = np.array([due_and_offset(place) for place in places.values()], np.int64).T
        states, _ = self._canceller.states(due, offset, topics)
        holders = dict(zip(places, map(_HOLDERS.__getitem__, states.tolist()), strict=True))
        if (states == RowState.UNKNOWN).any():
            for key, state, topic in zip(places, states.tolist(), topics.tolist(), strict=True):
                if state == RowState.UNKNOWN:
                    holders[key] = self._holder_of_unknown(topic, *due_and_offset(places[key]))
        return holders

    def _holder_of_unknown(self, topic: str, due: int, offset: int) -> _Holder:
        row = np.array([due], np.int64), np.array([offset], np.int64)
        uncovered = self._lines.uncovered(topic, *row).any()
        return _Holder.LEAVING if uncovered else _Holder.UNKNOWN

    def _taken(self, row: int, before: NamePlace, base_offset: int, first: int) -> RefusedRow:
        """``first``: the first row of the same caller."""
        due, offset = due_and_offset(before)
        same = offset >= base_offset + first
        number = offset - base_offset - first
        got = f"the name of an earlier message of the same batch, its row {number}"
        error = NameTaken(
            "a pending message has this name",
            got=got if same else str(self._mint.one(due, offset)),
            limit="a name that no pending message of the topic has",
            remedy="Cancel that one first, or send this one with if_exists replace or keep",
            row=row,
        )
        return RefusedRow(error, -1 if same else offset)


def _give_back(names: dict[bytes, NamePlace], replaced: Mapping[bytes, NamePlace | None]) -> None:
    for name, place in replaced.items():
        if place is None:
            del names[name]
        else:
            names[name] = place


def _numbers(column: Sequence[int] | Int64s) -> Sequence[int]:
    """A column as Python's own numbers."""
    return column.tolist() if isinstance(column, np.ndarray) else column


def _leaving(row: int) -> Overloaded:
    return Overloaded(
        "the message that has this name is just leaving",
        remedy=f"{NOTHING_STORED} Send it again in a moment",
        row=row,
    )
