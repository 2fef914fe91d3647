"""The comparison of two peers' journals, entry by entry, in one pass over both.

Theory: Raft's log matching says that two entries of the same index and the same epoch are the same
entry, and that all before them are the same too. So the bytes of such a pair must be equal. Where
the epochs differ the journals part. That is no fault as long as one of the two ends was never
committed: its peer will cut it. It is a fault if both are known to be committed: by the peer's own
checkpoint, or by a later mark in the same log whose ``L`` reaches an entry's rows.

Rules
- Nothing is changed. At most one entry of each journal is in memory, but for the rows that are in
  no slot file yet, which a node keeps in memory as well.
- Whether a journal is sound in itself is checked by ``verify/journal.py``. Bytes that cannot be
  read end the comparison, and are a problem unless they are the end of the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from ...wheel.errors import Damaged, UnsupportedVersion
from ...wheel.files import Files
from ...wheel.journal.entry import Entry, EntryKind
from ...wheel.journal.epochs import Epochs
from ...wheel.journal.payloads import decode_rows
from ...wheel.journal.scan import LocatedEntry, walk
from ...wheel.journal.segment import (
    DIRECTORY,
    SEGMENT_BYTES,
    SegmentHeader,
    index_of,
    is_segment_name,
)
from ...wheel.mark import Marks
from ...wheel.state import StoredState
from ...wheel.tail.tail import Piece, piece_of

PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True)
class PeerDirectory:
    """One data directory. ``name``: for the report."""

    name: str
    files: Files
    stored: StoredState


@dataclass(slots=True)
class Agreement:
    """Counts of what was compared, and each difference. The peers agree without ``problems``."""

    problems: list[str] = field(default_factory=list)
    """Differences that are faults, the first ones of each kind first; at most 100."""
    notes: list[str] = field(default_factory=list)
    """Differences that are none: an end that was not committed, parts that only one peer has."""
    entries: int = 0
    """Entries that both journals hold, byte-equal."""
    first_index: int = 0
    """The first and the last entry that were compared; 0 if the journals share none."""
    last_index: int = 0
    slots: int = 0
    """Seconds of which one or both have rows."""
    rows: int = 0
    """Rows that both hold, equal in every column."""
    next_offset: int = 0
    """Rows below this offset were compared: both peers have received that much."""

    @property
    def agrees(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


class PeerJournal:
    """One peer in the comparison: what its checkpoint and the entries read so far show."""

    def __init__(self, peer: PeerDirectory) -> None:
        checkpoint = peer.stored.checkpoint
        self.peer = peer
        self.pieces: list[Piece] = []
        """Rows behind the checkpoint, up to where the journals part."""
        self.next_offset = checkpoint.next_offset
        """One behind the last offset before they part."""
        self.marks = checkpoint.marks
        """The newest mark of checkpoint and journal: slot files are deleted by it."""
        self.parted = 0
        """The first index at which the other peer has a different entry; 0 if there is none."""
        self.first_marks: Marks | None = None
        self.last_marks: Marks | None = None
        self.seen_marks: set[int] = set()
        self.epochs = Epochs(checkpoint.index, checkpoint.epoch)
        self.ends: dict[int, int] = {}
        """Next offset behind an entry, by the index of a checkpoint."""
        self.proven = checkpoint.index
        """The highest index that is known to be committed."""
        self._proven_offset = checkpoint.next_offset
        self._unproven: deque[tuple[int, int]] = deque()  # (index, offset behind it)

    def add(self, entry: Entry, path: str) -> None:
        """Add the next entry.

        Errors: ``Damaged``, ``UnsupportedVersion``: the payload does not fit its kind.
        """
        self.epochs.append(entry.index, entry.epoch)
        end = entry.base_offset + entry.count
        if not self.parted:
            self.next_offset = max(self.next_offset, end)
        if entry.index in self.ends:
            self.ends[entry.index] = end
        if entry.kind is EntryKind.MARK:
            self._add_marks(Marks.decode(bytes(entry.payload), path))
        elif entry.kind is EntryKind.ROWS:
            if entry.count and entry.index > self.proven:
                self._unproven.append((entry.index, end))
            if entry.index > self.peer.stored.checkpoint.index and not self.parted:
                rows = decode_rows(entry, path)
                self.pieces.append(piece_of(entry.base_offset, rows, entry.index))

    def _add_marks(self, marks: Marks) -> None:
        self.first_marks = self.first_marks or marks
        self.last_marks = marks
        self.seen_marks.add(key_of(marks))
        if progress(marks) >= progress(self.marks):
            self.marks = marks
        # Rows up to L were committed when the master that wrote this log made the mark.
        while self._unproven and self._unproven[0][1] <= marks.main.L + 1:
            self.proven, self._proven_offset = self._unproven.popleft()

    def forget_unproven(self) -> None:
        """Drop what is not known to be committed: it cannot be compared with the other peer."""
        self.pieces = [piece for piece in self.pieces if piece.index <= self.proven]
        self.next_offset = min(self.next_offset, self._proven_offset)


def progress(marks: Marks) -> tuple[int, ...]:
    """A key that orders the marks of a log: each part only grows, until there is another reset."""
    main = marks.main
    counted = marks.covered + marks.cancels + marks.delivered + marks.dead + marks.expired
    return marks.resets, main.L, main.c, main.r, counted


def key_of(marks: Marks) -> int:
    """A hash of marks without their epoch, as another epoch may repeat a mark."""
    return hash(replace(marks, epoch=0).encode())


class _Pass:
    """A walk through one journal, entry by entry."""

    def __init__(self, log: PeerJournal, agreement: Agreement) -> None:
        self._log = log
        self._agreement = agreement
        self._entries = self._walk()
        self.path = DIRECTORY
        self.located: LocatedEntry | None = None
        self.step()

    @property
    def index(self) -> int | None:
        return None if self.located is None else self.located.entry.index

    def step(self) -> None:
        self.located = next(self._entries, None)

    def take(self) -> None:
        """Add the current entry to its peer, and step to the next."""
        assert self.located is not None
        try:
            self._log.add(self.located.entry, self.path)
        except (Damaged, UnsupportedVersion) as error:
            self._agreement.problem(f"{self._log.peer.name}: entry {self.index}: {error}")
        self.step()

    def _walk(self) -> Iterator[LocatedEntry]:
        peer = self._log.peer
        names = [name for name in peer.files.list(DIRECTORY) if is_segment_name(name)]
        expected = epoch = 0
        for name in names:
            self.path = f"{DIRECTORY}/{name}"
            try:
                if not expected:
                    self._log.epochs = self._base()
                    epoch = self._log.epochs.base_epoch
                elif index_of(name) != expected:
                    raise Damaged(
                        self.path, 16, expected=f"first index {expected}", found=index_of(name)
                    )
                expected = index_of(name)
                for located in walk(peer.files, self.path):
                    if located.entry.epoch < epoch:
                        raise Damaged(
                            self.path,
                            located.position,
                            expected=f"epoch {epoch} or later",
                            found=located.entry.epoch,
                        )
                    expected, epoch = located.entry.index + 1, located.entry.epoch
                    yield located
            except FileNotFoundError:
                self._agreement.notes.append(f"{peer.name}: {self.path} was dropped meanwhile")
                expected = 0
            except (Damaged, UnsupportedVersion) as error:
                if name == names[-1] and isinstance(error, Damaged):
                    self._agreement.notes.append(f"{peer.name}: the journal ends early: {error}")
                else:
                    self._agreement.problem(f"{peer.name}: {error}")
                return

    def _base(self) -> Epochs:
        with closing(self._log.peer.files.open(self.path)) as handle:
            header = SegmentHeader.decode(handle.pread(SEGMENT_BYTES, 0), self.path)
        return Epochs(header.durable_index, header.last_epoch)


def compare_journals(left: PeerJournal, right: PeerJournal, agreement: Agreement) -> None:
    """Walk through both journals, compare shared entries, and fill in ``left`` and ``right``."""
    left_pass, right_pass = _Pass(left, agreement), _Pass(right, agreement)
    while left_pass.located is not None and right_pass.located is not None:
        ours, theirs = left_pass.located.entry, right_pass.located.entry
        if ours.index < theirs.index:
            left_pass.take()
        elif ours.index > theirs.index:
            right_pass.take()
        elif ours.epoch != theirs.epoch:
            left.parted = right.parted = ours.index
            break
        else:
            _compare(left_pass, right_pass, agreement)
            left_pass.take()
            right_pass.take()
    for rest in (left_pass, right_pass):
        while rest.located is not None:
            rest.take()
    if not agreement.last_index and not _meet(left, right):
        left.forget_unproven()
        right.forget_unproven()
    if left.parted:
        _judge(left, right, left.parted, agreement)
        return
    ends = left.epochs.last_index, right.epochs.last_index
    if not agreement.last_index:
        agreement.notes.append("the journals share no entry")
    if ends[0] != ends[1]:
        behind = left if ends[0] < ends[1] else right
        agreement.notes.append(f"{behind.peer.name} is {abs(ends[0] - ends[1])} entries behind")


def _meet(left: PeerJournal, right: PeerJournal) -> bool:
    """True if one journal has, or ends with, the entry before the other's first one."""
    index = max(left.epochs.base_index, right.epochs.base_index)
    epoch = left.epochs.epoch_at(index)
    return epoch is not None and epoch == right.epochs.epoch_at(index)


def _compare(left: _Pass, right: _Pass, agreement: Agreement) -> None:
    assert left.located is not None
    assert right.located is not None
    ours, theirs = left.located.entry, right.located.entry
    agreement.first_index = agreement.first_index or ours.index
    agreement.last_index = ours.index
    if all(a == b for a, b in zip(ours.encode(), theirs.encode(), strict=True)):
        agreement.entries += 1
        return
    agreement.problem(
        f"entry {ours.index} of epoch {ours.epoch} is not the same: {_difference(ours, theirs)}"
        f" ({left.path} at byte {left.located.position},"
        f" {right.path} at byte {right.located.position})"
    )


def _difference(ours: Entry, theirs: Entry) -> str:
    for name in ("version", "kind", "flags", "count", "base_offset", "producer", "sequence"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            return f"{name.replace('_', ' ')} {int(a)} and {int(b)}"
    a, b = bytes(ours.payload), bytes(theirs.payload)
    if len(a) != len(b):
        return f"payload of {len(a)} and {len(b)} bytes"
    at = next(at for at in range(len(a)) if a[at] != b[at])
    return f"{ours.kind.name.lower()} payload, from byte {at} on"


def _judge(left: PeerJournal, right: PeerJournal, index: int, agreement: Agreement) -> None:
    text = " and ".join(
        f"{log.peer.name} has entries {index} to {log.epochs.last_index}, the first of epoch"
        f" {log.epochs.epoch_at(index)}"
        for log in (left, right)
    )
    if index <= min(left.proven, right.proven):
        agreement.problem(
            f"{text}: two histories, and both are committed, up to {left.proven} and {right.proven}"
        )
    else:
        agreement.notes.append(f"{text}: an uncommitted end, which one of them will cut")
