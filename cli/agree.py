"""Do two peers hold the same? What ``slotwheel verify --against`` does and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ..wheel.agree import Agreement, Peer, compare
from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.texts import counted
from .directory import load_state, reading, running_process

_NOTES_SHOWN = 20


def compare_directories(left: Path, right: Path, quiet: bool) -> Agreement:
    """Compare two data directories; they are changed in nothing.

    Errors: ``InvalidConfiguration`` for what is no data directory, ``OSError``.
    """
    with reading(left) as left_files, reading(right) as right_files, _progress(quiet) as looked_at:
        try:
            peers = (
                Peer(str(left), left_files, load_state(left)),
                Peer(str(right), right_files, load_state(right)),
            )
        except (Damaged, UnsupportedVersion) as error:
            found = Agreement()
            found.problem(f"a state store cannot be read: {error}")
        else:
            found = compare(*peers, looked_at)
    for one in (left, right):
        process = running_process(one)
        if process is not None:
            found.notes.append(
                f"a node (process {process}) runs on {one}: what it changed meanwhile may show up"
                " as a difference; stop it and compare again"
            )
    return found


def print_agreement(found: Agreement) -> None:
    """The first differences first, and the verdict last."""
    for note in found.notes[:_NOTES_SHOWN]:
        click.echo(f"note: {note}")
    for problem in found.problems:
        click.echo(f"differs: {problem}")
    if found.agrees:
        entries = "1 entry" if found.entries == 1 else f"{found.entries:,} entries"
        click.echo(f"the peers agree: {entries}, {counted(found.rows, 'pending message')}")
    else:
        click.echo(f"the peers do not agree: {found.problems[0]}")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TextColumn("seconds"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("comparing", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
