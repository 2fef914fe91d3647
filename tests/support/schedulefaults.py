"""Faults of schedules that the proof is held against: what is planted into the log of a run, and
which message must be blamed for it. See ``faulttable.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slotwheel.replay.judging.schedules import (
    RUN_AFTER_DELETE,
    RUN_AFTER_END,
    RUN_MISSING,
    RUN_TWICE,
    RUN_WHILE_PAUSED,
    WRONG_RUN,
)
from support.planting import SCHEDULED_RUN, Fault, Lab, Meant, Plant
from support.scheduledrun import AWAY_MS, LoggedEntry, LoggedRun, ScheduledRun


def planted(kind: str, change: Callable[[ScheduledRun], LoggedRun]) -> Plant:
    """Plant a fault. ``change``: returns the run that must be blamed."""

    def plant(lab: Lab) -> None:
        assert isinstance(lab.run, ScheduledRun)
        blamed = change(lab.run)
        lab.run.settle()
        lab.blame(kind, blamed.offset)

    return plant


def lose(run: ScheduledRun) -> LoggedRun:
    """Neither row nor note of a run is there; the next one is blamed."""
    lost, after = run.runs("beat")[7:9]
    run.entry_of(lost).runs.remove(lost)
    return after


def lose_several(run: ScheduledRun) -> LoggedRun:
    runs = run.runs("cron")
    for lost in runs[2:4]:
        run.entry_of(lost).runs.remove(lost)
    return runs[4]


def pass_over(run: ScheduledRun) -> LoggedRun:
    """A run is left out, and those behind it have its number, and so on."""
    lost, *after = run.runs("replaced")[20:]
    run.entry_of(lost).runs.remove(lost)
    for later in after:
        later.changed(number=later.run.number - 1)
    return after[0]


def pass_over_as_missed(run: ScheduledRun) -> LoggedRun:
    """As before, and the next one calls it missed, though a master was there."""
    after = pass_over(run)
    after.changed(passed_over=1)
    return after


def lose_the_last(run: ScheduledRun) -> LoggedRun:
    """The runs of the last minutes are missing; the one before is blamed."""
    *_, last = [one for one in run.runs("beat") if one.run.nominal_ms < AWAY_MS.stop + 60_000]
    for lost in run.runs("beat")[last.run.number :]:
        run.entry_of(lost).runs.remove(lost)
    return last


def come_twice(run: ScheduledRun) -> LoggedRun:
    """An entry with the same row and the same note stands behind the right one."""
    first = run.runs("beat")[7]
    again = replace(first)
    run.log.insert(run.log.index(run.entry_of(first)) + 1, LoggedEntry(runs=[again]))
    return again


def come_again(run: ScheduledRun) -> LoggedRun:
    """A run has the next number, and the nominal time of the one before it."""
    first, *after = run.runs("beat")[7:]
    again = replace(first)
    again.changed(number=first.run.number + 1)
    run.log.insert(run.log.index(run.entry_of(first)) + 1, LoggedEntry(runs=[again]))
    for later in after:
        later.changed(number=later.run.number + 1)
    return again


def leave_unnoted(run: ScheduledRun) -> LoggedRun:
    """The engine forgets that a row was a run, and fires it once more."""
    first = run.runs("beat")[7]
    again = replace(first, is_noted=False)
    run.log.insert(run.log.index(run.entry_of(first)), LoggedEntry(runs=[again]))
    return again


def fire_deleted(run: ScheduledRun) -> LoggedRun:
    """A run more, in an entry behind that which deletes its schedule."""
    last = run.runs("deleted")[-1]
    number, nominal_ms = last.run.number + 1, last.run.nominal_ms + 10_000
    more = replace(last, decided_ms=nominal_ms)
    more.changed(number=number, nominal_ms=nominal_ms, due_ms=nominal_ms)
    (deletes,) = [
        at
        for at, entry in enumerate(run.log)
        if entry.change is not None and not hasattr(entry.change, "spec")
    ]
    run.log.insert(deletes + 1, LoggedEntry(runs=[more]))
    return more


def fire_paused(run: ScheduledRun) -> LoggedRun:
    """The run that somebody has asked for during the pause is one of the schedule's own."""
    (asked,) = [one for one in run.runs("paused") if one.decided_ms != one.run.nominal_ms]
    nominal_ms = asked.decided_ms + 10_000
    asked.changed(nominal_ms=nominal_ms, due_ms=nominal_ms)
    asked.decided_ms = nominal_ms
    return asked


def fire_more(name: str, every_ms: int) -> Callable[[ScheduledRun], LoggedRun]:
    """Fire a schedule once more than its count or its end says."""

    def change(run: ScheduledRun) -> LoggedRun:
        last = run.runs(name)[-1]
        nominal_ms = last.run.nominal_ms + every_ms
        more = replace(last, decided_ms=nominal_ms)
        more.changed(number=last.run.number + 1, nominal_ms=nominal_ms, due_ms=nominal_ms)
        run.log.insert(run.log.index(run.entry_of(last)) + 1, LoggedEntry(runs=[more]))
        return more

    return change


def fire_replaced(run: ScheduledRun) -> LoggedRun:
    """A run of the version before is fired behind the entry that puts another one."""
    runs = run.runs("replaced")
    first = next(one for one in runs if one.put is not runs[0].put)
    first.put = runs[0].put
    return first


def shift(run: ScheduledRun) -> LoggedRun:
    """A run is three seconds off."""
    wrong = run.runs("beat")[7]
    nominal_ms = wrong.run.nominal_ms + 3_000
    wrong.changed(nominal_ms=nominal_ms, due_ms=nominal_ms)
    wrong.decided_ms = nominal_ms
    return wrong


def shift_due(run: ScheduledRun) -> LoggedRun:
    """A message is due one millisecond beside where its jitter puts it."""
    wrong = run.runs("cron")[3]
    wrong.changed(due_ms=wrong.run.due_ms + 1)
    return wrong


def miscount(run: ScheduledRun) -> LoggedRun:
    """The first run after the nodes were away says one missed run too few."""
    wrong = next(one for one in run.runs("skips") if one.run.passed_over)
    wrong.changed(passed_over=wrong.run.passed_over - 1)
    return wrong


def make_up(run: ScheduledRun) -> LoggedRun:
    """A run is made up though its schedule says that missed ones are skipped."""
    first, *after = [one for one in run.runs("skips") if one.created_ms > AWAY_MS.stop]
    nominal_ms = first.run.nominal_ms - 60_000
    more = replace(first, decided_ms=nominal_ms)
    more.changed(nominal_ms=nominal_ms, due_ms=nominal_ms, passed_over=first.run.passed_over - 3)
    run.log.insert(run.log.index(run.entry_of(first)), LoggedEntry(runs=[more]))
    for later in (first, *after):
        later.changed(number=later.run.number + 1)
    return more


def note_another(run: ScheduledRun) -> LoggedRun:
    wrong = run.runs("beat")[7]
    wrong.noted = wrong.run._replace(number=wrong.run.number + 1)
    return wrong


def send_elsewhere(run: ScheduledRun) -> LoggedRun:
    """A run is for another topic than its template's, and gets there."""
    wrong = run.runs("beat")[-1]
    wrong.topic = "bills"
    return wrong


def wait(run: ScheduledRun) -> LoggedRun:
    """A run that somebody has asked for is due a second later."""
    (asked,) = [one for one in run.runs("beat") if one.decided_ms != one.run.nominal_ms]
    asked.changed(due_ms=asked.run.due_ms + 1_000)
    return asked


_PLANTED: list[tuple[str, str, Callable[[ScheduledRun], LoggedRun]]] = [
    ("a run is missing", RUN_MISSING, lose),
    ("two runs are missing", RUN_MISSING, lose_several),
    ("a run is missing, and the next one has its number", RUN_MISSING, pass_over),
    ("the same, and it is called missed, though it was not", RUN_MISSING, pass_over_as_missed),
    ("the newest runs are missing", RUN_MISSING, lose_the_last),
    ("an entry with a run stands there twice, under other offsets", RUN_TWICE, come_twice),
    ("a run has the time of the one before it", RUN_TWICE, come_again),
    ("a row is a run, and no note says so", WRONG_RUN, leave_unnoted),
    ("a note says another number than its row", WRONG_RUN, note_another),
    ("a run behind the entry that deletes its schedule", RUN_AFTER_DELETE, fire_deleted),
    ("a run of a paused schedule", RUN_WHILE_PAUSED, fire_paused),
    ("a run more than the schedule's count", RUN_AFTER_END, fire_more("counted", 15_000)),
    ("a run behind the schedule's end", RUN_AFTER_END, fire_more("ended", 30_000)),
    ("a run of the version before, behind the entry with another", WRONG_RUN, fire_replaced),
    ("a run is 3 s off", WRONG_RUN, shift),
    ("a message is due 1 ms beside its jitter", WRONG_RUN, shift_due),
    ("a header says one missed run too few", WRONG_RUN, miscount),
    ("a missed run is made up that was to be skipped", WRONG_RUN, make_up),
    ("a run goes to another topic", WRONG_RUN, send_elsewhere),
    ("a run that was asked for is due a second later", WRONG_RUN, wait),
]
SCHEDULES: list[Fault] = [
    Meant(text, planted(kind, change), run=SCHEDULED_RUN) for text, kind, change in _PLANTED
]
