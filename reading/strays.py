"""Stray files and folders: those in a data directory that no wheel writes there.

A module of its own, as Spark's workers list files and have no LMDB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..wheel.checks import is_topic
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import is_segment_name, is_spare_name
from ..wheel.slots.archive import parse_archived_slot
from ..wheel.slots.slot import slot_of_name
from ..wheel.state import STATE_DIRECTORY
from ..wheel.topics.topicfile import (
    DAMAGED_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    TOPICS_DIRECTORY,
    first_position_of,
)
from .listing import sizes, why_unlisted

_OF_STATE = ("data.mdb", "lock.mdb")


def strays(root: Path) -> Iterator[tuple[Path, str]]:
    """The stray files and folders in a data directory, each with what was expected in its place. No
    reader looks into them."""
    for name in sizes(root / JOURNAL_DIRECTORY):
        if not is_segment_name(name) and not is_spare_name(name):
            yield root / JOURNAL_DIRECTORY / name, "<first index>.journal"
    for name in sizes(root / SLOT_DIRECTORY):
        if slot_of_name(name) is None:
            yield root / SLOT_DIRECTORY / name, "<slot>.arrows"
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
            yield folder / SLOT_DIRECTORY / name, "<slot>.<length>.<crc32c>.arrows"


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
