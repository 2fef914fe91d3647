"""Lists a directory's files, beside a node that may delete them or move them to the archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..wheel.checks import is_topic
from ..wheel.files import ARCHIVE_DIRECTORY, OsHandle, open_regular
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import index_of, is_segment_name, segment_path
from ..wheel.topics.topicfile import TOPICS_DIRECTORY, first_position_of

_OF_STATE = ("data.mdb", "lock.mdb")


def sizes(directory: Path) -> dict[str, int]:
    """Names and sizes of what is in a directory; empty if there is none, or if it cannot be listed
    (``why_unlisted``)."""
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
    except OSError:
        return {}
    known = {}
    for entry in found:
        try:
            known[entry.name] = entry.stat(follow_symlinks=False).st_size
        except OSError:  # a running node deleted it
            continue
    return known


def why_unlisted(directory: Path) -> str | None:
    """Why a directory cannot be listed although something has its name; None: it can, or nothing
    has."""
    try:
        os.scandir(directory).close()
    except FileNotFoundError:
        return "a dangling symbolic link" if directory.is_symlink() else None
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextmanager
def opened(path: str | Path) -> Iterator[OsHandle]:
    """Open a file for reading. Errors: ``OSError``, among them ``FileNotFoundError``."""
    with closing(open_regular(path)) as handle:
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


def topic_folders(root: Path) -> list[str]:
    """The embedded topics that a data directory may have, by the names of their folders."""
    return sorted(name for name in sizes(root / TOPICS_DIRECTORY) if is_topic(name))


def topic_segments(folder: Path) -> list[int]:
    """First positions of an embedded topic's segments, ascending, by their indexes."""
    return sorted(first for name in sizes(folder) if (first := first_position_of(name)) is not None)
