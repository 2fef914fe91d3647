"""``slotwheel replay --follow``: the proof beside running nodes, window by window, until Ctrl-C.

Flags are printed on standard output, a line each, as text or JSON; a line for each window that was
judged, and the totals at the end, on standard error.
"""

from __future__ import annotations

import fcntl
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..wheel.errors import InvalidConfiguration
from .invocation import Exit
from .printing import quiet_pipe
from .shared import combined, print_json, span
from .terminal import echo

if TYPE_CHECKING:
    from ..replay.following.audit import Settings

EVERY_S = 1.0
"""Seconds between two batches."""


follow_options = combined(
    click.option(
        "--follow",
        is_flag=True,
        help="Judge again and again beside running nodes, until Ctrl-C.",
    ),
    click.option(
        "--window",
        type=span,
        default="10s",
        help="With --follow: messages due in so much time are judged together.",
    ),
    click.option(
        "--grace",
        type=span,
        default="5s",
        help="With --follow: so long after it was due a message may still arrive.",
    ),
    click.option(
        "--for",
        "run_for",
        type=span,
        help="With --follow: end after this time.",
    ),
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        help="With --follow: keep here what is known, and go on from there the next time.",
    ),
)


def run_audit(
    settings: Settings,
    run_for: timedelta | None,
    state: Path | None,
    master: str,
    driver_memory: str,
    spark_settings: Mapping[str, str],
    *,
    as_json: bool,
) -> int:
    """Audit until Ctrl-C, or for ``run_for``. Returns the exit code. ``state``: the audit's folder;
    None: a temporary one."""
    from ..replay.following.audit import Audit
    from ..replay.following.follow import follow
    from ..replay.session import session
    from ..replay.stream import find_group

    group = find_group(settings.directories)
    with ExitStack() as stack:
        folder = state
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="slotwheel-audit-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_locked(folder))
        stack.enter_context(quiet_pipe())
        report = print_json if as_json else _print_finding
        audit = Audit(folder.resolve(), settings, group, report=report, note=_print_window)
        interrupted = False
        try:
            spark = stack.enter_context(
                session(master, driver_memory=driver_memory, more=spark_settings)
            )
            echo(f"following {', '.join(settings.directories)}", err=True)
            for_s = math.inf if run_for is None else run_for.total_seconds()
            end = time.monotonic() + for_s
            follow(spark, audit, every_s=EVERY_S, goes_on=lambda: time.monotonic() < end)
        except KeyboardInterrupt:
            interrupted = True
        _print_totals(audit.summary())
    if interrupted:
        return Exit.INTERRUPTED
    return Exit.FAILED if audit.failed else Exit.DONE


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the audit's folder, which two audits would overwrite. Errors: ``InvalidConfiguration``:
    another audit uses it."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidConfiguration(
                "another audit uses this --state", got=folder, remedy="Stop it, or give another"
            ) from None
        yield


def _print_finding(finding: Mapping[str, Any]) -> None:
    place = finding.get("id") or finding.get("file") or ""
    topic = f" for {finding['topic']}" if finding.get("topic") else ""
    further = f" (and {finding['and_more']:,} more)" if "and_more" in finding else ""
    echo(f"{finding['flag']}: {place}{topic}: {finding['text']}{further}")


def _print_window(line: Mapping[str, Any]) -> None:
    begin, end = _clock(line["window_ms"]), _clock(line["end_ms"])
    suffix = ", again" if line["again"] else ""
    late = line["lateness_ms"]
    lateness = "" if late is None else "; late by p50 {}, p99 {}, max {} ms".format(*late)
    echo(f"{begin} to {end}{suffix}: {_counts(line)}{_flagged(line)}{lateness}", err=True)


def _print_totals(summary: Mapping[str, Any]) -> None:
    open_ = summary["windows_open"]
    further = f"; windows not judged yet: {open_}" if open_ else ""
    if summary["exactly_once"]:
        further += f"; repeated {summary['repeated']:,} (exactly once)"
    echo(f"in all: {_counts(summary)}{_flagged(summary)}{further}", err=True)
    if summary["not_judged"]:
        left = ", and ".join(summary["not_judged"])
        echo(f"not judged: {left}; 'slotwheel replay' without --follow judges it", err=True)
    if summary["failed"]:
        echo("something is wrong", err=True)
    else:
        judged = summary["accepted"] or summary["delivered"]
        echo("nothing is lost" if judged else "nothing was judged", err=True)


def _counts(line: Mapping[str, Any]) -> str:
    always = ("accepted", "delivered")
    names = ("pending", "overdue", "cancelled", "dead", "expired", "lost", "undecided", "in doubt")
    if_any = (*names, "repeated", "unaccounted")
    parts = [f"{line[name]:,} {name}" for name in always]
    return ", ".join(parts + [f"{line[name]:,} {name}" for name in if_any if line[name]])


def _flagged(line: Mapping[str, Any]) -> str:
    flagged = ", ".join(f"{number:,} {kind}" for kind, number in line["flagged"].items())
    return f"; flagged: {flagged}" if flagged else ""


def _clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}"
