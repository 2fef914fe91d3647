"""Validator *conservation* for schedules: each run is there once, when its schedule says.

Theory: when a run is due is a function of its schedule and of the run before. So a schedule is
followed through the log, change by change and run by run, and each run is compared with what the
rules (``policy/schedules``) make of those before it. Neither the wheel's table of schedules nor its
counters are asked.

*Example.* Entry 3 puts ``beat``, every 10 s. Entries 5, 6 and 8 bring runs 1, 2 and 3 of 12:00:10,
12:00:20 and 12:00:40. Run 3 should have been that of 12:00:30, unless that one was missed: then the
header of run 3 says so, and the rule for missed runs must allow it.

Rules
- A run that stands behind the entry that deleted or paused its schedule is blamed. What stood
  before it was leaving, and leaves.
- A run that somebody asked for is due when its row was accepted, and moves no other run.
- A run was missed for sure if it is by the clock of the run that says so. What has become of it
  before, while clocks of masters differed, leaves no trace.
- Where entries are missing, nobody knows what they changed. The next run shows how far its schedule
  has come, and its note, which version was in force. If no journal and no state store has that
  version, its runs are *not judged*; the verdict says how many.
- After a run that is blamed, its schedule goes on from there: one fault is not blamed twice.
- That the newest run is missing is found where the log goes on for a minute with masters that did
  not change.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from ...policy.schedules.missed import (
    ScheduleProgress,
    is_passed_over,
    passed_together,
    plan_runs,
)
from ...policy.schedules.spec import Schedule
from ...policy.schedules.successor import due_ms, next_run
from ...reading.problems import CONSERVATION, Problem
from ...wheel.checks import is_time
from ...wheel.errors import SlotwheelError
from ...wheel.texts import counted, time_text
from ..facts.scan import Batches
from ..facts.scheduled import RUNS, SCHEDULES, share_of, stored_text, unpacked
from .context import Context
from .judged import Judged
from .shares import by_share, in_shares
from .sums import JUDGED_ARROW, counts, problem_rows

RUN_MISSING, RUN_TWICE, WRONG_RUN = "run missing", "run twice", "wrong run"
RUN_AFTER_DELETE, RUN_WHILE_PAUSED = "run after delete", "run while paused"
RUN_AFTER_END = "run after end"
SCHEDULED, SCHEDULED_UNJUDGED = "again:runs", "unjudged:runs"
"""Counts beside the classes: runs of schedules, and those that were not judged."""
ALIVE_MS = 60_000
"""What a master has not fired so long after it was due, and while it took rows, is missing, ms."""
_COLUMNS = ("what", "bucket", "data", "text")
_STEPS_MAX = 20_000
"""Up to so many missed runs before a run are looked at one by one."""


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A run as of ``facts.scheduled.RUNS_ARROW``, without the name of its schedule."""

    index: int
    epoch: int
    offset: int
    due: int
    created: int
    clock: int
    number: int
    nominal: int
    missed: int
    topic: int
    version: int = -1
    decided: int = -1
    differs: bool = False


@dataclass(frozen=True, slots=True)
class ChangeSeen:
    """A change of a schedule, the one of that ``number`` in its entry. ``spec`` None: it deletes
    the schedule. ``from_ms``: its runs go on from there."""

    index: int
    epoch: int
    number: int = 0
    spec: bytes | None = None
    from_ms: int = 0


class ScheduleEvidence(NamedTuple):
    """All that was seen of one schedule. ``stored``: specifications by their versions, of state
    stores."""

    name: str
    runs: Collection[RunSeen]
    changes: Collection[ChangeSeen]
    stored: Mapping[int, bytes]


def judge_schedule(seen: ScheduleEvidence, context: Context, result: Judged) -> None:
    """Report the runs of a schedule that do not follow from those before them."""
    _Course(seen, context, result).judge()


class _Course:
    """How far a schedule has come, entry by entry."""

    def __init__(self, seen: ScheduleEvidence, context: Context, result: Judged) -> None:
        self._seen = seen
        self._context = context
        self._result = result
        self._log = context.log
        self._range = 0
        self._exists: bool | None = False if self._log.is_from_the_begin else None
        """None: not known; so is what follows where it is None."""
        self._deleted_at: int | None = None
        """Index of the entry that has deleted it last."""
        self._version: int | None = None
        self._schedule: Schedule | None = None
        self._runs: int | None = None
        """The number of the last run."""
        self._decided_ms: int | None = None
        """All runs with a nominal time up to here are decided."""
        self._last: RunSeen | None = None

    def judge(self) -> None:
        for event in self._events():
            self._pass_to(event.index)
            if isinstance(event, ChangeSeen):
                self._change(event)
            else:
                self._result.count(SCHEDULED, 1)
                self._run(event)
        if self._range == self._log.last_range:
            self._end()

    def _events(self) -> list[RunSeen | ChangeSeen]:
        """Changes and runs in the order of the log, each once, though each peer may have it."""
        seen: list[RunSeen | ChangeSeen] = [*self._seen.changes, *self._seen.runs]
        events: dict[tuple[int, int], RunSeen | ChangeSeen] = {}
        for event in seen:
            if not self._log.is_overruled(event.index, event.epoch):
                place = event.number if isinstance(event, ChangeSeen) else event.offset
                events.setdefault((event.index, place), event)
        return [event for _, event in sorted(events.items(), key=itemgetter(0))]

    def _pass_to(self, index: int) -> None:
        """Go on to an entry. Entries that are missing before it may have changed everything."""
        if (now := self._log.range_of(index)) == self._range:
            return
        self._range = now
        self._exists = self._runs = self._decided_ms = None

    def _change(self, change: ChangeSeen) -> None:
        if change.spec is None:
            self._exists, self._deleted_at = False, change.index
            return
        if self._exists is False:
            self._runs, self._decided_ms, self._last = 0, change.from_ms - 1, None
        elif self._decided_ms is not None:
            self._decided_ms = max(self._decided_ms, change.from_ms - 1)
        self._exists, self._version = True, change.index
        self._schedule = _decoded(change.spec)

    # -- runs ------------------------------------------------------------------------------------

    def _run(self, run: RunSeen) -> None:
        """Judge a run, and go on from it."""
        if run.version < 0:
            why = "its entry does not note it, so its schedule makes this run once more"
            self._blame(WRONG_RUN, run, why)
            return
        if self._exists is False:
            self._of_nobody(run)
            return
        decided_ms: int | None = run.decided
        number, expected = run.number, None if self._runs is None else self._runs + 1
        if run.differs:
            self._blame(WRONG_RUN, run, "its entry notes another run in its place")
            self._runs = self._decided_ms = None
            return
        if expected is not None and number < expected:
            self._blame(RUN_TWICE, run, f"expected run {expected}: this one was there before")
            return
        if self._exists and run.version != self._version:
            why = f"it is of version {run.version}, and version {self._version} is in force"
            self._blame(WRONG_RUN, run, why)
            decided_ms = None
        elif expected is not None and number > expected:
            lack = (
                f"run {expected}" if number == expected + 1 else f"runs {expected} to {number - 1}"
            )
            self._blame(RUN_MISSING, run, f"expected run {expected}: no entry has {lack}")
        elif not self._is_known(run.version):
            self._result.count(SCHEDULED_UNJUDGED, 1)
        elif (fault := self._fault_of(run)) is not None:
            kind, why = fault
            self._blame(kind, run, why)
            decided_ms = None if kind in (WRONG_RUN, RUN_TWICE) else decided_ms
        self._exists, self._runs, self._decided_ms, self._last = True, number, decided_ms, run

    def _of_nobody(self, run: RunSeen) -> None:
        if self._deleted_at is None:
            self._blame(WRONG_RUN, run, "no entry before has put a schedule of that name")
        else:
            self._blame(RUN_AFTER_DELETE, run, f"entry {self._deleted_at} has deleted it")

    def _is_known(self, version: int) -> bool:
        """True if it is known what the schedule of a version says, which is in force from here."""
        if version != self._version:
            self._version = version
            spec = self._seen.stored.get(version)
            self._schedule = None if spec is None else _decoded(spec)
        return self._schedule is not None

    def _fault_of(self, run: RunSeen) -> tuple[str, str] | None:
        """The kind and the text of what is wrong with the next run; None: nothing is."""
        schedule, before_ms = self._schedule, self._decided_ms
        assert schedule is not None
        if run.topic != crc32c(schedule.template.topic.encode()):
            return WRONG_RUN, f"expected a message to topic {schedule.template.topic!r}"
        moves_none = run.decided != run.nominal if before_ms is None else run.decided == before_ms
        if moves_none and ((asked := _fault_of_asked(run)) is None or run.nominal != before_ms):
            return asked
        if run.decided != run.nominal:
            return WRONG_RUN, f"its entry notes that all is decided up to {_shown(run.decided)}"
        if schedule.paused:
            return RUN_WHILE_PAUSED, f"version {run.version} is paused"
        if before_ms is None:
            if next_run(schedule, run.nominal - 1) != run.nominal:
                return WRONG_RUN, "its schedule is not due then"
        elif (fault := _fault_of_successor(schedule, before_ms, run)) is not None:
            return fault
        following_ms = next_run(schedule, run.nominal)
        if is_passed_over(schedule, run.nominal, following_ms, run.created):
            return WRONG_RUN, f"it was missed at {_shown(run.created)}, and not to be made up"
        if run.due != (right_ms := due_ms(schedule, run.nominal, following_ms)):
            return WRONG_RUN, f"its message is due at {run.due} ms, expected {right_ms}"
        return None

    def _end(self) -> None:
        """Look for runs that are missing behind the last one."""
        schedule, newest = self._schedule, self._log.newest
        if not newest or newest[1] - newest[0] < ALIVE_MS or not self._exists or schedule is None:
            return
        if self._runs is None or self._decided_ms is None or schedule.template.name is not None:
            return
        now_ms = newest[1] - ALIVE_MS
        progress = ScheduleProgress(self._decided_ms, self._runs)
        plan = plan_runs(schedule, progress, now_ms, ahead_ms=0)
        if plan.runs:
            run = plan.runs[0]
            why = (
                f"expected run {run.number}, of {_shown(run.nominal_ms)}: no entry has it, and the"
                f" log goes on until {_shown(newest[1])}"
            )
            self._report(RUN_MISSING, run.due_ms, why, self._last)

    # -- reports ---------------------------------------------------------------------------------

    def _blame(self, kind: str, run: RunSeen, why: str) -> None:
        text = f"run {run.number}, of {_shown(run.nominal)}, in entry {run.index}: {why}"
        self._report(kind, run.due, text, run)

    def _report(self, kind: str, due: int, text: str, run: RunSeen | None) -> None:
        options, result = self._context.options, self._result
        if not options.judges(np.array([due]))[0]:
            return
        result.problem_counts[kind] = result.problem_counts.get(kind, 0) + 1
        if len(result.problems) < options.problems_max:
            text = f"schedule {self._seen.name!r}, {text}"
            place = (
                (self._context.terms.id_of(run.due, run.offset), run.offset, run.due)
                if run is not None
                else ("", -1, -1)
            )
            result.problems.append(Problem(CONSERVATION, kind, text, *place))


def _fault_of_asked(run: RunSeen) -> tuple[str, str] | None:
    """What is wrong with a run that somebody asked for."""
    if run.due == run.nominal == run.created and not run.missed:
        return None
    return WRONG_RUN, (
        f"it moves no other run, so it was asked for, at {_shown(run.created)}, and is due at"
        f" {run.due} ms, with {run.missed} missed runs before it; expected the time at which it was"
        " asked for, and none"
    )


def _fault_of_successor(schedule: Schedule, before_ms: int, run: RunSeen) -> tuple[str, str] | None:
    """What is wrong with the nominal time of a run. ``before_ms``: all runs up to there are
    decided."""
    runs = run.number - 1
    expected_ms = next_ms = next_run(schedule, before_ms, runs)
    if expected_ms is None:
        return RUN_AFTER_END, f"its schedule has ended at {_shown(before_ms)}"
    now_ms, missed, steps = max(run.created, run.clock), 0, 0
    last_ms = before_ms
    wanted_ms: int | None = None  # the first run that is not there, and was not missed by then
    while next_ms is not None and next_ms < run.nominal and steps < _STEPS_MAX:
        together = passed_together(schedule, next_ms, now_ms)
        if together and schedule.every_ms is not None:
            together = min(together, -(-(run.nominal - next_ms) // schedule.every_ms))
            last_ms = next_ms + (together - 1) * schedule.every_ms
        else:
            together, last_ms = 1, next_ms
            is_missed = is_passed_over(schedule, next_ms, next_run(schedule, next_ms), now_ms)
            if wanted_ms is None and not is_missed:
                wanted_ms = next_ms
        missed, steps = missed + together, steps + 1
        next_ms = next_run(schedule, last_ms, runs)
    is_counted = steps < _STEPS_MAX
    if not is_counted:
        next_ms = next_run(schedule, run.nominal - 1, runs)
    if next_ms != run.nominal:
        if next_ms is None:
            return RUN_AFTER_END, f"its schedule has ended at {_shown(last_ms)}"
        if next_run(schedule, run.nominal - 1) == run.nominal:
            return RUN_TWICE, f"expected that of {_shown(expected_ms)}: this one was there before"
        return WRONG_RUN, f"expected that of {_shown(expected_ms)}"
    if wanted_ms is not None:
        return RUN_MISSING, f"expected that of {_shown(wanted_ms)}, which was not missed by then"
    if is_counted and run.missed != missed:
        return WRONG_RUN, (
            f"its header says that {counted(run.missed, 'missed run')} became no message before it;"
            f" expected {missed}"
        )
    return None


@lru_cache(maxsize=4096)
def _decoded(spec: bytes) -> Schedule | None:
    """The schedule of a specification; None: this version, or this machine's table of time zones,
    does not know what it says."""
    try:
        return Schedule.decoded(spec)
    except (ValueError, SlotwheelError):
        return None


def _shown(ms: int) -> str:
    return time_text(ms) if is_time(ms) else f"{ms} ms"


def judge_all_schedules(
    scanned: DataFrame, stored: Mapping[tuple[str, int], bytes], context: Context, partitions: int
) -> DataFrame:
    """Judge the runs of all schedules. Columns: ``JUDGED_ARROW``. ``scanned``: a scan. ``stored``:
    specifications by name and version, of state stores. ``partitions``: of the shuffle."""

    def judge_shares(batches: Batches) -> Batches:
        for _, rows in by_share(batches, "bucket"):
            result = Judged()
            for seen in evidence(rows):
                judge_schedule(seen, context, result)
            if result.problems:
                yield from problem_rows(result.problems).to_batches()
            yield from counts("problems", result.problem_counts).to_batches()
            yield from counts("count", result.counts).to_batches()

    rows = scanned.where(f.col("what").isin(RUNS, SCHEDULES)).select(*_COLUMNS)
    if stored:
        known = [
            (SCHEDULES, share_of(name), None, stored_text(name, version, spec))
            for (name, version), spec in stored.items()
        ]
        session = scanned.sparkSession
        given = session.createDataFrame(session.sparkContext.parallelize(known), rows.schema)
        rows = rows.union(given)
    return in_shares(rows, "bucket", partitions).mapInArrow(
        judge_shares, from_arrow_schema(JUDGED_ARROW)
    )


def evidence(rows: Iterable[Mapping[str, Any]]) -> Iterator[ScheduleEvidence]:
    """All that was seen of each schedule of a share. ``rows``: those of a scan, of the kinds
    ``RUNS`` and ``SCHEDULES``."""
    runs: dict[str, list[RunSeen]] = defaultdict(list)
    changes: dict[str, list[ChangeSeen]] = defaultdict(list)
    stored: dict[str, dict[int, bytes]] = defaultdict(dict)
    for row in rows:
        if row["what"] == RUNS:
            columns = [column.to_pylist() for column in unpacked(row["data"]).columns]
            for name, *values in zip(*columns, strict=True):
                runs[name].append(RunSeen(*values))
            continue
        fields = json.loads(row["text"])
        name = fields["name"]
        spec = fields["spec"].encode() if "spec" in fields else None
        if "version" in fields and spec is not None:
            stored[name][fields["version"]] = spec
        else:
            place = fields["index"], fields["epoch"], fields["number"]
            changes[name].append(ChangeSeen(*place, spec, fields.get("from_ms", 0)))
    for name in sorted(runs.keys() | changes.keys()):
        yield ScheduleEvidence(name, runs[name], changes[name], stored[name])
