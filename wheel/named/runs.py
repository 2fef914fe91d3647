"""Runs: sorted files of names, and the messages that have them.

Theory: names are looked up by batches of thousands, and written by spills of hundreds of thousands.
A tree on disk takes microseconds for each, and the interpreter's lock between them. So a spill
writes what it has as one sorted run, and a look-up is a binary search by NumPy in each run, for all
names at once. Runs of similar size are merged, so that there are few.

    | head | key, first half | key, second half | due | offset | cancelled offsets |
             u64, sorted       u64                i64   i64      i64, sorted

A column has room for as many names as the run may have at most; a merge knows only at its end how
many are left, and what it left out is a hole in the file.

Rules
- A run is never changed. The state says which runs there are, and the checksum of each column.
- A newer run is right where it and an older one have the same name. So a message that has left, or
  was cancelled, is left out of a run only if no older one has its name. *Example.* ``order-17`` is
  5 in the first run and 9 in the second. Left out of the second as it has left, 9 would be
  forgotten, and who asks for ``order-17`` would be told of 5.
- A message whose offset is among the cancelled ones of its own run or of a newer one is cancelled.
  They are left out when nothing older can have their messages.
"""

from __future__ import annotations

import contextlib
import errno
import json
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from ..errors import Damaged
from ..files import Files, Handle, checksum
from ..names import NameKeys
from ..rows import members
from ..schema import Int64s, Mask, UInt64s

DIRECTORY = "names"
_SUFFIX = ".names"
_HEAD = struct.Struct("<8sHxxxxxxQQ")
_MAGIC = b"SWNAMES\0"
_VERSION = 1
_HEAD_BYTES = 64
_COLUMNS = 4
_SHARE = 1 << 18
"""So many names of all runs are merged at a time: some 30 MB."""

_READ_BYTES = 2 << 20
_NONE = np.empty(0, np.int64)

Gone = Callable[[Int64s, Int64s], Mask]
"""From due times (ms) and offsets to the mask of messages that have left, shape (rows,) each."""


@dataclass(frozen=True, slots=True)
class HeldNames:
    """Names and the messages that have them; shape (rows,) each, sorted by key."""

    first: UInt64s
    second: UInt64s
    due: Int64s
    offset: Int64s

    @classmethod
    def of(
        cls, keys: NameKeys, due: Sequence[int] | Int64s, offset: Sequence[int] | Int64s
    ) -> HeldNames:
        """Keys in any order. ``due``, ``offset``: of their messages, shape (rows,)."""
        return cls(*keys.halves, np.array(due, np.int64), np.array(offset, np.int64)).in_order()

    @classmethod
    def joined(cls, parts: Sequence[HeldNames]) -> HeldNames:
        """All of them, in order; the parts need not be."""
        first, second, due, offset = zip(*(part.columns() for part in parts), strict=True)
        return cls(
            np.concatenate(first),
            np.concatenate(second),
            np.concatenate(due),
            np.concatenate(offset),
        ).in_order()

    def in_order(self) -> HeldNames:
        """By key; of the same key, the highest offset, which is the newest message, first."""
        order = np.argsort(self.first)
        first = self.first[order]
        equal = np.flatnonzero(first[1:] == first[:-1])
        if len(equal):  # sorted again by all that is in it: three columns cost five times as much
            several = np.zeros(len(first), np.bool_)
            several[equal] = several[equal + 1] = True
            places = np.flatnonzero(several)
            rows = order[places]
            by = -self.offset[rows], self.second[rows], self.first[rows]
            order[places] = rows[np.lexsort(by)]
        return self.at(order)

    def at(self, rows: slice | Int64s | Mask) -> HeldNames:
        """Some of them."""
        first, second, due, offset = self.columns()
        return HeldNames(first[rows], second[rows], due[rows], offset[rows])

    def newest(self) -> HeldNames:
        """Of each key the first one."""
        kept = np.ones(len(self), np.bool_)
        kept[1:] = (self.first[1:] != self.first[:-1]) | (self.second[1:] != self.second[:-1])
        return self.at(kept)

    def __len__(self) -> int:
        return len(self.first)

    def columns(self) -> tuple[UInt64s, UInt64s, Int64s, Int64s]:
        return self.first, self.second, self.due, self.offset


@dataclass(frozen=True, slots=True)
class NameRunInfo:
    """The state's record of a run: its number, the room of its columns, what is in them, and a
    CRC-32C of what each column holds, the cancelled offsets last."""

    number: int
    room: int
    names: int
    cancelled: int
    crcs: tuple[int, ...]

    @property
    def path(self) -> str:
        return f"{DIRECTORY}/{self.number:020}{_SUFFIX}"

    @property
    def length(self) -> int:
        """The file's length, bytes."""
        return self.begin(_COLUMNS) + 8 * self.cancelled

    def begin(self, column: int) -> int:
        """The place of a column in the file."""
        return _HEAD_BYTES + 8 * self.room * column

    def spans(self) -> list[tuple[int, int]]:
        """Where what each column holds begins and ends in the file."""
        counts = [self.names] * _COLUMNS + [self.cancelled]
        begins = [self.begin(column) for column in range(len(counts))]
        return [(begin, begin + 8 * count) for begin, count in zip(begins, counts, strict=True)]


class KeyFilter:
    """A byte a key in memory that says of most keys that a run has not, that it has not. A search
    in a million keys waits for memory, or for the disk, ten times one after the other, 1 us a key;
    and mostly a name is new.

    A bit stands for the keys whose first halves begin alike: for *room* keys there are 8 to 16
    times as many bits, of which at most one in 8 is set. *Example.* With 64 bits, a key that begins
    with the bits 000011 sets bit 3, and a run without any such key surely has none."""

    def __init__(self, room: int) -> None:
        bits = max(3, (8 * room).bit_length())
        self._shift = 64 - bits
        self._set = np.zeros(1 << (bits - 3), np.uint8)
        self._bytes = self._set.data

    def add(self, first: UInt64s) -> None:
        """Add keys by their first halves, which ascend."""
        if len(first):
            places = (first >> np.uint64(self._shift)).astype(np.int64)
            start = int(places[0]) & ~7
            flags = np.zeros(int(places[-1]) + 1 - start, np.bool_)
            flags[places - start] = True
            packed = np.packbits(flags, bitorder="little")
            self._set[start >> 3 : (start >> 3) + len(packed)] |= packed

    def may_have(self, first: UInt64s) -> Int64s:
        """The positions of those keys, by their first halves, that may have been added."""
        places = (first >> np.uint64(self._shift)).astype(np.int64)
        held = self._set[places >> 3] >> (places & 7).astype(np.uint8)
        return np.flatnonzero(held & 1)

    def may_have_one(self, first: int) -> bool:
        """As ``may_have``, of one key."""
        place = first >> self._shift
        return bool(self._bytes[place >> 3] >> (place & 7) & 1)


class NameRun:
    """A run, mapped. ``keys``: all of its keys."""

    def __init__(self, info: NameRunInfo, data: pa.Buffer, keys: KeyFilter) -> None:
        self.info = info
        self._keys = keys
        view = memoryview(data)
        first, second, due, offset, cancelled = (view[begin:end] for begin, end in info.spans())
        self.places = HeldNames(
            np.frombuffer(first, np.uint64),
            np.frombuffer(second, np.uint64),
            np.frombuffer(due, np.int64),
            np.frombuffer(offset, np.int64),
        )
        self.cancelled: Int64s = np.frombuffer(cancelled, np.int64)
        self._views = [column.data for column in self.places.columns()]
        self._cancelled = self.cancelled.data

    @classmethod
    def open(cls, files: Files, info: NameRunInfo) -> NameRun:
        """Open a run and check all of its bytes. Errors: ``Damaged``."""
        whole = f"{info.length} bytes"
        try:
            with contextlib.closing(files.open(info.path)) as handle:
                size = handle.size()
                if size < info.length:
                    raise Damaged(info.path, size, expected=whole, found=f"{size} bytes")
                _check(handle, info)
                keys = _keys_of(handle, info)
        except FileNotFoundError:
            raise Damaged(info.path, 0, expected=whole, found="no such file") from None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Damaged(info.path, 0, expected=whole, found="an unreadable sector") from error
        return cls(info, files.map(info.path, info.length), keys)

    def find(self, first: UInt64s, second: UInt64s) -> Int64s:
        """The positions of keys, -1 for those that it has not, shape (rows,). They are found
        quicker in the order of their first halves, as each search begins where the last ended."""
        places = self.places
        positions = np.full(len(first), -1, np.int64)
        asked = self._keys.may_have(first)
        at = places.first.searchsorted(first[asked])
        while len(asked):
            inside = at < len(places)
            asked, at = asked[inside], at[inside]
            alike = places.first[at] == first[asked]
            asked, at = asked[alike], at[alike]
            same = places.second[at] == second[asked]
            positions[asked[same]] = at[same]
            asked, at = asked[~same], at[~same] + 1  # another key with this first half
        return positions

    def place(self, first: int, second: int) -> tuple[int, int] | None:
        """Due time and offset of one key's message; None: it has not the key."""
        if not self._keys.may_have_one(first):
            return None
        firsts, seconds, due, offset = self._views
        at = bisect_left(firsts, first)
        while at < len(firsts) and firsts[at] == first:
            if seconds[at] == second:
                return due[at], offset[at]
            at += 1
        return None

    def cancels(self, offset: int) -> bool:
        """True if a message is among the cancelled ones."""
        at = bisect_left(self._cancelled, offset)
        return at < len(self._cancelled) and self._cancelled[at] == offset


def _check(handle: Handle, info: NameRunInfo) -> None:
    """Compare a run's head and columns with the state's record. Errors: ``Damaged``."""
    if handle.pread(_HEAD_BYTES, 0) != _head(info.number, info.room):
        raise Damaged(info.path, 0, expected="the head of a run of names", found="other bytes")
    for at, ((begin, end), crc) in enumerate(zip(info.spans(), info.crcs, strict=True)):
        _, actual = checksum(handle, begin, end)
        if actual != crc:
            raise Damaged(
                info.path,
                begin,
                expected=f"CRC-32C {crc:08x} of column {at}",
                found=f"{actual:08x}",
            )


def _keys_of(handle: Handle, info: NameRunInfo) -> KeyFilter:
    keys = KeyFilter(info.room)
    begin, end = info.spans()[0]
    for at in range(begin, end, _READ_BYTES):
        data = handle.pread(min(_READ_BYTES, end - at), at)
        keys.add(np.frombuffer(data, np.uint64))
    return keys


def _head(number: int, room: int) -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION, number, room).ljust(_HEAD_BYTES, b"\0")


def encode_runs(runs: Sequence[NameRunInfo]) -> bytes:
    """The state's record of all runs, the oldest first."""
    return json.dumps([asdict(info) for info in runs]).encode()


def decode_runs(record: bytes) -> list[NameRunInfo]:
    """Errors: ``Damaged``."""
    try:
        return [NameRunInfo(**{**each, "crcs": tuple(each["crcs"])}) for each in json.loads(record)]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged("state", 0, expected="runs of names", found=str(error)[:200]) from None


def is_run_name(name: str) -> bool:
    return name.endswith(_SUFFIX)


def write_run(
    files: Files, number: int, room: int, shares: Iterable[HeldNames], cancelled: Int64s
) -> NameRun | None:
    """Write a run, durably: ``shares`` in the order of their keys, ``room`` names at most. None: it
    would be empty. Errors: ``OSError``; nothing is left of it then."""
    info, keys = NameRunInfo(number, room, 0, 0, ()), KeyFilter(room)

    def noted() -> Iterator[HeldNames]:
        for share in shares:
            keys.add(share.first)
            yield share

    try:
        with contextlib.closing(files.open(info.path, create=True)) as handle:
            info = _write_columns(handle, info, noted(), np.sort(cancelled))
            handle.truncate(info.length)
            handle.sync()
        files.sync_dir(DIRECTORY)
        if not info.names and not info.cancelled:
            files.unlink(info.path)
            return None
        return NameRun(info, files.map(info.path, info.length), keys)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(info.path)
        raise


def _write_columns(
    handle: Handle, info: NameRunInfo, shares: Iterable[HeldNames], cancelled: Int64s
) -> NameRunInfo:
    """Returns the run's record."""
    handle.truncate(0)
    handle.pwrite([_head(info.number, info.room)], 0)
    names, crcs = 0, [0] * (_COLUMNS + 1)

    def write(column: int, values: npt.NDArray[Any], at: int) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).data
        if len(data):
            handle.pwrite([data], info.begin(column) + 8 * at)
        crcs[column] = crc32c(data, crcs[column])

    for share in shares:
        for column, values in enumerate(share.columns()):
            write(column, values, names)
        names += len(share)
    write(_COLUMNS, cancelled, 0)
    return replace(info, names=names, cancelled=len(cancelled), crcs=tuple(crcs))


def known_in(runs: Sequence[NameRun], places: HeldNames) -> Mask:
    """The mask of names that one of the runs has, shape (rows,)."""
    known = np.zeros(len(places), np.bool_)
    for run in runs:
        known |= run.find(places.first, places.second) >= 0
    return known


def merged(
    runs: Sequence[NameRun],
    gone: Gone,
    cancelled: Int64s = _NONE,
    *,
    older: Sequence[NameRun] = (),
) -> Iterator[HeldNames]:
    """The newest message of each name in runs, without those that have left or were cancelled by a
    run, unless one of the ``older`` runs has the name; a share of them at a time, in the order of
    the keys. ``cancelled``: messages that never had their names, or gave them back."""
    own = np.sort(np.concatenate([_NONE, *(run.cancelled for run in runs)]))
    cancelled = np.sort(cancelled)
    shares = max(1, -(-sum(run.info.names for run in runs) // _SHARE))
    borders = np.array([(share << 64) // shares for share in range(1, shares)], np.uint64)
    ends = [[0, *run.places.first.searchsorted(borders).tolist(), run.info.names] for run in runs]
    for share in range(shares):
        spans = [slice(*its[share : share + 2]) for its in ends]
        parts = [run.places.at(span) for run, span in zip(runs, spans, strict=True)]
        places = HeldNames.joined(parts)
        # First, as a row that was kept out at once may be newer than the one that has the name.
        newest = places.at(~members(cancelled, places.offset)).newest()
        passed = gone(newest.due, newest.offset) | members(own, newest.offset)
        yield newest.at(~passed | known_in(older, newest))
