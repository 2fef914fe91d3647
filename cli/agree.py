"""The comparison of two peers' directories that ``slotwheel verify --against`` does and prints."""

from __future__ import annotations

from pathlib import Path

from ..reading.agreement.compare import Agreement, PeerDirectory, compare
from ..reading.directory import reading, running_process
from ..reading.state import load_state
from ..wheel.errors import Damaged, UnsupportedVersion
from ..wheel.texts import counted
from .progress import bars
from .terminal import echo

_NOTES_SHOWN = 20


def compare_directories(left: Path, right: Path, quiet: bool) -> Agreement:
    """Compare two data directories, without changing them.

    Errors: ``InvalidConfiguration`` for any other directory, ``OSError``.
    """
    with (
        reading(left) as left_files,
        reading(right) as right_files,
        bars("count", "slots", quiet=quiet) as bar,
    ):
        task = bar.add_task("comparing", total=None)
        try:
            peers = (
                PeerDirectory(str(left), left_files, load_state(left)),
                PeerDirectory(str(right), right_files, load_state(right)),
            )
        except (Damaged, UnsupportedVersion) as error:
            agreement = Agreement()
            agreement.problem(f"a state store cannot be read: {error}")
        else:
            agreement = compare(
                *peers, lambda done, total: bar.update(task, completed=done, total=total)
            )
    for directory in (left, right):
        process = running_process(directory)
        if process is not None:
            agreement.notes.append(
                f"a node (process {process}) runs on {directory}: what it changed meanwhile may"
                " show up as a difference; stop it and compare again"
            )
    return agreement


def print_agreement(agreement: Agreement) -> None:
    """Print notes, the first differences, and the verdict last."""
    for note in agreement.notes[:_NOTES_SHOWN]:
        echo(f"note: {note}")
    for problem in agreement.problems:
        echo(f"differs: {problem}")
    if agreement.agrees:
        entries = "1 entry" if agreement.entries == 1 else f"{agreement.entries:,} entries"
        echo(f"the peers agree: {entries}, {counted(agreement.rows, 'pending message')}")
    else:
        echo(f"the peers do not agree: {agreement.problems[0]}")
