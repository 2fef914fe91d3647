"""The table of schedules: what is committed, and over it what this master has queued.

Theory: the table is a function of the log (``schedules.py``). A master decides by what it has
queued already, though that is not committed yet: else it would fire a run twice that waits for the
group's sync. What could not be written is withdrawn, and the table is again what the entries say
that are left. Who writes slot files keeps the records that have changed since the last checkpoint.

All of it is called under the owner's lock, but for ``encode_schedule`` of what a plan holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence

from .errors import InvalidMessage, ScheduleChanged, UnknownSchedule
from .schedules import (
    SCHEDULE_BYTES_MAX,
    SCHEDULES_MAX,
    FiredRun,
    ScheduleChange,
    ScheduleDelete,
    SchedulePut,
    StoredSchedule,
    changed_by,
    decode_schedule,
    is_next,
)

ScheduleRecords = Mapping[str, StoredSchedule | None]
"""Schedules by name; None: it is gone."""
WHERE = "state: schedules"


class ScheduleTable:
    """The schedules of one wheel. ``records``: as the state store has them, by name."""

    def __init__(self, records: Mapping[str, bytes]) -> None:
        self._committed = {name: decode_schedule(record, WHERE) for name, record in records.items()}
        self._queued: dict[str, tuple[int, StoredSchedule | None]] = {}
        """By name, the index of the last queued entry about it, and the state after that."""
        self._unsaved: dict[str, StoredSchedule | None] = {}
        self._names = sorted(self._committed)
        """Of all schedules, as ``get`` knows them; kept in order, because a list of 100,000 is read
        in a hundred pages, and each of them would else sort all names."""
        self._nbytes = sum(len(schedule.spec) for schedule in self._committed.values())
        self.fired = 0
        """Runs that became messages here, as master."""
        self.missed = 0
        """Runs that were missed meanwhile, and became none."""

    def __len__(self) -> int:
        return len(self._committed)

    def get(self, name: str) -> StoredSchedule | None:
        """The schedule as of the last entry, queued or committed; None: there is none."""
        queued = self._queued.get(name)
        return self._committed.get(name) if queued is None else queued[1]

    def queued_at(self, names: Iterable[str]) -> int:
        """The index of the last entry that was queued about one of these schedules and is not
        committed; -1: there is none."""
        return max((self._queued.get(name, (-1, None))[0] for name in names), default=-1)

    def names(self, after: str = "", least: str = "") -> list[str]:
        """The names of all schedules behind ``after`` and not before ``least``, in order."""
        begin = max(bisect_right(self._names, after), bisect_left(self._names, least))
        return self._names[begin:]

    def check(self, change: SchedulePut | ScheduleDelete, version: int | None) -> None:
        """Check a change before it is queued. ``version``: which the schedule has to have, 0: there
        must be none; None: any. Errors: ``ScheduleChanged`` with both versions;
        ``UnknownSchedule``; ``InvalidMessage``: there are too many."""
        state = self.get(change.name)
        there = 0 if state is None else state.version
        if version is not None and version != there:
            raise ScheduleChanged.of(change.name, there, version)
        if isinstance(change, ScheduleDelete):
            if state is None:
                raise UnknownSchedule.of(change.name)
            return
        count = len(self._names) + (state is None)
        nbytes = self._nbytes + len(change.spec) - (0 if state is None else len(state.spec))
        if count > SCHEDULES_MAX or nbytes > SCHEDULE_BYTES_MAX:
            raise InvalidMessage(
                "too many schedules",
                got=f"{count}, {nbytes} bytes",
                limit=f"{SCHEDULES_MAX} schedules of {SCHEDULE_BYTES_MAX} bytes together",
                remedy="Delete some, or let one schedule send what several do",
            )

    def following(self, runs: Iterable[FiredRun]) -> list[int]:
        """The positions of those runs that follow on from the last ones, of several of a schedule
        each from the one before. *Example.* Runs 5 and 6 are planned, and somebody asks for a run
        meanwhile, which gets the number 5. Then 6 does not fit either, though it is the next
        number: with it the time of the planned 5 would be passed over."""
        fresh: dict[str, StoredSchedule | None] = {}
        fits: list[int] = []
        for position, run in enumerate(runs):
            name = run.name
            state = fresh[name] if name in fresh else self.get(name)
            if state is not None and is_next(state, run):
                fresh[name] = state._replace(runs=run.number)
                fits.append(position)
            else:
                fresh[name] = None
        return fits

    def queue(self, changes: Sequence[ScheduleChange], index: int) -> None:
        """Note the changes of an entry that was queued here."""
        for name, state in changed_by(changes, index, self.get).items():
            self._replace(name, self.get(name), state)
            self._queued[name] = index, state

    def withdraw(self, uncommitted: Iterable[tuple[int, Sequence[ScheduleChange]]]) -> None:
        """Some queued entries are gone; those are left, with their indexes."""
        for name, (_, state) in self._queued.items():
            self._replace(name, state, self._committed.get(name))
        self._queued.clear()
        for index, changes in uncommitted:
            self.queue(changes, index)

    def committed(self, changes: Sequence[ScheduleChange], index: int, *, own: bool) -> None:
        """The changes of a committed entry. ``own``: this master has made it."""
        for name, state in changed_by(changes, index, self._committed.get).items():
            queued = self._queued.get(name)
            if queued is None:
                self._replace(name, self._committed.get(name), state)
            if state is None:
                self._committed.pop(name, None)
            else:
                self._committed[name] = state
            self._unsaved[name] = state
            if queued is not None and queued[0] <= index:
                del self._queued[name]
        if own:
            runs = [change for change in changes if isinstance(change, FiredRun)]
            self.fired += len(runs)
            self.missed += sum(run.missed for run in runs)

    def _replace(
        self, name: str, before: StoredSchedule | None, after: StoredSchedule | None
    ) -> None:
        """Keep names and bytes what they are when ``get`` gives another state than before."""
        if before is None and after is not None:
            insort(self._names, name)
        elif before is not None and after is None:
            del self._names[bisect_left(self._names, name)]
        self._nbytes += 0 if after is None else len(after.spec)
        self._nbytes -= 0 if before is None else len(before.spec)

    # -- checkpoints -----------------------------------------------------------------------------

    @property
    def has_unsaved(self) -> bool:
        """True if some have changed since the last checkpoint."""
        return bool(self._unsaved)

    def unsaved(self) -> ScheduleRecords:
        """What has changed since the last checkpoint."""
        return dict(self._unsaved)

    def saved(self, records: ScheduleRecords) -> None:
        """The state store has ``records``."""
        for name, state in records.items():
            if name in self._unsaved and self._unsaved[name] is state:
                del self._unsaved[name]
