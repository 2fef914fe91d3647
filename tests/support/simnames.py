"""Names in a simulated group: the real table and the real decisions on each peer, and a referee who
knows only the committed log.

A master looks names up in its runs in one turn, decides in a later one, and queues the entry in
that instant; between them peers fail, entries are lost, runs are written. What it tells its callers
must be so by the committed log. Messages do not become due here: a name ends by a cancel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from slotwheel.wheel.answers import Before, NamedAnswer
from slotwheel.wheel.due.canceller import RowState
from slotwheel.wheel.due.namer import Namer
from slotwheel.wheel.journal.payloads import CancelRows
from slotwheel.wheel.named.table import NameTable, StoredNames
from slotwheel.wheel.names import (
    IfExists,
    NamedRows,
    NameKeys,
    NamePlace,
    TakenNames,
    due_and_offset,
    keys_of,
)
from slotwheel.wheel.schema import Int64s, Mask
from support.crashfs import CrashFiles

TOPIC = b"t"
NAMES = [b"a", b"b", b"c", b"d"]
KEYS = dict(zip(NAMES, keys_of([TOPIC] * len(NAMES), NAMES), strict=True))
DUE = 1
ROWS = 16
"""Offsets of an entry: those of its rows, and from the ninth on those of its cancels."""
_CANCELS = ROWS // 2


@dataclass(frozen=True)
class Wishes:
    """What callers of one turn ask for: messages, or to cancel by name if there is no mode."""

    names: Sequence[bytes]
    modes: Sequence[IfExists]

    @classmethod
    def any(cls, rng: Random) -> Wishes:
        names = rng.choices(NAMES, k=rng.randint(1, 3))
        if rng.random() < 0.25:
            return cls(names[:1], ())
        return cls(names, rng.choices(list(IfExists), k=len(names)))


@dataclass(frozen=True, eq=False)
class NamedEntry:
    """What an entry does to names, as each peer finds it there. ``rows``: offset, name and mode."""

    rows: Sequence[tuple[int, bytes, IfExists]]
    names: TakenNames
    cancels: CancelRows
    answers: Sequence[NamedAnswer]

    @property
    def cancelled(self) -> set[int]:
        return set(self.cancels.target.tolist())


class NameReferee:
    """What is pending by the committed log. ``fail`` raises."""

    def __init__(self, require: Callable[[bool, str], None]) -> None:
        self._require = require
        self._pending: dict[bytes, int] = {}
        self._name_of: dict[int, bytes] = {}
        """By offset, of all that was ever stored."""
        self.decided = 0

    def committed(self, entry: NamedEntry, base: int) -> None:
        """The first peer takes the entry for committed: is all so that callers are told of it?"""
        require, gone = self._require, entry.cancelled
        answers = {base + answer.row: answer for answer in entry.answers}
        by_name = set(gone)
        for offset, name, mode in entry.rows:
            self._name_of[offset] = name
            before, answer = self._pending.get(name), answers.get(offset)
            told = answer.offset if answer is not None else None
            require(told == before, f"{offset} is told of {told}, pending is {before}")
            if answer is None or before is None:
                self._pending[name] = offset
                continue
            self.decided += 1
            require(mode is not IfExists.REFUSE, f"{offset} is stored, and {before} is pending")
            kept = answer.before is Before.KEPT
            require(kept is (mode is IfExists.KEEP), f"{offset} is told {answer.before}")
            ends = offset if kept else before
            require(ends in gone, f"two of one name are pending, {before} and {offset}")
            by_name.discard(ends)
            if not kept:
                self._pending[name] = offset
        for offset in by_name:
            cancelled = self._name_of.get(offset, b"")
            require(self._pending.get(cancelled) == offset, f"{offset} is cancelled, and not there")
            del self._pending[cancelled]

    def told_of(self, holder: int) -> None:
        """Somebody was told that this message has the name."""
        self.decided += 1
        self._require(holder in self._name_of, f"told of {holder}, which is not committed")


@dataclass
class NameRuns:
    """The runs on a disk, and what its state says of them."""

    files: CrashFiles = field(default_factory=CrashFiles)
    record: bytes = b""

    def copy(self) -> NameRuns:
        return deepcopy(self)


class SimNames:
    """The names of one process of a peer. ``runs``: those on its disk."""

    def __init__(self, runs: NameRuns, referee: NameReferee, rng: Random) -> None:
        self._referee = referee
        self._rng = rng
        self._mine: list[tuple[int, NamedEntry]] = []
        """What this process has queued, with its index."""
        self._refused: list[int] = []
        """Messages, not committed yet, for which somebody is refused."""
        self._open(runs)
        self._prepare()

    def _open(self, runs: NameRuns) -> None:
        self._runs = runs
        self.table = NameTable(runs.files)
        if runs.record:
            self.table.open(runs.record)

    # -- a master --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._wishes = Wishes.any(self._rng)
        self._stored = self._look_up()

    def _look_up(self) -> StoredNames:
        return self.table.stored(NameKeys(KEYS[name] for name in self._wishes.names))

    def decide(self, index: int, commit: int) -> NamedEntry | None:
        """What the entry that is queued at ``index`` does to names; None: nothing, as its caller is
        refused, or there is nothing to cancel."""
        wishes, stored = self._wishes, self._stored
        keys = NameKeys(KEYS[name] for name in wishes.names)
        places = self.table.places(keys, stored)
        self._prepare()
        base = index * ROWS
        if not wishes.modes:
            return self._cancel(base, places.get(keys[0]), index)
        rows = range(len(keys))
        named = NamedRows(list(rows), [TOPIC] * len(keys), keys, wishes.modes)
        mint = SimpleNamespace(one=lambda _, offset: offset)
        namer = Namer(cast(Any, mint), cast(Any, None), cast(Any, self))
        decided = namer.decide(named, [DUE] * len(keys), base, places)
        for _, holder in decided.refused.values():
            if holder >= 0:
                self._refuse(holder, commit)
            return None
        entry = NamedEntry(
            [(base + row, wishes.names[row], wishes.modes[row]) for row in rows],
            decided.names,
            _cancels(base, decided.offset),
            decided.answers,
        )
        return self._queue(index, entry)

    def states(self, due: Int64s, offset: Int64s, topics: object) -> tuple[Int64s, None]:
        """In the place of the canceller: a row waits unless its cancel is on its way."""
        going = self._going()
        states = [
            RowState.PENDING if each in going else RowState.APPEND for each in offset.tolist()
        ]
        return np.array(states, np.int64), None

    def _going(self) -> set[int]:
        return {offset for _, entry in self._mine for offset in entry.cancelled}

    def _cancel(self, base: int, place: NamePlace | None, index: int) -> NamedEntry | None:
        if place is None or (offset := due_and_offset(place)[1]) in self._going():
            return None
        return self._queue(index, NamedEntry((), TakenNames(), _cancels(base, [offset]), ()))

    def _queue(self, index: int, entry: NamedEntry) -> NamedEntry:
        self._mine.append((index, entry))
        self.table.take(entry.names)
        return entry

    def _refuse(self, holder: int, commit: int) -> None:
        """A refusal is told when the message that has the name is committed."""
        if holder // ROWS <= commit:
            self._referee.told_of(holder)
        else:
            self._refused.append(holder)

    def lost_after(self, index: int) -> None:
        """What this process has queued behind ``index`` is given up, and who waits for it is told
        no more than that."""
        lost = [at for at, _ in self._mine if at > index]
        if lost:
            self._mine = [each for each in self._mine if each[0] <= index]
            self.table.withdraw(lost[0] * ROWS)
        self._refused = [holder for holder in self._refused if holder // ROWS <= index]

    # -- all peers -------------------------------------------------------------------------------

    def committed(self, index: int, entry: NamedEntry | None) -> None:
        for holder in [each for each in self._refused if each // ROWS == index]:
            self._referee.told_of(holder)
            self._refused.remove(holder)
        if entry is not None:
            if not any(entry is mine for _, mine in self._mine):  # or it has them since it came
                self.table.take(entry.names)
            if len(entry.cancels):
                self.table.cancel(entry.cancels)
            self._mine = [each for each in self._mine if each[1] is not entry]

    def checkpoint(self, index: int) -> None:
        """What was committed up to ``index`` moves into runs, which are merged now and then."""
        self.table.freeze()
        change = self.table.spill((index + 1) * ROWS, _nothing)
        self._change(change)
        if self._rng.random() < 0.3 and (merged := self.table.merge(1 << 20, _nothing)) is not None:
            self._change(merged)
        self.table.remove_but(self.table.runs)

    def _change(self, change: Any) -> None:
        self.table.change(change)
        if change.record is not None:
            self._runs.record = change.record

    def install(self, runs: NameRuns) -> None:
        """A snapshot has brought these runs, in the place of all that there was."""
        self._mine, self._refused = [], []
        self._open(runs)


def _nothing(due: Int64s, offset: Int64s) -> Mask:
    """No message has left."""
    return np.zeros(len(due), np.bool_)


def _cancels(base: int, targets: Sequence[int]) -> CancelRows:
    count = len(targets)
    due, own = np.full(count, DUE, np.int64), base + _CANCELS + np.arange(count, dtype=np.int64)
    return CancelRows(due, np.array(targets, np.int64), own)
