"""Lists a directory's files, beside a node that may delete them or move them to the archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..delivery.embedded.topicfile import first_position_of
from ..wheel.files import ARCHIVE_DIRECTORY, OsHandle
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import index_of, is_segment_name, segment_path


def sizes(directory: Path) -> dict[str, int]:
    """Names and sizes of the files in a directory; empty if there is none."""
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    known = {}
    for entry in found:
        try:
            known[entry.name] = entry.stat().st_size
        except FileNotFoundError:  # a running node deleted it
            continue
    return known


@contextmanager
def opened(path: str | Path) -> Iterator[OsHandle]:
    """Open a file for reading. Errors: ``OSError``, among them ``FileNotFoundError``."""
    with closing(OsHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path))) as handle:
        yield handle


def journal_segments(root: Path, *, archive: bool = True) -> dict[int, tuple[Path, bool]]:
    """Paths of all journal segments by their first index, ascending, and whether each is archived.
    Live ones are listed first, so that one that is moved meanwhile is found at least once."""
    live = [root / JOURNAL_DIRECTORY / name for name in sizes(root / JOURNAL_DIRECTORY)]
    kept = sorted((root / ARCHIVE_DIRECTORY).glob(f"*/{JOURNAL_DIRECTORY}/*")) if archive else []
    both = [*((path, False) for path in live), *((path, True) for path in kept)]
    found = {index_of(path.name): (path, old) for path, old in both if is_segment_name(path.name)}
    return dict(sorted(found.items()))


def kept_segment(root: Path, name: str) -> Path | None:
    """The path of an archived journal segment; None: the archive does not have it."""
    found = sorted((root / ARCHIVE_DIRECTORY).glob(f"*/{JOURNAL_DIRECTORY}/{name}"))
    return found[-1] if found else None


def segment_file(root: Path, first: int, *, archive: bool) -> Path | None:
    """The present path of a segment; None when it was dropped."""
    live = root / segment_path(first)
    if live.exists():
        return live
    # Look again: it may have been moved in between, and the archive keeps it.
    return kept_segment(root, live.name) if archive else None


def topic_segments(folder: Path) -> list[int]:
    """First positions of an embedded topic's segments, ascending, by their indexes."""
    return sorted(first for name in sizes(folder) if (first := first_position_of(name)) is not None)
