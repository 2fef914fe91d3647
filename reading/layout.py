"""Finds the files to read in data directories, and which of them belong together.

Theory: everything is planned once, before anything is read. The state store of each directory lists
the valid slot files and their lengths; then the directories are listed. Topics are listed last, so
that a message that left a slot file meanwhile is found in its topic.

Rules
- Nothing is changed, and a node may be running: files that it moves to the archive are found there.
- A path that does not exist is an error. A directory that holds nothing, or another group's wheel,
  is a problem of the proof: the user expected something in it.
- Runs on the driver only, where the paths are mounted: tasks get lists of files.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import Any

from ..wheel.config import known_horizon_ms
from ..wheel.errors import Damaged, InvalidConfiguration, SlotwheelError
from ..wheel.files import ARCHIVE_DIRECTORY, SLOT_DIRECTORY
from ..wheel.ids import LONG_FROM
from ..wheel.journal.segment import DIRECTORY as JOURNAL_DIRECTORY
from ..wheel.journal.segment import index_of
from ..wheel.schedules import decode_schedule
from ..wheel.slots.archive import parse_archived_slot
from ..wheel.slots.slot import begins_ms, ends_ms, file_name, path_of, slot_of_name
from ..wheel.state import STATE_DIRECTORY, Checkpoint, StoredState
from ..wheel.topics.topicfile import (
    DAMAGED_SUFFIX,
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    TOPICS_DIRECTORY,
    first_position_of,
)
from .directory import existing, existing_file, is_data_directory, refuse_a_part, short_names
from .files import DUMP, JOURNAL, RECEIPTS, SLOT, TOPIC, File, Layout, PeerFiles
from .listing import journal_segments, sizes, topic_folders, why_unlisted
from .problems import INTEGRITY, STRAY, Problem
from .state import group_config, not_its_own, read_state
from .strays import strays, unlisted

_OF_SEGMENTS = (INDEX_SUFFIX, SEGMENT_SUFFIX)
_STRAYS_MAX = 100
"""Strays of a directory that are named."""


@dataclass(frozen=True, slots=True)
class FileFilter:
    """Which kinds of files, and of which due times (ms; None: no limit; the end is exclusive)."""

    slots: bool = True
    journal: bool = True
    archive: bool = True
    topics: bool = True
    start_ms: int | None = None
    end_ms: int | None = None

    def slot(self, slot: int) -> bool:
        """Whether a slot may hold wanted rows."""
        starts_before_end = self.end_ms is None or begins_ms(slot) < self.end_ms
        return starts_before_end and (self.start_ms is None or ends_ms(slot) > self.start_ms)


def find(
    directories: Sequence[str],
    *,
    dumps: Sequence[str] = (),
    receipts: Sequence[str] = (),
    wanted: FileFilter | None = None,
) -> Layout:
    """Find the files of a wheel group. Errors: ``InvalidConfiguration``: a path does not exist."""
    return _Search(wanted or FileFilter()).run(directories, dumps, receipts)


class _Search:
    def __init__(self, wanted: FileFilter) -> None:
        self.wanted = wanted
        self.layout = Layout(made_ms=time.time_ns() // 1_000_000)
        self.long_ids_by = -math.inf
        """The epoch of the configuration that says from which offset on ids are long."""
        self.stores: dict[bytes, str] = {}
        """Names of directories by the ids of their stores."""
        self.states: dict[str, StoredState] = {}
        """By directory."""
        self.names: dict[str, str] = {}
        """The group's peers, each with the id of its store, hex."""

    def run(
        self, directories: Sequence[str], dumps: Sequence[str], receipts: Sequence[str]
    ) -> Layout:
        roots = [existing(path) for path in directories]
        for root in roots:
            if roots.count(root) > 1:  # it would agree with itself, and count for a majority
                raise InvalidConfiguration(
                    "a directory is given twice", got=str(root), remedy="Name each peer's once"
                )
        for root, name in zip(roots, short_names(roots), strict=True):
            peer = self._peer(root, name)
            if peer is not None:
                self.layout.peers.append(peer)
        self._older()
        if self.wanted.topics:
            for number, found in enumerate(self.layout.peers):
                self._add(_topics(Path(found.root), number, found.name))
        for kind, paths in ((DUMP, dumps), (RECEIPTS, receipts)):
            self._add(_single(existing_file(path), kind) for path in paths)
        return self.layout

    def _older(self) -> None:
        """Report copies from before their peer became the master. A peer keeps the epoch of its
        last election and for whom it voted: if others voted for this one in a later epoch than it
        knows, it has delivered since, and its embedded topics lack that."""
        layout = self.layout
        for number, peer in enumerate(layout.peers):
            mine = self.states.get(peer.root)
            if mine is None or not self.names:
                continue
            others = [one for root, one in self.states.items() if root != peer.root]
            if any(one.epoch > mine.epoch for one in others):
                with suppress(SlotwheelError):  # it may run, and have voted since
                    mine = read_state(peer.root) or mine
            names = {name for name, store in self.names.items() if store == mine.store_id.hex()}
            won = max((one.epoch for one in others if one.vote in names), default=0)
            if won > mine.epoch:
                text = (
                    f"expected the state of epoch {won}, in which other peers voted for this one,"
                    f" found one of epoch {mine.epoch}: a copy of some time before. Give its newest"
                    " directory"
                )
                self._problem("older", text, peer.name)
            why = ""
            if won > mine.epoch or self._may_have_won(mine.epoch, names, others):
                newest = max(one.epoch for one in others)
                why = f"{peer.name} is of epoch {mine.epoch}, others are of {newest}"
            led = mine.epoch if mine.vote in names and won == mine.epoch else -1
            layout.peers[number] = replace(peer, older=why, led_epoch=led)

    def _may_have_won(
        self, epoch: int, names: Collection[str], others: Sequence[StoredState]
    ) -> bool:
        """Whether a peer with one of these names may have been the master of a later epoch: one in
        which, as far as is known, too few voted for others to rule that out."""
        newest = max((one.epoch for one in others), default=0)
        peers = len(self.names)
        lost = Counter(one.epoch for one in others if one.vote and one.vote not in names)
        for later in range(epoch + 1, min(newest, epoch + 1 + peers) + 1):
            if peers - 1 - lost[later] >= peers // 2:
                return True
        return False

    def _add(self, files: Iterable[File]) -> None:
        for file in files:
            self.layout.files.append(replace(file, number=len(self.layout.files)))

    def _problem(self, kind: str, text: str, name: str) -> None:
        # A name may have bytes that are no text.
        shown = name.encode("utf-8", "backslashreplace").decode()
        self.layout.problems.append(Problem(INTEGRITY, kind, text, file=shown))

    def _peer(self, root: Path, name: str) -> PeerFiles | None:
        """Add the files of one directory. None if it does not belong to the group."""
        if not is_data_directory(root):
            refuse_a_part(root)
            self._problem("empty", "expected a data directory, found none of its parts", name)
            return None
        self._out_of_place(root, name)
        stored = self._stored(root, name)
        listed = journal_segments(root)
        segments = list(listed.values())
        if stored is not None and self._is_anothers(root, name, stored, segments):
            stored = None
        config, epoch = group_config(
            stored.checkpoint if stored is not None else Checkpoint(),
            {first: path for first, (path, _) in listed.items()},
        )
        if not self._same_group(config, name) or self._is_copy(stored, name):
            return None
        self._long_ids(config, epoch)
        stores = config.get("stores")
        layout = self.layout
        if stored is not None:
            self.states[str(root)] = stored
        if isinstance(stores, dict):
            self.names |= {str(peer): str(store) for peer, store in stores.items()}
        layout.group_size = max(layout.group_size, len(stores) if isinstance(stores, dict) else 0)
        layout.horizon_ms = max(layout.horizon_ms, known_horizon_ms(config))
        if stored is not None:
            self._schedules(stored, name)
        if stored is not None and stored.incoming:
            text = "a switch to a snapshot is not completed; start its node once"
            self._problem("incomplete", text, name)
        for loss in stored.losses if stored is not None else ():
            text = f"expected every row of the slot, found that a repair lost {loss} of them"
            self._problem("repaired", text, f"{name}/{path_of(loss.slot)}")
        number = len(layout.peers)
        if self.wanted.slots:
            self._add(self._slots(root, number, name, stored))
        if self.wanted.journal:
            self._add(_journal(segments, number, name, root, stored, self.wanted))
        checkpoint = stored.checkpoint if stored is not None else None
        return PeerFiles(
            name,
            str(root),
            checkpoint.index if checkpoint else 0,
            checkpoint.next_offset if checkpoint else 0,
            checkpoint.marks.encode().hex() if checkpoint and checkpoint.index else "",
            len(stored.slots) if stored is not None else 0,
            stored.deleted_floor if stored is not None else None,
            is_replica=bool(config.get("stores")) or bool(stored and stored.group_key),
        )

    def _out_of_place(self, root: Path, name: str) -> None:
        """Report folders that cannot be listed, and stray files in the others."""
        for folder, why in unlisted(root):
            text = f"expected a folder that can be listed, found: {why}"
            self._problem("damaged", text, f"{name}/{folder.relative_to(root)}")
        for path, expected in islice(strays(root), _STRAYS_MAX):
            text = f"expected {expected}, found what belongs to nothing here: it was passed over"
            self._problem(STRAY, text, f"{name}/{path.relative_to(root)}")

    def _stored(self, root: Path, name: str) -> StoredState | None:
        """Read the state store; None if it cannot be read, which is reported."""
        shown = f"{name}/{STATE_DIRECTORY}"
        try:
            stored = read_state(root)
        except SlotwheelError as error:
            text = str(error)
            if isinstance(error, Damaged):
                text = f"expected {error.expected}, found {error.found}"
            self._problem("damaged", text, shown)
            return None
        parts = (sizes(root / part) for part in (JOURNAL_DIRECTORY, SLOT_DIRECTORY))
        if stored is None and any(parts):
            text = "expected a state store, which says what slot files hold and is pending; found"
            self._problem("missing", f"{text} none", shown)
        return stored

    def _is_anothers(
        self, root: Path, name: str, stored: StoredState, segments: Sequence[tuple[Path, bool]]
    ) -> bool:
        """Whether the state store is not that of these segments, which is reported."""
        why = not_its_own(stored, segments)
        if why is not None:  # a running node may have gone on since the state was read
            why = not_its_own(read_state(root) or stored, segments)
        if why is not None:
            self._problem(*why, f"{name}/{STATE_DIRECTORY}")
        return why is not None

    def _schedules(self, stored: StoredState, name: str) -> None:
        """Note the schedules of a state store: their journals may be gone long since."""
        where = f"{name}/{STATE_DIRECTORY}"
        for schedule, record in stored.schedules.items():
            try:
                known = decode_schedule(record, where)
            except Damaged as error:
                text = f"expected {error.expected}, found {error.found}"
                self._problem("damaged", f"schedule {schedule!r}: {text}", where)
                continue
            self.layout.schedules[schedule, known.version] = known.spec

    def _same_group(self, config: dict[str, Any], name: str) -> bool:
        group, key = str(config.get("group", "")), str(config.get("key", ""))
        layout = self.layout
        if not group or (layout.group, layout.key) in (("", ""), (group, key)):
            layout.group, layout.key = group or layout.group, key or layout.key
            return True
        what = "another group" if group != layout.group else "a group of the same name, another key"
        self._problem("foreign", f"expected group {layout.group}, found {what}: {group}", name)
        return False

    def _long_ids(self, config: Mapping[str, Any], epoch: int | None) -> None:
        """Note from which offset on ids are long. A checkpoint's configuration is committed; of
        those in journals, one of an earlier epoch may have been cut off on the other peers."""
        known = math.inf if epoch is None else epoch
        if LONG_FROM in config and known > self.long_ids_by:
            self.layout.long_from, self.long_ids_by = int(config[LONG_FROM]), known

    def _is_copy(self, stored: StoredState | None, name: str) -> bool:
        """Whether a directory is a copy of an earlier one: they would agree, and count twice."""
        if stored is None or not stored.store_id:
            return False
        other = self.stores.setdefault(stored.store_id, name)
        if other != name:
            text = f"expected another peer's directory, found a copy of {other}: give its own"
            self._problem("foreign", text, name)
        return other != name

    def _slots(
        self, root: Path, peer: int, name: str, stored: StoredState | None
    ) -> Iterator[File]:
        live = list(self._live_slots(root, peer, name, stored))
        known = {(file.slot, file.length, file.crc) for file in live}
        yield from live
        if not self.wanted.archive:
            return
        for path in sorted((root / ARCHIVE_DIRECTORY).glob(f"*/{SLOT_DIRECTORY}/*")):
            shown = f"{name}/{path.relative_to(root)}"
            try:
                slot, length, crc = parse_archived_slot(path.name)
            except ValueError:
                continue
            # A node moved it between two listings: it is in both.
            if (slot, length, crc) in known or not self.wanted.slot(slot):
                continue
            yield File(-1, SLOT, str(path), shown, length, peer, True, slot, length, crc)

    def _live_slots(
        self, root: Path, peer: int, name: str, stored: StoredState | None
    ) -> Iterator[File]:
        directory = root / SLOT_DIRECTORY
        there = sizes(directory)
        is_unlisted = why_unlisted(directory) is not None
        if stored is None:
            for found, size in sorted(there.items()):
                slot = slot_of_name(found)
                if slot is not None and self.wanted.slot(slot):
                    shown = f"{name}/{SLOT_DIRECTORY}/{found}"
                    yield File(-1, SLOT, str(directory / found), shown, size, peer, slot=slot)
            return
        for slot, info in sorted(stored.slots.items()):
            if not self.wanted.slot(slot):
                continue
            shown = f"{name}/{path_of(slot)}"
            if is_unlisted:
                self.layout.missing_slots.append((peer, (begins_ms(slot), ends_ms(slot))))
                continue
            if file_name(slot) not in there and self._is_missing(root, slot):
                self._problem("missing", f"expected {info.length} bytes, found no file", shown)
                self.layout.missing_slots.append((peer, (begins_ms(slot), ends_ms(slot))))
                continue
            path = str(directory / file_name(slot))
            yield File(
                -1,
                SLOT,
                path,
                shown,
                info.length,
                peer,
                slot=slot,
                length=info.length,
                crc=info.crc,
                rows=info.rows,
            )

    @staticmethod
    def _is_missing(root: Path, slot: int) -> bool:
        """Whether a slot file is missing, and still is in the state when that is read again."""
        try:
            stored = read_state(root)
        except SlotwheelError:
            return True
        if stored is None or slot not in stored.slots:
            return False
        return not (root / path_of(slot)).exists()


def with_topics(layout: Layout) -> Layout:
    """The layout with those segments of embedded topics that are new since it was made."""
    known = {file.path for file in layout.files}
    files = list(layout.files)
    for number, peer in enumerate(layout.peers):
        for file in _topics(Path(peer.root), number, peer.name):
            if file.path not in known:
                files.append(replace(file, number=len(files)))
    return replace(layout, files=files)


def _journal(
    segments: Sequence[tuple[Path, bool]],
    peer: int,
    name: str,
    root: Path,
    stored: StoredState | None,
    wanted: FileFilter,
) -> Iterator[File]:
    if not segments:
        return
    ends = [index_of(after[0].name) for _, after in pairwise(segments)]
    ends.append(stored.checkpoint.index + 1 if stored is not None else -1)
    for (path, archived), end in zip(segments, ends, strict=True):
        if archived and not wanted.archive:
            continue
        # Behind an archived segment some may rightly be missing: the node ran without an archive
        # for a while, the disk was full, a day was deleted, or the peer fetched a snapshot.
        must_end = -1 if archived else end
        is_last = (path, archived) == segments[-1] and not archived
        nbytes, kept_ms = 0, -1
        with suppress(OSError):
            status = path.stat(follow_symlinks=False)
            nbytes, kept_ms = status.st_size, status.st_mtime_ns // 1_000_000
        yield File(
            -1,
            JOURNAL,
            str(path),
            f"{name}/{path.relative_to(root)}",
            nbytes,
            peer,
            archived,
            first=index_of(path.name),
            end=must_end,
            kept_ms=kept_ms if archived else -1,
            is_last=is_last,
            store=stored.store_id.hex() if stored is not None else "",
        )


def _single(path: Path, kind: str) -> File:
    return File(-1, kind, str(path.resolve()), path.name, path.stat().st_size)


def _topics(root: Path, peer: int, name: str) -> Iterator[File]:
    """List all segments of all topics; also a missing one at the begin of a topic."""
    base = root / TOPICS_DIRECTORY
    for topic in topic_folders(root):
        there = sizes(base / topic)
        firsts = {_first_of(found) for found in there} - {None}
        firsts |= {0} if firsts else set()
        ordered = sorted(first for first in firsts if first is not None)
        for first, following in zip_longest(ordered, ordered[1:], fillvalue=-1):
            data = f"{first:020d}{SEGMENT_SUFFIX}"
            is_set_aside = f"{first:020d}{DAMAGED_SUFFIX}" in there
            yield File(
                -1,
                TOPIC,
                str(base / topic / data),
                f"{name}/{TOPICS_DIRECTORY}/{topic}/{data}",
                there.get(data, 0),
                peer,
                first=first,
                end=-1 if is_set_aside else following,
                topic=topic,
            )


def _first_of(name: str) -> int | None:
    """First position of a topic's segment, by the name of one of its files."""
    stem, dot, suffix = name.partition(".")
    return first_position_of(f"{stem}{INDEX_SUFFIX}") if f"{dot}{suffix}" in _OF_SEGMENTS else None
