"""Verifies what an entry notes of its rows: that these are there, and are what it says.

Theory: a note is believed by whoever replays the log: receipts that come again are answered by it,
and schedules go on by it. So a note about a row that is not there, or about a cancel that is not
there, makes the wheel say *replaced* of a message that leaves all the same, or pass over a run.

*Example.* An entry notes that its row 0 replaced the message of offset 70. One of its rows must
cancel 70; without it both messages of that name are pending.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ...wheel.answers import Before
from ...wheel.findings import CheckedFile
from ...wheel.journal.entry import Entry, NoteKind
from ...wheel.journal.payloads import CancelRows
from ...wheel.names import NAME_HEADER, decode_named
from ...wheel.rows import header_values
from ...wheel.schedules import FiredRun
from ...wheel.schema import times
from ..journal import runs_of
from ..scheduledrows import is_noted, run_headers_of


def check_notes(
    item: CheckedFile, position: int, entry: Entry, rows: pa.RecordBatch
) -> list[FiredRun]:
    """Report notes that do not fit the rows (PAYLOAD schema) of their entry, at ``position`` of the
    file. Returns the runs of schedules that are noted. Errors: ``Damaged``: more than there are
    rows."""
    if NoteKind.NAMES in entry.notes:
        _check_names(item, position, entry, rows)
    runs = runs_of(entry, rows, item.path)
    _check_runs(item, position, runs, rows)
    return runs


def _check_names(item: CheckedFile, position: int, entry: Entry, rows: pa.RecordBatch) -> None:
    given = header_values(rows.column("headers"), NAME_HEADER)
    named = set() if given is None else set(given[0].tolist())
    cancels = CancelRows.of(rows, entry.base_offset)
    cancelled = set(zip(cancels.target.tolist(), cancels.due.tolist(), strict=True))
    due = times(rows, "due").tolist()
    try:
        answers = decode_named(entry.notes[NoteKind.NAMES])
    except ValueError as error:
        item.fault(position, "what became of messages with the names of rows", error)
        return
    for answer in answers:
        row, before = answer.row, answer.before
        if row not in named:
            found = "has none" if row < len(due) else f"is none of {len(due)} rows"
            item.fault(position, "a name of each row that a note is about", f"row {row} {found}")
            continue
        replaced = answer.offset, answer.due
        target = {Before.REPLACED: replaced, Before.KEPT: (entry.base_offset + row, due[row])}
        if before in target and target[before] not in cancelled:
            offset, _ = target[before]
            expected = f"a row that cancels offset {offset}, as row {row} is noted as *{before}*"
            item.fault(position, expected, f"{len(cancels)} cancel rows, none of it")


def _check_runs(
    item: CheckedFile, position: int, runs: Sequence[FiredRun], rows: pa.RecordBatch
) -> None:
    said = run_headers_of(rows)
    for row, run in enumerate(runs):
        headers = said.pop(row, None)
        if not is_noted(headers, run):
            expected = f"run {run.number} of schedule {run.name!r} in row {row}, as is noted"
            found = "no run" if headers is None else f"headers of {headers}"
            item.fault(position, expected, found)
    if said:
        row, headers = next(iter(said.items()))
        item.fault(position, f"a note of the run in row {row}", f"none of {headers}")
