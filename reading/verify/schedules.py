"""Verifies the stored table of schedules: it says what the entries of the journal do.

Theory: the table is a function of the log (``wheel/schedules.py``), and a record in the state store
is that function up to the checkpoint, or up to a later entry, which it names. So the changes in the
journal, up to there, must give the same record. One that lacks a run would have it fired twice; one
that is ahead of the log passes over a run.

Rules
- Where the journal begins later than the log, what was before is not known: then only those fields
  are compared that an entry in the journal has set.
- A journal with damage is compared with nothing: what was damaged may be the change that is
  missing.
- A record may be gone by an entry behind the checkpoint, as one may be newer than it.

*Example.* The journal begins with entry 40. Entry 52 brings run 7 of ``beat``, and the checkpoint
is at 60: the record must have run 7, with its times and its offset, and must name 52. How many runs
were missed before, only entries before 40 would say.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...wheel.errors import Damaged
from ...wheel.findings import CheckedFile
from ...wheel.schedules import (
    FiredRun,
    ScheduleChange,
    ScheduleDelete,
    SchedulePut,
    StoredSchedule,
    changed_by,
    decode_schedule,
)
from ...wheel.state import STATE_DIRECTORY, StoredState

_Fields = dict[str, int | bytes]
_WHOLE = frozenset(StoredSchedule._fields)


class ScheduleCheck:
    """Follows the changes of schedules through a journal, up to where the stored table is.
    ``first_index``: of the journal's first entry."""

    def __init__(self, stored: StoredState, first_index: int) -> None:
        self.item = CheckedFile("schedules", STATE_DIRECTORY, rows=len(stored.schedules))
        self._upto = stored.checkpoint.index
        self._records: dict[str, StoredSchedule] = {}
        for name, record in stored.schedules.items():
            try:
                self._records[name] = decode_schedule(record, STATE_DIRECTORY)
            except Damaged as error:
                self.item.error(error)
        self._expected: dict[str, _Fields | None] = {}
        """What is known of each schedule that was changed; None: it is gone."""
        self._gone_later: set[str] = set()
        self._is_whole = first_index == 1
        """The journal has all entries of the log."""

    def add(self, changes: Sequence[ScheduleChange], index: int) -> None:
        """Take in the changes of the next entry that has any."""
        counted = [change for change in changes if index <= self._limit(change.name)]
        self._gone_later |= {
            change.name
            for change in changes
            if isinstance(change, ScheduleDelete) and index > self._limit(change.name)
        }
        whole = [change for change in counted if self._is_known(change.name)]
        for name, state in changed_by(whole, index, self._state_of).items():
            self._expected[name] = None if state is None else state._asdict()
        for change in counted:
            if not self._is_known(change.name):
                self._expected[change.name] = self._partly(change, index)

    def compare(self, *, broken: bool) -> CheckedFile | None:
        """The result, behind the last entry; None: there are no schedules. ``broken``: entries are
        missing from the journal."""
        names = sorted(self._records.keys() | self._expected.keys())
        if broken and names:
            self.item.note(0, "the whole journal", "damage: schedules are not compared with it")
        if not broken:
            for name in names:
                self._compare(name)
        return self.item if names or self.item.faults else None

    def _limit(self, name: str) -> int:
        """The index of the last entry that the stored table knows of a schedule, at least."""
        record = self._records.get(name)
        return self._upto if record is None else max(self._upto, record.changed_at)

    def _is_known(self, name: str) -> bool:
        fields = self._expected.get(name)
        if name not in self._expected:
            return self._is_whole
        return fields is None or fields.keys() >= _WHOLE

    def _state_of(self, name: str) -> StoredSchedule | None:
        fields = self._expected.get(name)
        return None if fields is None else StoredSchedule(**fields)  # type: ignore[arg-type]

    def _partly(self, change: ScheduleChange, index: int) -> _Fields | None:
        """What is known of a schedule behind a change, where not all of it was known before."""
        if isinstance(change, ScheduleDelete):
            return None
        fields = dict(self._expected.get(change.name) or {})
        if isinstance(change, SchedulePut):
            fields |= {"version": index, "changed_at": index, "spec": change.spec}
            if "decided_ms" in fields:
                fields["decided_ms"] = max(int(fields["decided_ms"]), change.from_ms - 1)
            return fields
        if not _may_follow(fields, change):
            return fields
        return fields | {
            "version": change.version,
            "changed_at": index,
            "decided_ms": change.decided_ms,
            "runs": change.number,
            "nominal_ms": change.nominal_ms,
            "due_ms": change.due_ms,
            "offset": change.offset,
        }

    def _compare(self, name: str) -> None:
        record = self._records.get(name)
        if name not in self._expected:
            if self._is_whole:
                self.item.fault(0, "schedules that an entry has put", f"{name!r}, which none has")
            return
        fields = self._expected[name]
        if fields is None:
            if record is not None:
                self.item.fault(0, f"no schedule {name!r}, as it was deleted", "a record of it")
            return
        if record is None:
            if name not in self._gone_later:
                expected = f"a record of schedule {name!r}, which entries have put or fired"
                self.item.fault(0, expected, "none")
            return
        for field, value in fields.items():
            found = getattr(record, field)
            if found != value:
                self.item.fault(0, f"schedule {name!r}, {field}: {_shown(value)}", _shown(found))


def _may_follow(fields: _Fields, run: FiredRun) -> bool:
    """True unless a run surely is not the next one."""
    version, runs = fields.get("version", run.version), fields.get("runs", run.number - 1)
    return (version, runs) == (run.version, run.number - 1)


def _shown(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
