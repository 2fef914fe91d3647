"""What became of the runs of schedules, of real nodes: by the log, which is read from their
journals, and by what was delivered.

Theory: two witnesses that know nothing of each other. The log says in notes which of its rows are
which runs, and each of these rows says so in its headers; the two have to agree, and the referee of
the simulated histories (``schedulelog``) goes through them. What was delivered has to be these
rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from slotwheel.node.intake.scheduling import schedule_of
from slotwheel.policy.schedules.runheaders import (
    NOMINAL_HEADER,
    PASSED_OVER_HEADER,
    RUN_HEADER,
    SCHEDULE_HEADER,
)
from slotwheel.reading.journal import Broken, entries
from slotwheel.reading.listing import journal_segments, opened
from slotwheel.wheel.journal.entry import Entry
from slotwheel.wheel.journal.queued import arrived
from slotwheel.wheel.journal.scan import ENTRY_BYTES_MAX, SegmentReader
from slotwheel.wheel.schedules import FiredRun
from slotwheel.wheel.schema import times
from slotwheel.wheel.tail.tail import Piece
from support.nodeprocess import topic_rows
from support.schedulelog import LoggedEntry, wrong_runs

Headers = dict[str, bytes | None]


def headers_of(row: dict[str, Any]) -> Headers:
    """The headers of a row, each of which has another name."""
    return {each["key"]: each["value"] for each in row["headers"]}


def run_of(headers: Headers, due_ms: int, offset: int, version: int = 0) -> FiredRun | None:
    """The run that a row is by its headers; None: it is none."""
    name = headers.get(SCHEDULE_HEADER)
    if name is None:
        return None
    number, nominal_ms, missed = (
        int(headers[header] or b"") for header in (RUN_HEADER, NOMINAL_HEADER, PASSED_OVER_HEADER)
    )
    return FiredRun(name.decode(), version, number, nominal_ms, 0, missed, due_ms, offset)


def logged(data: Path) -> list[LoggedEntry]:
    """What the log of a stopped node says of schedules, from its first entry on. Errors:
    ``AssertionError``: a part of its journal is gone, or damaged; a row's note says another thing
    than its headers do."""
    found: list[LoggedEntry] = []
    expected = 1
    for path, _ in journal_segments(data).values():
        for entry in _entries(path):
            assert entry.index == expected, f"entry {entry.index}, expected {expected}"
            expected += 1
            queued = arrived(entry)
            noted = [each for each in queued.schedules if isinstance(each, FiredRun)]
            rows = [] if queued.piece is None else list(_runs_in(queued.piece))
            as_noted = [run._replace(version=0, decided_ms=0) for run in noted]
            assert rows == as_noted, f"entry {entry.index}: {rows} is noted as {as_noted}"
            if queued.schedules:
                is_asked = bool(noted) and noted[0].decided_ms != noted[0].nominal_ms
                found.append(LoggedEntry(entry.index, queued.schedules, noted, is_asked=is_asked))
    return found


def _entries(path: Path) -> Iterator[Entry]:
    """The entries of a segment, up to a torn end."""
    with opened(path) as handle:
        for located in entries(SegmentReader(handle, f"journal/{path.name}", ENTRY_BYTES_MAX)):
            if isinstance(located, Broken):
                assert located.following is None, located
                return
            yield located.entry


def _runs_in(piece: Piece) -> Iterator[FiredRun]:
    columns = (piece.rows.column(name).to_pylist() for name in ("headers", "cancels"))
    due = times(piece.rows, "due").tolist()
    for row, (due_ms, headers, cancels) in enumerate(zip(due, *columns, strict=True)):
        if cancels is None:
            run = run_of(headers_of({"headers": headers}), due_ms, piece.base_offset + row)
            if run is not None:
                yield run


def delivered_runs(data: Iterable[Path], topic: str) -> Counter[FiredRun]:
    """The runs that were delivered to an embedded topic of these directories, and how often each
    was."""
    found: Counter[FiredRun] = Counter()
    for path in data:
        if (path / "topics").exists():
            for row in topic_rows(path, topic):
                due_ms = round(row["due"].timestamp() * 1000)
                run = run_of(headers_of(row), due_ms, row["offset"])
                assert run is not None, row
                found[run] += 1
    return found


def wrong_by_the_log(log: Sequence[LoggedEntry]) -> list[str]:
    """What is wrong with the runs of a log."""
    return wrong_runs(log, schedule_of)


def wrong_deliveries(
    log: Sequence[LoggedEntry],
    delivered: Counter[FiredRun],
    upto_ms: int,
    *,
    once: bool,
) -> list[str]:
    """What is wrong with what was delivered: it has to be the log's rows, all that were due up to
    ``upto_ms`` among them; ``once``: each once."""
    rows = {run._replace(version=0, decided_ms=0) for entry in log for run in entry.rows}
    wrong = [f"delivered and in no entry: {run}" for run in delivered.keys() - rows]
    wrong += [f"lost: {run}" for run in rows - delivered.keys() if run.due_ms <= upto_ms]
    if once:
        wrong += [f"{count} times: {run}" for run, count in delivered.items() if count > 1]
    return wrong
