"""``slotwheel verify``: every checksum of a data directory, and whether its files agree; with
``--against``, whether two peers of a group hold the same.

It changes nothing, and goes on after a fault. Beside a running node only committed bytes are
checked, and those that it is just writing are a note, no damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from ..reading.directory import ReadOnlyFiles, reading, running_process
from ..reading.listing import sizes
from ..reading.state import load_state
from ..reading.verify.archive import verify_archive
from ..reading.verify.journal import verify_journal
from ..reading.verify.names import verify_names
from ..reading.verify.slots import verify_slots, verify_state
from ..reading.verify.topics import verify_topics
from ..wheel.errors import Damaged, SlotwheelError, UnsupportedVersion
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY
from ..wheel.findings import CheckedFile, Finding
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.named.runs import DIRECTORY as NAMES_DIRECTORY
from ..wheel.state import STATE_DIRECTORY, StoredState
from ..wheel.topics.topicfile import TOPICS_DIRECTORY
from .agree import compare_directories, print_agreement
from .invocation import Exit
from .printing import print_table
from .progress import progress_bar
from .shared import data_argument, json_option, print_json
from .terminal import echo

KINDS = {
    "state": "state store",
    "journal": "journal segments",
    "slot": "slot files",
    "names": "runs of names",
    "schedules": "schedules",
    "archive": "archived files",
    "topic": "topic segments",
}
_FOLDERS = {
    "journal": JOURNAL_DIRECTORY,
    "slot": SLOT_DIRECTORY,
    "names": NAMES_DIRECTORY,
    "archive": ARCHIVE_DIRECTORY,
    "topic": TOPICS_DIRECTORY,
}
_NOTES_SHOWN = 20
_FAULTS_SHOWN = 200


@dataclass(slots=True)
class FileTotals:
    ok: int = 0
    invalid: int = 0
    rows: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Summary:
    """The result for one directory. ``running``: the process of a node on it, if any."""

    directory: Path
    running: str | None
    kinds: dict[str, FileTotals] = field(
        default_factory=lambda: {kind: FileTotals() for kind in KINDS}
    )
    faults: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def add(self, item: CheckedFile) -> None:
        kind = self.kinds[item.kind]
        if item.ok:
            kind.ok += 1
        else:
            kind.invalid += 1
        kind.rows += item.rows
        kind.nbytes += item.nbytes
        self.faults += item.faults
        self.notes += item.notes

    @property
    def ok(self) -> int:
        return sum(kind.ok for kind in self.kinds.values())

    @property
    def invalid(self) -> int:
        return sum(kind.invalid for kind in self.kinds.values())

    @property
    def verdict(self) -> str:
        return f"{self.ok} ok, {self.invalid} invalid"

    def to_json(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "running": self.running,
            "ok": self.ok,
            "invalid": self.invalid,
            "kinds": {name: asdict(kind) for name, kind in self.kinds.items()},
            "faults": [asdict(finding) for finding in self.faults],
            "notes": [asdict(finding) for finding in self.notes],
        }


def check_all(root: Path, files: ReadOnlyFiles, *, running: bool) -> Iterator[CheckedFile]:
    """Check every part of a data directory, in the order in which recovery depends on them.
    ``running``: a node changes it meanwhile, so each part reads the state anew."""

    def current_state() -> StoredState:
        return load_state(root) if running else stored

    try:
        stored = load_state(root)
    except (Damaged, UnsupportedVersion) as error:
        item = CheckedFile("state", STATE_DIRECTORY)
        item.error(error)
        yield item
        yield from _part("journal", verify_journal(files, lambda: None))
    else:
        yield verify_state(stored)
        yield from _part("journal", verify_journal(files, current_state))
        yield from _part("slot", verify_slots(files, current_state))
        yield from _part("names", verify_names(files, current_state))
    yield from _part("archive", verify_archive(files))
    yield from _part("topic", verify_topics(files))


def _part(kind: str, items: Iterator[CheckedFile]) -> Iterator[CheckedFile]:
    """The items of one part. A folder that cannot be listed is one, too: the other parts are still
    checked."""
    try:
        yield from items
    except (SlotwheelError, OSError) as error:
        item = CheckedFile(kind, _FOLDERS[kind])
        item.error(error)
        yield item


def file_count(files: ReadOnlyFiles) -> int:
    """An estimate of the items that ``check_all`` yields, for the progress bar."""
    root = Path(files.root)
    topics = sizes(root / TOPICS_DIRECTORY)
    segments = sum(len(sizes(root / TOPICS_DIRECTORY / topic)) // 2 for topic in topics)
    archived = sum(1 for _ in (root / ARCHIVE_DIRECTORY).glob("*/*/*"))
    others = (JOURNAL_DIRECTORY, SLOT_DIRECTORY, NAMES_DIRECTORY)
    return 1 + sum(len(sizes(root / part)) for part in others) + archived + segments


@click.command("verify")
@data_argument
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Verify this directory of a peer, too, and that both hold the same.",
)
@json_option
def command(directory: Path, against: Path | None, as_json: bool) -> int:
    """Verify the data directory DIR: checksums, order, catalog against files, rows in their slots.

    Changes nothing, and may run beside a node. Ends with "N ok, M invalid", counted in files; exit
    code 1 if any is invalid. A note names what a crash may leave behind and the next start cleans.

    With --against, entries that both journals hold must be the same byte for byte, and each message
    that is still to be delivered must be on both. Stop both nodes before: what changes meanwhile
    may show up as a difference. A peer that is behind is not wrong.
    """
    if against is not None and against.resolve() == directory.resolve():
        raise click.UsageError("--against names the same directory.")
    summaries = [verify(path, as_json) for path in (directory, against) if path is not None]
    valid = not any(summary.invalid for summary in summaries)
    fields = summaries[0].to_json()
    if against is not None:
        agreement = compare_directories(directory, against, as_json)
        valid = valid and agreement.agrees
        fields |= {"against": summaries[1].to_json(), "agreement": asdict(agreement)}
        if not as_json:
            print_agreement(agreement)
    if as_json:
        print_json(fields)
    return Exit.DONE if valid else Exit.FAILED


def verify(directory: Path, quiet: bool) -> Summary:
    """Check everything in a directory; print the result, unless ``quiet``. Errors:
    ``InvalidConfiguration``: it is no data directory; ``OSError``."""
    with reading(directory) as files:
        summary = Summary(directory, running_process(directory))
        with progress_bar("verifying", file_count(files), "count", "files", quiet=quiet) as advance:
            for item in check_all(directory, files, running=summary.running is not None):
                summary.add(item)
                advance(1)
    if not quiet:
        _print(summary)
    return summary


def _print(summary: Summary) -> None:
    if summary.running is not None:
        echo(
            f"A node (process {summary.running}) is running on this directory: only what was"
            " committed is verified, and what it is writing just now may show up as a note."
        )
    print_table(_lines(summary), "lrrrr", ("", "ok", "invalid", "rows", "bytes"))
    print_findings("note", summary.notes, _NOTES_SHOWN)
    print_findings("invalid", summary.faults)
    echo(summary.verdict)


def _lines(summary: Summary) -> Iterator[list[str]]:
    for name, kind in summary.kinds.items():
        content = ["", ""] if name == "state" else [f"{kind.rows:,}", f"{kind.nbytes:,}"]
        if name not in ("archive", "names") or kind.ok + kind.invalid:
            yield [KINDS[name], f"{kind.ok:,}", f"{kind.invalid:,}", *content]


def print_findings(word: str, findings: list[Finding], limit: int = _FAULTS_SHOWN) -> None:
    for finding in findings[:limit]:
        echo(f"{word}: {finding}")
    if len(findings) > limit:
        echo(f"{word}: and {len(findings) - limit} more (--json prints all)")
