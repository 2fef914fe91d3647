"""Whether two peers hold the same: what ``slotwheel verify --against`` does and prints."""

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
        bars("count", "seconds", quiet=quiet) as shown,
    ):
        task = shown.add_task("comparing", total=None)
        try:
            peers = (
                PeerDirectory(str(left), left_files, load_state(left)),
                PeerDirectory(str(right), right_files, load_state(right)),
            )
        except (Damaged, UnsupportedVersion) as error:
            found = Agreement()
            found.problem(f"a state store cannot be read: {error}")
        else:
            found = compare(
                *peers, lambda done, total: shown.update(task, completed=done, total=total)
            )
    for one in (left, right):
        process = running_process(one)
        if process is not None:
            found.notes.append(
                f"a node (process {process}) runs on {one}: what it changed meanwhile may show up"
                " as a difference; stop it and compare again"
            )
    return found


def print_agreement(found: Agreement) -> None:
    """Print notes, the first differences, and the verdict last."""
    for note in found.notes[:_NOTES_SHOWN]:
        echo(f"note: {note}")
    for problem in found.problems:
        echo(f"differs: {problem}")
    if found.agrees:
        entries = "1 entry" if found.entries == 1 else f"{found.entries:,} entries"
        echo(f"the peers agree: {entries}, {counted(found.rows, 'pending message')}")
    else:
        echo(f"the peers do not agree: {found.problems[0]}")
