"""The table of names: which message has which name, as a function of the log.

Theory: a row with a name takes it; a cancel row gives the name of its target back. So the table
needs no entries of its own: who has read the log up to a place has the table of that place. What
is not spilled is in memory, which the tail bounds; the rest in runs on disk, of which the state
says in the transaction of a spill which there are. A master's table has the names of what it has
queued, too: it decides about the next message before the one before is committed.

    layers (in memory, of which the last one grows)  ->  runs (spilled)

Rules
- The newest place of a name counts. It may be that of a message that has left: whether it has is
  known elsewhere (``due/namer.py``), so nothing is removed here when messages leave.
- Names of an entry that is given up are withdrawn: all from its first offset on, for what is given
  up is the end of the log. An entry of another master brings its names when it is committed: its
  offsets may be those of what was withdrawn here.
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
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..files import Files
from ..journal.payloads import CancelRows
from ..names import (
    NameKeys,
    NamePlace,
    TakenNames,
    due_and_offset,
    named_rows,
    place_of,
)
from ..rows import members
from ..schema import Int64s, times
from .layer import FEW_KEYS, NO_OFFSET, ROW_BYTES, NameLayer
from .runs import (
    DIRECTORY,
    Gone,
    HeldNames,
    NameRun,
    decode_runs,
    encode_runs,
    is_run_name,
    known_in,
    merged,
    write_run,
)

_NONE = np.empty(0, np.int64)
_CANCEL_BYTES = 100
"""A cancelled offset takes so much in memory, about."""
_MERGE_SHARE = 2
"""A run is merged with the one before it unless that is more than so many times larger."""
_FEW_NAMES = 1 << 16
_REBUILD_ROWS = 1 << 20
_LAYER_NAMES = range(1 << 14, (1 << 20) + 1)
"""A layer has room for so many names at least and at most: 800 KB and 50 MB, of which the kernel
gives what is in use. A batch is looked up in each layer, so one that follows on is larger."""


@dataclass(frozen=True, slots=True)
class StoredNames:
    """The names of some keys in the runs, and the runs they were looked up in."""

    runs: tuple[NameRun, ...]
    places: Mapping[bytes, NamePlace]


@dataclass(frozen=True, slots=True)
class NamesChange:
    """Other runs, by a spill or a merge, which are true once the state has ``record``."""

    runs: tuple[NameRun, ...]
    record: bytes | None
    """None: the runs are those that the state has."""
    left: tuple[NameLayer, ...] = ()
    """Of what was in memory when the spill began, what stays there."""
    moved: int = 0
    """So many layers, the oldest ones, were in memory when the spill began."""


class NameTable:
    """See the module. It is changed under the owner's lock; ``spill`` and ``merge`` write files,
    and are called without it by the thread that writes slot files."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.runs: tuple[NameRun, ...] = ()
        self._layers: tuple[NameLayer, ...] = ()
        """The oldest first. Only the last one grows; a spill works through those before it."""
        self._frozen = 0
        """So many of them a spill works through."""
        self._withdrawn_from = NO_OFFSET
        """The lowest offset from which on rows were given up since then."""

    @property
    def in_use(self) -> bool:
        """False as long as no message had a name."""
        return bool(self.runs or any(map(len, self._layers)))

    def __len__(self) -> int:
        """The number of names in runs and in memory, each as often as it is there."""
        in_memory = sum(layer.names for layer in self._layers)
        return in_memory + sum(run.info.names for run in self.runs)

    @property
    def nbytes(self) -> int:
        """Bytes in memory that a spill frees, about."""
        return sum(
            len(layer) * ROW_BYTES + len(layer.cancelled) * _CANCEL_BYTES for layer in self._layers
        )

    # -- looking up ------------------------------------------------------------------------------

    def stored(self, keys: NameKeys) -> StoredNames:
        """Look keys up in the runs. Any thread, without the lock: it may read the disk."""
        runs = self.runs
        if not runs:
            return StoredNames(runs, {})
        if len(keys) <= FEW_KEYS:
            each = zip(keys, keys.pairs, strict=True)
            known = ((key, _place_in(runs, *halves)) for key, halves in each)
            return StoredNames(runs, {key: place for key, place in known if place is not None})
        order = np.argsort(keys.halves[0])
        first, second = (half[order] for half in keys.halves)
        places: dict[bytes, NamePlace] = {}
        newer: list[Int64s] = []
        for run in reversed(runs):
            newer.append(run.cancelled)
            at = run.find(first, second)
            has = np.flatnonzero(at >= 0)
            if not len(has):
                continue
            due, offset = run.places.due[at[has]], run.places.offset[at[has]]
            stays = np.ones(len(has), np.bool_)
            for cancelled in newer:
                stays &= ~members(cancelled, offset)
            places.update(_places(keys, order[has[stays]], due[stays], offset[stays]))
            left = np.delete(np.arange(len(order)), has)
            order, first, second = order[left], first[left], second[left]
        return StoredNames(runs, places)

    def places(
        self, keys: NameKeys, stored: StoredNames, *, below: int = NO_OFFSET
    ) -> dict[bytes, NamePlace]:
        """Under the lock: the places of those keys that have one. ``stored``: of the same keys,
        looked up before the lock was taken; that is done again if a spill came in between.
        ``below``: by rows below that offset alone; what stands behind may yet not be committed."""
        if stored.runs is not self.runs:
            stored = self.stored(keys)
        known = dict(stored.places)
        for layer in self._layers:
            if len(layer) and len(keys) > FEW_KEYS and below == NO_OFFSET:
                known.update(_places(keys, *layer.find(keys)))
            elif len(layer):
                for key, halves in zip(keys, keys.pairs, strict=True):
                    place = layer.place(*halves, below)
                    if place is not None:
                        known[key] = place_of(*place)
        for layer in self._layers if known else ():
            if layer.cancelled:
                known = {
                    key: place
                    for key, place in known.items()
                    if due_and_offset(place)[1] not in layer.cancelled
                }
        return known

    # -- what the log says -----------------------------------------------------------------------

    def take(self, names: TakenNames) -> None:
        """Names that the rows of an entry take, which is behind all others: one on its way to the
        journal, or a committed one that another master has made."""
        if not names:
            return
        layer = self._layers[-1] if len(self._layers) > self._frozen else None
        if layer is None or len(layer) + len(names) > layer.room:
            layer = self._next_layer(len(names))
        layer.take(names)

    def _next_layer(self, names: int) -> NameLayer:
        """Begin a layer that has room for so many names, and for twice as many as all others have,
        as what comes until the next spill is about what has come until now."""
        twice = 2 * sum(map(len, self._layers))
        smallest, largest = _LAYER_NAMES[0], _LAYER_NAMES[-1]
        layer = NameLayer(max(names, smallest, min(twice, largest)))
        self._layers = (*self._layers, layer)
        return layer

    def withdraw(self, offset: int) -> None:
        """The entries from ``offset`` on were given up."""
        self._withdrawn_from = min(self._withdrawn_from, offset)
        for layer in self._layers:
            layer.cut(offset)

    def cancel(self, cancels: CancelRows) -> None:
        """The cancel rows of a committed entry."""
        if not self.in_use:
            return
        growing = len(self._layers) > self._frozen
        layer = self._layers[-1] if growing else self._next_layer(0)
        own = cancels.own.tolist()
        layer.cancelled.update(zip(cancels.target.tolist(), own, strict=True))

    # -- the thread that writes slot files -------------------------------------------------------

    def freeze(self) -> None:
        """Under the lock: from here on what comes gets into a layer of its own."""
        self._frozen = len(self._layers)
        self._withdrawn_from = NO_OFFSET

    def spill(self, upto: int, gone: Gone) -> NamesChange:
        """After ``freeze``: write the names of rows below offset ``upto``, which a spill moves, as
        a run. ``gone``: of messages that have left. They are left out unless an older run has a
        message of the same name, which would else be taken for the last one. Errors: ``OSError``;
        nothing has changed then.
        """
        layers = self._layers[: self._frozen]
        if not layers or not (self.runs or any(map(len, layers))):
            return NamesChange(self.runs, None, moved=len(layers))
        places = HeldNames.joined([layer.split(upto)[0] for layer in layers]).newest()
        places = places.at(~gone(places.due, places.offset) | known_in(self.runs, places))
        cancelled = [
            target for layer in layers for target, own in layer.cancelled.items() if own < upto
        ]
        run = self._write(len(places), [places], np.array(cancelled, np.int64))
        runs = self.runs if run is None else (*self.runs, run)
        left = [layer for layer in (layer.behind(upto) for layer in layers) if layer]
        return NamesChange(runs, _record(runs), tuple(left), len(layers))

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
            for layer in change.left:
                layer.cut(self._withdrawn_from)
            self._layers = (*change.left, *self._layers[change.moved :])
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
    at = np.asarray(named.rows, np.int64)
    return HeldNames.of(named.keys, times(rows, "due")[at], times(rows, "offset")[at])


def _places(
    keys: NameKeys, numbers: Int64s, due: Int64s, offset: Int64s
) -> Iterator[tuple[bytes, NamePlace]]:
    """Some of the keys, by their numbers, with their places."""
    for number, *place in zip(numbers.tolist(), due.tolist(), offset.tolist(), strict=True):
        yield keys[number], place_of(*place)


def _place_in(runs: Sequence[NameRun], first: int, second: int) -> NamePlace | None:
    """The place of a key in the newest run that has it, unless its message was cancelled."""
    newer: list[NameRun] = []
    for run in reversed(runs):
        newer.append(run)
        place = run.place(first, second)
        if place is not None:
            return None if any(each.cancels(place[1]) for each in newer) else place_of(*place)
    return None


def _record(runs: Iterable[NameRun]) -> bytes:
    return encode_runs([run.info for run in runs])
