"""Lists a directory's files, beside a node that may delete them or move them to the archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ..delivery.embedded.topicfile import (
    DAMAGED_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    TOPICS_DIRECTORY,
    first_position_of,
)
from ..wheel.checks import is_topic
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY, OsHandle, open_regular
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import index_of, is_segment_name, is_spare_name, segment_path
from ..wheel.slots.archive import parse_archived_slot
from ..wheel.slots.slotfile import second_of
from ..wheel.state import STATE_DIRECTORY

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


def strays(root: Path) -> Iterator[tuple[Path, str]]:
    """What is in the folders of a data directory and belongs to nothing there, each with what was
    expected in its place. A reader passes it over."""
    for name in sizes(root / JOURNAL_DIRECTORY):
        if not is_segment_name(name) and not is_spare_name(name):
            yield root / JOURNAL_DIRECTORY / name, "<first index>.journal"
    for name in sizes(root / SLOT_DIRECTORY):
        if second_of(name) is None:
            yield root / SLOT_DIRECTORY / name, "<second>.arrows"
    for name in sizes(root / STATE_DIRECTORY):
        if name not in _OF_STATE:
            yield root / STATE_DIRECTORY / name, " or ".join(_OF_STATE)
    for topic in sizes(root / TOPICS_DIRECTORY):
        yield from _strays_of_topic(root / TOPICS_DIRECTORY / topic)
    for day in sizes(root / ARCHIVE_DIRECTORY):
        yield from _strays_of_day(root / ARCHIVE_DIRECTORY / day)


def _strays_of_topic(folder: Path) -> Iterator[tuple[Path, str]]:
    names = sizes(folder)
    if not folder.is_dir() or not is_topic(folder.name):
        yield folder, "a topic's folder"
    elif not any(_is_of_topic(name) for name in names) and why_unlisted(folder) is None:
        yield folder, "a topic's segments"  # a kill may have left it before its first segment
    for name in names:
        if not _is_of_topic(name):
            yield folder / name, "<first position>.arrows or its .index"


def _is_of_topic(name: str) -> bool:
    suffixes = (INDEX_SUFFIX, SEGMENT_SUFFIX, DAMAGED_SUFFIX)
    stem = next((name.removesuffix(one) for one in suffixes if name.endswith(one)), "")
    return first_position_of(f"{stem}{INDEX_SUFFIX}") is not None


def _strays_of_day(folder: Path) -> Iterator[tuple[Path, str]]:
    if not folder.is_dir():
        yield folder, "a day's folder"
    for part in sizes(folder):
        if part not in (JOURNAL_DIRECTORY, SLOT_DIRECTORY):
            yield folder / part, f"{JOURNAL_DIRECTORY}/ or {SLOT_DIRECTORY}/"
    for name in sizes(folder / JOURNAL_DIRECTORY):
        if not is_segment_name(name):
            yield folder / JOURNAL_DIRECTORY / name, "<first index>.journal"
    for name in sizes(folder / SLOT_DIRECTORY):
        if not is_archived_slot(name):
            yield folder / SLOT_DIRECTORY / name, "<second>.<length>.<crc32c>.arrows"


def is_archived_slot(name: str) -> bool:
    try:
        parse_archived_slot(name)
    except ValueError:
        return False
    return True


def unlisted(root: Path) -> Iterator[tuple[Path, str]]:
    """The folders of a data directory that are there and cannot be listed, each with the reason."""
    topics, archive = root / TOPICS_DIRECTORY, root / ARCHIVE_DIRECTORY
    days = [archive / day for day in sizes(archive)]
    of_days = [day / part for day in days for part in (JOURNAL_DIRECTORY, SLOT_DIRECTORY)]
    for folder in (
        *(root / JOURNAL_DIRECTORY, root / SLOT_DIRECTORY, topics, archive),
        *(folder for topic in sizes(topics) if (folder := topics / topic).is_dir()),
        *(folder for folder in (*days, *of_days) if folder.parent.is_dir()),
    ):
        why = why_unlisted(folder)
        if why is not None and (folder.parent != archive or folder.is_dir()):
            yield folder, why


def topic_folders(root: Path) -> list[str]:
    """The embedded topics that a data directory may have, by the names of their folders."""
    return sorted(name for name in sizes(root / TOPICS_DIRECTORY) if is_topic(name))


def topic_segments(folder: Path) -> list[int]:
    """First positions of an embedded topic's segments, ascending, by their indexes."""
    return sorted(first for name in sizes(folder) if (first := first_position_of(name)) is not None)
