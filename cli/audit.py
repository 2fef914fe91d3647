"""``slotwheel audit``: compares the tiers of a wheel beside its node, until it is stopped.

On a terminal it shows a table; otherwise it prints each new verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..account.vocabulary import AuditVerdict
from ..audit.comparing import Comparison
from ..audit.differing import differing_text
from ..audit.watch.watching import STEP_S, AuditReport, AuditSettings, AuditWatch
from ..client.message import clock_ms
from ..wheel.texts import shown_text, time_text, visible_text
from .invocation import Exit
from .printing import quiet_pipe
from .questions import question_of, question_options
from .resending import interruptible
from .shared import awaited, data_argument, json_option, kafka_option, print_json, span
from .terminal import echo

_ROWS_MAX = 30
_STYLES = {
    AuditVerdict.EQUAL: "green",
    AuditVerdict.OPEN: "dim",
    AuditVerdict.LATE: "yellow",
    AuditVerdict.UNKNOWN: "yellow",
}


@click.command("audit")
@data_argument
@question_options(AuditSettings, "bootstrap")
@kafka_option
@question_options(AuditSettings, "topic", "dead_letter_topic", "interval_ms", "grace_ms")
@question_options(AuditSettings, "late_ms", "ahead_ms", "others")
@click.option("--once", is_flag=True, help="End when the first bucket is over, and was read.")
@click.option("--for", "run_for", type=span, help="End after this time.")
@json_option
def command(
    directory: Path,
    kafka_settings: dict[str, str],
    once: bool,
    run_for: timedelta | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare, by topic and due time, what was produced, accepted, delivered and consumed, beside
    the node that runs on the data directory DIR, until Ctrl-C.

    It begins with messages that are due in a few seconds. The exit code is 1 if messages were lost
    or repeated, or are not the same. The command says so when nothing was compared.
    """
    settings = question_of(AuditSettings, options, data=directory, kafka=kafka_settings)
    end_s = None if run_for is None else time.monotonic() + run_for.total_seconds()
    report: AuditReport | None = None
    interrupted = False
    with quiet_pipe():
        until_s = 0.0 if once else end_s if end_s is not None else math.inf
        opened = awaited(lambda: AuditWatch(settings), until_s)
        with opened as watch, _Output.chosen(as_json) as output, interruptible():
            try:
                while True:
                    report = watch.step()
                    output.show(report)
                    output.note_refused(report)
                    is_over = once and report.at_ms > report.from_ms + _judged_after_ms(settings)
                    if is_over or (end_s is not None and time.monotonic() >= end_s):
                        break
                    time.sleep(STEP_S)
            except KeyboardInterrupt:
                interrupted = True
        if report is not None and _print_end(report, as_json):
            return Exit.FAILED
    return Exit.INTERRUPTED if interrupted else Exit.DONE


def _print_end(report: AuditReport, as_json: bool) -> bool:
    """Print what differs, or why nothing was compared. Returns True when something differs."""
    for difference in report.differing:
        echo(f"audit: {differing_text(difference)}", err=True)
    compared, undecided = report.compared, report.verdicts[AuditVerdict.OPEN]
    if not compared:
        since = f"audit: nothing was compared: of what is due from {time_text(report.from_ms)} on"
        if undecided:
            why = "nothing is decided yet. Let it run for longer."
        else:
            why = "no message was seen. Are there any, is DIR their node's, does Kafka have its"
            why += " topics (--bootstrap)?"
        echo(f"{since} {why}", err=True)
    if as_json:
        fields = {"from_ms": report.from_ms, "at_ms": report.at_ms, "compared": compared}
        print_json({"end": {**fields, "open": undecided, "differing": len(report.differing)}})
    return bool(report.differing)


def _judged_after_ms(settings: AuditSettings) -> int:
    """The time from a bucket's begin, ms, after which it is judged for sure."""
    return settings.interval_ms + 2 * settings.grace_ms + 3_000


class _Output:
    """Prints each new verdict and problem."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[tuple[str, int, str, str], AuditVerdict] = {}
        self._problem = ""
        self._refused: set[str] = set()

    @staticmethod
    @contextmanager
    def chosen(as_json: bool) -> Iterator[_Output]:
        console = Console()
        if as_json or not console.is_terminal:
            yield _Output(as_json=as_json)
        else:
            with Live(console=console, refresh_per_second=4) as live:
                yield _LiveTable(live)

    def note_refused(self, report: AuditReport) -> None:
        """Print each reason for refused sums once: their sender is in no comparison."""
        for reason in sorted(report.refused.keys() - self._refused):
            self._refused.add(reason)
            echo(f"audit: sums are refused: {reason}", err=True)

    def show(self, report: AuditReport) -> None:
        stale = report.stale(clock_ms())
        problem = report.problem or ("what came in the last 10 s and more is not read yet" * stale)
        if problem != self._problem:
            self._problem = problem
            echo(f"audit: {problem or 'all can be read again'}", err=True)
        verdicts = {}
        for cell in report.cells:
            for row in cell.comparisons:
                key = row.topic, row.bucket_ms, row.boundary.value, row.group
                verdicts[key] = row.verdict
                if row.verdict not in (self._known.get(key), AuditVerdict.OPEN):
                    self._print(row, report.at_ms, stale=stale)
                elif row.verdict is AuditVerdict.OPEN and key in self._known:
                    verdicts[key] = self._known[key]
        self._known = verdicts

    def _print(self, row: Comparison, at_ms: int, *, stale: bool) -> None:
        if self._as_json:
            print_json({**asdict(row), "at_ms": at_ms, "stale": stale})
        else:
            echo("  ".join(_cells_of(row)).rstrip())


class _LiveTable(_Output):
    """Shows ``_ROWS_MAX`` verdicts, first those that are neither equal nor open, and each fault."""

    def __init__(self, live: Live) -> None:
        super().__init__(as_json=False)
        self._live = live

    def show(self, report: AuditReport) -> None:
        table = Table(box=None, pad_edge=False)
        for name in ("due from", "topic", "boundary", "verdict", "before", "behind", "late", ""):
            table.add_column(name, no_wrap=name != "")
        rows = [row for cell in report.cells for row in cell.comparisons]
        shown = [row for row in rows if row.verdict not in (AuditVerdict.EQUAL, AuditVerdict.OPEN)]
        places = max(0, _ROWS_MAX - len(shown[-_ROWS_MAX:]))
        newest = [row for row in rows if row not in shown][-places:] if places else []
        for row in sorted([*shown[-_ROWS_MAX:], *newest], key=lambda row: row.bucket_ms):
            style = _STYLES.get(row.verdict, "bold red")
            table.add_row(*(Text(visible_text(cell)) for cell in _cells_of(row)), style=style)
        until = time_text(report.at_ms)
        headline = report.problem or f"as of {until}: audited from {time_text(report.from_ms)} on"
        differences = map(differing_text, report.differing[:_ROWS_MAX])
        table.caption = Text(shown_text("\n".join([headline, *differences])))
        self._live.update(table)


def _cells_of(row: Comparison) -> tuple[str, ...]:
    verdict = f"{row.verdict} {row.count}" if row.count else str(row.verdict)
    boundary = f"{row.boundary} {row.group}".rstrip()
    late = f"{row.late_ms} ms"
    numbers = f"{row.before:,}", f"{row.after:,}"
    return time_text(row.bucket_ms), row.topic, boundary, verdict, *numbers, late, row.why
