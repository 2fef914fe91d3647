"""The running audit: batch after batch of facts becomes flags, each reported once. No Spark here.

    batch of the stream -> ledger -> windows whose time has come -> flags, a line a window
                   |                       |
                   +-- marks, gaps ------- context

Theory: everything that must survive is one small file, replaced at the end of each batch: how long
the windows' files are, what was reported, how far journals were read. If Spark repeats a batch
after a crash, the file is as before that batch, which is done again; a batch that the file has
already is skipped.

Rules
- A window is judged when everything was read that journals and topics held at some moment after its
  end and the grace; and again when further facts arrive for it, or a mark may have passed its
  waiting messages.
- A window is dropped ``KEEP_MS`` after that, when none of its messages is missing. At most
  ``WINDOWS_MAX`` others are kept; the oldest are dropped first.
- Flags are written to disk before they are reported. If the process is killed while it reports
  them, those of that moment may be reported again; none is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from ...reading.files import Layout
from ...reading.problems import Problem
from ..facts.summary import FileSummary
from ..facts.traced import TraceSummary
from ..judging.context import Context
from . import ledger
from .accounttables import AccountTables
from .audit_state import AuditWindow, Settings, State
from .findings import Findings, ReportFinding
from .windows import AFTER_ALL, COUNTED, OVERDUE, REPEATED, Judgement, judge_window

__all__ = ["Audit", "Job", "Settings", "run_job"]

WINDOWS_NAME = "windows"
KEEP_MS = 60_000
TRACED_KEEP_MS = 600_000
"""Instead of ``KEEP_MS``, with traces: an answer that comes later does not count."""
WINDOWS_MAX = 1_000
"""Windows that are kept because some of their messages are missing."""
NOT_JUDGED = {
    "named": "whether two messages of one name were pending at once",
    "scheduled": "whether each run of a schedule was the next one",
}
"""What only the whole proof judges, by the field of a summary that says that there is any."""
TOTALS = (*COUNTED, OVERDUE, REPEATED, "unaccounted")


@dataclass(frozen=True, slots=True)
class Job:
    """One window to be judged. ``folder``: of the windows' files; ``length``: valid bytes of its
    facts; ``told``: name of the file with what was reported, empty: nothing; ``forgotten``: it was
    dropped before."""

    folder: str
    start: int
    length: int
    told: str
    context: Context
    events: TraceSummary | None
    forgotten: bool


def run_job(job: Job) -> Judgement:
    folder = Path(job.folder)
    told = (folder / job.told).read_bytes() if job.told else b""
    facts = ledger.read(folder, job.start, job.length)
    return judge_window(job.start, facts, told, job.context, job.events, forgotten=job.forgotten)


def _checksum(judged: pa.Table) -> int:
    """A checksum of the rows, never 0."""
    return int(crc32c(repr(judged.to_pydict()).encode())) or 1


class Audit:
    """The audit of one group. Not thread-safe. ``report``: called with a flag or a problem;
    ``note``: with a window that was judged."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        group: Layout,
        *,
        report: ReportFinding,
        note: ReportFinding,
    ) -> None:
        """Open or make the audit's folder. Errors: ``InvalidConfiguration``: it is another audit's;
        ``OSError``."""
        self.folder = folder
        self.windows_folder = folder / WINDOWS_NAME
        self.settings = settings
        self.group = group
        self._note = note
        self.windows_folder.mkdir(parents=True, exist_ok=True)
        self.state = State.load(folder, settings, group)
        self._tables: AccountTables | None = None
        if settings.tables:
            self._tables = AccountTables(Path(settings.tables), self.state.run)
            self._tables.settle(self.state.published)
        self._judged: list[pa.Table] = []
        """Rows of the tables that this batch adds."""
        self._findings = Findings(folder, self.state.findings, report)
        self._notes: list[Mapping[str, Any]] = []
        self._dropped: list[Path] = []

    def begins(self, batch: int) -> bool:
        """False if a batch was committed before a crash: it is skipped."""
        return batch > self.state.batch

    @property
    def lengths(self) -> dict[int, int]:
        return {start: window.length for start, window in self.state.windows.items()}

    def come_near(self) -> None:
        """Give what is far no more to its windows. Before anything of a batch is read."""
        state = self.state
        state.far_from_ms = max(state.far_from_ms, ledger.far_from(state.looked_ms))
        near = sorted(hour for hour in state.far if hour < state.far_from_ms)
        folder, window_ms = self.windows_folder / ledger.FAR_NAME, self.settings.window_ms
        appender = ledger.Appender(self.windows_folder, window_ms, self.lengths)
        for hour in near:
            appender.add(ledger.read(folder, hour, state.far.pop(hour)))
            self._dropped.append(ledger.path_of(folder, hour))
        self.add(appender.lengths, (), ())

    def add(
        self,
        lengths: Mapping[int, int],
        parts: Iterable[tuple[int, str, FileSummary]],
        problems: Iterable[Problem],
        far: Mapping[int, int] | None = None,
    ) -> None:
        """Add what a batch read. ``lengths``: bytes of each window's file now, ``far``: of those of
        what is far; ``parts``: peer, topic (empty: its journal) and summary of each part that was
        read."""
        self.state.far |= far or {}
        for start, length in lengths.items():
            window = self.state.windows.get(start)
            if window is None:
                again = start < self.state.forgotten_ms
                self.state.windows[start] = AuditWindow(length, forgotten=again)
            else:
                window.length = length
        for part in parts:
            self.state.add(*part)
            for name in NOT_JUDGED:
                if getattr(part[2], name):
                    self.state.totals[name] = 1
        for problem in problems:
            self._find({"flag": problem.kind, "file": problem.file, "text": problem.text}, 1)

    def add_events(self, events: TraceSummary, topics: Mapping[int, str]) -> None:
        """Add what the events of a batch say of groups of consumers, and the names of topics."""
        self.state.events.add(events)
        self.state.name_topics(topics)

    def jobs(self, looked_ms: int, *, all_read: bool) -> list[Job]:
        """Windows to be judged now; empty unless ``all_read``: else a record that is in its topic,
        and not read yet, would make its message lost. ``looked_ms``: all that was written before
        then was read."""
        self.state.looked_ms = looked_ms
        if not all_read:
            return []
        context = self.state.context(self.settings, self.group)
        events = self.state.events if self.settings.traces else None
        marks = self.state.progress
        return [
            Job(
                str(self.windows_folder),
                start,
                window.length,
                window.told,
                context,
                events,
                window.forgotten,
            )
            for start, window in sorted(self.state.windows.items())
            if self._is_due(start, window, looked_ms, marks)
        ]

    def judged(self, judgements: Iterable[Judgement], batch: int) -> None:
        marks = self.state.progress
        for judgement in sorted(judgements, key=lambda judgement: judgement.start):
            window = self.state.windows[judgement.start]
            first = window.judged < 0
            if window.told:
                self._dropped.append(self.windows_folder / window.told)
            window.told = ""
            if judgement.told:
                window.told = f"{judgement.start}.{batch}.told"
                (self.windows_folder / window.told).write_bytes(judgement.told)
            window.judged, window.marks = window.length, marks
            window.judged_ms = self.state.looked_ms
            window.waiting, window.settles_ms = judgement.waiting, judgement.settles_ms
            window.has_lost, window.counts = judgement.has_lost, judgement.counts
            flags = [flag | {"window_ms": judgement.start} for flag in judgement.flags]
            for kind, number in judgement.flagged.items():
                listed = [flag for flag in flags if flag["flag"] == kind]
                for at, flag in enumerate(listed):
                    more = number - len(listed) if at == len(listed) - 1 else 0
                    self._find(flag | ({"and_more": more} if more else {}), 1 + more)
            if self._tables is not None and judgement.boundaries is not None:
                checksum = _checksum(judgement.boundaries)
                if checksum != window.written:
                    window.written = checksum
                    self._judged.append(judgement.boundaries)
            if first or judgement.flagged:
                self._notes.append(self._line(judgement, again=not first))

    def commit(self, batch: int) -> None:
        """Make the batch durable, then report what is new."""
        self._forget()
        self.state.batch = batch
        self.state.findings = self._findings.write(self.state.findings)
        judged, self._judged = self._judged, []
        self.state.published = []
        if self._tables is not None and judged:
            made_ms, topics = self.state.looked_ms, self.state.topics
            self.state.published = self._tables.write(batch, made_ms, judged, topics)
        self.state.save(self.folder)
        if self._tables is not None:
            self._tables.publish(self.state.published)
        for path in self._dropped:
            path.unlink(missing_ok=True)
        self._dropped = []
        self._findings.report(self.state.findings)
        notes, self._notes = self._notes, []
        for note in notes:
            self._note(note)

    def summary(self) -> dict[str, Any]:
        """Totals of all windows that were judged, and how many flags of each kind."""
        counts = Counter(self.state.totals)
        open_ = 0
        for window in self.state.windows.values():
            counts.update(window.counts)
            open_ += window.judged < 0
        return {
            **{name: counts[name] for name in TOTALS},
            "flagged": dict(self.state.flagged),
            "windows_open": open_,
            "looked_ms": self.state.looked_ms,
            "exactly_once": self.settings.exactly_once,
            "failed": self.failed,
            "not_judged": [what for name, what in NOT_JUDGED.items() if counts[name]],
        }

    @property
    def failed(self) -> bool:
        excused = {AFTER_ALL}  # it was reported as lost before
        if not self.settings.exactly_once:
            excused.add(REPEATED)
        return any(number for kind, number in self.state.flagged.items() if kind not in excused)

    def _is_due(self, start: int, window: AuditWindow, now_ms: int, marks: str) -> bool:
        if window.judged < 0:
            return self.settings.options.limits.settled(start + self.settings.window_ms, now_ms)
        if window.length != window.judged:
            return True
        if not window.waiting:
            return False
        if 0 < window.settles_ms <= now_ms:
            return True
        # A mark may have passed its messages. The longer they have waited, the less often the
        # window is judged: a topic that is held back for hours has messages in every window.
        overdue_ms = max(0, now_ms - start - self.settings.window_ms)
        return marks != window.marks and now_ms - window.judged_ms >= overdue_ms // 10

    def _forget(self) -> None:
        state = self.state
        kept_ms = TRACED_KEEP_MS if self.settings.traces else KEEP_MS
        keep_ms = self.settings.window_ms + self.settings.grace_ms + kept_ms
        over = [
            start
            for start, window in sorted(state.windows.items())
            if window.judged == window.length and start + keep_ms <= state.looked_ms
        ]
        missing = [s for s in over if state.windows[s].has_lost or state.windows[s].waiting]
        kept = set(missing[-WINDOWS_MAX:])
        for start in over:
            if start in kept:
                continue
            window = state.windows.pop(start)
            totals = Counter(state.totals)
            totals.update(window.counts)
            state.totals = dict(totals)
            state.forgotten_ms = max(state.forgotten_ms, start + self.settings.window_ms)
            self._dropped.append(ledger.path_of(self.windows_folder, start))
            if window.told:
                self._dropped.append(self.windows_folder / window.told)

    def _find(self, finding: dict[str, Any], number: int) -> None:
        kind = finding["flag"]
        self.state.flagged[kind] = self.state.flagged.get(kind, 0) + number
        self._findings.add(finding | {"at_ms": self.state.looked_ms})

    def _line(self, judgement: Judgement, *, again: bool) -> dict[str, Any]:
        return {
            "window_ms": judgement.start,
            "end_ms": judgement.start + self.settings.window_ms,
            "again": again,
            **judgement.counts,
            "flagged": judgement.flagged,
            "lateness_ms": judgement.lateness_ms,
            "judged_ms": self.state.looked_ms,
        }
