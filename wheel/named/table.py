"""The table of names: which message has which name, as a function of the log.

Theory: a row with a name takes it; a cancel row gives the name of its target back. So the table
needs no entries of its own: who has read the log up to a place has the table of that place. What
is committed and not spilled is in memory, which the tail bounds; the rest in runs on disk, of which
the state says in the transaction of a spill which there are. A master also knows the names of what
it has queued: it decides about the next message before the one before is committed.

    queued (this master's)  ->  recent (committed)  ->  runs (spilled)

Rules
- The newest place of a name counts. It may be that of a message that has left: whether it has is
  known elsewhere (``due/namer.py``), so nothing is removed here when messages leave.
- A row that is cancelled by the entry that brings it never had the name: its sender was told that
  another message keeps it, or a later row of the same entry took its place.
- Cancels of rows are kept here, too, from the commit to the spill, and in the runs after it: the
  register of cancels may have forgotten them.
- A run that is damaged or missing is no loss: all runs are made anew from the slot files.

*Example.* ``order-17`` is taken by offset 5 and, after a spill, by offset 9, in one entry with the
cancel of 5. Offset 9 is in memory and found first. When it is spilled the new run has
``order-17 -> 9`` and, as cancelled, 5; the old run still has ``order-17 -> 5`` until both are
merged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..files import Files
from ..journal.payloads import CancelRows
from ..names import NamePlace, due_and_offset, named_rows, place_of
from ..rows import members
from ..schema import Int64s, times
from .runs import (
    DIRECTORY,
    Gone,
    HeldNames,
    NameRun,
    decode_runs,
    encode_runs,
    halves_of,
    is_run_name,
    known_in,
    merged,
    write_run,
)

_NONE = np.empty(0, np.int64)
NamePlaces = Mapping[bytes, NamePlace]
_NAME_BYTES, _CANCEL_BYTES = 150, 100
"""What a name, and a cancelled offset, takes in memory, about."""
_MERGE_SHARE = 2
"""A run is merged with the one before it unless that is more than so many times larger."""
_FEW_NAMES = 1 << 16
_REBUILD_ROWS = 1 << 20
_LAYER_NAMES = 1 << 17
"""A layer with more names does not grow: one of half a million would be made larger by the
interpreter in 40 ms, under the owner's lock."""
_ITEMS = 4096
"""So many names are read or written by one call of the interpreter's own."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StoredNames:
    """The names of some keys in the runs, and the runs they were looked up in."""

    runs: tuple[NameRun, ...]
    places: NamePlaces


@dataclass(frozen=True, slots=True)
class _Layer:
    """What was committed in a while: names, and by their offsets the rows that cancel rows name,
    each with the offset of the cancel row."""

    names: dict[bytes, NamePlace] = field(default_factory=dict)
    cancelled: dict[int, int] = field(default_factory=dict)

    def behind(self, offset: int) -> _Layer:
        """What came from ``offset`` on."""
        return _Layer(
            {key: place for key, place in self.names.items() if due_and_offset(place)[1] >= offset},
            {target: own for target, own in self.cancelled.items() if own >= offset},
        )

    def held(self, upto: int) -> HeldNames:
        """The names of rows below offset ``upto``."""
        parts = [HeldNames.of((), (), ())]
        for share in _shares(self.names):
            places = [(key, *due_and_offset(place)) for key, place in share]
            moved = [each for each in places if each[2] < upto]
            if moved:
                parts.append(HeldNames.of(*zip(*moved, strict=True)))
        return HeldNames.joined(parts)

    def empty(self) -> None:
        """Let go of all of it, piece by piece."""
        for held in (self.names, self.cancelled):
            while held:
                held.popitem()


def _shares(items: Mapping[_Key, _Value]) -> Iterator[list[tuple[_Key, _Value]]]:
    """The items, a few thousand at a time. Half a million of them in one call of the interpreter's
    own would hold up every thread for a tenth of a second, and so what is due then."""
    left = iter(items.items())
    while share := list(islice(left, _ITEMS)):
        yield share


@dataclass(frozen=True, slots=True)
class NamesChange:
    """Other runs, by a spill or a merge, which are true once the state has ``record``."""

    runs: tuple[NameRun, ...]
    record: bytes | None
    """None: the runs are those that the state has."""
    left: tuple[_Layer, ...] = ()
    """Of what was in memory when the spill began, what stays there."""
    moved: tuple[_Layer, ...] = ()
    """What was in memory when the spill began; nothing: of a merge."""

    def release(self) -> None:
        """After the change, without the lock: let go of what was moved. If it went with the last
        reference to it, all of it would be freed at once, under the lock."""
        for layer in self.moved:
            layer.empty()


class NameTable:
    """See the module. It is changed under the owner's lock; ``spill`` and ``merge`` write files,
    and are called without it by the thread that writes slot files."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.runs: tuple[NameRun, ...] = ()
        self._queued: dict[bytes, NamePlace] = {}
        self._layers: tuple[_Layer, ...] = (_Layer(),)
        """The oldest first. Only the last one grows; a spill works through those before it."""
        self._frozen = 0
        """So many of them a spill works through."""

    @property
    def in_use(self) -> bool:
        """False as long as no message had a name."""
        return bool(self.runs or self._queued or any(layer.names for layer in self._layers))

    @property
    def nbytes(self) -> int:
        """Bytes in memory that a spill frees, about."""
        return sum(
            len(layer.names) * _NAME_BYTES + len(layer.cancelled) * _CANCEL_BYTES
            for layer in self._layers
        )

    # -- looking up ------------------------------------------------------------------------------

    def stored(self, keys: Sequence[bytes]) -> StoredNames:
        """Look keys up in the runs. Any thread, without the lock: it may read the disk."""
        runs = self.runs
        if not runs:
            return StoredNames(runs, {})
        halves = halves_of(keys)
        left = np.arange(len(keys))
        places: dict[bytes, NamePlace] = {}
        newer: list[Int64s] = []
        for run in reversed(runs):
            newer.append(run.cancelled)
            at = run.find(halves[left, 0], halves[left, 1])
            has = np.flatnonzero(at >= 0)
            due, offset = run.places.due[at[has]], run.places.offset[at[has]]
            gone = np.zeros(len(has), np.bool_)
            for cancelled in newer:
                gone |= members(cancelled, offset)
            rows = left[has]
            for at_row in np.flatnonzero(~gone).tolist():
                places[keys[rows[at_row]]] = place_of(int(due[at_row]), int(offset[at_row]))
            left = np.delete(left, has)
        return StoredNames(runs, places)

    def places(self, keys: Sequence[bytes], stored: StoredNames) -> dict[bytes, NamePlace]:
        """Under the lock: the places of those keys that have one. ``stored``: of the same keys,
        looked up before the lock was taken; that is done again if a spill came in between."""
        if stored.runs is not self.runs:
            stored = self.stored(keys)
        known = dict(stored.places)
        for names in (*(layer.names for layer in self._layers), self._queued):
            if not names.keys().isdisjoint(keys):
                known.update((key, names[key]) for key in keys if key in names)
        for layer in self._layers:
            if layer.cancelled:
                known = {
                    key: place
                    for key, place in known.items()
                    if due_and_offset(place)[1] not in layer.cancelled
                }
        return known

    # -- what the log says -----------------------------------------------------------------------

    def queue(self, names: NamePlaces) -> None:
        """Names that an entry on its way to the journal takes."""
        self._queued.update(names)

    def withdraw(self, uncommitted: Iterable[NamePlaces]) -> None:
        """Entries were given up; ``uncommitted``: what the others on their way take, in order."""
        self._queued = {}
        for names in uncommitted:
            self._queued.update(names)

    def committed(self, names: NamePlaces, cancels: CancelRows | None) -> None:
        """What a committed entry takes, and its cancel rows."""
        layer = self._layers[-1]
        if len(layer.names) > _LAYER_NAMES:
            layer = _Layer()
            self._layers = (*self._layers, layer)
        layer.names.update(names)
        if self._queued:
            for key, place in names.items():
                if self._queued.get(key) == place:
                    del self._queued[key]
        if cancels is not None and self.in_use:
            own = cancels.own.tolist()
            layer.cancelled.update(zip(cancels.target.tolist(), own, strict=True))

    # -- the thread that writes slot files -------------------------------------------------------

    def freeze(self) -> None:
        """Under the lock: from here on what is committed gets into a layer of its own."""
        layers = [layer for layer in self._layers if layer.names or layer.cancelled]
        self._layers = (*layers, _Layer())
        self._frozen = len(layers)

    def spill(self, upto: int, gone: Gone) -> NamesChange:
        """After ``freeze``: write the names of rows below offset ``upto``, which a spill moves, as
        a run. ``gone``: of messages that have left. They are left out unless an older run has a
        message of the same name, which would else be taken for the last one. Errors: ``OSError``;
        nothing has changed then.
        """
        layers = self._layers[: self._frozen]
        if not layers or not (self.runs or any(layer.names for layer in layers)):
            return NamesChange(self.runs, None, moved=layers)
        places = HeldNames.joined([layer.held(upto) for layer in layers]).newest()
        places = places.at(~gone(places.due, places.offset) | known_in(self.runs, places))
        cancelled = [
            target for layer in layers for target, own in layer.cancelled.items() if own < upto
        ]
        run = self._write(len(places), [places], np.array(cancelled, np.int64))
        runs = self.runs if run is None else (*self.runs, run)
        left = tuple(layer.behind(upto) for layer in layers)
        return NamesChange(runs, _record(runs), left, layers)

    def merge(self, rows: int, gone: Gone) -> NamesChange | None:
        """Merge runs of similar size; all of them if they have many more names than the ``rows``
        that slot files have. None: nothing changes. Errors: as of ``spill``."""
        runs, start = self.runs, max(0, len(self.runs) - 1)
        stale = sum(run.info.names for run in runs) > 2 * rows + _FEW_NAMES
        size = sum(run.info.names for run in runs[start:])
        while start and (stale or runs[start - 1].info.names <= _MERGE_SHARE * size + _FEW_NAMES):
            start -= 1
            size += runs[start].info.names
        old = runs[start:]
        if len(old) < 2 and not stale:
            return None
        # Nothing older can have what was cancelled, or the names of these runs.
        cancelled = [run.cancelled for run in old] if start else []
        whole = merged(old, gone, older=runs[:start])
        run = self._write(size, whole, np.concatenate([_NONE, *cancelled]))
        kept = runs[:start] if run is None else (*runs[:start], run)
        return NamesChange(kept, _record(kept))

    def _write(self, room: int, shares: Iterable[HeldNames], cancelled: Int64s) -> NameRun | None:
        if not self.runs:  # or a power cut takes the directory with the run
            self._files.make_directory(DIRECTORY)
            self._files.sync_dir(".")
        number = 1 + max((run.info.number for run in self.runs), default=0)
        return write_run(self._files, number, room, shares, cancelled)

    def change(self, change: NamesChange) -> None:
        """Under the lock: the state has ``change``."""
        self.runs = change.runs
        if change.moved:
            self._layers = (*change.left, *self._layers[len(change.moved) :])
            self._frozen = 0

    def remove_but(self, runs: Iterable[NameRun]) -> None:
        """Remove all files but those of ``runs``: after a change, or in place of one."""
        kept = {run.info.path for run in runs}
        for name in self._files.list(DIRECTORY):
            if is_run_name(name) and f"{DIRECTORY}/{name}" not in kept:
                with contextlib.suppress(OSError):
                    self._files.unlink(f"{DIRECTORY}/{name}")

    # -- opening ---------------------------------------------------------------------------------

    def open(self, record: bytes) -> None:
        """Open the runs that the state names, and remove what else lies there. Errors:
        ``Damaged``."""
        self.runs = tuple(NameRun.open(self._files, info) for info in decode_runs(record))
        self.remove_but(self.runs)

    def rebuild(
        self, blocks: Iterable[pa.RecordBatch], recorded: Sequence[Int64s], gone: Gone
    ) -> bytes:
        """Make the runs anew from the rows of all slot files (ROW schema), in any order. Returns
        the state's record. ``recorded``: offsets of cancelled messages, whose cancels may be in no
        file any more. ``gone``: of messages that have left, and may have been cancelled for all
        that is recorded. Errors: ``OSError``; those of ``blocks``."""
        self.runs = ()
        self.remove_but(())
        cancelled, parts, rows = [_NONE, *recorded], list[HeldNames](), 0
        for block in blocks:
            cancelled.append(CancelRows.of(block, None).target)
            held = held_in(block)
            if held is None:
                continue
            parts.append(held)
            rows += len(held)
            if rows >= _REBUILD_ROWS:
                self._add_run(parts)
                parts, rows = [], 0
        self._add_run(parts)
        parted: tuple[NameRun, ...] = self.runs
        if parted:
            number = 1 + parted[-1].info.number
            room = sum(run.info.names for run in parted)
            whole = merged(parted, gone, np.concatenate(cancelled))
            run = write_run(self._files, number, room, whole, _NONE)
            self.runs = () if run is None else (run,)
        self.remove_but(self.runs)
        return _record(self.runs)

    def _add_run(self, parts: Sequence[HeldNames]) -> None:
        if parts:
            places = HeldNames.joined(parts)
            run = self._write(len(places), [places], _NONE)
            self.runs = (*self.runs, run) if run is not None else self.runs


def held_in(rows: pa.RecordBatch) -> HeldNames | None:
    """The names of rows (ROW schema), each as if its row had it; None: they have none."""
    named = named_rows(rows)
    if named is None:
        return None
    at = np.array(named.rows, np.int64)
    return HeldNames.of(named.keys, times(rows, "due")[at], times(rows, "offset")[at])


def _record(runs: Iterable[NameRun]) -> bytes:
    return encode_runs([run.info for run in runs])
