"""Schedules as the engine knows them: a name, an opaque specification, and how far it has come.

Theory: a schedule's runs are rows like any others, and the entry that brings a row also says in a
note which run of which schedule it is. So the table of schedules is a function of the log, and at
no moment is a row stored and its run not counted, or the other way round: neither a crash nor a
failover skips or doubles one. What a specification means, and when a run is due, is for who fires
them (``policy/schedules``); here it is bytes.

Rules
- The *version* of a schedule is the index of the entry that put it. No version comes twice, also
  not when a schedule is deleted and put again: else a run that was computed from the old one could
  be fired under the new one.
- A run is fired only if its version is the present one and its number the next one.
- A record has the index of the last entry that changed it, and an entry at or below that changes
  nothing: a checkpoint may have newer records than its index, and the entries between come again.

*Example.* Entry 7 puts ``daily`` (version 7, no runs). Entry 9 brings a row, and notes that it is
run 1 of version 7. The master fails before it knows; the next one has entry 9, so it fires run 2.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .errors import Damaged
from .files import Bytes

SCHEDULES_MAX = 100_000
"""So many schedules a group has at most: a new master computes when each of them is due next."""
SCHEDULE_BYTES_MAX = 256 << 20
"""Bytes of all specifications together: all of them are in memory."""
# +---------+-------+---------+------+--------+---------+-----+--------+---------------+
# | version | index | decided | runs | missed | nominal | due | offset | specification |
# | u64     | u64   | i64     | u64  | u64    | i64     | i64 | i64    |               |
# +---------+-------+---------+------+--------+---------+-----+--------+---------------+
_RECORD = struct.Struct(
    "<"
    "Q"  # version: the index of the entry that put it
    "Q"  # index of the last entry that changed it
    "q"  # all runs with a nominal time up to here, ms, are decided
    "Q"  # runs that became messages
    "Q"  # runs that were missed, and became none
    "q"  # nominal time of the last run, ms; -1: there was none
    "q"  # its due time, ms; -1
    "q"  # its offset; -1
)
# +---------+--------+---------+---------+--------+--------+------+
# | version | number | nominal | decided | missed | length | name |
# | u64     | u64    | i64     | i64     | u64    | u32    |      |
# +---------+--------+---------+---------+--------+--------+------+
_RUN = struct.Struct(
    "<"
    "Q"  # version of the schedule
    "Q"  # number of the run, from 1 on
    "q"  # its nominal time, ms
    "q"  # all runs with a nominal time up to here, ms, are decided with it
    "Q"  # missed runs before it that became no messages
    "I"  # bytes of the schedule's name, which follow
)
assert _RECORD.size == 64
assert _RUN.size == 44


class StoredSchedule(NamedTuple):
    """A schedule in the table. Times are ms since the epoch; see the records above."""

    version: int
    changed_at: int
    decided_ms: int
    runs: int
    missed: int
    nominal_ms: int
    due_ms: int
    offset: int
    spec: bytes


class SchedulePut(NamedTuple):
    """Put a schedule, new or in another's place. Its runs go on from ``from_ms`` on, and their
    numbers from the last one of the schedule in whose place it comes."""

    name: str
    spec: bytes
    from_ms: int


class ScheduleDelete(NamedTuple):
    """Remove a schedule. What has become a row of it stays."""

    name: str


class FiredRun(NamedTuple):
    """A run that is a row. ``due_ms`` and ``offset``: of the row. ``missed``: how many missed runs
    before it became no messages. Times are ms since the epoch."""

    name: str
    version: int
    number: int
    nominal_ms: int
    decided_ms: int
    missed: int
    due_ms: int
    offset: int = -1


ScheduleChange = SchedulePut | ScheduleDelete | FiredRun
StateOf = Callable[[str], StoredSchedule | None]
"""The schedule of a name; None: there is none."""


def changed_by(
    changes: Iterable[ScheduleChange], index: int, state_of: StateOf
) -> dict[str, StoredSchedule | None]:
    """The new state of each schedule that the changes of the entry ``index`` concern; None: it is
    gone. What that entry, or a later one, has changed already is not among them."""
    fresh: dict[str, StoredSchedule | None] = {}
    passed: set[str] = set()
    for change in changes:
        name = change.name
        if name in passed:
            continue
        if name in fresh:
            state = fresh[name]
        elif (state := state_of(name)) is not None and state.changed_at >= index:
            passed.add(name)
            continue
        fresh[name] = _changed(state, change, index)
    return fresh


def _changed(
    state: StoredSchedule | None, change: ScheduleChange, index: int
) -> StoredSchedule | None:
    if isinstance(change, FiredRun):
        if state is None or not is_next(state, change):
            return state
        return StoredSchedule(
            *(state.version, index, change.decided_ms, change.number),
            *(state.missed + change.missed, change.nominal_ms, change.due_ms, change.offset),
            state.spec,
        )
    if isinstance(change, ScheduleDelete):
        return None
    if state is None:
        return StoredSchedule(index, index, change.from_ms - 1, 0, 0, -1, -1, -1, change.spec)
    decided_ms = max(state.decided_ms, change.from_ms - 1)
    return state._replace(version=index, changed_at=index, decided_ms=decided_ms, spec=change.spec)


def is_next(state: StoredSchedule, run: FiredRun) -> bool:
    """True if a run follows on from the last one, by the schedule that is in force."""
    return run.version == state.version and run.number == state.runs + 1


def encode_schedule(schedule: StoredSchedule) -> bytes:
    """A schedule as it stands in the state store and in snapshots."""
    return _RECORD.pack(*schedule[:-1]) + schedule.spec


def decode_schedule(record: Bytes, where: str) -> StoredSchedule:
    """Errors: ``Damaged``."""
    if len(record) < _RECORD.size:
        raise Damaged(
            *(where, 0), expected=f"a schedule of {_RECORD.size} bytes", found=len(record)
        )
    return StoredSchedule._make((*_RECORD.unpack_from(record), bytes(record[_RECORD.size :])))


def encode_changes(changes: Sequence[SchedulePut | ScheduleDelete]) -> bytes:
    """The payload of an entry that changes schedules: equal bytes for equal changes."""
    fields = [
        {"do": "put", "name": change.name, "spec": change.spec.decode(), "from_ms": change.from_ms}
        if isinstance(change, SchedulePut)
        else {"do": "delete", "name": change.name}
        for change in changes
    ]
    return json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def decode_changes(payload: Bytes, where: str) -> list[SchedulePut | ScheduleDelete]:
    """Errors: ``Damaged`` unless it is as ``encode_changes`` makes it."""
    changes: list[SchedulePut | ScheduleDelete] = []
    try:
        for fields in json.loads(bytes(payload)):
            name = str(fields["name"])
            if fields["do"] == "put":
                spec, from_ms = str(fields["spec"]).encode(), int(fields["from_ms"])
                changes.append(SchedulePut(name, spec, from_ms))
            else:
                changes.append(ScheduleDelete(name))
        if encode_changes(changes) != bytes(payload):
            raise ValueError("fields that are not known, or written otherwise")
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(where, 0, expected="changes of schedules", found=str(error)) from None
    return changes


def encode_runs(runs: Sequence[FiredRun]) -> bytes:
    """The note of an entry whose first rows are these runs, in their order."""
    parts: list[bytes] = []
    for run in runs:
        name = run.name.encode()
        parts.append(_RUN.pack(*run[1:6], len(name)))
        parts.append(name)
    return b"".join(parts)


def decode_runs(note: bytes, due_ms: Sequence[int], base_offset: int) -> list[FiredRun]:
    """The runs that an entry's rows are. ``due_ms``: due times of its rows, the first of which has
    ``base_offset``. Errors: ``ValueError``."""
    runs: list[FiredRun] = []
    at = 0
    try:
        while at < len(note):
            *fields, length = _RUN.unpack_from(note, at)
            at += _RUN.size + length
            if at > len(note):
                raise ValueError(f"a name of {length} bytes at the end of {len(note)}")
            name = note[at - length : at].decode()
            row = len(runs)
            runs.append(FiredRun._make((name, *fields, int(due_ms[row]), base_offset + row)))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"runs of schedules: {error}") from None
    return runs
